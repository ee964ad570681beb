"""The plan of the course, as the teachers' page has it: an index of the student notebooks."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from lab.report import classroom, notebooks

PLAN = notebooks.ROOT / "book" / "teaching.md"
_OPENING = """# Notebooks of the course

Open a notebook by its link. Where a cell has `...`, fill in your answer; the next cell checks it.
What stands under *read before* is read after the first meeting of its week and before the lab. The
numbers of the notebooks are names, no order."""


def write_index(folder: Path) -> Path:
    """Write `index.ipynb`: links to the notebooks of a folder, first by the weeks of the course, then
    all in the order of the book.
    """
    nbformat = notebooks.needed("nbformat")
    here = {path.stem for path in folder.glob("*.ipynb")} - {"index"}
    texts = [_OPENING, *_weeks(here), *_parts(here, folder)]
    cells = [
        nbformat.v4.new_markdown_cell(text, id=f"cell-{k:03d}") for k, text in enumerate(texts)
    ]
    written = folder / "index.ipynb"
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": notebooks.KERNEL}), written
    )
    return written


def _weeks(here: Container[str]) -> Iterator[str]:
    """A text for each week: its row in the teachers' plan, and the notebooks of its lab."""
    plan = PLAN.read_text(encoding="utf-8")
    header, *rows = re.findall(
        r"^\| (?:week|\d) \|.*\|$", plan.split("## Four weeks")[1].split("\n#")[0], re.MULTILINE
    )
    columns = _columns(header)
    for row in rows:
        week, *parts = _columns(row)
        points = [
            f"- *{column}:* {classroom.linked(part, here)}"
            for column, part in zip(columns[1:], parts, strict=True)
        ]
        points.append(f"- *lab {week}:* {classroom.linked(', '.join(_lab(plan, week)), here)}")
        if any(".ipynb)" in point for point in points):
            yield f"## Week {week}\n\n" + "\n".join(points)


def _columns(row: str) -> list[str]:
    return [part.strip() for part in row.strip("|").split("|")]


def _lab(plan: str, week: str) -> Iterable[str]:
    """Links to the notebooks that the sheet of a week's lab works with, each once."""
    sheet = plan.split(f"### Lab {week}:")[1].split("\n#")[0]
    names = re.findall(r"`(\d\d_\w+)`", sheet)
    return dict.fromkeys(
        f"[{notebooks.title(notebooks.find(name))}](../notebooks/{name})" for name in names
    )


def _parts(here: set[str], folder: Path) -> Iterator[str]:
    """A text for each part of the book: links to its notebooks that lie in the folder, by title; at
    the end those that are not the book's.
    """
    contents = (notebooks.ROOT / "_toc.yml").read_text(encoding="utf-8")
    parts = [
        (part.split("\n")[0].strip(), re.findall(r"notebooks/(\w+)", part))
        for part in contents.split("caption:")[1:]
    ]
    others = sorted(here - {name for _, names in parts for name in names})
    yield "## All notebooks in the order of the book"
    for caption, names in [*parts, ("Others", others)]:
        found = [folder / f"{name}.ipynb" for name in names if name in here]
        if found:
            links = "\n".join(f"- [{notebooks.title(path)}]({path.name})" for path in found)
            yield f"### {caption}\n\n{links}"
