"""The book's site: build it from pages and notebooks, check it, show it."""

from core.report.site.build import build
from core.report.site.check import check
from core.report.site.serve import screenshots, serve

__all__ = ["build", "check", "screenshots", "serve"]
