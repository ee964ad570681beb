"""The book as one PDF: Chromium prints every page of the built site, pypdf puts them together."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from core.errors import InputError
from lab.report.site import browser
from lab.report.site.pipeline import BUILD, named_pages
from lab.report.site.serving import serving

PDF = BUILD / "book.pdf"
_MARGIN = {"top": "16mm", "bottom": "16mm", "left": "14mm", "right": "14mm"}
_FOOT = (
    '<div style="font-size:8px;width:100%;text-align:center"><span class="pageNumber"></span></div>'
)
#: what a reader unfolds on the screen is left out on paper, but for the findings of the first page
_PREPARE = """document.querySelectorAll('.dropdown, details:not(.finding)').forEach(one => one.remove());
document.querySelectorAll('details.finding').forEach(one => { one.open = true })"""


def pdf(target: Path = PDF, pages: list[str] | None = None) -> Path:
    """Print the built site, or some of its pages, into one PDF with an outline; folded lists and
    solutions are left out. Raises InputError without a site, a browser or pypdf, and for an unknown
    page.
    """
    wanted = named_pages(pages)
    if not importlib.util.find_spec("pypdf"):
        raise InputError("the PDF needs the package pypdf: pip install pypdf")
    from pypdf import PdfWriter

    writer = PdfWriter()
    with serving() as address, browser.opened() as chromium:
        view = chromium.new_page(color_scheme="light")
        for page in wanted:
            browser.visit(view, f"{address}/{page}.html")
            title = view.title().split(" — ")[0]
            writer.append(io.BytesIO(_printed(view)), outline_item=title)
    target.parent.mkdir(parents=True, exist_ok=True)
    writer.write(target)
    print(f"{len(writer.pages)} pages in {target}")
    return target


def _printed(view: Any) -> bytes:
    view.evaluate(_PREPARE)
    return view.pdf(
        format="A4",
        margin=_MARGIN,
        print_background=True,
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=_FOOT,
    )
