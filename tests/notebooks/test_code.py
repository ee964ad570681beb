"""Code on a page is code that a reader can look up, and that a page does not cut."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest

from lab.report.listing import WIDTH, text_of

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
every = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def code_cells(text: str) -> list[str]:
    """The code cells of a notebook in the percent format."""
    parts = re.split(r"(?m)^# %%(.*)$", text)
    return [
        code for head, code in zip(parts[1::2], parts[2::2], strict=True) if "markdown" not in head
    ]


def private(code: str) -> set[str]:
    """Names with a leading underscore; special ones like `__init__` and a lone `_` are none."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {
        token.string
        for token in tokens
        if token.type == tokenize.NAME and re.match(r"_+[^\W_]", token.string)
        if not token.string.endswith("__")
    }


def too_wide(code: str) -> list[str]:
    return [row for row in code.splitlines() if len(row) > WIDTH]


def listed(cells: list[str]) -> dict[str, str]:
    """What `source(...)` prints on a page; its argument must follow from the page's imports."""
    tree = ast.parse("\n".join(cells))
    names: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), "imports", "exec"), names)
    calls = [
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "source"
    ]
    return {call: text_of(eval(call, names)) for call in calls}


@every
def test_code_cells_have_narrow_lines_and_public_names(path):
    for cell in code_cells(path.read_text(encoding="utf-8")):
        assert not too_wide(cell) and not private(cell)


@every
def test_listings_have_public_names(path):
    pytest.importorskip("ruff")
    for call, text in listed(code_cells(path.read_text(encoding="utf-8"))).items():
        assert not private(text), call


def test_the_finders_see_what_they_look_for():
    text = "# %% [markdown]\n# _a\n# %%\nx = _b + c._d(__e)\n# %% tags=[]\nfor _ in f.__init__: g\n"
    first, second = code_cells(text)
    assert private(first) == {"_b", "_d", "__e"} and not private(second)
    assert too_wide("a" * (WIDTH + 1)) and not too_wide("a" * WIDTH)
    found = listed(["from core import server\n", "source(server.weighted_average)\n"])
    assert found["server.weighted_average"].startswith("def weighted_average(")


#: the quick start shows how a run goes on, round after round
PRINT = ("00_quickstart",)


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.stem not in PRINT], ids=lambda path: path.stem
)
def test_results_are_sentences_and_no_prints(path):
    for cell in code_cells(path.read_text(encoding="utf-8")):
        calls = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Call)]
        assert not any(getattr(call.func, "id", "") == "print" for call in calls)
