"""Tiny sites for the tests: a folder, a page, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def site(folder: Path, **pages: str) -> Path:
    """A site with the given pages by name; each is the inside of a body."""
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(
            f"<!doctype html><html><head><title>t</title></head><body>{body}</body></html>"
        )
    return folder


def notebook(
    path: Path, *cells: tuple[int | None, list[dict[str, Any]]], tags: tuple[str, ...] = ()
) -> Path:
    """A notebook with code cells given as (execution count, outputs)."""
    path.write_text(
        json.dumps(
            {
                "metadata": {},
                "nbformat": 4,
                "nbformat_minor": 5,
                "cells": [
                    {
                        "cell_type": "code",
                        "source": ["1 + 1"],
                        "execution_count": count,
                        "outputs": outputs,
                        "metadata": {"tags": list(tags)},
                    }
                    for count, outputs in cells
                ],
            }
        )
    )
    return path
