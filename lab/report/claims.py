"""Claims of the papers beyond single numbers, and their verdicts: `book/claims/<paper>.yaml`.

A claim that one row leads others is computed from records, by paired differences over seeds in every column
that is measured: it **holds** where the 90% interval of the lead is above 0 in all columns, it **does not
hold** where the lead is below 0 in some of them, further or more often than chance explains (see `refuted`),
else it is **unclear**. Columns that the paper does not have say nothing of its claims. A claim may ask for a
lead of so many points (`by`; below 0: allow to be so far behind), or to be ahead in most columns only
(`most`), and say by metric from which value on the leading row has learned anything (`least`): of a column
that was run with less than the paper's budget and is below it nothing follows. Other claims are **tested** (a
test of this repository fails if it is not so), agree or disagree with the paper's own numbers, are examined
on a page, or are open.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Annotated

import attrs
import numpy as np
import pandas as pd
from pydantic import Field

from lab import Record, TableSpec, records
from lab.forms import TABLES, Part, Text, read, read_yaml, short
from lab.profiles import budget_name
from lab.report import style
from lab.report.frames import best_cells
from lab.report.intervals import interval, probability
from lab.report.verdict import (
    EXACT,
    FULL,
    REDUCED,
    budget,
    by_column,
    differences,
    planned,
    unfair,
    values,
)
from lab.table import Cell

CLAIMS = TABLES.parent / "claims"
#: the papers in the order of the book, and their names
PAPERS = {"fedvck": "FedVCK", "fedmk": "FedMK", "gddfl": "GDD-FL", "fediod": "FedIOD"}
#: each verdict with its sign and colour
SIGNS = {
    "holds": ("✓", "#009E73"),
    "does not hold": ("✗", "#D55E00"),
    "unclear": ("~", "#E69F00"),
    "not measured": ("…", "#A6A6A6"),
    "holds in a test": ("✓", "#56B4E9"),
    "agrees with its own numbers": ("=", "#0072B2"),
    "contradicts its own numbers": ("≠", "#CC79A7"),
    "examined on its page": ("→", "#8C8C8C"),
    "open": ("…", "#C9C9C8"),
    "not testable here": ("–", "#E4E4E3"),
}
VERDICTS = tuple(SIGNS)
#: verdicts on claims that are judged without records
KINDS = {"test": "holds in a test", "open": "open", "not_testable": "not testable here"}
Names = Annotated[list[Text], Field(min_length=1)]
Page = Annotated[str, Field(pattern=r"^\w+$")]


class Ahead(Part):
    """A claim that one row leads others: which rows, in which columns and measures, by how much."""

    tables: Annotated[list[int | str], Field(min_length=1)]
    #: other tables with the same columns, whose rows may stand beside those of the first
    beside: list[int | str] = Field([])
    #: by default the table's first
    metrics: Names | None = None
    #: by default all that the paper prints, or, of a claim of this book, all
    columns: Names | None = None
    #: a row that leads those it is `against`, by default all others that the paper has
    row: Text | None = None
    against: Names | None = None
    #: a row that leads, and the one that it leads
    pairs: list[Annotated[Names, Field(min_length=2, max_length=2)]] = Field([])
    by: float = 0
    most: bool = False
    least: dict[str, float] = Field({})


class OwnNumbers(Part):
    """Verdict of the paper's own numbers on a claim, and why."""

    agrees: bool
    because: Text


class Claim(Part):
    """One claim, in our words, where the paper makes it, and how it is judged."""

    claim: Text
    where: str = ""
    #: the page that has the evidence
    page: Page | None = None
    #: whether the paper rests on it
    main: bool = False
    #: whether this book asks it, and not the paper
    ours: bool = False
    ahead: Ahead | None = None
    test: Text | None = None
    paper_numbers: OwnNumbers | None = None
    shown: Page | None = None
    open: Text | None = None
    not_testable: Text | None = None
    paper: str = ""
    number: int = 1


class _File(Part):
    claims: Annotated[list[Claim], Field(min_length=1)]


