"""Numbers that pages rest on, computed again from the files of records and of print alone.

Only the last test imports the package, to compare what it says of the same numbers.
"""

import csv
import json
from collections import defaultdict
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[3] / "book"
PAPERS = ("fedvck", "fedmk", "gddfl", "fediod")


@pytest.fixture(scope="module")
def runs():
    """Every complete record, as its file has it."""
    read = [json.loads(path.read_text()) for path in BOOK.glob("results/*/*.json")]
    return [one for one in read if one["status"] == "complete"]


def printed(paper):
    with (BOOK / "tables" / paper / "published.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_four_of_six_costs_are_those_of_print(runs):
    """Table 9 of FedVCK: MB of 2^20 bytes that all clients send in a round, what is sent once left out."""
    sent = defaultdict(set)
    for run in runs:
        one = run["experiment"]
        if (one["profile"], one["rounds"]) == ("paper", 1) and "file" in one["partition"]:
            up = run["bytes"]["up"]
            each = sum(n for kind, n in up.items() if kind not in ("anchors", "averages"))
            sent[one["algorithm"], one["dataset"]].add(each / len(run["rounds"]) / 2**20)
    outcome = {}
    for row in printed("fedvck"):
        if row["table"] == "9" and row["metric"] == "upload_mb_per_round":
            found = [size for m in row["method"].split() for size in sent[m, row["dataset"]]]
            if found:
                value = float(row["value"])
                outcome[row["method"], row["dataset"]] = all(
                    abs(size - value) <= 0.02 * value for size in found
                )
    assert len(outcome) == 6 and sum(outcome.values()) == 4
    assert {method for (method, _), same in outcome.items() if not same} == {"fedgan"}


def test_63_settings_of_fedvck_were_seen_with_test_images_of_one_column(runs):
    """CIFAR-10 at 0.05, all data and no attack; of these, at the paper's width and rounds."""
    seen, large = defaultdict(set), defaultdict(set)
    for run in runs:
        one = run["experiment"]
        column = one["dataset"] == "cifar10" and "alpha0.05" in one["partition"].get("file", "")
        if column and one.get("evaluate_on", "test") == "test" and not one.get("attack"):
            settings = json.dumps([one["variant"], run["settings"], one["model_options"]])
            seen[one["algorithm"]].add(settings)
            if one["profile"] == "converged" and one["rounds"] == 10:
                large[one["algorithm"]].add(settings)
    names = ("fedvck", "feddm", "fedavg", "fedprox", "moon")
    assert [len(seen[name]) for name in names] == [63, 11, 7, 4, 4]
    assert [len(large[name]) for name in names[:3]] == [10, 6, 3]


def test_the_package_says_the_same():
    from lab.report.tallies import by_paper
    from lab.report.tuning import settings_seen

    costs = by_paper().loc[["costs: equivalent", "costs: different"], "FedVCK"]
    assert costs.tolist() == [4, 2]
    seen = settings_seen("cifar10", 0.05).set_index("method")
    assert seen.loc[["FedVCK", "FedDM", "FedAvg"]].values.tolist() == [[63, 10], [11, 6], [7, 3]]
