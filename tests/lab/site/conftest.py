"""A browser and a server for the tests of the site."""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import InputError
from lab.report.site import printing


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about single requests."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(printing.browser())
        except InputError as error:
            pytest.skip(str(error))
        yield opened


@pytest.fixture(scope="session")
def served() -> Iterator[Callable[[Path], str]]:
    """Call it with a folder: it is served until the tests end, at the address that it returns."""
    with contextlib.ExitStack() as stack:

        def serve(folder: Path) -> str:
            handler = functools.partial(Quiet, directory=str(folder))
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield serve
