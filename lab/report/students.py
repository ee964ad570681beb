"""Student notebooks: the book's own without solutions, with answers to fill in where a cell checks
them, and a notebook that leads to them by the weeks of the course.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import yaml

from lab.report import classroom, notebooks

PLAN = notebooks.ROOT / "book" / "teaching.md"
_OPENING = """# Notebooks of the course

Open a notebook by its link. Where a cell has `...`, fill in your answer; the next cell checks it. What
the plan has under *read before* is read before the lab of its week. The numbers of the notebooks are
names, no order."""


def student(source: str | Path, stems: Container[str] | None = None) -> Any:
    """A notebook for students (nbformat's node): without solutions, with answers to be filled in
    where a cell checks them. Its links lead to notebooks with these stems, by default all of the book.
    """
    notebook = notebooks.read(source)
    new = notebooks.needed("nbformat").v4.new_code_cell
    beside = notebooks.chapters() if stems is None else stems
    cells, solution = list[Any](), ""
    for cell in notebook.cells:
        tags = notebooks.tags(cell)
        if cell.cell_type == "markdown":
            cell.source = classroom.linked(classroom.plain(cell.source), beside)
        elif "solution" in tags:
            solution = cell.source
            continue
        elif "check" in tags:
            blanks, guards = unanswered(solution, cell.source)
            cells.append(new("\n".join(blanks), metadata={"tags": ["answer"]}))
            cell.source = "\n".join([*guards, cell.source, '"Right."'])
            cell.metadata["tags"] = ["check", "raises-exception"]
            cell.metadata["jupyter"] = {"source_hidden": True}  # it often states the answer
        if cell.source.strip():
            cells.append(cell)
    notebook.cells = cells
    notebook.metadata["kernelspec"] = notebooks.KERNEL
    return notebook


def unanswered(solution: str, check: str) -> tuple[list[str], list[str]]:
    """A solution with `...` in the place of each value and of each function's body that its check reads,
    and without anything else but its imports; and the lines that say which values are still missing.
    """
    used = {node.id for node in ast.walk(ast.parse(check)) if isinstance(node, ast.Name)}
    blanks, guards = [], []
    for node in ast.parse(solution).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            blanks.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef) and node.name in used:
            blanks.append(f"def {node.name}({ast.unparse(node.args)}):\n    ...  # your answer")
        elif isinstance(node, ast.Assign):
            parts = [part for target in node.targets for part in ast.walk(target)]
            for name in [part.id for part in parts if isinstance(part, ast.Name)]:
                if name in used:
                    blanks.append(f"{name} = ...  # your answer")
                    guards.append(f'assert {name} is not ..., "{name} has no value yet"')
    return blanks, guards


def write_students(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Write each source's student notebook, and an index, into a folder; return the files."""
    nbformat = notebooks.needed("nbformat")
    folder.mkdir(parents=True, exist_ok=True)
    sources, written = list(sources), []
    stems = {path.stem for path in (*sources, *folder.glob("*.ipynb"))} - {"index"}
    for source in sources:
        written.append(folder / f"{source.stem}.ipynb")
        nbformat.write(student(source, stems), written[-1])
        classroom.copy_figures(written[-1])
    texts = map(nbformat.v4.new_markdown_cell, index(folder, stems))
    kernel = {"kernelspec": notebooks.KERNEL}
    nbformat.write(
        nbformat.v4.new_notebook(cells=list(texts), metadata=kernel), folder / "index.ipynb"
    )
    return [*written, folder / "index.ipynb"]


def index(folder: Path, stems: set[str]) -> list[str]:
    """The texts of the index: the four weeks of the teachers' plan, and the parts of the book with links
    to their notebooks that lie in the folder; at the end those that are not the book's.
    """
    plan = PLAN.read_text(encoding="utf-8").split("\n## Four weeks")[1].split("\n#")[0]
    weeks = classroom.linked(classroom.plain(f"## Four weeks{plan}"), stems)
    texts = [_OPENING, *([weeks] if ".ipynb)" in weeks else []), "## All notebooks"]
    contents = yaml.safe_load((notebooks.ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    parts = {
        part["caption"]: [Path(page["file"]).name for page in part["chapters"]] for part in contents
    }
    parts["Others"] = sorted(stems - {name for names in parts.values() for name in names})
    for caption, names in parts.items():
        if present := [folder / f"{name}.ipynb" for name in names if name in stems]:
            links = [f"- [{notebooks.title(path)}]({path.name})" for path in present]
            texts.append("\n".join([f"### {caption}\n", *links]))
    return texts
