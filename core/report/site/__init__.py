"""The book's site: build it from pages and notebooks, check it, show it."""

from core.report.site.checking import check
from core.report.site.pipeline import build
from core.report.site.serving import screenshots, serve

__all__ = ["build", "check", "screenshots", "serve"]
