"""Check a site in a real browser: Chromium without a window, driven by playwright."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Any

from core.errors import InputError

#: the last five keep Chromium from asking the network for anything of its own
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DESKTOP, PHONE = (1280, 900), (390, 844)
WAIT_MS = 30_000


def executable() -> str | None:
    """The path of Chromium or Chrome: $CHROMIUM, or the first one on the PATH."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> str | None:
    """What a browser check lacks on this machine, as a sentence with its remedy, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is missing (pip install playwright)"
    if executable() is None:
        return (
            "no Chromium or Chrome was found (Debian: apt-get install chromium; elsewhere "
            "set CHROMIUM to its path)"
        )
    return None


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """A running browser (playwright's `Browser`). Raises InputError when there is none."""
    lacking = missing()
    if lacking is not None:
        raise InputError(lacking)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def visit(view: Any, url: str) -> None:
    """Load a page and wait until its equations are set."""
    view.goto(url, wait_until="load", timeout=WAIT_MS)
    view.evaluate(
        "async () => { if (document.querySelector('.math') && window.MathJax?.startup)"
        " await window.MathJax.startup.promise; }"
    )


def problems(address: str, pages: list[str], word: str = "federated") -> list[str]:
    """Everything wrong with a served site as a reader would meet it.

    Args:
        address: where the site is served, without a final slash.
        pages: the pages of the table of contents, without suffix.
        word: what the search must find.
    """
    found: list[str] = []
    with opened() as chromium:
        view = chromium.new_page(viewport=_size(DESKTOP), color_scheme="light")
        heard = _listen(view, address)
        for page in pages:
            visit(view, f"{address}/{page}.html")
            view.set_viewport_size(_size(PHONE))
            found += [f"{page}: {text}" for text in _width_problems(view)]
            view.set_viewport_size(_size(DESKTOP))
            found += [f"{page}: {text}" for text in _equation_problems(view)]
            found += _take(heard, page)
        found += _theme_problems(view, f"{address}/{pages[0]}.html") + _take(heard, "dark mode")
        found += _search_problems(view, address, word) + _take(heard, "search")
    return found


def _size(pixels: tuple[int, int]) -> dict[str, int]:
    return {"width": pixels[0], "height": pixels[1]}


def _take(heard: list[str], where: str) -> list[str]:
    """What was heard since the last call, with the place where it was heard."""
    found = [f"{where}: {text}" for text in heard]
    heard.clear()
    return found


def _listen(view: Any, address: str) -> list[str]:
    """Collect console errors, failed requests, and requests to other servers, which are refused."""
    heard: list[str] = []

    def route(handler: Any) -> None:
        url = handler.request.url
        if url.startswith((address, "data:", "blob:", "about:")):
            handler.continue_()
        else:
            heard.append(f"asks another server for {url}")
            handler.abort()

    def console(message: Any) -> None:
        if message.type == "error":
            heard.append(f"console error: {message.text[:200]}")

    def response(answer: Any) -> None:
        if answer.status >= 400:
            heard.append(f"{answer.url} answers {answer.status}")

    view.route("**/*", route)
    view.on("console", console)
    view.on("response", response)
    view.on("pageerror", lambda error: heard.append(f"script error: {str(error)[:200]}"))
    view.on("requestfailed", lambda request: _failed(request, address, heard))
    return heard


def _failed(request: Any, address: str, heard: list[str]) -> None:
    # leaving a page ends what it was still loading; that is no fault
    if request.url.startswith(address) and request.failure != "net::ERR_ABORTED":
        heard.append(f"the request for {request.url} failed: {request.failure}")


def _equation_problems(view: Any) -> list[str]:
    wanted, rendered, errors = view.evaluate(
        "() => [document.querySelectorAll('.math.notranslate').length,"
        " document.querySelectorAll('mjx-container').length,"
        " [...document.querySelectorAll('mjx-merror, [data-mjx-error]')].map(node => node.textContent)]"
    )
    found = [f"an equation shows an error: {text[:80]}" for text in errors]
    if rendered < wanted:
        found.append(f"{wanted - rendered} of {wanted} equations are not rendered")
    return found


def _theme_problems(view: Any, url: str) -> list[str]:
    """The theme button must reach both light and dark, and the background must follow."""
    visit(view, url)
    state = "() => [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]"
    seen = {tuple(view.evaluate(state))}
    for _ in range(3):
        view.locator("button.theme-switch-button:visible").first.click()
        seen.add(tuple(view.evaluate(state)))
    themes, colours = {theme for theme, _ in seen}, {colour for _, colour in seen}
    return (
        []
        if themes >= {"light", "dark"} and len(colours) >= 2
        else [f"dark mode: the button only gives {sorted(seen)}"]
    )


def _search_problems(view: Any, address: str, word: str) -> list[str]:
    view.goto(f"{address}/search.html?q={word}", wait_until="load", timeout=WAIT_MS)
    try:
        view.wait_for_selector("#search-results ul.search li a", timeout=WAIT_MS)
    except (
        Exception
    ) as error:  # playwright's own time-out class is known only where playwright is imported
        if type(error).__name__ != "TimeoutError":
            raise
        return [f"search: {word!r} is not found"]
    return []


def _width_problems(view: Any) -> list[str]:
    """On a phone nothing may be wider than the screen; wide tables scroll inside their own box."""
    width, wide = view.evaluate(
        "() => [document.documentElement.scrollWidth, [...document.querySelectorAll('article *')]"
        ".filter(node => node.getBoundingClientRect().right > innerWidth + 1)"
        ".filter(node => !node.closest('.math, .cell_output, pre, .pst-scrollable-table-container'))"
        ".slice(0, 3).map(node => node.tagName + ' ' + node.textContent.trim().slice(0, 40))]"
    )
    return (
        []
        if width <= PHONE[0] + 1
        else [f"at {PHONE[0]} pixels the page is {width} wide; see {wide}"]
    )
