"""Slides: how a notebook is cut, and that a file of slides asks no other server."""

from __future__ import annotations

import re

import pytest

from lab.report import notebooks
from lab.report.site import slides
from tests.lab.site.soundness import problems

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbconvert")
pytest.importorskip("sphinx_revealjs")


@pytest.fixture
def executed(tmp_path, monkeypatch):
    new = nbformat.v4
    drawn = '<figure class="core-figure"><svg aria-label="Up" viewBox="0 0 400 900"></svg></figure>'
    drawing = new.new_output("display_data", {"text/html": drawn})
    on_slide = {"tags": ["slide"]}
    cells = [
        new.new_markdown_cell("# Title\n\n*Question:* why,\nand how?\\\n*Time:* little."),
        new.new_markdown_cell("## Part\n\nOnly in the book."),
        new.new_markdown_cell("Words with $a$ and [a page](11_fedvck).", metadata=on_slide),
        new.new_code_cell("import os", outputs=[drawing], metadata=on_slide, execution_count=1),
        new.new_code_cell("secret = 1", metadata={"tags": ["solution", "remove-cell"]}),
    ]
    nbformat.write(new.new_notebook(cells=cells), tmp_path / "deck.ipynb")
    monkeypatch.setattr(slides, "execute_all", lambda sources, folder: list(sources))
    (written,) = slides.write_slides([tmp_path / "deck.ipynb"], tmp_path / "out")
    return written


def test_title_question_and_tagged_cells_are_slides(executed):
    html = executed.read_text()
    assert html.count("<section><section") == 3
    for shown in ("Title", "and how?", "Part", "Words with $a$ and a page.", 'aria-label="Up"'):
        assert shown in html
    for hidden in ("import os", "Only in the book", "secret", "little"):
        assert hidden not in html


def test_six_lessons_have_slides_of_few_words():
    assert len(slides.lessons()) == 6
    for path in slides.lessons():
        deck = slides.deck(notebooks.read(path)).cells
        begun = [cell.metadata["slideshow"]["slide_type"] == "slide" for cell in deck]
        assert 10 <= sum(begun) <= 20
        for cell in deck[1:]:
            if cell.cell_type == "markdown":
                without = re.sub(
                    r"(?s)\$\$.*?\$\$|\$[^$]*\$|^#.*?$|<img [^>]*>", "", cell.source, flags=re.M
                )
                assert len(without.split()) <= 60, (path.stem, cell.source)


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
    assert len(heights) == 3 and max(heights) <= 720
