"""The round loop: selection, traffic, determinism, resuming; and what is held out of a training set."""

import itertools
from collections import Counter

import attrs
import pytest
import torch

from core import algorithms
from core.data import Split, load, with_validation
from core.federation import Ledger, Runtime, Schedule, State, checkpoint, distribute, select
from core.federation import rounds as federated
from core.federation.checkpoint import Checkpoint
from core.federation.client import owner
from core.rng import Rng
from lab import make_clients, make_task, rounds
from lab.running import task_on
from tests.lab.small_runs import small
from tests.sentences import refused

TINY = small(clients=4, rounds=4, partition={"name": "dirichlet", "alpha": 0.5})


def tiny(**changes):
    return attrs.evolve(TINY, **changes)


@pytest.fixture(scope="module")
def task():
    return make_task(TINY, Runtime())


def test_what_server_and_clients_share_is_written_once(task, tmp_path):
    clients, shared = make_clients(TINY, task), torch.arange(50_000.0)
    for client in clients:
        client.memory |= {"shared": shared, "own": shared[:3] + client.id}
    checkpoint.save(tmp_path / "c", {}, Checkpoint(State(task), Ledger(), []), clients)
    assert 200_000 < (tmp_path / "c").stat().st_size < 400_000
    checkpoint.restore(tmp_path / "c", {}, task, fresh := make_clients(TINY, task))
    for client in fresh:
        assert torch.equal(client.memory["shared"], shared)
        assert torch.equal(client.memory["own"], shared[:3] + client.id)


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


def test_the_last_round_is_always_tested(task):
    tested = [bool(result.metrics) for result in rounds(tiny(evaluate_every=3), task=task)]
    assert tested == [False, False, True, True]


