"""Student notebooks: the book's own without solutions, with answers to fill in where a cell checks
them, and a notebook that leads to them in the order of the course.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from core.errors import InputError, listed
from lab.report import classroom, course, notebooks

#: a name as an exercise gives it, alone or with arguments
_NAMED = re.compile(r"`([A-Za-z_]\w*)(?:\([^`]*\))?`")


def student(source: str | Path, here: Container[str] | None = None) -> Any:
    """A notebook for students (nbformat's node): without solutions, with answers to be filled in
    where a cell checks them. Its links lead to notebooks with these stems, by default all of the book.

    Raises InputError when an exercise does not name the answers that its check asks for.
    """
    source = notebooks.find(source)
    notebook = notebooks.read(source)
    texts = {one.label: one.text for one in classroom.exercises(source)}
    beside = {path.stem for path in notebooks.NOTEBOOKS.glob("*.py")} if here is None else here
    solution, cells = "", list[Any]()
    for cell in notebook.cells:
        tags = classroom.tags(cell)
        if cell.cell_type == "markdown":
            cell.source = classroom.linked(classroom.plain(cell.source), beside)
        elif "solution" in tags:
            solution = cell.source
            cell.metadata["tags"] = ["answer"]
        elif "check" in tags:
            label = cell.metadata["name"]
            answers = answer_names(label, texts[label], solution, cell.source)
            cells[-1].source = unanswered(solution, answers)
            cell.source = guarded(cell.source, cells[-1].source)
            cell.metadata["tags"] = ["check", "raises-exception"]
            cell.metadata["jupyter"] = {"source_hidden": True}  # it often states the answer
        if cell.source.strip():
            cells.append(cell)
    notebook.cells = cells
    return notebook


def write_students(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Write the student notebook of each source into a folder, and an index of all that lie there;
    return the files.
    """
    nbformat = notebooks.needed("nbformat")
    folder.mkdir(parents=True, exist_ok=True)
    sources, written = list(sources), []
    here = {path.stem for path in (*sources, *folder.glob("*.ipynb"))}
    for source in sources:
        written.append(folder / f"{source.stem}.ipynb")
        nbformat.write(student(source, here), written[-1])
        classroom.copy_figures(written[-1])
    return [*written, course.write_index(folder)]


def answer_names(label: str, text: str, solution: str, check: str) -> list[str]:
    """What students are asked for: the names that a solution gives and the text of the exercise has.

    Raises InputError when there are none, or when the check uses others of the solution.
    """
    given = [name for node in ast.parse(solution).body for name in _given(node)]
    answers = [name for name in given if name in _NAMED.findall(text)]
    used = {node.id for node in ast.walk(ast.parse(check)) if isinstance(node, ast.Name)}
    unnamed = sorted(used & set(given) - set(answers)) or ([] if answers else given)
    if unnamed:
        raise InputError(
            f"the text of the exercise {label} must name what its check asks for: {listed(unnamed)}"
        )
    return answers


def _given(node: ast.stmt) -> Iterator[str]:
    """The names to which a statement of a solution gives a value, without those of imports."""
    if isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        parts = (part for target in node.targets for part in ast.walk(target))
        yield from (part.id for part in parts if isinstance(part, ast.Name))


def unanswered(solution: str, answers: Container[str]) -> str:
    """A solution cell with `...` in the place of each answer's value and of each function's body,
    and without anything else but its imports.
    """
    rows = []
    for node in ast.parse(solution).body:
        names = [name for name in _given(node) if name in answers]
        if isinstance(node, ast.Import | ast.ImportFrom):
            rows.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef) and names:
            rows.append(f"def {node.name}({ast.unparse(node.args)}):\n    ...  # your answer")
        else:
            rows += [f"{name} = ...  # your answer" for name in names]
    return "\n".join(rows)


def guarded(check: str, answers: str) -> str:
    """A check that first says which answers are missing or are texts, which no exercise asks for, and
    at the end that all is right.
    """
    names = [
        name
        for node in ast.parse(answers).body
        if isinstance(node, ast.Assign)
        for name in _given(node)
    ]
    guards = [f'assert {name} is not ..., "{name} has no value yet"' for name in names]
    other = "a number is asked for, or what else the exercise names"
    guards += [f'assert not isinstance({name}, str), "{name} is a text; {other}"' for name in names]
    return "\n".join([*guards, check, '"Right."'])
