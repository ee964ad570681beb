"""What must not change while the code is made smaller: ids, tables, verdicts, claims, fingerprints.

All of it is computed from the records that `records.txt` names, so that a new record changes nothing
here. `python tests/golden/test_golden.py FOLDER` writes the frames as CSV, to be compared with `diff`;
with `--write` it states anew what is expected, which the commit then explains.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from lab import PROFILES, TableSpec, records
from lab.report import claims as report_claims
from lab.report import frames, totals

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"


def _frozen():
    names = set((HERE / "records.txt").read_text().split())
    return {name: record for name, record in records().items() if name in names}


def _claims(measured):
    rows = []
    for paper in report_claims.PAPERS:
        for claim in report_claims.claims(paper):
            found = report_claims.judge(claim, measured)
            effect = "" if claim.test else found.effect  # the name of a test
            rows.append([paper, claim.number, found.verdict, effect, found.budget])
    return pd.DataFrame(rows, columns=["paper", "number", "verdict", "effect", "budget"])


def everything() -> dict[str, pd.DataFrame]:
    """Every frame by a name that a file may have."""
    measured = _frozen()
    found = {}
    for spec in TableSpec.all():
        name = f"{spec.paper}-{spec.table}"
        found[f"ids-{name}"] = pd.DataFrame(
            [
                [profile, cell.address, run.seed, run.id]
                for profile in PROFILES
                for cell in spec.cells(profile)
                for run in cell.experiments
            ]
        )
        for profile in (None, *PROFILES):
            frame = frames.table_frame(spec.paper, spec.table, profile, measured)
            found[f"table-{name}-{profile or 'best'}"] = frame.drop(columns="command")
    found["claims"] = _claims(measured)
    found["numbers"] = totals.numbers(measured)
    found["orders"] = totals.orders(measured)
    found["fingerprints"] = pd.DataFrame(
        sorted({(one.experiment.dataset, one.fingerprint) for one in measured.values()})
    )
    return found


def digests(found: dict[str, pd.DataFrame]) -> dict[str, str]:
    """A short digest of each frame; numbers count to nine digits."""
    return {
        name: hashlib.sha256(frame.to_csv(float_format="%.9g").encode()).hexdigest()[:12]
        for name, frame in sorted(found.items())
    }


@pytest.mark.timeout(600)
def test_ids_tables_verdicts_and_claims_are_those_of_the_frozen_records():
    expected = json.loads(EXPECTED.read_text())
    found = digests(everything())
    assert {name for name in found if found[name] != expected.get(name)} == set()
    assert set(expected) <= set(found)


if __name__ == "__main__":
    frames_now = everything()
    if "--write" in sys.argv:
        EXPECTED.write_text(json.dumps(digests(frames_now), indent=0) + "\n")
    else:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in frames_now.items():
            frame.to_csv(folder / f"{name}.csv", float_format="%.9g")