def test_every_client_keeps_a_share_of_its_part(task):
    """Rounded up, but not by the error of a float: 0.07 of 100 is 7.000000000000001 in floats."""
    whole, half = make_clients(TINY, task), make_clients(tiny(train_fraction=0.5), task)
    assert [len(client) for client in half] == [-(-len(client) // 2) for client in whole]
    for one, other in zip(whole, half, strict=True):
        mine = {image.numpy().tobytes() for image in one.images}
        assert all(image.numpy().tobytes() in mine for image in other.images)
    images = len(task.dataset.train)
    for share in range(1, 100):
        assert len(owner(task, 0, 0, share / 100)) == -(-share * images // 100)


def test_a_share_of_ones_own_data_is_drawn_by_seed_and_client(task):
    """Where each client has data of its own: a network of machines."""
    few = {key: owner(task, *key, 0.1).images for key in ((0, 0), (1, 0), (0, 1))}
    assert {len(images) for images in few.values()} == {-(-len(task.dataset.train) // 10)}
    assert torch.equal(owner(task, 0, 0, 0.1).images, few[0, 0])
    assert not torch.equal(few[0, 0], few[1, 0]) and not torch.equal(few[0, 0], few[0, 1])
    assert torch.equal(owner(task, 0, 0).images, task.dataset.train.images)


def test_an_algorithm_measures_its_result_once_after_the_last_round(task, monkeypatch):
    fedavg, asked = algorithms.find("fedavg"), []
    monkeypatch.setattr(
        fedavg, "measures", lambda self, state: asked.append(state) or {"weights": 5.0}
    )
    *_, before, last = rounds(tiny(rounds=3), task=task)
    assert "weights" not in before.metrics and last.metrics["weights"] == 5
    assert "accuracy" in last.metrics and asked == [last.state]
    monkeypatch.setattr(fedavg, "measures", lambda self, state: {"accuracy": 1.0})
    with pytest.raises(ValueError, match="accuracy"):
        list(rounds(tiny(rounds=1), task=task))


def test_rounds_that_are_told_again_have_the_traffic_of_their_own_time(task, tmp_path):
    """A record that is killed while it hears of earlier rounds again must still add up."""
    path = tmp_path / "checkpoint.safetensors"
    begun = next(rounds(TINY, task=task, checkpoint=path))
    results = [list(rounds(TINY, task=task, checkpoint=path)) for _ in range(2)]
    told = [result.restored for result in (begun, *results[0])]
    assert told == [False, True, False, False, False] and all(one.restored for one in results[1])
    first, again = ([result.ledger.total("up") for result in one] for one in results)
    grown = [sum(total.values()) for total in again]
    assert len(again) > 1 and grown == sorted(set(grown)) and again[-1] == first[-1]


def test_clients_share_one_array_of_images(task):
    """A client that is made lazily has the images that its rows name, and no copy between calls."""
    made, train = distribute(task, {"name": "iid"}, 5, seed=0), task.dataset.train
    assert sum(map(len, made)) == len(train)
    for client in made:
        rows = client._images
        assert rows.array.data_ptr() == train.images.data_ptr()
        assert client.images.equal(train.images[rows.rows])
        assert client.labels.equal(train.labels[rows.rows])
        few, mask = torch.tensor([4, 0, 4]), torch.arange(len(client)) % 3 == 1
        held = attrs.evolve(client, images=client.images)
        for one, chosen in itertools.product((client, held), (few, mask)):
            assert one.some(chosen).equal(client.images[chosen])
    assert len(attrs.evolve(made[0], images=made[0].images[:2]).images) == 2


def test_the_rounds_of_a_run_share_its_steps():
    """Ten steps in three rounds: 3, 3 and 4; after the last round none is left."""
    schedule = Schedule(rounds=3)
    assert [schedule.steps_until(10, number) for number in range(5)] == [0, 3, 6, 10, 10]


# hyper-parameters are chosen on data that neither the clients nor the test see


def digits_without_validation():
    data = load("digits")
    return attrs.evolve(data, val=data.val.rows(torch.arange(0)))


def test_a_tenth_of_the_training_set_is_held_out_where_there_is_no_validation_split():
    """Patches of the pictures that are trained on are no validation data."""
    data = digits_without_validation()
    held = with_validation(data, Rng(0))
    assert len(held.val) == -(-len(data.train) // 10) and held.train is data.train
    assert len(held.held_out.unique()) == len(held.val)
    assert torch.equal(held.val.images, data.train.images[held.held_out])
    assert not torch.equal(held.held_out, with_validation(data, Rng(1)).held_out)
    own = load("digits")
    assert with_validation(own, Rng(0)) is own
    refused("has no validation split", with_validation, load("nuclei_drawn"), Rng(0))


def test_no_client_gets_what_is_held_out(task):
    """The first pixels number the rows, in base 256."""
    data = with_validation(digits_without_validation(), Rng(0))
    rows, images = torch.arange(len(data.train)), data.train.images.clone()
    images[:, 0, 0, 0], images[:, 0, 0, 1] = rows // 256, rows % 256
    numbered = attrs.evolve(data, train=Split(images, data.train.labels))
    clients = make_clients(TINY, attrs.evolve(task, dataset=numbered))
    pixels = torch.cat([client.images[:, 0, 0, :2].long() for client in clients])
    handed = (pixels @ torch.tensor([256, 1])).tolist()
    assert sorted(handed) == sorted(set(rows.tolist()) - set(data.held_out.tolist()))


def test_every_seed_holds_out_the_same_images():
    """Tries of a hyper-parameter with several seeds are compared on one validation set."""
    data, on_val = digits_without_validation(), attrs.evolve(TINY, evaluate_on="val")
    held = [task_on(data, attrs.evolve(on_val, seed=seed), Runtime()).dataset for seed in (0, 1)]
    assert torch.equal(held[0].held_out, held[1].held_out)
    assert task_on(data, TINY, Runtime()).dataset.held_out is None


def test_an_experiment_says_what_it_is_evaluated_on():
    """The same model, judged on two sets."""
    short = tiny(rounds=1)
    on_val = attrs.evolve(short, evaluate_on="val")
    assert on_val.id != short.id
    task = make_task(on_val, Runtime())
    (last,) = rounds(on_val, task=task)
    (on_test,) = rounds(short, task=task, clients=make_clients(on_val, task))
    measured = task.evaluate(on_val.new_algorithm().model(on_test.state), "val")
    assert last.metrics == measured != on_test.metrics
