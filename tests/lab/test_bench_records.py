"""Records of older versions beside runs of today's program."""

import attrs
import pytest
import torch

from benchmarks import again
from core.errors import InputError
from core.federation import Runtime
from lab import queue
from tests.lab.small_runs import small

HERE = Runtime(torch.device("cpu"))


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A run of two seeds, as the book would have it, at a profile that is compared."""
    monkeypatch.setattr(again, "AGAIN", tmp_path / "again")
    runs = [attrs.evolve(small(seed=seed), profile="laptop") for seed in range(3)]
    found = [queue.measure(run, "adhoc", out=tmp_path / "book", runtime=HERE)[0] for run in runs]
    book = {one.experiment.id: one for one in found}
    monkeypatch.setattr(again, "records", lambda: book)
    return book


def test_what_is_run_again_is_what_it_was(measured):
    """The program is the same, so all digits are; the deviation is that of the three seeds."""
    result = again.measure(HERE)
    ((name, one),) = result["contestants"].items()
    assert name == "fedavg, digits, laptop" and one["same_bytes"]
    assert one["accuracy"]["ours"] == one["accuracy"]["theirs"]
    values = torch.tensor([100 * each.metrics["accuracy"] for each in measured.values()])
    assert one["std"] == pytest.approx(values.double().std().item())


def test_another_program_is_seen(measured):
    """A record with another accuracy and other bytes than the run has."""
    name = min(measured, key=lambda each: measured[each].core_seconds)
    old = measured[name]
    measured[name] = attrs.evolve(
        old, metrics={**old.metrics, "accuracy": 2.0}, bytes={"up": {"model": 1}, "down": {}}
    )
    (one,) = again.measure(HERE)["contestants"].values()
    first, *others = one["accuracy"]["theirs"]
    assert first == 200.0 != one["accuracy"]["ours"][0] and not one["same_bytes"]
    # so far apart that the other seeds are run, too; these hold
    assert len(others) == 2 and others == one["accuracy"]["ours"][1:]


def test_only_runs_that_can_be_compared_are_chosen(measured):
    (record,) = again.chosen(measured, "float32").values()
    assert record.core_seconds == min(one.core_seconds for one in measured.values())
    others = {
        "another precision": attrs.evolve(record, environment={"precision": "bfloat16"}),
        "on a GPU": attrs.evolve(record, environment={**record.environment, "device": "cuda"}),
        "one round": attrs.evolve(record, rounds=record.rounds[:1]),
        "quick": attrs.evolve(record, experiment=attrs.evolve(record.experiment, profile="quick")),
        "no data": attrs.evolve(record, experiment=attrs.evolve(record.experiment, dataset="zzz")),
    }
    for why, other in others.items():
        assert not again.chosen({"x": other}, "float32"), why


def test_a_machine_whose_precision_nothing_has_is_told(measured, monkeypatch):
    monkeypatch.setattr(again, "LONGEST", 0.0)
    with pytest.raises(InputError, match="no run on record in float32 took less than 0 s"):
        again.measure(HERE)