@attrs.frozen(eq=False)
class Lead:
    """Lead of one row over others in a column, in the paper's unit; above 0 is better. Where there
    are several, the one that comes nearest or is furthest ahead stands for them.
    """

    #: that of the leading row
    cell: Cell
    #: the differences to each baseline, seed by seed
    gaps: Mapping[str, tuple[float, ...]]
    #: whether the row has in its column what the claim asks of it before it counts
    learned: bool = True

    @property
    def baseline(self) -> str:
        """The best of the others; one with a single seed only where no other is there."""
        gaps = self.gaps
        return min(gaps, key=lambda row: (len(gaps[row]) < 2, statistics.fmean(gaps[row])))

    @property
    def seeds(self) -> int:
        """Number of seeds that both the row and this baseline have."""
        return len(self.gaps[self.baseline])

    @property
    def intervals(self) -> dict[str, tuple[float, float, float]]:
        """The mean lead over each baseline and the ends of its 90% interval over seeds."""
        exact = self.cell.metric in EXACT
        return {baseline: interval(of, exact=exact) for baseline, of in self.gaps.items()}

    @property
    def interval(self) -> tuple[float, float, float]:
        """The interval over the best baseline."""
        return self.intervals[self.baseline]

    @property
    def mean(self) -> float:
        """The mean lead over the best baseline."""
        return self.interval[0]

    @property
    def in_full(self) -> bool:
        """True where it was run as the paper ran its own."""
        return budget(self.cell.profile, self.cell.substitute) == FULL

    def above(self, by: float) -> bool:
        """Return whether the interval of the lead over each baseline lies above `by`."""
        return all(low > by for _, low, _ in self.intervals.values())

    def below(self, by: float) -> bool:
        """Return whether that of the lead over some baseline lies below `by`."""
        return any(high < by for *_, high in self.intervals.values())


@attrs.frozen
class Finding:
    """The verdict on a claim."""

    verdict: str
    effect: str = ""
    leads: tuple[Lead, ...] = ()

    @property
    def budget(self) -> str:
        """`FULL` where all numbers behind it were run as the paper's, else `REDUCED`; "" without numbers."""
        if not self.leads:
            return ""
        return FULL if all(lead.in_full for lead in self.leads) else REDUCED


def claims(paper: str) -> list[Claim]:
    """A paper's claims, in the order of its file. Raises InputError for a file that is not well formed."""
    path = CLAIMS / f"{paper}.yaml"
    entries = enumerate(read(_File, read_yaml(path), short(path)).claims, 1)
    return [claim.model_copy(update={"paper": paper, "number": n}) for n, claim in entries]


def judge(claim: Claim, measured: Mapping[str, Record] | None = None) -> Finding:
    """The verdict on a claim; `measured` are complete records by experiment id, by default the book's."""
    if claim.paper_numbers:
        verb = "agrees with" if claim.paper_numbers.agrees else "contradicts"
        return Finding(f"{verb} its own numbers", claim.paper_numbers.because)
    if claim.shown:
        return Finding("examined on its page")
    if not claim.ahead:
        (kind,) = (kind for kind in KINDS if getattr(claim, kind))
        return Finding(KINDS[kind], getattr(claim, kind))
    asked, observed = claim.ahead, tuple(leads(claim, records() if measured is None else measured))
    if not observed:
        reasons = (TableSpec.find(claim.paper, table).unfair for table in asked.tables)
        return Finding("not measured", "; ".join(dict.fromkeys(filter(None, reasons))))
    counted = [lead for lead in observed if lead.in_full or lead.learned]
    ahead = sum(lead.above(asked.by) for lead in counted)
    behind = sum(lead.below(asked.by) for lead in counted)
    half = len(observed) / 2
    fails = behind > half if asked.most else refuted(counted, asked.by)
    holds = ahead > half if asked.most else ahead == len(observed)
    verdict = "holds" if holds else "does not hold" if fails else "unclear"
    effect = _effect(observed, asked.by)
    if len(counted) < len(observed):
        least = ", ".join(
            f"{value:g} in {style.measure(name)}" for name, value in asked.least.items()
        )
        effect += (
            f"; in {len(observed) - len(counted)} of {len(observed)} “{observed[0].cell.row}” itself has "
            f"less than {least}: at this budget nothing follows"
        )
    elif verdict == "unclear" and behind and not asked.most:
        low = p_values(counted, asked.by)
        effect += (
            f"; of the {len(low)} single tests (a baseline, a column and a measure each) one would refute "
            f"the claim at p < {0.05 / len(low):.2g}, and the smallest has {low[0]:.2g}"
        )
    return Finding(verdict, effect, observed)


