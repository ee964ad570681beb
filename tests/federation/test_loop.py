"""The round loop: selection, traffic, determinism, resuming."""

from collections import Counter
from itertools import islice

import attrs
import pytest
import torch

from core import algorithms
from core.federation import Runtime, Schedule, distribute, select
from core.federation import rounds as federated
from core.federation.client import owner
from core.models import count_parameters
from core.rng import Rng
from lab import Experiment, make_clients, make_task, rounds

TINY = Experiment(
    algorithm="fedavg",
    dataset="digits",
    model_options={"width": 8},
    clients=4,
    rounds=4,
    partition={"name": "dirichlet", "alpha": 0.5},
    settings={"local_steps": 2, "batch_size": 16},
)


def tiny(**changes) -> Experiment:
    return attrs.evolve(TINY, **changes)


@pytest.fixture(scope="module")
def task():
    return make_task(TINY, Runtime())


def history(experiment, task, **more):
    return [result.row() | {"seconds": None} for result in rounds(experiment, task=task, **more)]


def test_what_server_and_clients_share_is_written_once(task, tmp_path):
    clients, shared = make_clients(TINY, task), torch.arange(50_000.0)
    for client in clients:
        client.memory |= {"shared": shared, "own": shared[:3] + client.id}
    next(rounds(TINY, task=task, clients=clients, checkpoint=tmp_path / "c"))
    assert 200_000 < (tmp_path / "c").stat().st_size < 400_000
    fresh = make_clients(TINY, task)
    next(rounds(TINY, task=task, clients=fresh, checkpoint=tmp_path / "c"))
    for client in fresh:
        assert torch.equal(client.memory["shared"], shared)
        assert torch.equal(client.memory["own"], shared[:3] + client.id)


def test_traffic_of_fedavg_is_the_model_both_ways(task):
    result = next(rounds(tiny(active=3), task=task))
    model = task.new_model(Rng(0))
    statistics = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    model_bytes = 4 * (count_parameters(model) + statistics)
    assert result.down == 3 * model_bytes
    totals = result.ledger.total("up")
    assert (
        totals["parameters"] == 3 * 4 * count_parameters(model)
        and totals["buffers"] == 3 * 4 * statistics
    )


def test_only_clients_with_data_take_part(task):
    clients = make_clients(TINY, task)
    empty = attrs.evolve(clients[0], images=clients[0].images[:0], labels=clients[0].labels[:0])
    crowd = [empty, *clients[1:]]
    assert [c.id for c in select(crowd, None, Rng(0))] == [1, 2, 3]
    assert [c.id for c in select(crowd, 4, Rng(0))] == [1, 2, 3]
    drawn = {tuple(c.id for c in select(crowd, 2, Rng(0).at(i))) for i in range(40)}
    assert drawn == {(1, 2), (1, 3), (2, 3)}


def test_every_round_draws_its_clients_anew(task):
    def drawn(seed):
        algorithm, found = tiny(active=2, rounds=60, evaluate_every=60).new_algorithm(), []
        algorithm.round = lambda state, clients, ledger, rng: found.append(clients) or state
        list(federated(algorithm, task, make_clients(TINY, task), seed))
        return [tuple(client.id for client in clients) for clients in found]

    counts = Counter(drawn(0))
    # ten times each of six pairs, with a deviation of 2.9
    assert len(counts) == 6 and max(counts.values()) < 22
    assert drawn(0) == drawn(0) != drawn(1)


def test_a_run_on_a_cpu_waits_for_no_gpu(task, monkeypatch, tmp_path):
    """Waiting would open one; neither does a run that goes on."""
    waited = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    for number in (1, 2):
        *_, last = islice(rounds(TINY, task=task, checkpoint=tmp_path / "c"), number)
        assert not waited and last.ledger.device == task.runtime.device


def test_an_algorithm_may_be_run_again_with_other_clients(task):
    """What a run finds of its clients it keeps to itself."""
    algorithm, clients = tiny(active=3).new_algorithm(), make_clients(TINY, task)
    few = [attrs.evolve(one, images=one.images[:0], labels=one.labels[:0]) for one in clients[:2]]
    for able, crowd in ((2, [*few, *clients[2:]]), (4, clients)):
        result = next(federated(algorithm, task, crowd, 0))
        sent = result.ledger.total("up")["parameters"]
        assert sent == min(able, 3) * 4 * count_parameters(task.new_model(Rng(0)))
        assert (algorithm.schedule.clients, algorithm.schedule.active) == (4, 3)


