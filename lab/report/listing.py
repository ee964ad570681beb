"""The package's own source on a page, so that what the book prints is what it runs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

#: columns of a listing that a page shows without cutting them
WIDTH = 80
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
    return _formatted("\n".join(_with_comments(rows)))


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
    options = ["--isolated", "--line-length", str(WIDTH), "--target-version", "py311", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", *options],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip()


def _with_comments(rows: list[str]) -> Iterator[str]:
    """Lines with comments that fit: one behind code that is too wide goes above it."""
    for row in rows:
        comment = re.match(r"^(\s*)(.*?)\s*#:? (.*)$", row)
        if len(row) <= WIDTH or not comment:
            yield row
            continue
        indent, code, words = comment.groups()
        begin = f"{indent}# "
        yield from textwrap.wrap(words, WIDTH, initial_indent=begin, subsequent_indent=begin)
        if code:
            yield indent + code