def lead_over(
    row: str, baselines: Iterable[str], cells: Mapping[str, Cell], measured: Mapping[str, Record]
) -> Lead | None:
    """The lead of a row over others of one column, whose `cells` are given by row, over the seeds that both
    sides have and at one profile; None where there are none.
    """
    own = cells.get(row)
    if own is None:
        return None
    ours, sign = values(own, measured), -1 if own.better == "lower" else 1
    by_baseline = {
        baseline: tuple(sign * gap for gap in gaps)
        for baseline in baselines
        if baseline != row and baseline in cells and cells[baseline].profile == own.profile
        if (gaps := differences(ours, values(cells[baseline], measured)))
    }
    return Lead(own, by_baseline) if by_baseline else None


def refuted(observed: Sequence[Lead], by: float = 0.0) -> bool:
    """Return whether comparisons contradict that every lead is more than `by`.

    Simes (1986): of the chances of m leads as low as these, in rising order, the i-th is at most 5% * i / m.
    One lead far below counts, or many that are a little below, and true claims are refuted in at most 5% of
    cases, also where comparisons share a side and so rise and fall together. Where a row is to lead several
    baselines, each of them is a comparison, so looking for the best costs nothing. One seed decides nothing,
    and so does the same lead in all, unless it is exact.
    """
    low = p_values(observed, by)
    return any(p <= 0.05 * i / len(low) for i, p in enumerate(low, 1))


def p_values(observed: Sequence[Lead], by: float) -> list[float]:
    """Probabilities, rising, of leads as low as these if they are `by`; of two seeds or more."""
    return sorted(
        probability(gaps, by, lead.cell.metric in EXACT)
        for lead in observed
        for gaps in lead.gaps.values()
        if len(gaps) > 1
    )


def leads(claim: Claim, measured: Mapping[str, Record]) -> list[Lead]:
    """The measured comparisons of a claim "ahead"; leads over the same baselines by the same runs are one for
    each measure.
    """
    asked, distinct = claim.ahead, dict[tuple[str, ...], Lead]()
    assert asked is not None
    for table in asked.tables:
        specs = [TableSpec.find(claim.paper, name) for name in (table, *asked.beside)]
        metrics = asked.metrics or [specs[0].metric]
        columns = asked.columns or [
            entry.name for entry in specs[0].columns if entry.printed or claim.ours
        ]
        shown = by_column(cell for spec in specs for cell in best_cells(spec, measured))
        for (column, metric), cells in shown.items():
            if column not in columns or metric not in metrics:
                continue
            others = [row for row, cell in cells.items() if cell.row_entry.printed or claim.ours]
            sides = [(row, [baseline]) for row, baseline in asked.pairs]
            sides += [(asked.row, asked.against or others)] if asked.row else []
            for row, baselines in sides:
                lead = lead_over(row, baselines, cells, measured)
                if lead and not unfair(lead.cell):
                    learned = all(
                        np.mean([*values(shown[column, name][row], measured).values()]) >= value
                        for name, value in asked.least.items()
                    )
                    both = lead.cell, *(cells[baseline] for baseline in lead.gaps)
                    runs = [run.id for cell in both for run in cell.experiments]
                    key = (*(cell.record_metric for cell in both), *runs)
                    distinct.setdefault(key, attrs.evolve(lead, learned=learned))
    return list(distinct.values())


