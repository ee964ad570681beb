"""What every notebook of the book must have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.report import notebooks

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
#: pages from 90 on only report on the book itself, and have nothing to change
CHAPTERS = [path for path in SOURCES if path.name < "90"]
every = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
chapter = pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)


def cells(path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    """Kind, text and tags of each cell of an .ipynb, read as plain JSON."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        (cell["cell_type"], "".join(cell["source"]), tuple(cell["metadata"].get("tags", [])))
        for cell in found
    ]


@every
def test_no_text_stands_beside_the_mark_of_a_cell(source):
    """There it is the cell's title, which no page shows."""
    jupytext = pytest.importorskip("jupytext")
    found = jupytext.read(source, fmt="py:percent").cells
    assert not [title for cell in found if (title := cell.metadata.get("title"))]


@every
def test_it_opens_with_a_title_a_question_and_what_it_takes(source):
    kind, text, _ = cells(source.with_suffix(".ipynb"))[0]
    assert kind == "markdown" and text.startswith("# ")
    for word in ("Question", "Time", "Data"):
        assert re.search(rf"\*{word}:?\*", text), f"{source.name} does not state its {word.lower()}"


@chapter
def test_it_has_one_parameters_cell_of_plain_values(source):
    tagged = [
        text for kind, text, tags in cells(source.with_suffix(".ipynb")) if "parameters" in tags
    ]
    assert len(tagged) == 1
    assert notebooks.parameters(source), "no parameter was found in the cell"


@every
def test_nothing_is_installed_or_downloaded_by_a_cell(source):
    for kind, text, _ in cells(source.with_suffix(".ipynb")):
        if kind == "code":
            assert not re.search(r"^\s*[!%]", text, re.MULTILINE) and "download=True" not in text


@every
def test_solutions_are_folded_and_belong_to_an_exercise(source):
    text = "\n".join(
        text for kind, text, _ in cells(source.with_suffix(".ipynb")) if kind == "markdown"
    )
    labels = set(re.findall(r"\{exercise\}[^\n]*\n:label: (\S+)", text))
    for solved, rest in re.findall(r"\{solution\} (\S+)\n((?::.*\n)*)", text):
        assert solved in labels
        assert "dropdown" in rest, f"the solution of {solved} is not folded"


def test_no_two_pages_have_the_same_label():
    texts = [path.read_text(encoding="utf-8") for path in sorted(notebooks.NOTEBOOKS.glob("*.py"))]
    labels = [label for text in texts for label in re.findall(r"^# :label: (\S+)", text, re.M)]
    assert len(labels) > 50
    assert not {label for label in labels if labels.count(label) > 1}


def test_an_equation_is_not_in_two_pairs_of_brackets():
    """The site writes {eq}`...` as "(3)"."""
    for path in [*SOURCES, *(ROOT / "book").glob("*.md")]:
        assert "({eq}" not in path.read_text(encoding="utf-8"), path.name
