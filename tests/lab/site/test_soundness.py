"""Each fault that a site can have is found, and a sound site has none."""

from __future__ import annotations

import pytest

from tests.lab.site.soundness import Visitor, problems, styles_elsewhere

SOUND = """<h1 id="top">One</h1><a href="two.html#there">two</a><a href="#top">up</a>
<a href="https://example.org">out</a><link rel="stylesheet" href="book.css">
<link rel="canonical" href="https://example.org/"><img src="p.png" alt="A chart of five methods">
<img src="p.png" alt="" role="presentation">
<figure class="core-figure"><svg role="img" aria-label="Up"><g/></svg></figure>
<span class="math notranslate"><mjx-container>x</mjx-container></span>"""


@pytest.fixture
def site(tmp_path):
    for name in ("book.css", "p.png", "favicon.ico"):
        (tmp_path / name).write_bytes(b"")

    def write(body):
        head = '<!doctype html><meta name="viewport" content="width=device-width">'
        (tmp_path / "one.html").write_text(head + body)
        (tmp_path / "two.html").write_text(f'{head}<p id="there">x</p>')
        return tmp_path

    return write


def test_a_sound_page_has_no_problems(site, chromium, served):
    folder = site(SOUND)
    assert problems(folder, "one") == [] == styles_elsewhere(folder)
    assert Visitor(chromium, served(folder)).problems("one") == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<img src="p.png">', "no alt text"),
        ('<img src="p.png" alt="../_images/0a1b.png">', "no alt text"),
        ("<p class='core-figure'><svg aria-label=' '></svg></p>", "no aria-label"),
        ("<a href='gone.html'>x</a>", "leads nowhere"),
        ("<a href='two.html#gone'>x</a>", "names a place"),
        ("<a href='#gone'>x</a>", "names a place"),
        ("<a href='../../elsewhere.html'>x</a>", "leaves the site"),
        ("<img src='gone.png' alt='A curve that rises'>", "leads nowhere"),
        ("<script src='https://cdn.example.org/x.js'></script>", "another server"),
        ("<link rel='stylesheet' href='https://fonts.example.org/x.css'>", "another server"),
        ("<img src='https://example.org/a.png' alt='A curve that rises'>", "another server"),
        ("<style>@import 'https://example.org/x.css';</style>", "another server"),
        ("<script>import x from 'https://example.org/x.js'</script>", "another server"),
    ],
)
def test_a_fault_in_a_file_is_found(site, body, said):
    (problem,) = problems(site(body), "one")
    assert said in problem


def test_a_style_sheet_from_another_server_is_found(site):
    folder = site("")
    (folder / "book.css").write_text("@import url(https://example.org/font.css);")
    assert styles_elsewhere(folder) == ["book.css: https://example.org/font.css"]


def test_faults_that_only_a_browser_sees_are_found(site, chromium, served):
    folder = site(
        "<script>console.error('oh no'); fetch('gone.json'); throw new Error('broken')</script>"
        "<img src='http://127.0.0.2:1/x.png' alt='x'><span class='math notranslate'>a</span>"
        "<mjx-container><mjx-merror>Undefined control sequence</mjx-merror></mjx-container>"
        "<span class='math notranslate'>b</span><div style='width: 900px'>wide</div>"
        "<div class='bd-article'><div class='cell_output' style='width: 90px; overflow-x: auto'>"
        "<table style='width: 300px'><tr><td>cells</table></div></div><nav class='bd-sidebar-primary'>"
        "<p class='current active' style='position: absolute; top: 2000px'>here</nav>"
    )
    found = "\n".join(Visitor(chromium, served(folder)).problems("one"))
    for said in (
        *("console error: oh no", "gone.json answers 404", "script error: broken"),
        *("asks another server for http://127.0.0.2:1/x.png", "1 of 2 equations", "Undefined"),
        *("cut at the right: cells", "do not show its own entry", "the page is 9"),
    ):
        assert said in found