def _effect(observed: Sequence[Lead], by: float) -> str:
    """A sentence on all comparisons of a claim, which asks for a lead of so many points."""
    profiles = ", ".join(dict.fromkeys(budget_name(lead.cell.profile) for lead in observed))
    baselines = max(len(lead.gaps) for lead in observed)
    if len(observed) == 1:
        (lead,) = observed
        digits, unit = style.digits(lead.cell.unit), style.difference(lead.cell.unit)
        half = lead.interval[2] - lead.mean
        best = f", the best of {baselines} baselines," if baselines > 1 else ""
        verb = "leads" if lead.mean >= 0 else "trails"
        # an interval of two seeds would hold nearly everything, one without a spread everything
        low, high = sorted(abs(lead.mean) + side * half for side in (-1, 1))
        ends = f" [{low:.{digits}f}, {high:.{digits}f}]" * (lead.seeds > 2 and math.isfinite(half))
        seeds = f"{lead.seeds} seeds" if lead.seeds > 1 else "one seed"
        return (
            f"“{lead.cell.row}” {verb} “{lead.baseline}”{best} by {abs(lead.mean):.{digits}f}{unit}{ends} "
            f"({lead.cell.column}, {seeds}, {profiles})"
        )
    ahead = sum(lead.above(by) for lead in observed)
    behind = sum(lead.below(by) for lead in observed)
    asked, less = (f"more than {by:g} points ahead", "less") if by else ("ahead", "behind")
    counts = f"{asked} in {ahead}, {less} in {behind}"
    if by < 0:
        counts = f"less than {-by:g} points behind in {ahead}, farther in {behind}"
    short = sum(lead.seeds < planned(lead.cell) for lead in observed)
    counts += f" of {len(observed)} comparisons" + f" ({short} short of their seeds)" * bool(short)
    over = " over the best baseline" * (baselines > 1)
    of: dict[tuple[str, str], list[float]] = {}
    for lead in observed:
        of.setdefault((style.measure(lead.cell.metric), lead.cell.unit), []).append(lead.mean)
    if len(of) > 1:  # no scale is common to them
        each = ", ".join(
            f"{name} {style.signed(statistics.fmean(means), unit)}"
            for (name, unit), means in of.items()
        )
        return f"{counts}; mean lead{over}, above 0 is better: {each} ({profiles})"
    (((_, unit), means),) = of.items()
    least, middle, most = (
        style.signed(value, unit) for value in (min(means), statistics.median(means), max(means))
    )
    most += style.difference(unit)
    return f"{counts}; lead{over} from {least} to {most}, median {middle} ({profiles})"


def claims_frame(
    paper: str, measured: Mapping[str, Record] | None = None, main: bool = False
) -> pd.DataFrame:
    """A paper's claims with their verdicts: `number`, `claim`, `where`, `main`, `ours`, `verdict`, `effect`,
    `budget`, `page`; with `main` only those that the paper rests on.
    """
    known, rows = records() if measured is None else measured, []
    for claim in claims(paper):
        if claim.main or not main:
            finding = judge(claim, known)
            rows.append(
                claim.model_dump(include={"number", "claim", "where", "main", "ours"})
                | {"verdict": finding.verdict, "effect": finding.effect, "budget": finding.budget}
                | {"page": claim.shown or claim.page or ""}
            )
    return pd.DataFrame(rows)


def claims_table(paper: str, main: bool = False) -> style.Html:
    """`claims_frame` as a page shows it, each claim with a link to its evidence."""
    shown = []
    for row in claims_frame(paper, main=main).astype(str).to_dict("records"):
        (sign, colour), page = SIGNS[str(row["verdict"])], row["page"]
        link = f'<a href="{page}.html">{page.partition("_")[2].replace("_", " ")}</a>'
        shown.append(
            {
                "claim": f"{escape(row['claim'])} <small>({escape(row['where'])})</small>",
                "verdict": f'<span class="cell" style="border-color:{colour}">'
                f'<span aria-hidden="true">{sign}</span> {row["verdict"]}</span>',
                # the name of a test may break where it has a sign
                "what it rests on": re.sub("(::|[/_])", r"\1<wbr>", escape(row["effect"])),
                "budget": row["budget"],
                "page": link if page else "",
            }
        )
    return style.sentences(pd.DataFrame(shown), escape=False)
