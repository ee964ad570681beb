"""What was found, paper by paper: sentences whose numbers come from records, and which are true
only while the records bear them out by their intervals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import pandas as pd

from core.errors import InputError, unknown
from core.privacy.membership import defence_by_chance
from lab import Record, TableSpec, records
from lab.forms import TABLES, check_keys, read_yaml
from lab.report import style
from lab.report.charts import dots
from lab.report.claims import PAPERS
from lab.report.figures import to_html
from lab.report.intervals import interval
from lab.report.verdict import (
    EXACT,
    compare,
    differences,
    in_printed_unit,
    mean_and_std,
    values,
)
from lab.table import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FINDINGS = TABLES.parent / "findings.yaml"
BOTTOM_LINES = TABLES.parent / "bottom_lines.yaml"
#: between a cell and the one whose printed number its verdict is about
_BESIDE = " beside "
_KEYS = ("page", "text", "profile", "cells", "ahead")


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


@attrs.frozen
class Difference:
    """A cell minus another in a sentence, in the unit of print: the mean over the seeds that both have,
    with its 90% interval.
    """

    mean: float
    low: float
    high: float
    seeds: int
    unit: str
    #: the difference of what the paper prints for both, as text
    printed: str

    def __str__(self) -> str:
        digits, sign = style.digits(self.unit), style.difference(self.unit)
        if self.seeds == 1:
            return f"{self.mean:.{digits}f}{sign} (one seed)"
        if math.isinf(self.high):
            return f"{self.mean:.{digits}f}{sign} (the same in all {self.seeds} seeds)"
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"
        return f"{self.mean:.{digits}f}{sign} (90% interval {low} to {high}, {self.seeds} seeds)"


def findings() -> str:
    """All findings, each with its page, as a Markdown list. Raises InputError where a cell has no
    record, or where the records no longer give the order that a sentence states.
    """
    known = records()
    told = {
        name: f"{stated(name, entry, known)} [More](../notebooks/{entry['page']})"
        for name, entry in read_yaml(FINDINGS).items()
    }
    # further paragraphs of an item are indented
    return "".join(
        f"* **{name}** {text}\n".replace("\n\n", "\n\n  ") for name, text in told.items()
    )


def findings_on(page: str) -> str:
    """Those that a page of notebooks is the evidence for, a paragraph each. Raises InputError for a
    page without one, and as `findings` does.
    """
    entries, known = read_yaml(FINDINGS), records()
    if page not in (pages := {entry["page"] for entry in entries.values()}):
        raise unknown("page with a finding", page, pages)
    told = {name: entry for name, entry in entries.items() if entry["page"] == page}
    return "\n\n".join(f"**{name}** {stated(name, entry, known)}" for name, entry in told.items())


def pictures() -> dict[str, Figure]:
    """The numbers of each finding as dots, by its name: what its sentences give of a cell, measured or
    printed or both.
    """
    known = records()
    return {name: _picture(entry, known) for name, entry in read_yaml(FINDINGS).items()}


def folded(list_of_findings: str, pictures: Mapping[str, Figure] | None = None) -> str:
    """Findings, a Markdown list as `findings()` gives it, each as a headline that opens; a picture of
    the same name stands above its sentences.
    """
    made = []
    for item in re.split(r"^\* \*\*", list_of_findings, flags=re.MULTILINE)[1:]:
        title, text = item.rstrip().replace("\n\n  ", "\n\n").split("** ", 1)
        picture = (pictures or {}).get(title)
        drawn = f"{to_html(picture)}\n\n" if picture else ""
        made.append(f"```{{dropdown}} {title}\n:class-container: finding\n\n{drawn}{text}\n```\n")
    return "\n".join(made)


def _picture(entry: Mapping[str, Any], known: Mapping[str, Record]) -> Figure:
    """Those of one finding, which are all of one measure."""
    rows, text, measures = [], str(entry["text"]), set[tuple[str, str]]()
    for key, name in entry["cells"].items():
        shown, print_too = f"{{{key}}}" in text, f"{{{key}.printed}}" in text
        of_one = isinstance(name, str) and _BESIDE not in name
        if not (of_one and (shown or print_too)):
            continue
        cell, by_seed = _values(name, entry["profile"], known)
        measures.add((cell.metric, cell.unit))
        mean, std = mean_and_std([*by_seed.values()])
        printed = cell.published.value if cell.published and print_too else None
        rows.append(
            {
                "group": f"{cell.column}, {cell.profile}",
                "name": cell.row + _other_metric(name),
                "value": mean if shown else None,
                "low": mean - (std or 0.0) if shown else None,
                "high": mean + (std or 0.0) if shown else None,
                "paper": printed,
            }
        )
    if len(measures) != 1:
        raise InputError(f"a finding gives values of one measure, not of {sorted(measures)}")
    ((metric, unit),) = measures
    frame = pd.DataFrame(rows).drop_duplicates()
    numbers = ["value", "low", "high", "paper"]
    frame[numbers] = frame[numbers].astype(float)
    title = str(frame["group"].iat[0]) if frame["group"].nunique() == 1 else ""
    if not title:
        frame["name"] += " (" + frame["group"] + ")"
    xlabel = f"{style.measure(metric)}{' (%)' * (unit == 'percent')}, mean ± standard deviation"
    return dots(frame, xlabel, title, style.digits(unit))


def _other_metric(name: str) -> str:
    """What is said of a cell of which another share than its own is taken."""
    _, of, metric = name.partition(" of ")
    return of and f", {metric.replace('_', ' ')}"


def bottom_line(paper: str) -> str:
    """What came out for a paper, in some sentences. Raises InputError for a paper without one, and as
    `findings` does.
    """
    lines = read_yaml(BOTTOM_LINES)
    if paper not in lines:
        raise unknown("paper", paper, lines)
    return stated(paper, lines[paper], records())


def bottom_lines() -> str:
    """Those of all papers, a paragraph for each."""
    return "\n\n".join(f"**{name}.** {bottom_line(paper)}" for paper, name in PAPERS.items()) + "\n"


def stated(name: str, entry: Mapping[str, Any], known: Mapping[str, Record]) -> str:
    """The sentences of an entry with their numbers, none of which is of a single run.

    Raises InputError where the 90% interval of a difference that is shown, or of a pair that the entry says
    is `ahead`, is not above 0: then the sentence has to be written anew.
    """
    check_keys(entry, _KEYS, name)
    for key in _KEYS[1:]:
        if key not in entry:
            raise InputError(f"{name!r} has no {key!r}")
    found = {key: _of(cell, entry["profile"], known) for key, cell in entry["cells"].items()}
    for key, lead in _leads(entry, known).items():
        if lead.low <= 0:
            raise InputError(
                f"{name!r}: {key} is {lead}, and the sentence says who is ahead: write it anew"
            )
    # what stands there only for its printed value may be measured otherwise
    shown = {key: one for key, one in found.items() if f"{{{key}}}" in entry["text"]}
    for key, one in shown.items():
        if not isinstance(one, str) and one.seeds == 1:
            raise InputError(f"{name!r}: {key} is a single run, {one}: no sentence rests on that")
    # an empty line in the file, which the file's syntax makes one break of a line, ends a paragraph
    return str(entry["text"]).format_map(found).replace("\n", "\n\n")


def _leads(entry: Mapping[str, Any], known: Mapping[str, Record]) -> dict[str, Difference]:
    """The differences that an entry rests on: those in its text, and its pairs `ahead`."""
    cells = entry["cells"]
    pairs = {f"{a} minus {b}": [cells[a], cells[b]] for a, b in entry["ahead"]}
    pairs |= {key: cell for key, cell in cells.items() if f"{{{key}}}" in entry["text"]}
    found = {key: _of(cell, entry["profile"], known) for key, cell in pairs.items()}
    return {key: one for key, one in found.items() if isinstance(one, Difference)}


def guards() -> pd.DataFrame:
    """What guards the sentences of the first page, a row for each `guard`: by how much one cell is ahead of
    another (`mean`, `low` and `high` of its 90% interval, `seeds`). The book is not built when one ends at 0.
    """
    entries = {PAPERS[paper]: one for paper, one in read_yaml(BOTTOM_LINES).items()}
    known = records()
    rows = [
        (name, guard, one.mean, one.low, one.high, one.seeds)
        for name, entry in (entries | read_yaml(FINDINGS)).items()
        for guard, one in _leads(entry, known).items()
    ]
    return pd.DataFrame(rows, columns=["finding", "guard", "mean", "low", "high", "seeds"])


def _of(
    name: str | list[str], profile: str, known: Mapping[str, Record]
) -> Measured | Difference | str:
    """A cell at the profile of its finding, or at one of its own: "ADDRESS at PROFILE"; another share
    that its runs have measured: "ADDRESS of METRIC"; of two of these the difference; or the verdict on
    one beside what is printed at another: "ADDRESS beside ADDRESS".
    """
    if isinstance(name, list):
        (cell, ours), (other, theirs) = (_values(one, profile, known) for one in name)
        gaps = differences(ours, theirs)
        a, b = (one.published.value if one.published else None for one in (cell, other))
        printed = "–" if a is None or b is None else f"{a - b:.{style.digits(cell.unit)}f}"
        ends = interval(gaps, exact=cell.metric in EXACT)
        return Difference(*ends, len(gaps), cell.unit, printed)
    name, _, in_print = name.partition(_BESIDE)
    cell, by_seed = _values(name, profile, known)
    if in_print:
        beside = TableSpec.find_cell(in_print, profile).published
        if beside is None or beside.value is None:
            raise InputError(f"a sentence asks for print's number of {in_print}, which has none")
        exact, found = cell.metric in EXACT, [*by_seed.values()]
        by = compare(beside.value, found, cell.unit, beside.spread, exact, cell.looks)
        return str(by.outcome)
    printed = cell.published.text if cell.published else "–"
    return Measured(*mean_and_std([*by_seed.values()]), len(by_seed), cell.unit, printed)


def _other(run: Record, metric: str) -> float:
    """Another metric of a run, or `chance`: the mean AUC of an attack that knows nothing of its members."""
    if metric != "chance":
        return run.metrics[metric]
    members = [int(run.metrics[name]) for name in run.metrics if name.startswith("mia_members/")]
    return defence_by_chance(members)["mia_auc_mean"]


def _values(name: str, profile: str, known: Mapping[str, Record]) -> tuple[Cell, dict[int, float]]:
    """A cell as `_of` names it, and its values by seed."""
    name, _, own = name.partition(" at ")
    name, _, metric = name.partition(" of ")
    cell = TableSpec.find_cell(name, own or profile)
    found = values(cell, known)
    if metric:
        runs = cell.records(known)
        found = {
            run.experiment.seed: in_printed_unit(_other(run, metric), cell.unit) for run in runs
        }
    if not found:
        raise InputError(f"a sentence has no record of {name} at the profile {own or profile}")
    return cell, found
