"""The built site as one PDF: Chromium without a window, by Playwright."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.errors import InputError
from lab.report.notebooks import needed
from lab.report.site.pipeline import HTML, pages

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: what keeps Chromium from asking the network for anything of its own
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
]
#: what a reader unfolds on the screen is left out on paper
_PREPARE = "document.querySelectorAll('.dropdown, details').forEach(one => one.remove())"
_PAPER = {
    "format": "A4",
    "scale": 0.69,
    "margin": {"top": "12mm", "bottom": "14mm", "left": "12mm", "right": "12mm"},
    "print_background": True,
    "display_header_footer": True,
    "header_template": "<span></span>",
    "footer_template": '<div style="font-size:8px;width:100%;text-align:center">'
    '<span class="pageNumber"></span></div>',
}


def executable() -> str | None:
    """The path of Chromium or Chrome: $CHROMIUM, or the first one on the PATH."""
    named = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A running browser (Playwright's `Browser`). Raises InputError where there is none."""
    playwright, path = needed("playwright.sync_api"), executable()
    if path is None:
        raise InputError(
            "no Chromium or Chrome was found (Debian: apt-get install chromium; elsewhere set "
            "CHROMIUM to its path)"
        )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


def visit(view: Any, url: str) -> None:
    """Load a page and wait until its equations are set."""
    view.goto(url, wait_until="load")
    view.evaluate(
        "async () => { if (document.querySelector('.math') && window.MathJax?.startup)"
        " await window.MathJax.startup.promise; }"
    )


def pdf(target: Path, names: list[str] | None = None) -> Path:
    """Print the built site, or some pages, as a PDF with an outline, without folded lists and solutions.
    InputError without a site, a browser or pypdf, and for an unknown page.
    """
    wanted, writer = pages(names), needed("pypdf").PdfWriter()
    if not (HTML / "index.html").is_file():
        raise InputError(f"there is no site in {HTML}; `make book` builds it")
    with browser() as chromium:
        view = chromium.new_page(color_scheme="light")
        for page in wanted:
            visit(view, (HTML / f"{page}.html").as_uri())
            view.evaluate(_PREPARE)
            title = view.title().split(" — ")[0]
            writer.append(io.BytesIO(view.pdf(**_PAPER)), outline_item=title)
    target.parent.mkdir(parents=True, exist_ok=True)
    writer.write(target)
    print(f"{len(writer.pages)} pages in {target}")
    return target
