"""Check a built site by reading its files. Each check returns its findings as one sentence each."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lab.report.listing import WIDTH

#: attributes by tag that make a browser fetch something while it loads a page
FETCHED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "audio": ("src",),
    "video": ("src", "poster"),
    "embed": ("src",),
    "object": ("data",),
    "link": ("href",),
}
#: kinds of <link> that are fetched; the others (canonical, license, next ...) only name something
FETCHED_LINKS = {
    "stylesheet",
    "preload",
    "prefetch",
    "modulepreload",
    "icon",
    "shortcut",
    "manifest",
    "preconnect",
    "dns-prefetch",
}
#: a cell with one of these tags does not show its output, on purpose
SILENT_TAGS = {"remove-output", "remove-cell", "remove_output", "remove_cell"}


@lru_cache(maxsize=512)
def _soup(path: Path) -> Any:
    from bs4 import BeautifulSoup

    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@lru_cache(maxsize=512)
def _anchors(path: Path) -> frozenset[str]:
    return frozenset(
        tag[key] for key in ("id", "name") for tag in _soup(path).find_all(attrs={key: True})
    )


def problems(html: Path, pages: list[str], notebooks: Path | None = None) -> list[str]:
    """Everything wrong with a built site.

    Args:
        html: the site's folder.
        pages: the pages of the table of contents, without suffix.
        notebooks: folder with the executed notebooks that the pages were made from, laid out as the
            pages are.
    """
    _soup.cache_clear()
    _anchors.cache_clear()
    found = [
        f"{page}: the table of contents names it, but it has no HTML"
        for page in pages
        if not _file(html, page).is_file()
    ]
    for page in pages:
        if not _file(html, page).is_file():
            continue
        found += (
            alt_problems(html, page) + link_problems(html, page) + external_problems(html, page)
        )
        if notebooks is not None and (notebooks / f"{page}.ipynb").is_file():
            found += output_problems(html, page, notebooks / f"{page}.ipynb")
    return found + style_problems(html)


def _file(html: Path, page: str) -> Path:
    return html / f"{page}.html"


def alt_problems(html: Path, page: str) -> list[str]:
    """Images and drawings without a description. A file name, which Sphinx puts where none was given,
    does not count as one.
    """
    found, soup = [], _soup(_file(html, page))
    for drawing in soup.select(".core-figure svg"):
        if not (drawing.get("aria-label") or "").strip():
            found.append(f"{page}: a drawing has no aria-label")
    for image in soup.find_all("img"):
        alt = (image.get("alt") or "").strip()
        decorative = image.get("role") == "presentation" or image.get("aria-hidden") == "true"
        if not decorative and (not alt or re.fullmatch(r"\S+\.(png|jpe?g|svg|gif|webp)", alt)):
            found.append(f"{page}: the image {image.get('src', '')[:80]} has no alt text")
    return found


def link_problems(html: Path, page: str) -> list[str]:
    """Links to files or places of the site that do not exist."""
    found, here = [], _file(html, page)
    for tag in _soup(here).find_all(["a", "img", "script", "link", "source", "iframe"]):
        for key in ("href", "src"):
            target = tag.get(key)
            if not target or urlsplit(target).scheme or target.startswith("//"):
                continue
            path, fragment = unquote(urlsplit(target).path), unquote(urlsplit(target).fragment)
            file = (here.parent / path).resolve() if path else here.resolve()
            file = file / "index.html" if file.is_dir() else file
            if html.resolve() not in file.parents:
                found.append(f"{page}: the link {target} leaves the site")
            elif not file.is_file():
                found.append(f"{page}: the link {target} leads nowhere")
            elif fragment and file.suffix == ".html" and fragment not in _anchors(file):
                found.append(f"{page}: the link {target} names a place that its page does not have")
    return found


def external_problems(html: Path, page: str) -> list[str]:
    """Scripts, styles, fonts and images that a reader's browser would fetch from another server."""
    found, soup = [], _soup(_file(html, page))
    for name, keys in FETCHED.items():
        for tag in soup.find_all(name):
            if name == "link" and not FETCHED_LINKS & set(tag.get("rel") or []):
                continue
            found += [
                f"{page}: <{name}> fetches {tag[key]} from another server"
                for key in keys
                if re.match(r"(https?:)?//", tag.get(key) or "")
            ]
    for style in soup.find_all("style"):
        found += [
            f"{page}: a style fetches {url} from another server"
            for url in _style_urls(style.get_text())
        ]
    for script in soup.find_all("script", src=False):
        found += [
            f"{page}: a script imports {url} from another server"
            for url in re.findall(
                r"\bimport\b[^;\n]*[\"']((?:https?:)?//[^\"']+)", script.get_text()
            )
        ]
    return found


def _style_urls(text: str) -> list[str]:
    """Addresses of other servers in a style sheet."""
    found = re.findall(r"url\(\s*[\"']?((?:https?:)?//[^\"')]+)", text)
    return found + re.findall(r"@import\s+[\"']((?:https?:)?//[^\"']+)", text)


def style_problems(html: Path) -> list[str]:
    """Style sheets of the site that fetch from another server."""
    return [
        f"{file.relative_to(html)}: the style sheet fetches {url} from another server"
        for file in sorted(html.rglob("*.css"))
        for url in _style_urls(file.read_text(encoding="utf-8", errors="replace"))
    ]


def output_problems(html: Path, page: str, notebook: Path) -> list[str]:
    """Code cells that were not executed, failed, or whose output does not stand on the page."""
    cells = [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    found, expected = [], 0
    for number, cell in enumerate(cells, start=1):
        found += [f"{page}: code cell {number} {text}" for text in wide_lines(cell)]
        outputs = cell.get("outputs", [])
        if "".join(cell["source"]).strip() and cell.get("execution_count") is None:
            found.append(f"{page}: code cell {number} was not executed")
        if any(output["output_type"] == "error" for output in outputs):
            found.append(f"{page}: code cell {number} ends in an error")
        expected += bool(outputs) and not SILENT_TAGS & set(_tags(cell))
    shown = len(_soup(_file(html, page)).select("div.cell div.cell_output"))
    if shown < expected:
        found.append(f"{page}: {expected} code cells have outputs, but the page shows {shown}")
    return found


def wide_lines(cell: dict[str, Any]) -> list[str]:
    """What a code cell shows in lines that are wider than a page: its code, and what it prints."""
    shown = {"code": "".join(cell["source"])} if "remove-cell" not in _tags(cell) else {}
    streams = [one for one in cell.get("outputs", []) if one["output_type"] == "stream"]
    shown["a printed line"] = "\n".join("".join(one["text"]) for one in streams)
    widths = {
        what: max((len(line) for line in text.splitlines()), default=0)
        for what, text in shown.items()
    }
    return [f"shows {what} of {width} columns" for what, width in widths.items() if width > WIDTH]


def _tags(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])
