"""Data sets in memory and their partition over clients (floor 0).

`load` gives a `Dataset` of 8-bit images by name, `available` lists the names, `get` downloads,
`convert` makes one from what was downloaded by hand;
`core.data.partition` shares a training set out.
"""

from core.data.conversion import convert
from core.data.dataset import Dataset, Split, with_validation
from core.data.loading import (
    available,
    get,
    in_the_way,
    is_made_here,
    is_own,
    load,
    no_data,
    present_names,
)

__all__ = [
    "Dataset",
    "Split",
    "available",
    "convert",
    "get",
    "in_the_way",
    "is_made_here",
    "is_own",
    "load",
    "no_data",
    "present_names",
    "with_validation",
]
