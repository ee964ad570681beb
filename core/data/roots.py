"""The data folder."""

from __future__ import annotations

import os
from pathlib import Path

from core.errors import InputError


def data_root(root: str | Path | None = None) -> Path:
    """`root`, else the folder in the environment variable FEDCON_DATA, else `data` in the current
    folder. Raises InputError for the home folder of a user who is not known here.
    """
    path = Path(root or os.environ.get("FEDCON_DATA") or "data")
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise InputError(f"the data folder {path}: {error}") from None
