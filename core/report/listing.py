"""The package's own source on a page, so that what the book prints is what it runs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def source(function: Callable[..., Any]) -> Any:
    """The source of a function or class as a highlighted listing in the output of a notebook
    cell.
    """
    from IPython.display import Markdown

    return Markdown(f"```python\n{textwrap.dedent(inspect.getsource(function)).rstrip()}\n```")
