"""Slides of a lesson: the cells tagged `slide` of its executed notebook, through nbconvert's Reveal writer,
with all that they load.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.report import classroom, notebooks
from lab.report.site.executing import execute_all
from lab.report.site.pipeline import EXECUTED

#: nbconvert's slides, but with scripts from the folder beside them, not from other servers
TEMPLATE = """{%- extends 'reveal/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}<script>
MathJax = {tex: {inlineMath: [["$", "$"]], processEscapes: true, tags: "none"}};
</script>
<script src="mathjax/tex-chtml.js" defer></script>{%- endblock -%}
{%- block html_head_css -%}<style>
.reveal .slides section {text-align: left; max-height: 700px; overflow-y: auto}
.reveal .slides {font-size: 26px} .reveal pre {width: 100%; font-size: .6em}
.reveal h1 {font-size: 1.9em} .reveal h2 {font-size: 1.4em}
.reveal :is(h1, h2, h3) {text-transform: none !important}
.reveal section img {max-height: 560px; width: auto; max-width: 100%; margin: 0}
.reveal section .core-figure svg {max-height: 540px; width: 85%}
.reveal section:has(.jp-OutputArea-child:nth-child(2) .core-figure) svg {max-height: 270px; width: auto}
.reveal table {font-size: .62em} .jp-InputPrompt, .jp-OutputPrompt {display: none}
</style>{%- endblock -%}
{%- block footer_js -%}<script src="reveal/dist/reveal.js"></script>
<script>Reveal.initialize({hash: true, slideNumber: "c/t", width: 1100, height: 720, margin: .04});
</script>{%- endblock -%}"""


def lessons() -> list[Path]:
    """The notebooks that have slides."""
    every = map(notebooks.find, notebooks.chapters())
    return [path for path in every if any(map(_on_slide, notebooks.read(path).cells))]


def _on_slide(cell: Any) -> bool:
    return "slide" in notebooks.tags(cell)


def write_slides(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Write slides of notebooks, executed where they are not yet, with all that they load, into a folder;
    return the HTML files. InputError without nbconvert or the scripts of Reveal.
    """
    needed = notebooks.needed
    exporter = needed("nbconvert").SlidesExporter(
        raw_template=TEMPLATE, reveal_url_prefix="reveal", reveal_theme="white"
    )
    exporter.exclude_input = True
    scripts = Path(needed("sphinx_revealjs").__file__).parent / "_static" / "revealjs" / "dist"
    mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in execute_all(sources, EXECUTED):
        notebook = deck(needed("nbformat").read(path, as_version=4))
        body, _ = exporter.from_notebook_node(notebook)
        written.append(folder / f"{path.stem}.html")
        written[-1].write_text(body, encoding="utf-8")
        classroom.copy_figures(written[-1])
    leave = shutil.ignore_patterns("*.map", "*.eot", "*.esm.js", "svg*", "*-svg*", "*-full*")
    shutil.copytree(scripts, folder / "reveal" / "dist", dirs_exist_ok=True, ignore=leave)
    if mathjax is not None and mathjax.origin is not None:
        source = Path(mathjax.origin).parent / "static" / "mathjax"
        shutil.copytree(source, folder / "mathjax", dirs_exist_ok=True, ignore=leave)
    return written


def deck(notebook: Any) -> Any:
    """The slides of an executed notebook (nbformat's node): its title and question, then each tagged cell;
    what has no heading gets that of its section.
    """
    first = classroom.plain(notebook.cells[0].source)
    question = re.search(r"\*Question:\* (.*?)\\\n", first, re.DOTALL)
    asked = question[1][0].upper() + question[1][1:] if question else ""
    opening = [f"{first.splitlines()[0]}\n\n{asked}", *re.findall(r"(?m)^<img [^\n]*>$", first)]
    text_cell = notebooks.needed("nbformat").v4.new_markdown_cell
    on_slides, heading = [[text_cell(part)] for part in opening], ""
    for cell in notebook.cells[1:]:
        prose = cell.cell_type == "markdown"
        headings = re.findall(r"^#+ .*$", cell.source, re.MULTILINE) if prose else []
        if _on_slide(cell):
            if prose:
                text = classroom.plain(cell.source)
                cell.source = re.sub(r"\[([^\]]+)\]\(\d\d_[^)]*\)", r"\1", text)
            on_slides.append([cell] if headings else [text_cell(heading), cell])
        heading = headings[-1] if headings else heading
    for slide in on_slides:
        for place, cell in enumerate(slide):
            cell.metadata["slideshow"] = {"slide_type": "-" if place else "slide"}
    notebook.cells = list(itertools.chain(*on_slides))
    return notebook
