"""What every notebook of the book must have, and what its code cells may hold."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.report import notebooks
from lab.report.listing import WIDTH, text_of

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
#: the quick start shows how a run goes on, round after round
PRINT = ("01_quickstart",)
every = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[tuple[str, list[str]]]:
    """Text and tags of each code or markdown cell of the .ipynb beside a source, read as plain JSON."""
    notebook = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))
    return [
        ("".join(cell["source"]), cell["metadata"].get("tags", []))
        for cell in notebook["cells"]
        if cell["cell_type"] == kind
    ]


@every
def test_it_opens_with_a_title_a_question_and_what_it_takes_and_has_parameters(source):
    """One cell of plain values; claims and status only reports on the book itself."""
    text, _ = cells(source, "markdown")[0]
    assert text.startswith("# ")
    for word in ("Question", "Time", "Data"):
        assert re.search(rf"\*{word}:?\*", text), f"{source.name} does not state its {word.lower()}"
    if source.stem != "34_status":
        assert len([text for text, tags in cells(source, "code") if "parameters" in tags]) == 1
        assert notebooks.parameters(source), "no parameter was found in the cell"


def test_solutions_are_folded_and_belong_to_an_exercise_whose_label_is_its_own():
    labels: list[str] = []
    for source in SOURCES:
        text = "\n".join(text for text, _ in cells(source, "markdown"))
        own = re.findall(r"\{exercise\}[^\n]*\n:label: (\S+)", text)
        for solved, rest in re.findall(r"\{solution\} (\S+)\n((?::.*\n)*)", text):
            assert solved in own and "dropdown" in rest, f"{source.name}: {solved}"
        labels += re.findall(r"^:label: (\S+)", text, re.M)
    assert len(labels) > 50
    assert not [label for label, times in Counter(labels).items() if times > 1]


# code


def private(code: str) -> set[str]:
    """Names with a leading underscore; special ones like `__init__` and a lone `_` are none."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    names = {token.string for token in tokens if token.type == tokenize.NAME}
    return {name for name in names if re.match(r"_+[^\W_]", name) and not name.endswith("__")}


def too_wide(code: str) -> list[str]:
    return [row for row in code.splitlines() if len(row) > WIDTH]


def calls(code: str, name: str) -> list[ast.Call]:
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [node for node in nodes if getattr(node.func, "id", "") == name]


def listed(codes: list[str]) -> dict[str, str]:
    """What `source(...)` prints on a page; its argument must follow from the page's imports."""
    names: dict[str, Any] = {}
    code = "\n".join(codes)
    for node in ast.parse(code).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), "imports", "exec"), names)
    shown = [ast.unparse(call.args[0]) for call in calls(code, "source")]
    return {name: text_of(eval(name, names)) for name in shown}


@every
def test_cells_and_listings_are_narrow_and_of_public_names(source):
    """Nothing is installed or downloaded, and results are sentences and no prints."""
    codes = [text for text, _ in cells(source, "code")]
    for code in codes:
        assert not too_wide(code) and not private(code)
        assert not re.search(r"^\s*[!%]", code, re.MULTILINE) and "download=True" not in code
        assert source.stem in PRINT or not calls(code, "print")
    pytest.importorskip("ruff")
    for call, text in listed(codes).items():
        assert not private(text), call


def test_the_finders_see_what_they_look_for():
    assert private("x = _b + c._d(__e)\n") == {"_b", "_d", "__e"}
    assert not private("for _ in f.__init__: g\n")
    assert too_wide("a" * (WIDTH + 1)) and not too_wide("a" * WIDTH)
    shown = listed(["from core import server\n", "source(server.weighted_average)\n"])
    assert shown["server.weighted_average"].startswith("def weighted_average(")
