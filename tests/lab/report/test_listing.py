"""The package's source on a page: the same program, in lines that a page does not cut."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from core.condensation import engine
from core.condensation.engine import MatchingObjective
from lab.report import source
from lab.report.listing import WIDTH, text_of

LISTED = [engine.condense, MatchingObjective]


def program(text: str) -> str:
    """A program without its docstrings."""
    tree = ast.parse(textwrap.dedent(text))
    for node in ast.walk(tree):
        kinds = ast.FunctionDef | ast.ClassDef
        if isinstance(node, kinds) and len(node.body) > 1 and ast.get_docstring(node) is not None:
            node.body.pop(0)
    return ast.dump(tree)


@pytest.mark.parametrize("function", LISTED, ids=lambda function: function.__qualname__)
def test_a_listing_is_the_same_program_in_narrow_lines(function):
    pytest.importorskip("ruff")
    text = text_of(function)
    assert program(text) == program(inspect.getsource(function))
    assert not [row for row in text.splitlines() if len(row) > WIDTH and '"' not in row]


def noted(value):
    """Doubles."""
    twice = 2 * value  # a remark that would not fit behind the code, because it goes on and on
    return twice + twice  # type: ignore[no-any-return]


def test_a_listing_leaves_docstrings_out_and_is_highlighted():
    pytest.importorskip("IPython")
    text = source(noted).data
    assert text.startswith("```python\ndef noted(")
    assert text.endswith("return twice + twice\n```")
    assert "Doubles" not in text and '"""' not in text
