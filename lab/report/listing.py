"""The package's own source on a page, so that what the book prints is what it runs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

#: columns of a listing that a page shows without cutting them
WIDTH = 80
#: a comment of one or more lines, and code with one behind it
_COMMENT = re.compile(r"^( *)#:? .*\n(?:\1#:? .*\n)*", re.MULTILINE)
_BEHIND = re.compile(r"^( *)(\S.*?)  #:? (.*)$")
#: notes to programs that check the source, which no reader needs
_FOR_TOOLS = re.compile(r"\s+# (type: ignore|noqa)\b.*$")


def source(function: Callable[..., Any]) -> Any:
    """The source of a function or class, `text_of` it, as a highlighted listing in the output of a
    notebook cell.
    """
    from IPython.display import Markdown

    return Markdown(f"```python\n{text_of(function)}\n```")


@cache
def text_of(function: Callable[..., Any]) -> str:
    """The source of a function or class as a page shows it: without docstrings, in lines of `WIDTH` columns
    by ruff, where it is installed.
    """
    text = textwrap.dedent(inspect.getsource(function)).rstrip()
    rows = [_FOR_TOOLS.sub("", row) for row in _without_docstrings(text)]
    return _formatted(_with_comments("\n".join(rows)))


def _without_docstrings(text: str) -> list[str]:
    rows = text.splitlines()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    nodes = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds) and len(node.body) > 1 and ast.get_docstring(node) is not None
    ]
    for node in sorted(nodes, key=lambda node: -node.lineno):
        quoted = node.body[0]
        rows[quoted.lineno - 1 : quoted.end_lineno] = []
    return rows


def _formatted(text: str) -> str:
    """Break a program into lines of at most `WIDTH` columns, where they can be broken."""
    if not importlib.util.find_spec("ruff"):
        return text
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(WIDTH), "-"]
    return subprocess.check_output(ruff, input=text, text=True).rstrip()


def _with_comments(text: str) -> str:
    """A program whose comments fit: one behind code that is too wide goes above it."""
    above = r"\1# \3\n\1\2"
    rows = [row if len(row) <= WIDTH else _BEHIND.sub(above, row) for row in text.splitlines()]
    return _COMMENT.sub(_wrapped, "\n".join(rows))


def _wrapped(comment: re.Match[str]) -> str:
    """The lines of a comment as one paragraph, where one is too wide."""
    if max(map(len, comment[0].splitlines())) <= WIDTH:
        return comment[0]
    words, begin = re.sub(r"(?m)^ *#:? ", "", comment[0]), comment[1] + "# "
    return textwrap.fill(words, WIDTH, initial_indent=begin, subsequent_indent=begin) + "\n"
