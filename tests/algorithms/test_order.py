"""Clients that take their images class by class, as FedGen's code did before it shuffled them."""

import itertools

import attrs
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import algorithms
from core.baselines import fedavg
from lab import make_clients, make_task, rounds
from tests.algorithms.on_digits import on_digits

#: nine clients have some 150 digits each, and take 7 batches a round
RUN = attrs.evolve(
    on_digits("fedavg"),
    clients=9,
    rounds=4,
    settings={"order": "by_class", "local_steps": 7, "batch_size": 32, "lr": 0.05},
)


@pytest.fixture(scope="module")
def task():
    return make_task(RUN)


def taken(monkeypatch, run, task):
    """The labels of all batches of all rounds, by client; the clients, and the results."""
    seen, kind = {}, algorithms.find(run.algorithm)
    batches = kind.batches

    def noting(self, client, rng):
        for batch in batches(self, client, rng):
            seen.setdefault(client.id, []).append(client.labels[batch])
            yield batch

    monkeypatch.setattr(kind, "batches", noting)
    clients = make_clients(run, task)
    results = list(rounds(run, task=task, clients=clients))
    return seen, {client.id: client for client in clients}, results


@pytest.mark.parametrize(("stacked", "order"), [(True, "stored"), (False, "by_class")])
def test_batches_are_those_of_the_authors_loader(monkeypatch, task, stacked, order):
    """A loader that does not shuffle, whose iterator goes on from round to round."""
    if not stacked:
        monkeypatch.setattr(fedavg, "clients_at_once", lambda *_: 1)
    run = attrs.evolve(RUN, active=4, settings=RUN.settings | {"order": order})
    seen, clients, _ = taken(monkeypatch, run, task)
    assert len({len(batches) for batches in seen.values()}) > 1  # some took part more often
    again = []
    for number, batches in seen.items():
        labels = clients[number].labels
        stored = labels if order == "stored" else labels.sort().values
        loader = DataLoader(TensorDataset(stored), 32)
        again.append(len(batches) > len(loader))
        wanted = itertools.chain.from_iterable(itertools.repeat(loader))
        for ours, (theirs,) in zip(batches, wanted, strict=False):
            assert torch.equal(ours, theirs)
    assert any(again)


def test_fedgen_counts_the_labels_of_its_batches(monkeypatch, task):
    settings = RUN.settings | {"generator_steps": 2, "counted": "batches"}
    run = attrs.evolve(RUN, algorithm="fedgen", clients=3, rounds=1, settings=settings)
    seen, clients, (last,) = taken(monkeypatch, run, task)
    counts = torch.stack([torch.cat(found).bincount(minlength=10) for found in seen.values()])
    distribution = counts.sum(0) / counts.sum()
    torch.testing.assert_close(last.state.tensors["labels/distribution"], distribution)
    of_images = sum(client.class_counts for client in clients.values())
    assert not torch.allclose(distribution, of_images / of_images.sum(), atol=0.01)
