"""What Flower runs: both sides are in the package."""

from core.experiments.flower.client import app as client
from core.experiments.flower.server import app as server

__all__ = ["client", "server"]
