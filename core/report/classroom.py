"""What a class needs, made from the book's own notebooks: exercises, student notebooks, slides.

In a source an exercise states how hard it is and how long it takes in its first line, such as
`*Easy, 10 minutes.*`. Where an answer can be checked, two code cells follow its solution: one
tagged `solution` computes the answer, one tagged `check` asserts what a right answer fulfils. The
book runs both, so that every check is known to accept its solution.
"""

from __future__ import annotations

import ast
import functools
import re
import shutil
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pandas as pd

from core.errors import InputError
from core.report import notebooks

#: the figures of the book that are drawn by hand, and the folder beside a notebook that has those it shows
FIGURES, SHOWN = notebooks.ROOT / "book" / "_static", "figures"
LEVELS = ("Easy", "Medium", "Hard")
_BLOCK = re.compile(
    r"^(?P<fence>`{3,})\{(?P<kind>exercise|solution)\} *(?P<title>[^\n]*)\n"
    r"(?P<options>(?::[^\n]*\n)*)\n*(?P<text>.*?)\n(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
#: a formula in a title, which the text of a link cannot show
_FORMULA = re.compile(r" *\$[^$]+\$")
_EFFORT = re.compile(rf"\*(?P<level>{'|'.join(LEVELS)}), (?P<minutes>\d+) minutes\.\*")


@attrs.frozen
class Exercise:
    """An exercise of a chapter; `text` is without its title and without the line of its effort."""

    chapter: str
    label: str
    title: str
    level: str
    minutes: int
    text: str


def exercises(source: str | Path) -> list[Exercise]:
    """The exercises of a notebook in their order.

    Raises InputError for an exercise that does not state its level and its minutes.
    """
    path = notebooks.find(source)
    found = []
    for block in _blocks(notebooks.read(path)):
        label = re.search(r":label: (\S+)", block["options"])
        effort = _EFFORT.match(block["text"])
        if label is None or effort is None:
            raise InputError(
                f'{path.name}: the exercise "{block["title"]}" needs a label and a first line such '
                "as *Easy, 10 minutes.*"
            )
        text = block["text"][effort.end() :].strip()
        level, minutes = effort["level"], int(effort["minutes"])
        found.append(Exercise(path.stem, label[1], block["title"], level, minutes, text))
    return found


def _blocks(notebook: Any) -> Iterator[re.Match[str]]:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (
                block for block in _BLOCK.finditer(cell.source) if block["kind"] == "exercise"
            )


def exercise_table(sources: Iterable[Path]) -> pd.DataFrame:
    """All exercises: chapter and exercise by their titles, as links of the book, level, minutes, and
    whether the student notebook checks the answer by itself.
    """
    rows = []
    for path in sources:
        notebook = notebooks.read(path)
        name = re.search(r"^# (.+)$", notebook.cells[0].source, re.MULTILINE)
        chapter = name[1] if name else path.stem
        checked = {cell.metadata["name"] for cell in notebook.cells if "check" in _tags(cell)}
        rows += [
            {
                "chapter": f"[{chapter}](../notebooks/{one.chapter})",
                "exercise": f"[{_FORMULA.sub('', one.title)}]({one.label})",
                "level": one.level.lower(),
                "minutes": one.minutes,
                "checked": "yes" if one.label in checked else "",
            }
            for one in exercises(path)
        ]
    return pd.DataFrame(rows)


# ---- student notebooks


def student(source: str | Path) -> Any:
    """A notebook for students (nbformat's node): without solutions, with answers to be filled in
    where a cell checks them.
    """
    notebook = notebooks.for_readers(notebooks.find(source))
    cells: list[Any] = []
    here = equations(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = plain(cell.source, here)
            cell.source = re.sub(r"\]\((\d\d_\w+)(?:#[^)]*)?\)", r"](\1.ipynb)", text)
        elif "solution" in _tags(cell):
            cell.source = unanswered(cell.source)
            cell.metadata["tags"] = ["answer"]
        elif "check" in _tags(cell):
            cell.source = guarded(cell.source, cells[-1].source)
            cell.metadata["tags"] = ["check", "raises-exception"]
        if cell.source.strip():
            cells.append(cell)
    notebook.cells = cells
    return notebook


def write_students(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Write the student notebook of each source into a folder, and return the files."""
    nbformat = notebooks.needed("nbformat")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source in sources:
        written.append(folder / f"{source.stem}.ipynb")
        nbformat.write(student(source), written[-1])
        copy_figures(written[-1])
    return written


def copy_figures(written: Path) -> None:
    """Put the figures that a file shows into the folder beside it."""
    for name in re.findall(rf"\b{SHOWN}/([\w-]+\.svg)", written.read_text(encoding="utf-8")):
        (written.parent / SHOWN).mkdir(exist_ok=True)
        shutil.copyfile(FIGURES / name, written.parent / SHOWN / name)


def _tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


_EQUATION = re.compile(r"\$\$ \(eq:([\w-]+)\)")


def equations(notebook: Any) -> set[str]:
    """The labels of the equations that stand in a notebook (nbformat's node)."""
    return {label for cell in notebook.cells for label in _EQUATION.findall(cell.source)}


@functools.cache
def _pages_of_equations() -> dict[str, str]:
    """The name of the page on which each of the book's equations stands."""
    return {
        label: path.stem
        for path in sorted(notebooks.NOTEBOOKS.glob("*.py"))
        for label in _EQUATION.findall(path.read_text(encoding="utf-8"))
    }


def plain(text: str, here: Container[str] = ()) -> str:
    """The Markdown of a page of the book as any notebook shows it: no solutions, exercises under
    headings, equations with their labels as tags, figures from the folder beside it, no roles and
    directives, no links to the book's pages of prose. `here` are the labels of the equations that
    the reader has at hand; of others the page is named.
    """

    def equation(found: re.Match[str]) -> str:
        page = "" if found[1] in here else _pages_of_equations().get(found[1], "")
        return f"({found[1]}, in {page})" if page else f"({found[1]})"

    def block(found: re.Match[str]) -> str:
        return f"### Exercise: {found['title']}\n\n{found['text']}" * (found["kind"] == "exercise")

    def figure(found: re.Match[str]) -> str:
        return f"![{found['alt']}]({SHOWN}/{Path(found['file']).name})\n\n{found['text']}"

    text = _BLOCK.sub(block, text)
    text = re.sub(
        r"```\{figure\} (?P<file>\S+)\n:alt: (?P<alt>[^\n]*)\n(?::[^\n]*\n)*\n*(?P<text>.*?)\n```",
        figure,
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"\[([^\]]+)\]\(\.\./book/[^)]*\)", r"\1", text)
    text = re.sub(r"\n\$\$ \(eq:([\w-]+)\)", r"\\tag{\1}\n$$", text)
    text = re.sub(r"\{eq\}`eq:([\w-]+)`", equation, text)
    text = re.sub(r" ?\{cite:[pt]\}`[^`]*`", "", text)
    text = re.sub(r"\{(?:term|doc|ref)\}`(?:([^`<]+?) *<[^`>]*>|([^`]+))`", r"\1\2", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def unanswered(solution: str) -> str:
    """A solution cell with `...` in the place of each value and of each function's body."""
    rows = []
    for node in ast.parse(solution).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            rows.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef):
            rows.append(f"def {node.name}({ast.unparse(node.args)}):\n    ...  # your answer")
        elif isinstance(node, ast.Assign):
            rows.append(f"{ast.unparse(node.targets[0])} = ...  # your answer")
    return "\n".join(rows)


def guarded(check: str, answers: str) -> str:
    """A check that first says which answers are missing, and at the end that all is right."""
    names = [
        ast.unparse(node.targets[0])
        for node in ast.parse(answers).body
        if isinstance(node, ast.Assign)
    ]
    guards = [f'assert {name} is not ..., "{name} has no value yet"' for name in names]
    return "\n".join([*guards, check, '"Right."'])
