"""Slides: how a notebook is cut, and that a file of slides asks no other server."""

from __future__ import annotations

import pytest

from lab.report.site import slides
from tests.lab.site.soundness import problems

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbconvert")
pytest.importorskip("sphinx_revealjs")


@pytest.fixture
def executed(tmp_path, monkeypatch):
    new = nbformat.v4
    shown = new.new_output("execute_result", {"text/plain": "<RESULT>"}, execution_count=1)
    drawn = '<figure class="core-figure"><svg aria-label="Up" viewBox="0 0 400 900"></svg></figure>'
    drawing = new.new_output("display_data", {"text/html": drawn})
    long = "\n".join(f"x{i} = {i}" for i in range(slides.LINES + 1))
    text = "# Title\n\nWords with $a$ and [a page](11_fedvck).\n\n## Part\n\n" + "w " * 3000
    cells = [
        new.new_markdown_cell(text),
        new.new_code_cell("import os\nfrom re import (\n    match,\n)"),
        new.new_code_cell("short = 1", outputs=[shown], execution_count=1),
        new.new_code_cell(long, outputs=[drawing], execution_count=2),
        new.new_code_cell("secret = 1", metadata={"tags": ["solution", "remove-cell"]}),
        new.new_code_cell("folded", outputs=[shown], metadata={"tags": ["hide-input"]}),
    ]
    nbformat.write(new.new_notebook(cells=cells), tmp_path / "deck.ipynb")
    monkeypatch.setattr(slides, "execute_all", lambda sources, folder: list(sources))
    (written,) = slides.write_slides([tmp_path / "deck.ipynb"], tmp_path / "out")
    return written


def test_headings_and_cells_begin_slides_and_what_is_hidden_stays_out(executed):
    html = executed.read_text()
    assert html.count("<section") == 2 + 5  # two headings; three cells more below the second
    for shown in ("Words with $a$ and a page.", "&lt;RESULT&gt;", "short", 'aria-label="Up"'):
        assert shown in html
    for hidden in ("import os", "x14", "secret", "folded"):
        assert hidden not in html


def test_a_file_of_slides_needs_nothing_from_other_servers(executed):
    assert problems(executed.parent, "deck") == []


def test_a_browser_shows_them_and_what_is_too_long_scrolls(executed, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    page.goto(executed.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady() && window.MathJax?.typesetPromise")
    heights = page.evaluate(
        """() => [...document.querySelectorAll('.slides > section > section')].map(one => {
        const at = Reveal.getIndices(one); Reveal.slide(at.h, at.v); return one.offsetHeight; })"""
    )
    assert len(heights) == 5 and max(heights) <= 720
