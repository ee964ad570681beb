"""A pytest plugin beside nbval: `pytest -p tests.notebooks.keeping --nbval --keep FOLDER PAGE.ipynb`
keeps what was executed, as `make book` does, and compares a page with what was kept and nothing changed.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
import pytest
from nbval.plugin import IPyNbCell

from lab.report import notebooks
from lab.report.site import executing

#: by notebook, when it began and which of its code cells have passed
BEGUN: dict[Path, float] = {}
PASSED: dict[Path, set[int]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep", type=Path, required=True, help="the folder of executed notebooks")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Start the kernel of a notebook with what it needs to find the package and the data."""
    if not isinstance(item, IPyNbCell):
        return (yield)
    with patch.dict(os.environ, notebooks.environment(), TQDM_DISABLE="1"):
        return (yield)


@functools.cache
def key(page: Path) -> str:
    return executing.key(page.with_suffix(".py"), surroundings())


@functools.cache
def surroundings() -> str:
    return executing.surroundings()


@functools.cache
def kept(copy: Path) -> list[Any]:
    return code_cells(nbformat.read(copy, as_version=4))


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a cell the outputs that nbval compares with; it compares none where there are none."""
    if isinstance(item, IPyNbCell):
        item.add_marker(pytest.mark.timeout(900))
        copy = item.config.option.keep / item.path.name
        if executing.note(copy)["key"] == key(item.path):
            cell = kept(copy)[item.cell_num]
            item.cell.update(outputs=cell.outputs, execution_count=cell.execution_count)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep a notebook when all of its cells have passed."""
    begun = BEGUN.setdefault(item.path, time.perf_counter())
    result = yield
    if isinstance(item, IPyNbCell):
        item.cell.update(outputs=item.test_outputs, execution_count=item.cell_num + 1)
        passed = PASSED.setdefault(item.path, set())
        passed.add(item.cell_num)
        if len(passed) == len(code_cells(item.parent.nb)):
            copy = item.config.option.keep / item.path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(item.parent.nb, copy)
            executing.keep(copy, key(item.path), time.perf_counter() - begun)
    return result
