"""Show the built site on this machine, and take pictures of its pages."""

from __future__ import annotations

import contextlib
import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from core.errors import InputError
from lab.report.site import browser
from lab.report.site.pipeline import HTML, named_pages

SIZES = {"desktop": browser.DESKTOP, "phone": browser.PHONE}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about single requests."""


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A reader who leaves before a file has arrived is no fault; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def built(folder: Path) -> Path:
    """The folder of a built site. Raises InputError, which says how to build one, where there is none."""
    if not (folder / "index.html").is_file():
        raise InputError(f"there is no site in {folder}; `make book` builds it")
    return folder


def _server(folder: Path, port: int) -> _Server:
    built(folder)
    return _Server(("127.0.0.1", port), functools.partial(_Quiet, directory=str(folder)))


@contextlib.contextmanager
def serving(folder: Path = HTML) -> Iterator[str]:
    """Serve a folder on the loopback address while the block runs, and give its address."""
    server = _server(folder, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve(port: int = 8000) -> None:
    """Serve the site on localhost until Ctrl-C; another free port is taken when this one is in
    use.
    """
    try:
        server = _server(HTML, port)
    except OSError:
        server = _server(HTML, 0)
    print(f"The book: http://127.0.0.1:{server.server_address[1]}/   (Ctrl-C ends)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()


def screenshots(dest: str | Path, pages: list[str] | None = None) -> list[Path]:
    """Take a picture of every page, or of some, at desktop and phone width, light and dark, into a
    folder.

    Raises InputError for an unknown page, and when no browser is found.
    """
    wanted = named_pages(pages)
    folder = Path(dest)
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with serving() as address, browser.opened() as chromium:
        for name, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                context = chromium.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                view = context.new_page()
                for page in wanted:
                    browser.visit(view, f"{address}/{page}.html")
                    target = folder / f"{page.replace('/', '-')}-{name}-{scheme}.png"
                    view.screenshot(path=str(target), full_page=True)
                    taken.append(target)
                context.close()
    print(f"{len(taken)} pictures in {folder}")
    return taken
