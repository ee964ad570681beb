"""What the papers claim beyond single numbers, judged as claims.

The claims stand in `book/claims/<paper>.yaml`. A claim that one row leads others is computed from
records, by paired differences over seeds in every column that is measured: it **holds** where the
90% interval of the lead is above 0 in all columns, it **does not hold** where the lead is below 0 in
some of them, further or more often than chance explains, else it is **unclear** (see `refuted`).
Columns that the paper does not have say nothing of its claims. A claim may ask for a lead of so many
points (`by`), or to be ahead in most columns only (`most`). Other claims are **tested** (a test of
this repository fails if it is not so), agree or disagree with the paper's own numbers, are examined
on a page, or are open.
"""

from __future__ import annotations

import functools
import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pandas as pd

from core.errors import InputError, brief, unknown
from core.experiments import Record, TableSpec, records
from core.experiments.cell import Cell
from core.experiments.spec import TABLES, as_list, as_mapping, check_keys, read_yaml, short
from core.report import style
from core.report.frames import best_cells
from core.report.intervals import paired, probability
from core.report.verdict import FULL, REDUCED, budget, values

CLAIMS = TABLES.parent / "claims"
#: the papers in the order of the book, and their names
PAPERS = {"fedvck": "FedVCK", "fedmk": "FedMK", "gddfl": "GDD-FL", "fediod": "FedIOD"}
#: how a claim may be judged, and what is said of one that is judged so without records
KINDS = {
    "ahead": "not measured",
    "test": "holds in a test",
    "print": "",
    "shown": "examined on its page",
    "open": "open",
    "not_testable": "not testable here",
}
VERDICTS = (
    "holds",
    "does not hold",
    "unclear",
    "not measured",
    "holds in a test",
    "agrees with its own numbers",
    "contradicts its own numbers",
    "examined on its page",
    "open",
    "not testable here",
)
_KEYS = ("claim", "where", "page", "main", "ours")


@attrs.frozen(kw_only=True)
class Claim:
    """One claim, in our words, and how it is judged."""

    paper: str
    number: int
    text: str
    #: where the paper makes it
    where: str
    #: one of `KINDS`, and what stands below it
    kind: str
    detail: Any
    #: the page that has the evidence
    page: str | None = None
    #: whether the paper rests on it
    main: bool = False
    #: whether this book asks it, and not the paper
    ours: bool = False


@attrs.frozen
class Lead:
    """By how much one row leads another in a column, in the unit of print; above 0 is better. Where it
    is to lead several rivals, the other is the one that comes nearest or is furthest ahead.
    """

    table: str
    column: str
    profile: str
    row: str
    rival: str
    mean: float
    #: the ends of its 90% interval over seeds
    low: float
    high: float
    seeds: int
    metric: str
    unit: str
    #: which data stand in for those of the paper, if any
    stand_in: str | None = None
    #: the differences, seed by seed, to each rival
    gaps: tuple[tuple[float, ...], ...] = ()

    def above(self, by: float) -> bool:
        """Whether the 90% interval of the lead over each rival lies above `by`."""
        return all(low > by for _, low, _ in map(_interval, self.gaps))

    def below(self, by: float) -> bool:
        """Whether that of the lead over some rival lies below `by`."""
        return any(high < by for _, _, high in map(_interval, self.gaps))


@attrs.frozen
class Finding:
    """What came out for a claim."""

    verdict: str
    effect: str = ""
    leads: tuple[Lead, ...] = ()

    @property
    def budget(self) -> str:
        """Whether the numbers behind it were run as the paper ran its own; "" without numbers."""
        if not self.leads:
            return ""
        kinds = {budget(one.profile, one.stand_in) for one in self.leads}
        return FULL if kinds == {FULL} else REDUCED


