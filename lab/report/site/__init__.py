"""The book's site: build it from pages and notebooks, print it, make slides of it."""

from lab.report.site.pipeline import build
from lab.report.site.printing import pdf
from lab.report.site.slides import lessons, write_slides

__all__ = ["build", "lessons", "pdf", "write_slides"]
