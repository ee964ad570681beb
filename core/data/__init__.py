"""Data sets in memory and their partition over clients (floor 0).

`load` gives a `Dataset` of 8-bit images by name, `Dataset.from_arrays` one of arrays; `available` lists
the names, `get` downloads, `convert` makes a file from what was downloaded by hand or from folders of
images; `core.data.partition` distributes a training set over clients.
"""

from core.data.dataset import Dataset, Split, with_validation
from core.data.loading import (
    available,
    convert,
    get,
    is_made_here,
    is_own,
    load,
    present_names,
)

__all__ = [
    "Dataset",
    "Split",
    "available",
    "convert",
    "get",
    "is_made_here",
    "is_own",
    "load",
    "present_names",
    "with_validation",
]
