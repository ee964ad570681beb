"""Networks and data of one's own, by public names alone, from a folder outside the clone."""

import numpy as np
import pytest
import torch
from torch import nn

from core import algorithms, models
from core.data import load
from core.errors import InputError
from core.federation import Schedule, Task, distribute, rounds
from core.rng import Rng
from lab import Experiment, run
from lab.__main__ import main
from tests.data.test_folders import painted

QUICK = {"local_steps": 2, "batch_size": 16}


class Plain(nn.Module):
    """Layers for which the package has no rule of its own, and a last layer of another name."""

    def __init__(self, channels, classes, width=8):
        super().__init__()
        patches = nn.Conv2d(channels, width, 4, stride=4)
        mixed = nn.TransformerEncoderLayer(width, 2, 16, dropout=0, batch_first=True)
        self.body = nn.Sequential(patches, nn.Flatten(2), nn.LayerNorm(4), nn.PReLU())
        self.mixed, self.place = mixed, nn.Parameter(torch.randn(4, width))
        self.last = nn.Linear(width, classes)

    def features(self, images):
        return self.mixed(self.body(images).transpose(1, 2) + self.place).mean(1)

    def forward(self, images):
        return self.last(self.features(images))


class WithFeatures(nn.Module):
    """What a method that matches features needs: `embed` and `classifier`."""

    def __init__(self, channels, classes):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.classifier = nn.Linear(6 * 9, classes)

    def embed(self, images):
        return self.norm(self.conv(images)).relu().flatten(1)

    def forward(self, images):
        return self.classifier(self.embed(images))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))


def accuracy(name, network, options=None, **settings):
    task = Task(load("digits"), network, options or {})
    clients = distribute(task, {"name": "iid"}, 3, 0)
    algorithm = algorithms.create(name, settings, Schedule(clients=3, rounds=2))
    return list(rounds(algorithm, task, clients, 0))[-1].metrics["accuracy"]


def test_any_network_trains_the_same_twice_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first, second = (accuracy("fedavg", Plain, {"width": 4}, **QUICK) for _ in range(2))
    assert first == second and torch.equal(before, torch.get_rng_state())
    one, other = (models.build(Plain, 1, 8, 10, Rng(seed)).state_dict() for seed in (0, 1))
    assert not torch.equal(one["place"], other["place"])


def test_methods_that_match_features_run_or_say_what_is_missing():
    small = {"iterations": 2, "server_steps": 2}
    assert 0 <= accuracy("fedvck", WithFeatures, **small) <= 1
    with pytest.raises(InputError, match=r"the network has no embed and no classifier: it needs"):
        accuracy("fedvck", Plain)


def test_a_registered_name_is_an_experiments_model_and_nobody_elses():
    models.register("with_features", WithFeatures)
    experiment = Experiment(
        algorithm="fedavg", dataset="digits", model="with_features", rounds=1, settings=QUICK
    )
    assert 0 <= run(experiment, record="record.json").metrics["accuracy"] <= 1
    with pytest.raises(InputError, match="a record names its model"):
        run(experiment, task=Task(load("digits"), WithFeatures))
    for name in ("convnet", "", 3):
        with pytest.raises(InputError, match="a name of its own"):
            models.register(name, Plain)


@pytest.mark.parametrize(
    ("network", "options", "words"),
    [
        (Plain, {"widht": 4}, "Plain makes no network for images .*widht"),
        (lambda: Plain(3, 10), {}, "makes no network for images .1, 8, 8.: RuntimeError"),
        (lambda: Plain(1, 7), {}, r"answers 2 images with \(2, 7\), not \(2, 10\)"),
        (nn.Linear(2, 2), {}, "a class or function that makes a network, not Linear"),
        (7, {}, "a class or function that makes a network, not 7"),
        (dict, {}, "makes no network"),
    ],
)
def test_what_is_no_network_is_one_line(network, options, words):
    with pytest.raises(InputError, match=words) as error:
        Task(load("digits"), network, options)
    assert "\n" not in str(error.value)


def test_hospitals_are_clients_and_each_has_its_score(tmp_path, capsys):
    hospitals = ("Bern", "St. Gallen (KSSG)", "Zürich")
    parts = [f"{part}/{hospital}" for part in ("train", "test") for hospital in hospitals]
    painted(tmp_path / "in", np.eye(8, dtype=np.uint8), ("ill", "well"), parts, each=4)
    assert main(["data", "convert", "xrays", str(tmp_path / "in")]) == 0
    given = ["--algorithm", "fedavg", "--dataset", "xrays", "--partition", "natural"]
    assert main(["run", *given, "--profile", "quick", "--rounds", "1", "--out", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("accuracy at "))
    sites = [word.rpartition(" ")[0] for word in line[12:].split(", ")]
    assert sites == ["Bern", "St._Gallen__KSSG_", "Zürich"]
    task = Task(load("xrays"), "convnet", {"width": 4})
    clients = distribute(task, {"name": "natural"}, None, 0)
    assert [len(client) for client in clients] == [8, 8, 8]
    found = task.evaluate(task.new_model(Rng(0)))
    by_site = [found[f"accuracy@{site}"] for site in sites]
    assert found["accuracy"] == pytest.approx(np.mean(by_site))
