"""The package's source on a page: the same program, in lines that a page does not cut."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from core.condensation import LatentStatistics, engine
from core.condensation.engine import MatchingObjective
from lab.report import source
from lab.report.listing import WIDTH, text_of

#: the last has a remark for a type checker
LISTED = [engine.condense, MatchingObjective, LatentStatistics.running]


def program(text: str) -> str:
    """A program without its docstrings."""
    tree = ast.parse(textwrap.dedent(text))
    for node in ast.walk(tree):
        kinds = ast.FunctionDef | ast.ClassDef
        if isinstance(node, kinds) and len(node.body) > 1 and ast.get_docstring(node) is not None:
            node.body.pop(0)
    return ast.dump(tree)


@pytest.mark.parametrize("function", LISTED, ids=lambda function: function.__qualname__)
def test_a_listing_is_the_same_program_in_narrow_lines_without_docstrings(function):
    pytest.importorskip("ruff")
    pytest.importorskip("IPython")
    text = text_of(function)
    assert program(text) == program(inspect.getsource(function))
    assert not [row for row in text.splitlines() if len(row) > WIDTH and '"' not in row]
    assert '"""' not in text and "# type:" not in text
    assert source(function).data == f"```python\n{text.rstrip()}\n```"
