"""`python -m core check`: a cell measured anew beside print and the book."""

import attrs
import pytest

from core.__main__ import main
from core.errors import InputError
from core.experiments import Record, TableSpec, records
from core.report.cellcheck import comparison


@pytest.fixture(scope="module")
def cell():
    return TableSpec.find_cell("fedmk/1/FedAvg/mnist-0.5", "paper")


def of_seed(cell, seed):
    return records()[cell.chosen([seed])[0].id]


def shifted(record: Record, **changes) -> Record:
    """The same run with other bits: every accuracy one point lower."""
    metrics = record.metrics | {"accuracy": record.metrics["accuracy"] - 0.01}
    rows = [row | {"metrics": metrics} for row in record.rounds]
    return attrs.evolve(record, rounds=rows, metrics=metrics, **changes)


def test_equal_runs_are_called_equal_and_others_are_not(cell):
    book = of_seed(cell, 0)
    same = comparison(cell, [book], [book])
    assert "seed 0: all rounds equal the book's to the last bit" in same
    other = comparison(cell, [book], [shifted(book, code="other")])
    low, high = (100 * book.metrics["accuracy"] - less for less in (1, 0))
    assert f"{high:.2f} there, {low:.2f} here; not the same bits (code {book.code} there" in other


def test_all_three_values_stand_below_each_other(cell):
    lines = comparison(cell, [], [of_seed(cell, 0)]).splitlines()
    assert lines[1] == f"printed  {cell.published.text}"
    assert lines[2] == "book     not measured"
    assert lines[3].startswith(f"yours    {100 * of_seed(cell, 0).metrics['accuracy']:.2f} over 1")
    assert lines[4] == "seed 0: the book has no record of it"


def test_a_seed_that_the_table_does_not_have_is_refused(cell):
    with pytest.raises(InputError, match="has the seeds"):
        cell.chosen([77])


def test_a_check_runs_in_a_folder_of_its_own_and_twice_gives_the_same(tmp_path, capsys):
    cell, folder = "reference/1/FedAvg/mnist-0.05", tmp_path / "checked"
    for _ in range(2):
        assert main(["check", cell, "--profile", "quick", "--seed", "0", "--out", str(folder)]) == 0
        out = capsys.readouterr().out
        assert "printed  nothing" in out and "yours" in out
    (found,) = folder.glob("reference/*.json")
    assert Record.load(found).status == "complete"
