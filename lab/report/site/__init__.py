"""The book's site: build it from pages and notebooks, check it, show it."""

from lab.report.site.checking import check
from lab.report.site.pipeline import build, execute
from lab.report.site.printing import pdf
from lab.report.site.serving import screenshots, serve
from lab.report.site.slides import write_slides

__all__ = ["build", "check", "execute", "pdf", "screenshots", "serve", "write_slides"]