def claims(paper: str, root: Path | None = None) -> list[Claim]:
    """A paper's claims, in the order of its file. Raises InputError for a file that is not well
    formed.
    """
    path = (root or CLAIMS) / f"{paper}.yaml"
    found = []
    for number, entry in enumerate(as_list(read_yaml(path).get("claims"), short(path)), 1):
        where = f"{short(path)}, claim {number}"
        given = as_mapping(entry, where)
        check_keys(given, (*_KEYS, *KINDS), where)
        kinds = [kind for kind in KINDS if kind in given]
        if len(kinds) != 1 or not isinstance(given.get("claim"), str):
            raise InputError(f"{where} needs a 'claim' and one of {', '.join(KINDS)}")
        (kind,) = kinds
        if kind == "print":
            detail = as_mapping(given[kind], where)
            # an unquoted comma in `because` would end it and begin another key
            check_keys(detail, ("agrees", "because"), where)
            if not (isinstance(detail.get("agrees"), bool) and detail.get("because")):
                raise InputError(f"{where} needs 'agrees', true or false, and 'because'")
        page = given["shown"] if kind == "shown" else given.get("page")
        if page is not None and not (isinstance(page, str) and re.fullmatch(r"\w+", page)):
            raise InputError(f"{where}: {brief(page)} is not the name of a page")
        found.append(
            Claim(
                paper=paper,
                number=number,
                text=given["claim"],
                where=str(given.get("where", "")),
                kind=kind,
                detail=given[kind],
                page=page,
                main=bool(given.get("main")),
                ours=bool(given.get("ours")),
            )
        )
    return found


def judge(claim: Claim, measured: Mapping[str, Record] | None = None) -> Finding:
    """The verdict on a claim; `measured` are complete records by experiment id, by default the
    book's. Raises InputError for a row, column or metric that its tables do not have.
    """
    if claim.kind == "print":
        agrees, because = claim.detail["agrees"], claim.detail["because"]
        verb = "agrees with" if agrees else "contradicts"
        return Finding(f"{verb} its own numbers", because)
    if claim.kind != "ahead":
        effect = str(claim.detail) if claim.kind in ("test", "open", "not_testable") else ""
        return Finding(KINDS[claim.kind], effect)
    found = tuple(leads(claim, records() if measured is None else measured))
    if not found:
        return Finding(KINDS["ahead"])
    by, most = claim.detail.get("by", 0), claim.detail.get("most", False)
    ahead, behind = sum(one.above(by) for one in found), sum(one.below(by) for one in found)
    half = len(found) / 2
    fails = behind > half if most else refuted(found, by)
    holds = ahead > half if most else ahead == len(found)
    verdict = "holds" if holds else "does not hold" if fails else "unclear"
    asked = f"more than {by:g} points ahead" if by else "ahead"
    less = "less" if by else "behind"
    return Finding(verdict, _effect(found, f"{asked} in {ahead}, {less} in {behind}"), found)


def refuted(found: Sequence[Lead], by: float = 0.0) -> bool:
    """Whether comparisons contradict that every lead is more than `by`.

    Simes (1986): of the chances of m leads as low as these, in rising order, the i-th is at most
    5% * i / m. One lead far below counts, or many that are a little below, and true claims are refuted
    in at most 5% of cases, also where comparisons share runs. Where a row is to lead several
    rivals, each of them is a comparison, so looking for the best costs nothing. One seed decides
    nothing.
    """
    known = [gaps for one in found for gaps in one.gaps if len(gaps) > 1]
    chances = sorted(probability(gaps, by) for gaps in known)
    return any(p <= 0.05 * i / len(chances) for i, p in enumerate(chances, 1))


