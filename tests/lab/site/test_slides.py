"""Slides: how a notebook is cut, and that a file of slides asks no other server."""

from __future__ import annotations

import pytest

from lab.report.site import browser, slides, static

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbconvert")
pytest.importorskip("sphinx_revealjs")


@pytest.fixture
def executed():
    new = nbformat.v4
    shown = new.new_output("execute_result", {"text/plain": "<RESULT>"}, execution_count=1)
    long = "\n".join(f"x{i} = {i}" for i in range(slides.LINES + 1))
    cells = [
        new.new_markdown_cell(
            "# Title\n\nWords with $a$.\n\n## Part\n\n" + "\n\n".join(["w " * 300] * 3)
        ),
        new.new_code_cell("import os\nfrom re import (\n    match,\n)"),
        new.new_code_cell("short = 1", outputs=[shown], execution_count=1),
        new.new_code_cell(long, outputs=[shown], execution_count=2),
        new.new_code_cell("secret = 1", metadata={"tags": ["solution", "remove-cell"]}),
    ]
    return new.new_notebook(cells=cells)


def test_headings_begin_slides_long_code_and_hidden_cells_stay_out(executed):
    kinds = [cell.metadata["slideshow"]["slide_type"] for cell in slides.deck(executed).cells]
    assert kinds == ["slide", "slide", "subslide", "subslide", "subslide", "subslide"]
    texts = [cell.source for cell in executed.cells]
    assert not any("import os" in text or "secret" in text for text in texts)
    assert executed.cells[-1].metadata["tags"] == ["hide_input"]


def picture(form):
    drawing = f'<figure class="core-figure"><svg viewBox="0 0 400 {form}"></svg></figure>'
    return nbformat.v4.new_output("display_data", {"text/html": drawing})


def test_each_figure_has_a_slide_of_its_own():
    new = nbformat.v4
    table = new.new_output("display_data", {"text/html": "<table></table>"})
    drawing = new.new_code_cell("draw()", outputs=[table, picture(1), picture(2)])
    folded = new.new_code_cell("draw()", outputs=[picture(3)], metadata={"tags": ["hide-input"]})
    text = new.new_markdown_cell(
        'Before.\n\n<img src="a.svg">\n\nIts caption.\n\n' + "After. " * 50
    )
    cells = slides.deck(new.new_notebook(cells=[drawing, folded, text])).cells
    outputs = [cell.outputs for cell in cells[:4]]
    assert outputs == [[table], [picture(1)], [picture(2)], [picture(3)]]
    assert ["tags" in cell.metadata for cell in cells[:4]] == [False, True, True, True]
    assert [cell.source[:8] for cell in cells[4:]] == ["Before.", "<img src", "After. A"]
    assert cells[5].source.endswith("Its caption.")
    assert len({cell.id for cell in cells}) == len(cells)


def test_long_listings_and_folded_cells_are_left_to_the_notebook():
    new = nbformat.v4
    listings = [
        new.new_output("execute_result", {"text/markdown": "x\n" * n}, execution_count=1)
        for n in (slides.LISTING, slides.LISTING + 1)
    ]
    cells = [new.new_code_cell("source(f)", outputs=[one]) for one in listings]
    cells.append(new.new_code_cell("f", outputs=listings[:1], metadata={"tags": ["hide-cell"]}))
    (left,) = slides.deck(new.new_notebook(cells=cells)).cells
    assert left.outputs == listings[:1]


@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_no_slide_is_higher_than_the_screen(tmp_path, monkeypatch):
    new = nbformat.v4
    (tmp_path / "tall.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 470"></svg>'
    )
    text = "# Title\n\n## Part\n\n<img src='../tall.svg' width='330'>\n\n" + "Caption. " * 20
    cells = [new.new_markdown_cell(text), new.new_code_cell("draw()", outputs=[picture(900)])]
    source = tmp_path / "deck.ipynb"
    nbformat.write(new.new_notebook(cells=cells), source)
    monkeypatch.setattr(slides, "execute_all", lambda sources, folder: list(sources))
    (written,) = slides.write_slides([source], tmp_path / "out")
    with browser.opened() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 720})
        page.goto(written.as_uri())
        page.wait_for_function("window.Reveal && Reveal.isReady()")
        heights = page.evaluate(
            """() => [...document.querySelectorAll('.slides > section > section')].map(one => {
            const at = Reveal.getIndices(one); Reveal.slide(at.h, at.v);
            return one.scrollHeight - one.clientHeight; })"""
        )
    assert len(heights) == 5 and max(heights) <= 0


def test_a_file_of_slides_needs_nothing_from_other_servers(executed, tmp_path, monkeypatch):
    source = tmp_path / "deck.ipynb"
    nbformat.write(executed, source)
    monkeypatch.setattr(slides, "execute_all", lambda sources, folder: list(sources))
    (written,) = slides.write_slides([source], tmp_path / "out")
    html = written.read_text()
    assert "&lt;RESULT&gt;" in html and "x14 = 14" not in html
    assert not static.external_problems(tmp_path / "out", "deck")
    assert not static.link_problems(tmp_path / "out", "deck")
