"""Where data lie."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(root: str | Path | None = None) -> Path:
    """`root`, else the folder in the environment variable FEDCON_DATA, else `data` in the current
    folder.
    """
    return Path(root or os.environ.get("FEDCON_DATA") or "data").expanduser()