def leads(claim: Claim, measured: Mapping[str, Record]) -> list[Lead]:
    """The comparisons that a claim of the kind "ahead" asks for, where both sides are measured.

    Two cells that the same runs fill are one comparison for each measure. `columns` are those that the
    claim is about, else all that the paper prints, or, of a claim of this book, all. `metrics` are the
    measures, else it is the table's first. `beside` are other tables that have the
    same columns and rows of other names, which a claim may set beside each other. Raises InputError
    for a name that the tables do not have.
    """
    where = f"claim {claim.number} of {claim.paper}"
    asked = as_mapping(claim.detail, where)
    check_keys(
        asked,
        ("tables", "beside", "metrics", "columns", "row", "against", "pairs", "by", "most"),
        where,
    )
    found: dict[tuple[str, ...], Lead] = {}
    for table in as_list(asked.get("tables"), f"{where}, tables"):
        specs = [TableSpec.find(claim.paper, one) for one in (table, *asked.get("beside", ()))]
        _check_names(asked, specs, where)
        metrics = asked.get("metrics", [specs[0].metric])
        columns: dict[tuple[str, str], dict[str, Cell]] = {}
        printed = [one.name for one in specs[0].columns if one.printed or claim.ours]
        for cell in (cell for spec in specs for cell in best_cells(spec, measured)):
            if cell.metric in metrics and cell.column in asked.get("columns", printed):
                columns.setdefault((cell.column, cell.metric), {})[cell.row] = cell
        for cells in columns.values():
            for lead in _in_column(asked, cells, measured):
                sides = cells[lead.row], cells[lead.rival]
                runs = [run.id for cell in sides for run in cell.experiments]
                found.setdefault((*(cell.record_metric for cell in sides), *runs), lead)
    return list(found.values())


def _check_names(asked: Mapping[str, Any], specs: Sequence[TableSpec], where: str) -> None:
    """Raise InputError, with the nearest right name, for a row, column or metric of a claim that its
    tables do not have, and for a claim that compares nothing.
    """
    pairs = asked.get("pairs", ())
    if not ("row" in asked or pairs) or any(len(pair) != 2 for pair in pairs):
        raise InputError(f"{where} needs a 'row' that leads, or 'pairs' of two rows")
    rows = [*([asked["row"]] if "row" in asked else ()), *asked.get("against", ())]
    named = {
        "row": ([*rows, *itertools.chain(*pairs)], [row.name for s in specs for row in s.rows]),
        "column": (asked.get("columns", ()), [one.name for s in specs for one in s.columns]),
        "metric": (asked.get("metrics", ()), [one for s in specs for one in s.metrics]),
    }
    for kind, (names, known) in named.items():
        for name in names:
            if name not in known:
                tables = " and ".join(spec.table for spec in specs)
                raise unknown(f"{kind} of table {tables} ({where})", name, known)


def _in_column(
    asked: Mapping[str, Any], cells: Mapping[str, Cell], measured: Mapping[str, Record]
) -> list[Lead]:
    """The comparisons of one column: pairs as stated, or a row with all others, of which the best on
    the seeds that both have stands for them; one with a single seed only where no other is there.
    """
    known = {row: of for row, cell in cells.items() if (of := values(cell, measured))}
    better = -1 if _lower_is_better(cells) else 1

    def gaps(row: str, rival: str) -> tuple[float, ...]:
        a, b = known.get(row, {}), known.get(rival, {})
        return tuple(better * (a[seed] - b[seed]) for seed in sorted(a.keys() & b.keys()))

    sides = [(row, (rival,)) for row, rival in asked.get("pairs", ())]
    if "row" in asked:
        others = tuple(one for one in asked.get("against", known) if one != asked["row"])
        sides.append((asked["row"], others))
    compared = []
    for row, rivals in sides:
        found = {rival: each for rival in rivals if (each := gaps(row, rival))}
        if found:
            best = min(
                found, key=lambda rival: (len(found[rival]) < 2, statistics.fmean(found[rival]))
            )
            cell, seen = cells[row], found[best]
            where = (cell.table, cell.column, cell.profile, row, best)
            what = (len(seen), cell.metric, cell.unit, cell.stand_in)
            compared.append(Lead(*where, *_interval(seen), *what, tuple(found.values())))
    return compared


def _interval(gaps: Sequence[float]) -> tuple[float, ...]:
    """The mean of differences over seeds and the ends of its 90% interval."""
    return paired(gaps, [0.0] * len(gaps))


def _lower_is_better(cells: Mapping[str, Cell]) -> bool:
    printed = [cell.published for cell in cells.values() if cell.published]
    if printed:
        return printed[0].better == "lower"
    return next(iter(cells.values())).metric.startswith("upload")


