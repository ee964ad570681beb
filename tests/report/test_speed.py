"""The table of bench records says what is in them."""

import json

from core.experiments.bench import BENCH
from core.report.speed import speed


def test_a_row_for_each_contestant(tmp_path):
    ratio = {"median": 2.0, "lowest": 1.5, "highest": 2.251}
    machine = {"threads": 1, "precision": "float32"}
    contestants = {
        "plain": {"rate": 8.0},
        "ours": {
            "rate": 1.2e4,
            "ratio": ratio,
            "ceiling_share": 0.294,
            "accuracy": {"theirs": [40.0, 42.0], "ours": [43.0, 44.1]},
        },
    }
    found = {
        "unit": "rounds/hour",
        "contestants": contestants,
        "environment": machine,
    }
    (tmp_path / "condensation-cpu.json").write_text(json.dumps(found))
    plain, ours = speed(tmp_path).to_dict("records")
    assert plain["times plain"] == plain["share of the ceiling"] == ""
    assert ours == {
        "bench": "condensation-cpu",
        "contestant": "ours",
        "rate": "12,000.0",
        "unit": "rounds/hour",
        "times plain": "2.00 (1.50 to 2.25)",
        "share of the ceiling": "29%",
        "accuracy (plain)": "43.5% (41.0%)",
        "threads": 1,
        "precision": "float32",
    }


def test_the_book_has_all_that_was_measured():
    assert set(speed()["bench"]) == {path.stem for path in BENCH.glob("*.json")}
