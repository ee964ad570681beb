"""Slides of a chapter: its executed notebook through nbconvert's Reveal writer."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core.errors import InputError
from lab.report import classroom, style
from lab.report.site.executing import execute_all
from lab.report.site.pipeline import EXECUTED
from lab.report.site.selfcontained import COMPONENT, copy_mathjax

#: code with more lines is left to the notebook
LINES = 14
#: a listing of `core` with more lines is left to the notebook, too
LISTING = 30
#: characters that fit below a figure
CAPTION = 250
_MATHJAX = """<script>
MathJax = {tex: {inlineMath: [["$", "$"]], processEscapes: true, tags: "none"}};
</script>
<script src="mathjax/%s" defer></script>"""
_START = """<script src="reveal/dist/reveal.js"></script>
<script>
Reveal.initialize({hash: true, slideNumber: "c/t", width: 1100, height: 720, margin: 0.04});
</script>"""
_CSS = """<style>
.reveal .slides section {text-align: left; max-height: 700px; overflow-y: auto}
.reveal .slides {font-size: 26px} .reveal pre {width: 100%%; font-size: .6em}
.reveal h1 {font-size: 1.9em} .reveal h2 {font-size: 1.4em}
.reveal h1, .reveal h2, .reveal h3 {text-transform: none}
.reveal section img {height: 560px; width: auto; max-width: 100%%; object-fit: contain; margin: 0}
.reveal section .core-figure svg {max-height: 640px; max-width: 100%%}
.reveal table {font-size: .62em} .jp-InputPrompt, .jp-OutputPrompt {display: none}
%s
</style>"""


def write_slides(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Write the slides of some notebooks into a folder, with all that they load; notebooks that the
    build has not executed yet are executed first.

    Raises InputError when nbconvert or the scripts of Reveal are not installed.
    """
    if not importlib.util.find_spec("nbconvert") or not importlib.util.find_spec("sphinx_revealjs"):
        raise InputError("slides need two packages: pip install nbconvert sphinx-revealjs")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in execute_all(sources, EXECUTED):
        written.append(folder / f"{path.stem}.html")
        written[-1].write_text(_html(path), encoding="utf-8")
        classroom.copy_figures(written[-1])
    _copy_scripts(folder)
    return written


def deck(notebook: Any) -> Any:
    """An executed notebook (nbformat's node) cut into slides: each heading begins one; long code
    and what only sets a page up is left out, figures and tables get a slide of their own.
    """
    import nbformat

    cells: list[Any] = []
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if {"remove-cell", "hide-cell", "setup", "parameters"} & set(tags):
            continue
        if cell.cell_type == "markdown":
            # other chapters are other files, which may not be there
            text = re.sub(r"\[([^\]]+)\]\(\d\d_[^)]*\)", r"\1", classroom.plain(cell.source))
            cells += [_slide(nbformat, part) for part in _parts(text)]
        else:
            cells += _code(cell)
    notebook.cells = cells
    return notebook


def _parts(text: str) -> list[str]:
    """A text cut before each heading and, where it is long, between paragraphs."""
    parts: list[str] = []
    for section in re.split(r"(?m)^(?=#{1,3} )", text):
        room = 900
        for paragraph in filter(None, re.split(r"\n{2,}", section)):
            figure = paragraph.startswith("<img ")
            if not parts or figure or paragraph.startswith("#") or len(paragraph) > room:
                parts.append(paragraph)
                room = CAPTION if figure else 900 - len(paragraph)
            else:
                parts[-1] += f"\n\n{paragraph}"
                room -= len(paragraph)
    return parts


def _slide(nbformat: Any, text: str) -> Any:
    kind = "slide" if re.match(r"#{1,2} ", text) else "subslide"
    return nbformat.v4.new_markdown_cell(text, metadata={"slideshow": {"slide_type": kind}})


def _code(cell: Any) -> list[Any]:
    """A code cell as slides: its outputs, below its code where that is short and not folded on the
    page, but each figure on a slide of its own; none where nothing is left.
    """
    lines = cell.source.splitlines()
    imports = all(re.match(r"(from|import) |[ )\w,]*$|$", line) for line in lines)
    hidden = imports or len(lines) > LINES or "hide-input" in cell.metadata.get("tags", [])
    outputs = [output for output in cell.outputs if not _is_long(output)]
    drawn = [output for output in outputs if _is_figure(output)]
    rest = [output for output in outputs if output not in drawn]
    hidden = hidden or len(outputs) < len(cell.outputs)
    shown = [] if hidden and not rest else [(rest, hidden)]
    return [
        _with_outputs(cell, some, without_code)
        for some, without_code in [*shown, *(([output], True) for output in drawn)]
    ]


def _is_long(output: Any) -> bool:
    return "".join(output.get("data", {}).get("text/markdown", "")).count("\n") > LISTING


def _is_figure(output: Any) -> bool:
    kinds = output.get("data", {})
    return "image/png" in kinds or "<svg" in "".join(kinds.get("text/html", ""))


def _with_outputs(cell: Any, outputs: list[Any], without_code: bool) -> Any:
    """A code cell that has these outputs only, as a slide."""
    import nbformat

    metadata = {"slideshow": {"slide_type": "subslide"}}
    hide = {"tags": ["hide_input"]} if without_code else {}
    return nbformat.v4.new_code_cell(
        cell.source,
        outputs=outputs,
        execution_count=cell.execution_count,
        metadata={**metadata, **hide},
    )


def _html(path: Path) -> str:
    import nbformat
    from nbconvert import SlidesExporter
    from traitlets.config import Config

    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_input_tags = {"hide_input"}
    notebook = deck(nbformat.read(path, as_version=4))
    body, _ = SlidesExporter(config=config).from_notebook_node(notebook)
    return offline(body)


def offline(html: str) -> str:
    """Slides that load their scripts from the folder beside them, not from other servers."""
    from bs4 import BeautifulSoup

    soup: Any = BeautifulSoup(html, "html.parser")
    for tag in soup.find_all(["script", "link"]):
        if tag.name == "script" or "reveal" in (tag.get("href") or ""):
            tag.decompose()
    head = "".join(
        f'<link rel="stylesheet" href="reveal/dist/{name}.css">'
        for name in ("reveal", "theme/white")
    )
    soup.head.append(BeautifulSoup(head + _CSS % style.CSS + _MATHJAX % COMPONENT, "html.parser"))
    soup.body.append(BeautifulSoup(_START, "html.parser"))
    return str(soup)


def _copy_scripts(folder: Path) -> None:
    import sphinx_revealjs

    source = Path(sphinx_revealjs.__file__).parent / "_static" / "revealjs" / "dist"
    leave = shutil.ignore_patterns("*.map", "*.eot", "*.esm.js")
    shutil.copytree(source, folder / "reveal" / "dist", dirs_exist_ok=True, ignore=leave)
    copy_mathjax(folder / "mathjax")
