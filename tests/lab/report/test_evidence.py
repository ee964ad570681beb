"""`fedcon check`: a cell measured anew beside the paper and the book."""

import attrs
import numpy as np
import pytest
from scipy import stats

import lab
from lab import Record, TableSpec, records
from lab.__main__ import main
from lab.report.evidence import comparison


@pytest.fixture(scope="module")
def cell():
    return TableSpec.find_cell("fedmk/1/FedAvg/mnist-0.5", "paper")


def of_seed(cell, seed):
    return records()[cell.experiments_of([seed])[0].id]


def shifted(record: Record, **changes) -> Record:
    """The same run with other bits: every accuracy one point lower."""
    metrics = record.metrics | {"accuracy": record.metrics["accuracy"] - 0.01}
    rows = [row | {"metrics": metrics} for row in record.rounds]
    return attrs.evolve(record, rounds=rows, metrics=metrics, **changes)


def test_equal_runs_are_called_equal_and_others_are_not(cell):
    book = of_seed(cell, 0)
    # and a metric that the book did not measure makes no difference
    rows = [row | {"metrics": row["metrics"] | {"accuracy@site": 0.5}} for row in book.rounds]
    for yours in (book, attrs.evolve(book, rounds=rows)):
        same = comparison(cell, [book], [yours])
        assert "seed 0: all rounds equal the book's to the last bit" in same
    other = comparison(cell, [book], [shifted(book, code="other")])
    low, high = (100 * book.metrics["accuracy"] - less for less in (1, 0))
    assert f"{high:.2f} there, {low:.2f} here; not the same bits (code {book.code} there" in other


def test_why_bits_differ(cell):
    """One round is enough; a GPU adds in another order, other kernels are named."""
    book = of_seed(cell, 0)
    first, *rest = book.rounds
    rows = [first | {"metrics": first["metrics"] | {"cross_entropy": 0.5}}, *rest]
    there = attrs.evolve(book, environment=book.environment | {"device": "cuda"})
    eager = shifted(book, environment=book.environment | {"kernels": "eager"})
    for one, other, said in (
        (book, attrs.evolve(book, rounds=rows), "(data, code and machine are the same)"),
        (there, shifted(there), "another order each time)"),
        (book, eager, "eager here"),
    ):
        assert len(rest) > 0 and said in comparison(cell, [one], [other])


def test_it_is_said_whether_a_seed_is_as_those_of_the_book(cell):
    """By the 95% prediction interval of SciPy's t distribution."""
    book = [records()[run.id] for run in cell.experiments[:3]]
    held = [100 * one.metrics["accuracy"] for one in book]
    scale = np.std(held, ddof=1) * np.sqrt(1 + 1 / 3)
    low, high = stats.t.interval(0.95, 2, np.mean(held), scale)
    *_, last = comparison(cell, book, book[:1]).splitlines()
    assert last.endswith(f"expected from {low:.2f} to {high:.2f} (95%); yours lie within")
    far = attrs.evolve(book[1], metrics=book[1].metrics | {"accuracy": low / 100 - 0.01})
    *_, last = comparison(cell, book, [book[0], far]).splitlines()
    assert last.endswith(f"outside: your seed {far.experiment.seed}")
    assert "expected from" not in comparison(cell, book[:2], book[:1])


def test_a_seed_of_ones_own_has_a_line_below_print_and_book_and_no_verdict(cell, tmp_path, capsys):
    book = of_seed(cell, 0)
    own = attrs.evolve(book, experiment=attrs.evolve(book.experiment, seed=77))
    lines = comparison(cell, [], [own]).splitlines()
    assert lines[1] == f"printed  {cell.published.text} ± {cell.published.std:.2f}"
    assert lines[2] == "book     not measured"
    accuracy = 100 * own.metrics["accuracy"]
    assert lines[3] == f"yours    {accuracy:.2f} over 1 seed  no verdict below 10 seeds"
    assert lines[4] == "seed 77: the book has no record of it"
    assert [run.seed for run in cell.experiments_of([77, 0], any_seed=True)] == [77, 0]
    place = ["reference/1/FedAvg/mnist-0.05", "--profile", "quick", "--seed", "77"]
    assert main(["check", *place, "--out", str(tmp_path)]) == 0
    assert "seed 77: the book has no record of it" in capsys.readouterr().out
    assert main(["run", "--cell", *place]) == 2
    assert "`run` with --out, take any" in capsys.readouterr().err


def test_a_check_runs_in_a_folder_of_its_own_and_twice_gives_the_same(tmp_path, capsys):
    cell, folder = "reference/1/FedAvg/mnist-0.05", tmp_path / "checked"
    for again in range(2):
        assert main(["check", cell, "--profile", "quick", "--seed", "0", "--out", str(folder)]) == 0
        out = capsys.readouterr().out
        assert "printed  nothing" in out and "yours" in out
        assert ("from a check before" in out) == bool(again)
    (found,) = folder.glob("reference/*.json")
    assert Record.load(found).status == "complete"


@pytest.mark.parametrize(
    ("book", "options", "used"),
    [
        (["bfloat16", "float32"], ["--seed", "0", "--seed", "1"], ["bfloat16", "float32"]),
        (["bfloat16"], ["--seed", "77"], ["bfloat16"]),
        (["bfloat16", "float32"], ["--seed", "77"], ["float32"]),
        (["bfloat16"], ["--seed", "0", "--precision", "float32"], ["float32"]),
    ],
)
def test_a_check_computes_in_the_precision_of_the_records(
    cell, book, options, used, monkeypatch, tmp_path
):
    known, computed_in = dict[str, Record](), list[str]()
    for run, precision in zip(cell.experiments, book, strict=False):
        environment = records()[run.id].environment | {"precision": precision}
        known[run.id] = attrs.evolve(records()[run.id], environment=environment)

    def measure_anew(experiment, paper, out, runtime):
        computed_in.append(runtime.precision)
        return next(iter(known.values())), out, True

    monkeypatch.setattr(lab, "records", lambda: known)
    monkeypatch.setattr(lab.queue, "measure_anew", measure_anew)
    place = [cell.address, "--profile", "paper", "--out", str(tmp_path)]
    assert main(["check", *place, *options]) == 0
    assert computed_in == used
