"""A name may stand for other data tomorrow: no run goes on with them, and no old number is given as
theirs.
"""

import json

import numpy as np
import pytest

from core.errors import InputError
from core.experiments import Experiment, queue
from core.experiments.running import rounds, run
from core.files import FileError


def dealt(path, samples):
    """A split file that gives so many samples to three clients in turn."""
    parts = [list(range(k, samples, 3)) for k in range(3)]
    path.write_text(json.dumps({"client_idx": parts}))


def of(**fields):
    settings = {"local_steps": 1, "batch_size": 8}
    given = {"dataset": "digits", "clients": 3, "rounds": 2, "model_options": {"width": 4}}
    return Experiment(algorithm="fedavg", settings=settings, **given | fields)


def test_a_run_does_not_go_on_with_another_split(tmp_path):
    split, checkpoint = tmp_path / "split.json", tmp_path / "run.safetensors"
    experiment = of(partition={"name": "file", "file": str(split)})
    dealt(split, 60)
    next(rounds(experiment, checkpoint=checkpoint))
    dealt(split, 30)
    with pytest.raises(FileError):
        next(rounds(experiment, checkpoint=checkpoint))
    dealt(split, 60)
    assert [result.round for result in rounds(experiment, checkpoint=checkpoint)] == [1, 2]


def test_a_record_of_another_split_is_no_answer(tmp_path):
    split = tmp_path / "split.json"
    experiment = of(partition={"name": "file", "file": str(split)})
    dealt(split, 60)
    first, path, computed = queue.measure(experiment, "adhoc", out=tmp_path)
    assert computed and len(first.split) == 64
    assert queue.measure(experiment, "adhoc", out=tmp_path)[2] is False
    dealt(split, 30)
    with pytest.raises(InputError, match=f"has changed since .* delete {path}"):
        queue.measure(experiment, "adhoc", out=tmp_path)
    split.unlink()  # nothing to compare with: the record stands
    assert queue.measure(experiment, "adhoc", out=tmp_path)[0] == first


def test_a_record_of_other_images_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))

    def write(seed):
        draw = np.random.default_rng(seed)
        np.savez(
            tmp_path / "hospital.npz",
            **{
                f"{part}_{kind}": draw.integers(0, top, (24, *shape), dtype=np.uint8)
                for part in ("train", "val", "test")
                for kind, top, shape in (("images", 256, (16, 16)), ("labels", 3, (1,)))
            },
        )

    experiment = of(dataset="hospital")
    write(0)
    queue.measure(experiment, "adhoc", out=tmp_path)
    assert queue.measure(experiment, "adhoc", out=tmp_path)[2] is False
    write(1)
    with pytest.raises(InputError, match="the data set hospital has changed"):
        queue.measure(experiment, "adhoc", out=tmp_path)


def test_an_impossible_partition_leaves_no_record(tmp_path):
    with pytest.raises(InputError):
        run(of(clients=5000), record=tmp_path / "record.json")
    assert not list(tmp_path.iterdir())
