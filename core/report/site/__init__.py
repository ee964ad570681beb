"""The book's site: build it from pages and notebooks, check it, show it."""

from core.report.site.checking import check
from core.report.site.pipeline import build, execute
from core.report.site.printing import pdf
from core.report.site.serving import screenshots, serve
from core.report.site.slides import write_slides

__all__ = ["build", "check", "execute", "pdf", "screenshots", "serve", "write_slides"]