def test_the_last_round_is_always_tested(task):
    tested = [bool(row["metrics"]) for row in history(tiny(evaluate_every=3), task)]
    assert tested == [False, False, True, True]


def test_every_client_keeps_half_of_its_part(task):
    whole, half = make_clients(TINY, task), make_clients(tiny(train_fraction=0.5), task)
    assert [len(client) for client in half] == [-(-len(client) // 2) for client in whole]
    for one, other in zip(whole, half, strict=True):
        mine = {image.numpy().tobytes() for image in one.images}
        assert all(image.numpy().tobytes() in mine for image in other.images)


def test_a_share_is_not_rounded_up_by_the_error_of_a_float(task):
    """0.07 of 100 is 7.000000000000001 in floats."""
    images = len(task.dataset.train)
    for whole in range(1, 100):
        kept = len(owner(task, 0, 0, whole / 100))
        assert kept == -(-whole * images // 100)


def test_a_share_of_ones_own_data_is_drawn_by_seed_and_client(task):
    """Where each client has data of its own: a network of machines."""
    few = {key: owner(task, *key, 0.1).images for key in ((0, 0), (1, 0), (0, 1))}
    assert {len(images) for images in few.values()} == {-(-len(task.dataset.train) // 10)}
    assert torch.equal(owner(task, 0, 0, 0.1).images, few[0, 0])
    assert not torch.equal(few[0, 0], few[1, 0]) and not torch.equal(few[0, 0], few[0, 1])
    assert torch.equal(owner(task, 0, 0).images, task.dataset.train.images)


def test_an_algorithm_measures_its_result_once_after_the_last_round(task, monkeypatch):
    fedavg, asked = algorithms.find("fedavg"), []

    def measures(self, state):
        asked.append(state)
        return {"weights": float(len(state.tensors))}

    monkeypatch.setattr(fedavg, "measures", measures)
    results = list(rounds(tiny(rounds=3), task=task))
    assert ["weights" in result.metrics for result in results] == [False, False, True]
    assert results[-1].metrics["weights"] == len(results[-1].state.tensors) and asked == [
        results[-1].state
    ]
    assert "accuracy" in results[-1].metrics
    monkeypatch.setattr(fedavg, "measures", lambda self, state: {"accuracy": 1.0})
    with pytest.raises(ValueError, match="accuracy"):
        list(rounds(tiny(rounds=1), task=task))


def test_rounds_that_are_told_again_have_the_traffic_of_their_own_time(tmp_path):
    """A record that is killed while it hears of earlier rounds again must still add up."""
    path = tmp_path / "checkpoint.safetensors"
    first = [result.ledger.total("up") for result in rounds(TINY, checkpoint=path)]
    again = [result.ledger.total("up") for result in rounds(TINY, checkpoint=path)]
    grown = [sum(total.values()) for total in again]
    assert len(again) > 1 and grown == sorted(set(grown)) and again[-1] == first[-1]


def test_clients_share_one_array_of_images(task):
    """A client that is made lazily has the images that its rows name, and no copy between calls."""
    made = distribute(task, {"name": "iid"}, 5, seed=0)
    train = task.dataset.train
    assert sum(map(len, made)) == len(train)
    for client in made:
        rows = client._images
        assert rows.array.data_ptr() == train.images.data_ptr()
        assert client.images.equal(train.images[rows.rows])
        assert client.labels.equal(train.labels[rows.rows])
        assert client.images.data_ptr() != train.images.data_ptr()
    smaller = attrs.evolve(made[0], memory={"a": torch.ones(1)})
    assert smaller.images.equal(made[0].images)
    assert len(attrs.evolve(made[0], images=made[0].images[:2]).images) == 2


def test_some_images_of_a_client_are_those_rows(task):
    whole = distribute(task, {"name": "iid"}, 5, seed=0)[3]
    held = attrs.evolve(whole, images=whole.images)
    few, mask = torch.tensor([4, 0, 4]), torch.arange(len(whole)) % 3 == 1
    for client in (whole, held):
        for rows in (few, mask):
            assert torch.equal(client.some(rows), whole.images[rows])


def test_the_rounds_of_a_run_share_its_steps():
    """Ten steps in three rounds: 3, 3 and 4; after the last round none is left."""
    schedule = Schedule(rounds=3)
    assert [schedule.steps_until(10, number) for number in range(5)] == [0, 3, 6, 10, 10]