def _effect(found: Sequence[Lead], counted: str) -> str:
    """A sentence on all comparisons of a claim; `counted` says how they went."""
    profiles = ", ".join(dict.fromkeys(one.profile for one in found))
    digits, unit = style.digits(found[0].unit), style.difference(found[0].unit)
    rivals = max(len(one.gaps) for one in found)
    if len(found) == 1:
        (one,) = found
        of = f", the best of {rivals} rivals," if rivals > 1 else ""
        interval = f" [{one.low:.{digits}f}, {one.high:.{digits}f}]" if one.seeds > 1 else ""
        seeds = f"{one.seeds} seeds" if one.seeds > 1 else "one seed"
        return (
            f"{one.row} leads {one.rival}{of} by {one.mean:+.{digits}f}{unit}{interval} "
            f"({one.column}, {seeds}, {profiles})"
        )
    single = sum(one.seeds == 1 for one in found)
    counts = f"{counted} of {len(found)} comparisons" + f" ({single} with one seed)" * bool(single)
    over = " over the best rival" * (rivals > 1)
    found = [one for one in found if one.seeds > 1] or found  # one seed decides nothing
    of: dict[tuple[str, str], list[float]] = {}
    for one in found:
        of.setdefault((style.measure(one.metric), one.unit), []).append(one.mean)
    if len(of) > 1:  # no scale is common to them
        each = ", ".join(
            f"{name} {statistics.fmean(means):+.{style.digits(unit)}f}"
            for (name, unit), means in of.items()
        )
        return f"{counts}; mean lead{over}, above 0 is better: {each} ({profiles})"
    means = sorted(one.mean for one in found)
    return (
        f"{counts}; lead{over} from {means[0]:+.{digits}f} to {means[-1]:+.{digits}f}{unit}, "
        f"median {statistics.median(means):+.{digits}f} ({profiles})"
    )


@functools.cache
def papers() -> tuple[str, ...]:
    """The papers that have claims, in the order of the book."""
    found = {path.stem for path in CLAIMS.glob("*.yaml")}
    return tuple(paper for paper in PAPERS if paper in found)


def claims_frame(
    paper: str, measured: Mapping[str, Record] | None = None, main: bool = False
) -> pd.DataFrame:
    """A paper's claims with their verdicts: `number`, `claim`, `where`, `verdict`, `effect`,
    `budget`, `page`, `main`, `ours`; with `main` only those that the paper rests on.
    """
    rows = []
    for claim in claims(paper):
        if claim.main or not main:
            found = judge(claim, measured)
            rows.append(
                {
                    "number": claim.number,
                    "claim": claim.text,
                    "where": claim.where,
                    "verdict": found.verdict,
                    "effect": found.effect,
                    "budget": found.budget,
                    "page": claim.page or "",
                    "main": claim.main,
                    "ours": claim.ours,
                }
            )
    return pd.DataFrame(rows)


def main_claims() -> pd.DataFrame:
    """A row for each paper: what it rests on, how many of these claims hold, and how many do not;
    those that were measured with less than the paper's budget, or on other data, apart.
    """
    rows = []
    for paper, name in PAPERS.items():
        frame = claims_frame(paper, main=True)
        said, less = frame["verdict"], frame["budget"] == REDUCED
        holds = said.isin(["holds", "holds in a test"])
        fails = said.isin(["does not hold", "contradicts its own numbers"])
        rows.append(
            {
                "paper": name,
                "main claims": len(frame),
                "hold": int((holds & ~less).sum()),
                "do not": int((fails & ~less).sum()),
                "hold with less": int((holds & less).sum()),
                "do not with less": int((fails & less).sum()),
                "unclear or open": int(said.isin(["unclear", "not measured", "open"]).sum()),
            }
        )
    return pd.DataFrame(rows)


def claims_count() -> pd.DataFrame:
    """How many claims of each paper have each verdict; the book's own questions are left out."""
    known, counts = records(), {}
    for paper in papers():
        frame = claims_frame(paper, known)
        counts[paper] = frame[~frame["ours"]]["verdict"].value_counts()
    return pd.DataFrame(counts).reindex(VERDICTS).fillna(0).astype(int).T
