"""What was found, paper by paper: sentences whose numbers come from records, and which are true
only while the records give their order.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from typing import Any

import attrs

from core.errors import InputError
from core.experiments import Record, TableSpec, records
from core.experiments.spec import TABLES, check_keys, read_yaml
from core.report import style
from core.report.verdict import values

FINDINGS = TABLES.parent / "findings.yaml"
_KEYS = ("page", "text", "profile", "cells", "falling")


@attrs.frozen
class Measured:
    """A cell in a sentence: its mean over seeds with the deviation, in the unit of print; fewer than
    three seeds are said.
    """

    mean: float
    std: float | None
    seeds: int
    unit: str
    #: what the paper prints, as text
    printed: str

    def __str__(self) -> str:
        digits, sign = style.digits(self.unit), style.suffix(self.unit)
        if self.std is None:
            return f"{self.mean:.{digits}f}{sign} (one run)"
        few = " (two seeds)" if self.seeds == 2 else ""
        return f"{self.mean:.{digits}f} ± {self.std:.{digits}f}{sign}{few}"


def findings() -> str:
    """All findings as a Markdown list. Raises InputError where a cell has no record, or where the
    records no longer give the order that a sentence states.
    """
    known = records()
    return "".join(
        f"* {stated(name, entry, known)}\n" for name, entry in read_yaml(FINDINGS).items()
    )


def stated(name: str, entry: Mapping[str, Any], known: Mapping[str, Record]) -> str:
    """One finding with its numbers."""
    check_keys(entry, _KEYS, name)
    found = {key: _of(cell, entry["profile"], known) for key, cell in entry["cells"].items()}
    for above, below in itertools.pairwise(entry["falling"]):
        if found[above].mean <= found[below].mean:
            raise InputError(
                f"book/findings.yaml, {name!r}: {above} is {found[above]} and {below} is "
                f"{found[below]}; the sentence has to be written anew"
            )
    text = entry["text"].format_map(found)
    return f"**{name}** {text} [More](../notebooks/{entry['page']})"


def _of(name: str, profile: str, known: Mapping[str, Record]) -> Measured:
    """A cell at the profile of its finding, or at one of its own: "ADDRESS at PROFILE"."""
    name, _, own = name.partition(" at ")
    profile = own or profile
    cell = TableSpec.find_cell(name, profile)
    found = list(values(cell, known).values())
    if not found:
        raise InputError(f"book/findings.yaml: no record of {name} at the profile {profile}")
    std = statistics.stdev(found) if len(found) > 1 else None
    printed = cell.published.text if cell.published else "–"
    return Measured(statistics.fmean(found), std, len(found), cell.unit, printed)
