"""The scripts of `benchmarks/` at a size that takes no time; other people's code is stood in for."""

import json
import sys
from pathlib import Path

import pytest
import torch

import authors
import pfllib
import runs
import timing
from core.federation import Runtime

HERE = Runtime(torch.device("cpu"))


@pytest.fixture(autouse=True)
def bench(tmp_path, monkeypatch):
    """A folder in the place of `book/bench`."""
    monkeypatch.setattr(timing, "BENCH", tmp_path / "bench")
    return tmp_path / "bench"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Makes a substitute for other people's repository of these files; returns its path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def make(files: dict[str, str]) -> str:
        for name, text in files.items():
            path = tmp_path / "checkout" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path / "checkout")

    yield make
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("flcore", "src", "dataset"):
            del sys.modules[name]


def kept(bench: Path) -> dict:
    (path,) = bench.glob("*.json")
    found = json.loads(path.read_text())
    assert path.name.startswith(found["bench"]) and path.name.endswith("float32.json")
    return found["contestants"]


def test_fedavg_is_timed_beside_a_plain_loop(monkeypatch, bench):
    for name, value in {"IMAGES": 20, "WIDTH": 8, "BATCH": 4}.items():
        monkeypatch.setattr(runs, name, value)
    timing.keep("run", "small runs", runs.measure(HERE, "digits", 1), HERE)
    (one,) = kept(bench).values()
    assert 0 < one["ratio"]["lowest"] == one["ratio"]["median"] == one["ratio"]["highest"]
    assert one["rate"] * one["seconds"] == pytest.approx(3600)


PFLLIB = """
import numpy as np, torch
class FedAvg:
    def __init__(self, args, times):
        assert not args.few_shot and not args.dlg_eval  # what is not named is off
        self.args, self.global_model = args, args.model
    def select_clients(self):
        files = [f"../dataset/{self.args.dataset}/train/{k}.npz" for k in range(self.args.num_clients)]
        return [np.load(file, allow_pickle=True)["data"].tolist() for file in files]
    def aggregate_parameters(self): pass
    def train(self):
        for _ in range(self.args.global_rounds + 1):
            found = self.select_clients()
            assert sum(len(one["y"]) for one in found) == 40
            assert self.args.model(torch.tensor(found[0]["x"])).shape == (20, 10)
            self.aggregate_parameters()
"""


def test_pfllib_has_the_same_images_and_network(monkeypatch, checkout, bench):
    """Without a step of training both networks are the one that both begin with."""
    for name, value in {"CLIENTS": 2, "WIDTH": 4, "LR": 1e-30}.items():
        monkeypatch.setattr(pfllib, name, value)
    path = checkout({"system/flcore/servers/serveravg.py": PFLLIB})
    given = "--dataset digits --images 40 --pairs 1 --device cpu --precision float32"
    monkeypatch.setattr(sys, "argv", ["pfllib.py", path, *given.split()])
    pfllib.main()
    (one,) = kept(bench).values()
    assert one["beside"] == "PFLlib" and one["accuracy"]["theirs"] == one["accuracy"]["ours"]


AUTHORS = {
    "src/client.py": "class Client:\n def __init__(self, **given): self.given = given",
    "src/server.py": "class Server:\n"
    " def __init__(self, global_model, clients, **given): self.clients, self.given = clients, given\n"
    " def fit(self):\n"
    "  assert len(self.clients) > 1 and self.given['communication_rounds'] == 1",
    "src/utils.py": "import torch\ndef get_model(name, info):\n size = info['im_size']\n"
    " wide = info['channel'] * size[0] * size[1]\n"
    " return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(wide, info['num_classes']))",
    "dataset/data/dataset.py": "def PerLabelDatasetNonIID(pairs, own, *_):\n"
    " assert {label for _, label in pairs} == set(own)",
}


def test_the_authors_code_is_timed_with_its_accuracy(monkeypatch, checkout, bench):
    small_sizes = {"CLIENTS": 3, "ROUNDS": 1, "ITERATIONS": 2}
    small_sizes |= {"CONDENSED": 1, "REAL": 2, "EPOCHS": 2}
    for name, value in small_sizes.items():
        monkeypatch.setattr(authors, name, value)
    path = checkout(AUTHORS)
    given = "--dataset digits --images 60 --pairs 1 --device cpu --precision float32"
    monkeypatch.setattr(sys, "argv", ["authors.py", path, *given.split()])
    authors.main()
    (one,) = kept(bench).values()
    assert one["beside"] == "the authors' code" and one["ratio"]["median"] > 0
    assert all(0 <= one["accuracy"][side][0] <= 100 for side in ("ours", "theirs"))
