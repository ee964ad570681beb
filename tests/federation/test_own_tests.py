"""Clients test: with running statistics of their own, on images of their own classes."""

import attrs
import pytest
import torch

from core import algorithms
from core.baselines import fedavg
from core.data import Split
from core.federation import OwnTest, Runtime, Schedule, pack
from core.federation.task import plain, turns
from core.federation.tensors import take
from lab import make_clients, make_task, rounds
from tests.lab.small_runs import small
from tests.sentences import refused

BY_CLIENTS = [("fedavg", {}), ("fedgen", {"generator_steps": 2})]
BY_CLIENTS += [("feddistill", {}), ("fedensemble", {})]
TINY = small(
    clients=4,
    active=2,
    partition={"name": "dirichlet", "alpha": 0.3},
    settings={"local_steps": 3, "batch_size": 16, "lr": 0.05},
    tested_by="clients",
)


@pytest.fixture(scope="module")
def task():
    return make_task(TINY, Runtime())


def test_images_of_a_class_are_dealt_out_in_turn():
    labels = torch.tensor([1, 0, 1, 1, 0, 1, 2, 1])
    assert turns(labels, 3).tolist() == [0, 0, 1, 2, 1, 0, 0, 1]
    assert turns(labels, 1).tolist() == [0] * 8


class Says(torch.nn.Module):
    """A network that gives every image the same class."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def forward(self, images):
        return 5.0 * torch.nn.functional.one_hot(torch.full((len(images),), self.label), 10)


def test_a_client_tests_its_turn_of_its_classes(task):
    """Client 0 has classes 1 and 0 and says 1, client 1 has 1 and says 0, nobody has 7."""
    labels = torch.tensor([1, 0, 7] * 4)
    images = task.dataset.test.images[:12]
    held = [torch.zeros(10, dtype=torch.bool) for _ in range(2)]
    held[0][[0, 1]], held[1][1] = True, True
    tests = [OwnTest(Says(1), held[0]), OwnTest(Says(0), held[1])]
    found = task.measure_own(tests, Split(images, labels))
    # tested: 1 and 0 twice each by client 0, 1 twice by client 1; right: client 0 on class 1
    assert found["accuracy"] == pytest.approx(2 / 6)
    assert found["balanced_accuracy"] == pytest.approx((2 / 4 + 0 / 2) / 2)
    refused("no client has a class", task.measure_own, tests, Split(images[2:3], labels[2:3]))


@pytest.fixture(scope="module")
def watched(task):
    """Each round's result, and what clients sent in it, by method."""
    found = {}
    for name, more in BY_CLIENTS:
        run, sent = attrs.evolve(TINY, algorithm=name, settings=TINY.settings | more), []
        algorithm = run.new_algorithm()
        update = algorithm.server_update

        def seen(state, uploads, rng, update=update, sent=sent):
            sent.append(uploads)
            return update(state, uploads, rng)

        algorithm.server_update = seen
        found[name] = list(rounds(run, task=task, algorithm=algorithm)), sent
    return found


@pytest.mark.parametrize("name", [name for name, _ in BY_CLIENTS])
def test_the_global_parameters_are_tested_with_the_clients_own_statistics(task, watched, name):
    """Each round anew by hand: who has taken part, with what statistics, on which images."""
    results, sent = watched[name]
    clients, data, last = make_clients(TINY, task), task.dataset.test, {}
    for result, uploads in zip(results, sent, strict=True):
        last |= {id_: take("buffers/", upload.tensors) for id_, upload in uploads.items()}
        shared, right, tested = take("parameters/", result.state.tensors), 0, 0
        for k, id_ in enumerate(sorted(last)):
            mine = clients[id_].class_counts[data.labels] > 0
            mine &= turns(data.labels, len(last)) == k
            model = task.model_from(
                {f"parameters/{n}": w for n, w in shared.items()}
                | {f"buffers/{n}": w for n, w in last[id_].items()}
            )
            logits = task.outputs(model, data.images[mine])
            if name == "fedensemble":
                each = [task.model_from(u.tensors) for u in uploads.values()]
                logits = sum(task.outputs(one, data.images[mine]).double() for one in each)
            right += int((logits.argmax(1) == data.labels[mine]).sum())
            tested += int(mine.sum())
        assert 0 < tested < len(data)
        assert result.metrics["accuracy"] == pytest.approx(right / tested), result.round
    assert len(last) > 2


@pytest.mark.parametrize(("name", "more"), BY_CLIENTS)
def test_a_test_is_no_part_of_the_method(task, watched, name, more):
    """Training sees a batch's statistics: only running ones differ from a server's test."""
    run = attrs.evolve(TINY, algorithm=name, settings=TINY.settings | more, tested_by="server")
    plain, (own, _) = list(rounds(run, task=task)), watched[name]
    assert [(r.up, r.down) for r in own] == [(r.up, r.down) for r in plain]
    tensors, others = own[-1].state.tensors, plain[-1].state.tensors
    apart = {key for key, value in others.items() if not torch.equal(tensors[key], value)}
    assert any(key.startswith("buffers/") for key in apart)
    assert not any(key.startswith("parameters/") for key in apart)
    assert own[-1].metrics["accuracy"] != plain[-1].metrics["accuracy"]


def test_a_client_goes_on_with_its_own_statistics(task, monkeypatch, one_by_one):
    started, train = [], fedavg.train

    def noting(model, *rest, **more):
        started.append(take("buffers/", pack(model)))
        train(model, *rest, **more)

    monkeypatch.setattr(fedavg, "train", noting)
    run = attrs.evolve(TINY, active=None, rounds=2, clients=2)
    results = rounds(run, task=task)
    clients = next(results).clients
    kept = [take("model/buffers/", client.memory) for client in clients]
    next(results)
    for before, after in zip(kept, started[2:], strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(not torch.equal(started[2][n], started[3][n]) for n in started[2])


@pytest.mark.parametrize("name", ["fedvck", "moon", "standalone", "scaffold"])
def test_others_are_tested_by_the_server(name):
    schedule = Schedule(tested_by="clients")
    refused("tested_by must be server", algorithms.create, name, schedule=schedule)


def test_what_has_no_classes_is_tested_by_the_server(task):
    dense = type("Dense", (), {"kind": "segmentation", "dataset": task.dataset})()
    method = algorithms.create("fedavg", schedule=Schedule(tested_by="clients"))
    refused("tested_by must be server: digits", method.initialise, dense, None)


def test_institutions_whose_names_would_be_one_keep_their_own_scores():
    assert plain(["A b", "Zürich", "A_b"]) == ["A_b-0", "Zürich", "A_b-2"]
