"""What the papers claim beyond single numbers, judged as claims.

The claims stand in `book/claims/<paper>.yaml`. A claim that one row leads others is computed from
records, by paired differences over seeds in every column that is measured: it **holds** where the
90% interval of the lead is above 0 in all columns, it **does not hold** where the lead is below 0 in
some of them, further or more often than chance explains, else it is **unclear** (see `refuted`).
Columns that the paper does not have say nothing of its claims. A claim may ask for a lead of so many
points (`by`; below 0: allow to be so far behind), or to be ahead in most columns only (`most`), and
say by metric from which value on the leading row has learned anything (`least`): of a column that was
run with less than the paper's budget and is below it nothing follows. Other claims are **tested** (a test of
this repository fails if it is not so), agree or disagree with the paper's own numbers, are examined
on a page, or are open.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pandas as pd

from core.errors import InputError, brief
from lab import Record, records
from lab.forms import TABLES, as_list, as_mapping, check_keys, read_yaml, short
from lab.report import style
from lab.report.comparisons import Lead, asked_leads, chances, refuted
from lab.report.verdict import FULL, REDUCED

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
        return FULL if all(one.in_full for one in self.leads) else REDUCED


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
    known, where = (
        records() if measured is None else measured,
        f"claim {claim.number} of {claim.paper}",
    )
    found = tuple(asked_leads(claim.paper, claim.detail, known, where, claim.ours))
    if not found:
        return Finding(KINDS["ahead"])
    by, most = claim.detail.get("by", 0), claim.detail.get("most", False)
    told = [one for one in found if one.in_full or one.learned]
    ahead, behind = sum(one.above(by) for one in told), sum(one.below(by) for one in told)
    counted = _counts(by, sum(one.above(by) for one in found), sum(one.below(by) for one in found))
    half = len(found) / 2
    fails = behind > half if most else refuted(told, by)
    holds = ahead > half if most else ahead == len(found)
    verdict = "holds" if holds else "does not hold" if fails else "unclear"
    effect = _effect(found, counted)
    if len(told) < len(found):
        asked = claim.detail["least"].items()
        least = ", ".join(f"{value:g} in {style.measure(name)}" for name, value in asked)
        effect += (
            f"; in {len(found) - len(told)} of {len(found)} “{found[0].cell.row}” itself has less than "
            f"{least}: at this budget nothing follows"
        )
    elif verdict == "unclear" and behind and not most:
        low = chances(told, by)
        effect += (
            f"; of the {len(low)} single tests (a rival, a column and a measure each) one would refute the "
            f"claim at p < {0.05 / len(low):.2g}, and the smallest has {low[0]:.2g}"
        )
    return Finding(verdict, effect, found)


def _counts(by: float, ahead: int, behind: int) -> str:
    """In how many comparisons a lead is what a claim asks for, and in how many it is less."""
    if by < 0:
        return f"less than {-by:g} points behind in {ahead}, farther in {behind}"
    asked, less = (f"more than {by:g} points ahead", "less") if by else ("ahead", "behind")
    return f"{asked} in {ahead}, {less} in {behind}"


def _effect(found: Sequence[Lead], counted: str) -> str:
    """A sentence on all comparisons of a claim; `counted` says how they went."""
    profiles = ", ".join(dict.fromkeys(one.cell.profile for one in found))
    rivals = max(len(one.gaps) for one in found)
    if len(found) == 1:
        (one,) = found
        digits, unit = style.digits(one.cell.unit), style.difference(one.cell.unit)
        half = one.interval[2] - one.mean
        best = f", the best of {rivals} rivals," if rivals > 1 else ""
        verb = "leads" if one.mean >= 0 else "trails"
        # an interval of two seeds would hold nearly everything, one without a spread everything
        low, high = sorted(abs(one.mean) + side * half for side in (-1, 1))
        interval = (
            f" [{low:.{digits}f}, {high:.{digits}f}]"
            if one.seeds > 2 and math.isfinite(half)
            else ""
        )
        seeds = f"{one.seeds} seeds" if one.seeds > 1 else "one seed"
        return (
            f"“{one.cell.row}” {verb} “{one.rival}”{best} by {abs(one.mean):.{digits}f}{unit}{interval} "
            f"({one.cell.column}, {seeds}, {profiles})"
        )
    single = sum(one.seeds == 1 for one in found)
    counts = f"{counted} of {len(found)} comparisons" + f" ({single} with one seed)" * bool(single)
    over = " over the best rival" * (rivals > 1)
    found = [one for one in found if one.seeds > 1] or found  # one seed decides nothing
    of: dict[tuple[str, str], list[float]] = {}
    for one in found:
        of.setdefault((style.measure(one.cell.metric), one.cell.unit), []).append(one.mean)
    if len(of) > 1:  # no scale is common to them
        each = ", ".join(
            f"{name} {style.signed(statistics.fmean(means), unit)}"
            for (name, unit), means in of.items()
        )
        return f"{counts}; mean lead{over}, above 0 is better: {each} ({profiles})"
    means = sorted(one.mean for one in found)
    unit = style.difference(found[0].cell.unit)
    least, middle, most = (
        style.signed(one, found[0].cell.unit)
        for one in (means[0], statistics.median(means), means[-1])
    )
    if len(means) == 1:
        return f"{counts}; lead{over} {least}{unit} ({profiles})"
    return f"{counts}; lead{over} from {least} to {most}{unit}, median {middle} ({profiles})"


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
    known, rows = records() if measured is None else measured, []
    for claim in claims(paper):
        if claim.main or not main:
            found = judge(claim, known)
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
    those that were measured with less than the paper's budget, or on other data, apart, and those
    that a test of the program shows, or the paper's own numbers, and those that a page examines
    without a verdict. The book's own questions are left out.
    """
    known, rows = records(), []
    for paper, name in PAPERS.items():
        frame = claims_frame(paper, known, main=True)
        frame = frame[~frame["ours"]]
        said, less = frame["verdict"], frame["budget"] == REDUCED
        holds, fails = said == "holds", said == "does not hold"
        unmeasured = said.str.endswith(("in a test", "its own numbers"))
        rows.append(
            {
                "paper": name,
                "main claims": len(frame),
                "hold": int((holds & ~less).sum()),
                "do not": int((fails & ~less).sum()),
                "hold with less": int((holds & less).sum()),
                "do not with less": int((fails & less).sum()),
                "without measuring": int(unmeasured.sum()),
                "on a page": int((said == "examined on its page").sum()),
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
