"""What is wrong with a page of a built site, in its file and in a browser, as one sentence each."""

from __future__ import annotations

import functools
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

from lab.report.site import printing

#: kinds of <link> that a browser fetches; the others (canonical, license, next ...) only name something
FETCHED = {
    *("stylesheet", "preload", "prefetch", "modulepreload", "icon", "manifest"),
    *("preconnect", "dns-prefetch"),
}
#: pixels of two screens
DESKTOP, PHONE = (1280, 900), 390
ELSEWHERE = re.compile(r"(https?:)?//")
_PLACE = re.compile(r"""\s(?:id|name)=["']([^"']+)""")
_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
_IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)")
_IN_SCRIPT = re.compile(r"\bimport\b[^;\n]*[\"']((?:https?:)?//[^\"']+)")


@functools.cache
def read(page: Path) -> Any:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


@functools.cache
def anchors(page: Path) -> set[str]:
    """The places that a link may name; found in the text, since most pages are linked by all."""
    return set(map(unescape, _PLACE.findall(page.read_text(encoding="utf-8"))))


def problems(site: Path, name: str) -> list[str]:
    """What is wrong with the file of a page."""
    page = site / f"{name}.html"
    return [*undescribed(page), *broken_links(site, page), *fetched_elsewhere(page)]


def undescribed(page: Path) -> list[str]:
    """Images and drawings without a description; a file name, which Sphinx puts there, is none."""
    drawings = read(page).select(".core-figure svg")
    found = [
        "a drawing has no aria-label" for one in drawings if not one.get("aria-label", "").strip()
    ]
    for image in read(page).find_all("img"):
        alt = image.get("alt", "").strip()
        decorative = image.get("role") == "presentation" or image.get("aria-hidden") == "true"
        if not decorative and (not alt or re.fullmatch(r"\S+\.(png|jpe?g|svg|gif|webp)", alt)):
            found.append(f"the image {image.get('src', '')[:80]} has no alt text")
    return found


def stated(site: Path, name: str) -> list[dict[str, str]]:
    """The measured lines of a page's lists of cells that a command runs, by the names of their columns."""
    text, found = (site / f"{name}.html").read_text(encoding="utf-8"), []
    for table in (one for one in _TABLE.findall(text) if "run --cell" in one):
        lines = BeautifulSoup(table, "html.parser").find_all("tr")
        heads, *rows = [[cell.text for cell in line.find_all(["th", "td"])] for line in lines]
        found += [dict(zip(heads, row, strict=True)) for row in rows]
    return [row for row in found if row.get("measured") and row["command"]]


def broken_links(site: Path, page: Path) -> list[str]:
    """Links to files or places of the site that do not exist."""
    found = []
    for tag in read(page).find_all(["a", "img", "script", "link", "source", "iframe"]):
        for target in filter(None, (tag.get("href"), tag.get("src"))):
            parts = urlsplit(target)
            place = unquote(parts.fragment)
            if parts.scheme or target.startswith("//"):
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
            if site.resolve() not in file.parents:
                found.append(f"the link {target} leaves the site")
            elif not file.is_file():
                found.append(f"the link {target} leads nowhere")
            elif place and file.suffix == ".html" and place not in anchors(file):
                found.append(f"the link {target} names a place that its page does not have")
    return found


def fetched_elsewhere(page: Path) -> list[str]:
    """Scripts, styles, fonts and images that a browser would fetch from another server."""
    found = []
    for tag in read(page).find_all(
        ["script", "img", "iframe", "source", "embed", "object", "link"]
    ):
        if tag.name != "link" or FETCHED & set(tag.get("rel", [])):
            keys = ("src", "srcset", "data", "poster", "href")
            found += [tag[key] for key in keys if ELSEWHERE.match(tag.get(key, ""))]
    found += [url for tag in read(page).find_all("style") for url in _IN_STYLE.findall(tag.text)]
    found += [url for tag in read(page).find_all("script") for url in _IN_SCRIPT.findall(tag.text)]
    return [f"{url} is fetched from another server" for url in found]


def styles_elsewhere(site: Path) -> list[str]:
    """What style sheets of the site fetch from other servers."""
    texts = {
        file: file.read_text(encoding="utf-8", errors="replace") for file in site.rglob("*.css")
    }
    return [
        f"{file.name}: {url}" for file, text in texts.items() for url in _IN_STYLE.findall(text)
    ]


#: the beginnings of tables that are cut at the right, and whether the contents show the page's own entry
_LAYOUT = """() => {
  const cut = [...document.querySelectorAll('.bd-article table')].filter(table => {
    const box = table.closest('.cell_output, .pst-scrollable-table-container');
    return table.offsetParent && box && box.scrollWidth > box.clientWidth + 2;
  });
  const own = document.querySelector('.bd-sidebar-primary .current.active')?.getBoundingClientRect();
  const seen = !own || (own.top >= 0 && own.bottom <= innerHeight);
  return [cut.map(table => table.textContent.trim().slice(0, 60)), seen];
}"""


class Visitor:
    """A browser's view (Playwright's `Page`) of a served site that notes what goes wrong."""

    def __init__(self, chromium: Any, address: str) -> None:
        self.address, self.noted = address, list[str]()
        screen = dict(zip(("width", "height"), DESKTOP, strict=True))
        self.view = chromium.new_page(viewport=screen, color_scheme="light")
        self.view.on("request", self._request)
        self.view.on("console", self._console)
        self.view.on("pageerror", lambda error: self.noted.append(f"script error: {error}"))
        self.view.on("response", self._response)

    def _request(self, asked: Any) -> None:
        if not asked.url.startswith((self.address, "data:", "blob:", "about:")):
            self.noted.append(f"asks another server for {asked.url}")

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.noted.append(f"console error: {message.text}")

    def _response(self, answer: Any) -> None:
        if answer.status >= 400:
            self.noted.append(f"{answer.url} answers {answer.status}")

    def problems(self, name: str) -> list[str]:
        """Visit a page and say what is wrong: also equations, tables, contents, width on a phone."""
        self.noted.clear()
        printing.visit(self.view, f"{self.address}/{name}.html")
        wanted, rendered, errors = self.view.evaluate(
            "() => [document.querySelectorAll('.math.notranslate').length,"
            " document.querySelectorAll('mjx-container').length,"
            " [...document.querySelectorAll('mjx-merror, [data-mjx-error]')].map(n => n.textContent)]"
        )
        self.noted += [f"an equation shows an error: {text}" for text in errors]
        if rendered < wanted:
            self.noted.append(f"{wanted - rendered} of {wanted} equations are not rendered")
        cut, seen = self.view.evaluate(_LAYOUT)
        self.noted += [f"a table is cut at the right: {text}" for text in cut]
        if not seen:
            self.noted.append("the contents do not show its own entry")
        self.view.set_viewport_size({"width": PHONE, "height": DESKTOP[1]})
        width = self.view.evaluate("document.documentElement.scrollWidth")
        if width > PHONE + 1:  # wide tables scroll inside their own box
            self.noted.append(f"at {PHONE} pixels the page is {width} wide")
        self.view.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
        return self.noted
