"""Slides of a chapter: its executed notebook through nbconvert's Reveal writer, with all it loads."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.report import classroom
from lab.report.notebooks import needed, tags
from lab.report.site.executing import execute_all
from lab.report.site.pipeline import EXECUTED

#: code with more lines is left to the notebook
LINES = 14
HIDDEN = {"remove-cell", "hide-cell", "setup", "parameters"}
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
.reveal h1, .reveal h2, .reveal h3 {text-transform: none}
.reveal section img {max-height: 560px; width: auto; max-width: 100%; margin: 0}
.reveal section .core-figure svg {max-height: 640px; max-width: 100%}
.reveal table {font-size: .62em} .jp-InputPrompt, .jp-OutputPrompt {display: none}
</style>{%- endblock -%}
{%- block footer_js -%}<script src="reveal/dist/reveal.js"></script>
<script>Reveal.initialize({hash: true, slideNumber: "c/t", width: 1100, height: 720, margin: .04});
</script>{%- endblock -%}"""


def write_slides(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Write slides of notebooks, executed where they are not yet, with all that they load, into a folder;
    return the HTML files. InputError without nbconvert or the scripts of Reveal.
    """
    exporter = needed("nbconvert").SlidesExporter(
        raw_template=TEMPLATE, reveal_url_prefix="reveal", reveal_theme="white"
    )
    exporter.register_preprocessor(
        needed("nbconvert.preprocessors").TagRemovePreprocessor(
            enabled=True, remove_cell_tags=HIDDEN, remove_input_tags={"hide-input"}
        ),
        enabled=True,
    )
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
    """Cut an executed notebook (nbformat's node) into slides: each heading begins one, and so does each
    cell of code, without its code where that is long or only imports.
    """
    new = needed("nbformat").v4.new_markdown_cell
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            # other chapters are other files, which may not be there
            text = re.sub(r"\[([^\]]+)\]\(\d\d_[^)]*\)", r"\1", classroom.plain(cell.source))
            for part in filter(str.strip, re.split(r"(?m)^(?=#{1,3} )", text)):
                kind = "slide" if re.match(r"#{1,2} ", part) else "subslide"
                cells.append(new(part, metadata={"slideshow": {"slide_type": kind}}))
            continue
        lines = cell.source.splitlines()
        imports = all(re.match(r"(from|import) |[ )\w,]*$|$", line) for line in lines)
        if imports or len(lines) > LINES:
            cell.metadata["tags"] = sorted({*tags(cell), "hide-input"})
        cell.metadata["slideshow"] = {"slide_type": "subslide"}
        if cell.outputs or "hide-input" not in tags(cell):
            cells.append(cell)
    notebook.cells = cells
    return notebook
