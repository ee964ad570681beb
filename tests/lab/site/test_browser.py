"""The browser check finds what only a browser can see."""

from __future__ import annotations

import importlib.util
import socket
import struct
import time
from pathlib import Path

import pytest

from core.errors import InputError
from lab.report.site import browser, checking
from lab.report.site.serving import serving

_spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)

needs_browser = pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
#: a page that does what a page of the book does: a theme button and a search page that answers
BUTTON = """<button class="theme-switch-button" onclick="const h = document.documentElement;
const dark = h.dataset.theme === 'dark'; h.dataset.theme = dark ? 'light' : 'dark';
document.body.style.backgroundColor = dark ? 'white' : 'black'">theme</button>"""
SEARCH = """<div id="search-results"></div><script>if (location.search.includes('federated'))
document.getElementById('search-results').innerHTML =
'<ul class="search"><li><a href="index.html">found</a></li></ul>'</script>"""
VIEWPORT = '<meta name="viewport" content="width=device-width">'


def checked(folder, body, word="federated"):
    tiny.site(folder, index=VIEWPORT + BUTTON + body, search=SEARCH)
    (folder / "favicon.ico").write_bytes(b"")
    with serving(folder) as address:
        return browser.problems(address, ["index"], word)


@needs_browser
def test_a_sound_page_has_no_problems(tmp_path):
    body = (
        "<article><p>Text</p><span class='math "
        "notranslate'><mjx-container>x</mjx-container></span></article>"
    )
    assert checked(tmp_path, body) == []


@needs_browser
def test_what_is_wrong_with_a_page_is_told(tmp_path):
    body = (
        "<article><script>console.error('oh no'); fetch('gone.json'); throw new Error('broken')</script>"
        "<img src='http://127.0.0.2:1/x.png' alt='x'><span class='math notranslate'>a</span>"
        "<mjx-container><mjx-merror>Undefined control sequence</mjx-merror></mjx-container>"
        "<span class='math notranslate'>b</span>"
        "<div style='width: 900px'>wide</div></article>"
    )
    found = "\n".join(checked(tmp_path, body))
    for said in (
        "console error: oh no",
        "gone.json answers 404",
        "broken",
        "asks another server for http://127.0.0.2:1/x.png",
        "1 of 2 equations are not rendered",
        "shows an error: Undefined",
        "is 9",
    ):
        assert said in found


@needs_browser
def test_a_theme_button_that_does_nothing_and_a_search_that_finds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "WAIT_MS", 1500)
    tiny.site(
        tmp_path,
        index=VIEWPORT + '<button class="theme-switch-button">theme</button>',
        search=SEARCH,
    )
    (tmp_path / "favicon.ico").write_bytes(b"")
    with serving(tmp_path) as address:
        found = browser.problems(address, ["index"], word="absent")
    assert any("dark mode" in text for text in found) and any(
        "'absent' is not found" in text for text in found
    )


def test_no_browser_is_one_clear_sentence(monkeypatch):
    pytest.importorskip("playwright")
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(InputError, match="no Chromium or Chrome was found"), browser.opened():
        pass


def test_a_site_that_is_not_built_is_neither_served_nor_checked(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="make book"), serving(tmp_path):
        pass
    monkeypatch.setattr(checking, "HTML", tmp_path)
    with pytest.raises(InputError, match="make book"):
        checking.check()


def test_a_reader_who_leaves_early_is_no_fault(tmp_path, capfd):
    tiny.site(tmp_path, index="x" * 20_000_000)
    with serving(tmp_path) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
            assert connection.recv(4).startswith(b"HTTP")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.5)  # the server meets the closed connection
    assert "Traceback" not in capfd.readouterr().err
