"""Each fault that a site can have is found, and a sound site has none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lab.report.site import static

_spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)

TEXT = {"output_type": "stream", "name": "stdout", "text": ["2"]}
ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
CELL = '<div class="cell"><div class="cell_input">1 + 1</div><div class="cell_output">2</div></div>'


def test_a_sound_site_has_no_problems(tmp_path):
    (tmp_path / "book.css").write_text("a { background: url(data:image/png;base64,xx) }")
    tiny.site(
        tmp_path,
        one='<h1 id="top">One</h1><a href="two.html#there">two</a> <a href="#top">up</a> <a href="https://example.org">out</a>'
        '<link rel="stylesheet" href="book.css"><img src="p.png" alt="A bar chart of five methods">',
        two=f'<p id="there">x</p>{CELL}',
    )
    (tmp_path / "p.png").write_bytes(b"")
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    tiny.notebook(notebooks / "two.ipynb", (1, [TEXT]), (2, []))
    assert static.problems(tmp_path, ["one", "two"], notebooks) == []


def test_a_page_without_html_is_found(tmp_path):
    assert "no HTML" in static.problems(tiny.site(tmp_path, one=""), ["one", "two"])[0]


@pytest.mark.parametrize(
    "image",
    [
        '<img src="a.png">',
        '<img src="a.png" alt="">',
        '<img src="a.png" alt="../_images/0a1b.png">',
        '<img src="a.png" alt=" ">',
    ],
)
def test_an_image_without_a_description_is_found(tmp_path, image):
    (tmp_path / "a.png").write_bytes(b"")
    (problem,) = static.problems(tiny.site(tmp_path, one=image), ["one"])
    assert "alt text" in problem


@pytest.mark.parametrize(
    ("label", "problems"), [("", 1), (" aria-label=' '", 1), (" aria-label='Up'", 0)]
)
def test_a_drawing_has_a_label(tmp_path, label, problems):
    drawing = f"<figure class='core-figure'><svg role='img'{label}><g/></svg></figure>"
    found = static.alt_problems(tiny.site(tmp_path, one=drawing), "one")
    assert len(found) == problems


def test_a_decorative_image_needs_none(tmp_path):
    assert (
        static.alt_problems(
            tiny.site(tmp_path, one='<img src="a.png" alt="" role="presentation">'), "one"
        )
        == []
    )


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("<a href='gone.html'>x</a>", "leads nowhere"),
        ("<a href='one.html#gone'>x</a>", "names a place"),
        ("<a href='#gone'>x</a>", "names a place"),
        ("<a href='../../elsewhere.html'>x</a>", "leaves the site"),
        ("<img src='gone.png' alt='A curve that rises'>", "leads nowhere"),
        ("<script src='gone.js'></script>", "leads nowhere"),
    ],
)
def test_a_broken_link_is_found(tmp_path, link, said):
    (problem,) = static.problems(tiny.site(tmp_path, one=link), ["one"])
    assert said in problem and problem.startswith("one:")


@pytest.mark.parametrize(
    "tag",
    [
        "<script src='https://cdn.example.org/x.js'></script>",
        "<script src='//cdn.example.org/x.js'></script>",
        "<link rel='stylesheet' href='https://fonts.example.org/x.css'>",
        "<link rel='preconnect' href='https://fonts.example.org'>",
        "<img src='https://example.org/a.png' alt='A curve that rises'>",
        "<iframe src='https://example.org/video'></iframe>",
        "<style>@import 'https://example.org/x.css';</style>",
        "<style>@font-face { src: url('https://example.org/x.woff') }</style>",
        "<script type='module'>import x from 'https://cdn.example.org/x.js'</script>",
    ],
)
def test_anything_from_another_server_is_found(tmp_path, tag):
    (problem,) = static.problems(tiny.site(tmp_path, one=tag), ["one"])
    assert "another server" in problem


def test_links_that_only_name_an_address_are_fine(tmp_path):
    body = (
        "<link rel='canonical' href='https://example.org/'><link rel='license' "
        "href='https://example.org/by'><a href='https://example.org'>x</a>"
    )
    assert static.problems(tiny.site(tmp_path, one=body), ["one"]) == []


def test_a_style_sheet_from_another_server_is_found(tmp_path):
    (tmp_path / "a.css").write_text("@import url(https://example.org/font.css);")
    (problem,) = static.problems(tiny.site(tmp_path, one=""), ["one"])
    assert problem.startswith("a.css")


@pytest.mark.parametrize(
    ("cell", "html", "said"),
    [
        ((None, []), "", "not executed"),
        ((1, [ERROR]), CELL, "ends in an error"),
        (
            (1, [TEXT]),
            '<div class="cell">1 + 1</div>',
            "1 code cells have outputs, but the page shows 0",
        ),
    ],
)
def test_a_cell_without_its_output_is_found(tmp_path, cell, html, said):
    tiny.notebook(tmp_path / "one.ipynb", cell)
    (problem,) = static.problems(tiny.site(tmp_path, one=html), ["one"], tmp_path)
    assert said in problem


def test_an_output_removed_on_purpose_is_not_missed(tmp_path):
    tiny.notebook(tmp_path / "one.ipynb", (1, [TEXT]), tags=("remove-output",))
    assert static.problems(tiny.site(tmp_path, one=""), ["one"], tmp_path) == []


def test_only_a_page_that_changed_has_a_new_fingerprint(tmp_path):
    from lab.report.site.checking import fingerprints

    (tmp_path / "_static").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"{name}.html").write_text(f"<p>{name}</p>")
    before = fingerprints(tmp_path, ["a", "b"])
    (tmp_path / "b.html").write_text("<p>c</p>")
    after = fingerprints(tmp_path, ["a", "b"])
    assert after["a"] == before["a"] and after["b"] != before["b"]
    (tmp_path / "_static" / "script.js").write_text("1")
    assert all(fingerprints(tmp_path, ["a", "b"])[page] != after[page] for page in ("a", "b"))


def test_lines_that_a_page_would_cut_are_named():
    printed = {"output_type": "stream", "text": ["short\n", "x" * 81]}
    cell = {"source": ["y = 1\n", "y" * 90], "outputs": [printed], "metadata": {}}
    assert static.wide_lines(cell) == [
        "shows code of 90 columns",
        "shows a printed line of 81 columns",
    ]
    # also where a narrow line follows
    after = {"output_type": "stream", "text": "ok"}
    assert len(static.wide_lines({**cell, "outputs": [printed, after]})) == 2
    hidden = {**cell, "metadata": {"tags": ["remove-cell"]}, "outputs": []}
    assert not static.wide_lines(hidden)
    assert not static.wide_lines({**cell, "source": ["z" * 80], "outputs": []})
