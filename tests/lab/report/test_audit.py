"""Numbers that pages rest on, computed again from the files of records and of reported numbers alone.

Only the last test imports the package, to compare what it says of the same numbers.
"""

import csv
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from scipy import stats

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


def test_the_papers_print_943_numbers_and_12_words():
    words = [row["value"] for paper in PAPERS for row in printed(paper) if row["value"] == "OOM"]
    assert sum(len(printed(paper)) for paper in PAPERS) - len(words) == 943
    assert len(words) == 12


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


def near_print(runs, alpha):
    """FedVCK on CIFAR-10: settings of its code, Adam, 320 steps a round; accuracies in percent."""
    asked = {"iterations": 320, "server_steps": 800, "image_optimiser": "adam"}
    return [
        100 * run["metrics"]["accuracy"]
        for run in runs
        if run["experiment"]["algorithm"] == "fedvck"
        and run["experiment"]["profile"] == "converged"
        and run["experiment"]["partition"].get("file", "").endswith(f"10_alpha{alpha}.json")
        and run["experiment"]["dataset"] == "cifar10"
        and asked.items() <= run["experiment"]["settings"].items()
    ]


@pytest.mark.parametrize(
    ("alpha", "print_", "seeds", "alone", "end"),
    [("0.05", 61.89, 3, 1.82, 2.30), ("0.02", 60.04, 4, 1.62, 2.25)],
)
def test_fedvck_near_print_is_not_shown_to_be_equivalent(runs, alpha, print_, seeds, alone, end):
    """The upper end of the 90% interval is beyond two points, the paper's as three runs with our spread."""
    found = near_print(runs, alpha)
    assert len(found) == seeds
    mean, std = statistics.fmean(found), statistics.stdev(found)
    half = stats.t.ppf(0.95, seeds - 1) * std
    assert abs(mean - print_) + half / seeds**0.5 == pytest.approx(alone, abs=0.005)
    assert abs(mean - print_) + half * (1 / seeds + 1 / 3) ** 0.5 == pytest.approx(end, abs=0.005)


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


def test_the_attack_hardly_passes_its_positive_control_and_the_nearest_upload_does(runs):
    """Real images in the clear: mean AUC, chance (Mann and Whitney), members found at 1% false alarms."""
    clear = [
        run["metrics"]
        for run in runs
        if run["experiment"]["algorithm"] == "random_selection" and run["experiment"].get("attack")
    ]
    sizes = [[n for name, n in one.items() if name.startswith("mia_members/")] for one in clear]
    above = [statistics.fmean((2 * n + 1) ** 0.5 / 12**0.5 / n for n in of) for of in sizes]
    chance = 0.5 + statistics.fmean(above) / (2 * math.pi) ** 0.5
    areas = [one["mia_auc_mean"] for one in clear]
    assert statistics.fmean(areas) == pytest.approx(0.530, abs=0.001)
    assert chance == pytest.approx(0.527, abs=0.001)
    assert min(one["mia_nearest_pixels_tpr_0.01"] for one in clear) > 0.2


def test_the_package_says_the_same():
    from lab.report.frames import table_frame
    from lab.report.totals import by_paper
    from lab.report.tuning import settings_seen

    table = by_paper()
    assert table.loc["numbers reported"].sum() == 943
    for paper in PAPERS:
        rows = [row for row in printed(paper) if row["value"] != "OOM"]
        column = table.iloc[:, PAPERS.index(paper)]
        assert column.iloc[:-1].sum() == column.iloc[-1] == len(rows)
    assert table.loc[["costs: equivalent", "costs: different"], "FedVCK"].tolist() == [4, 2]
    for number in (4, 5, 6):
        cells = table_frame("fedmk", number, "paper").dropna(subset="printed")
        short = cells[cells["seeds"].between(1, cells["wanted"] - 1)]
        assert set(short["verdict"]) == {"pending"}
    cells = table_frame("fedmk", 1, "paper").query("row == 'FedMK'").set_index("column")["verdict"]
    assert set(cells.filter(like="cifar10-")) == {"depends on our choice"}
    seen = settings_seen("cifar10", 0.05).set_index("method")
    assert seen.loc[["FedVCK", "FedDM", "FedAvg"]].values.tolist() == [[63, 10], [11, 6], [7, 3]]
