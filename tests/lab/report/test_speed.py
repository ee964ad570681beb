"""The table of bench records says what is in them."""

import json
import math

import pytest

from lab.report.speed import (
    BENCH,
    held,
    held_in_words,
    precision_in_words,
    precisions,
    speed,
    whole_runs,
)


def test_a_row_for_each_contestant(tmp_path):
    ratio = {"median": 2.0, "lowest": 1.5, "highest": 2.251}
    machine = {"threads": 1, "precision": "float32"}
    contestants = {
        "plain": {"rate": 8.0},
        "ours": {
            "rate": 1.2e4,
            "beside": "a plain loop",
            "ratio": ratio,
            "ceiling_share": 0.294,
            "accuracy": {"theirs": [40.0, 42.0], "ours": [43.0, 44.1]},
        },
    }
    found = {
        "unit": "rounds/hour",
        "contestants": contestants,
        "environment": machine,
        "ceilings": {"float32": 1.937e11, "bfloat16": 4.3e11},
    }
    (tmp_path / "condensation-cpu.json").write_text(json.dumps(found))
    plain, ours = speed(tmp_path).to_dict("records")
    assert plain["times"] == plain["beside"] == plain["share of the ceiling"] == ""
    assert ours == {
        "bench": "condensation-cpu",
        "contestant": "ours",
        "rate": "12,000.0",
        "unit": "rounds/hour",
        "beside": "a plain loop",
        "times": "2.00 (1.50 to 2.25)",
        "share of the ceiling": "29%",
        "accuracy (beside)": "43.5% (41.0%)",
        "threads": 1,
        "precision": "float32",
        "ceilings": "float32 194, bfloat16 430",
    }


def test_whole_runs_method_by_method_the_fastest_first(tmp_path):
    def bench(name, **medians):
        contestants = {
            key.replace("_", ", "): {
                "ratio": {"median": median, "lowest": median - 0.25, "highest": median + 0.75},
                "beside": "the authors' code" if key == "gddfl" else "plain",
            }
            for key, median in medians.items()
        }
        contestants["plain"] = {"rate": 8.0}
        (tmp_path / f"{name}.json").write_text(json.dumps({"contestants": contestants}))

    bench("run-amx-bfloat16", fedavg=4.0, fedvck_28=9.0, gddfl=3.0)
    bench("run-avx512-float32", fedvck=10.0, fedavg=5.0)
    bench("condensation-amx-bfloat16", fedavg=99.0)
    found = whole_runs(tmp_path)
    assert list(found) == [
        *("FedAvg, AVX512, float32", "FedAvg, AMX, bfloat16"),
        *("FedVCK, AVX512, float32", "FedVCK, AMX, bfloat16 (28)"),
    ]
    assert found["FedAvg, AMX, bfloat16"] == (4.0, 0.5)


def test_the_book_has_all_that_was_measured():
    measured = {path.stem for path in BENCH.glob("*.json")}
    of_speed = {name for name in measured if not name.startswith(("precision-", "records-"))}
    assert set(speed()["bench"]) == of_speed


def test_precisions_by_paired_differences(tmp_path):
    """Differences 1, 2, 3: 2 +- 2.92 * 1 / sqrt 3 with two degrees of freedom; no row of speed."""
    assert precisions(tmp_path).empty
    accuracy = {"theirs": [40.0, 42.0, 44.0], "ours": [41.0, 44.0, 47.0]}
    found = {"contestants": {"fedavg": {"rate": 1.0, "accuracy": accuracy}}}
    (tmp_path / "precision-avx512.json").write_text(json.dumps(found))
    (row,) = precisions(tmp_path).to_dict("records")
    half = 2.919986 / 3**0.5
    expected = {"seeds": 3, "float32": 42, "bfloat16": 44, "std": 2, "difference": 2}
    assert row == pytest.approx(expected | {"low": 2 - half, "high": 2 + half})
    assert speed(tmp_path).empty


def test_one_seed_has_no_spread(tmp_path):
    one = {"contestants": {"dm": {"rate": 1.0, "accuracy": {"theirs": [40.0], "ours": [41.0]}}}}
    (tmp_path / "precision-avx512.json").write_text(json.dumps(one))
    (row,) = precisions(tmp_path).to_dict("records")
    assert math.isnan(row["std"] or math.nan) and row["difference"] == 1
    assert (row["low"], row["high"]) == (-math.inf, math.inf)


def test_precisions_in_words(tmp_path):
    """One method that is the same, one that is shifted by 5 to 7 points, one by less than the margin,
    one that is only spread.
    """
    assert precision_in_words(tmp_path) == "Not measured yet."
    plain = [40.0, 42.0, 44.0]
    gaps = {
        "fedavg": (0.1, 0.0, -0.1),
        "dm": (0.4, 0.5, 0.6),
        "moon": (5.0, 6.0, 7.0),
        "fediod": (9.0, -9.0, 1.0),
    }
    contestants = {
        name: {
            "accuracy": {"theirs": plain, "ours": [a + b for a, b in zip(plain, gap, strict=True)]}
        }
        for name, gap in gaps.items()
    }
    (tmp_path / "precision-avx512.json").write_text(json.dumps({"contestants": contestants}))
    text = precision_in_words(tmp_path)
    assert "Of 4 methods the interval of 2 lies" in text and "With 1 other the seeds" in text
    assert "more than 2 points, with 0 outside: MOON. " in text
    assert "less, with 0 outside: DM; of so many intervals 0 would" in text


def again(
    old: list[float], new: list[float], std: float | None, same: bool = True
) -> dict[str, object]:
    accuracy = {"theirs": old, "ours": new}
    return {"rate": 1.0, "accuracy": accuracy, "std": std, "same_bytes": same}


def test_records_of_older_versions_in_words(tmp_path):
    """The mean of 0.04, -1 and 4 is 1.01; the largest is first, and no row of speed."""
    assert held_in_words(tmp_path) == "Not measured yet." and held(tmp_path).empty
    found = {
        "fedavg, mnist, paper": again([80.0], [80.04], 2.0),
        "dm, released, cifar10, laptop": again([30.0], [29.0], None),
        "fedmk, mnist, paper": again([90.0, 80.0], [94.0, 84.0], 3.0),
    }
    path = tmp_path / "records-avx512-bfloat16.json"
    path.write_text(json.dumps({"contestants": found}))
    frame = held(tmp_path)
    assert frame.index.tolist()[:2] == ["FedMK, mnist, paper", "DM, released, cifar10, laptop"]
    assert frame["difference"].tolist() == pytest.approx([4, -1, 0.04])
    text = held_in_words(tmp_path)
    assert (
        "Of 3 kinds of runs 1 have what is on record to a decimal, and 2 to within 2 points" in text
    )
    assert "mean difference is +1.01" in text and text.endswith("All sent the bytes on record.")
    assert (
        "Farther apart, in points: FedMK, mnist, paper (+4.0 over 2 seeds; deviation 3.0)." in text
    )
    found["dm, released, cifar10, laptop"]["same_bytes"] = False
    path.write_text(json.dumps({"contestants": found}))
    assert held_in_words(tmp_path).endswith("than on record: DM, released, cifar10, laptop.")
    assert speed(tmp_path).empty
