"""What Flower runs: both sides are in the package."""

from lab.flower.client import app as client
from lab.flower.server import app as server

__all__ = ["client", "server"]
