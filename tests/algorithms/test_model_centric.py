"""Methods that are FedAvg with another objective or average, against closed forms."""

import attrs
import pytest
import torch

from core import algorithms
from core.errors import InputError
from core.federation import Message, pack
from core.rng import Rng
from lab import make_clients, rounds
from tests.algorithms.on_digits import after_rounds, on_digits, uploads_of

TINY = on_digits("fedavg", {"local_steps": 3, "batch_size": 16})
#: with two of three clients active, so that memories, averages and generators come into play
PARTIAL = attrs.evolve(
    TINY,
    rounds=3,
    active=2,
    evaluate_every=9,
    settings=TINY.settings | {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0},
)


@pytest.fixture(scope="module")
def clients(task):
    return make_clients(TINY, task)


@pytest.mark.parametrize("name", ["fedavg", "fedgan"])
def test_the_server_averages_all_that_was_trained_by_samples(task, clients, name):
    """Parameters and running statistics, and FedGAN's generator and discriminator."""
    narrow = {"generator_width": 4, "discriminator_width": 4} if name == "fedgan" else {}
    method = algorithms.create(name, {"local_steps": 3, "batch_size": 16} | narrow)
    state = method.initialise(task, Rng(0))
    uploads = uploads_of(method, state, clients, Rng(0))
    new = method.server_update(state, uploads, Rng(0))
    total = sum(map(len, clients))
    assert new.tensors.keys() == state.tensors.keys()
    for key, value in new.tensors.items():
        by_hand = sum(len(c) / total * uploads[c.id].tensors[key].double() for c in clients)
        torch.testing.assert_close(value.double(), by_hand, rtol=1e-5, atol=1e-6)
    assert any(key.startswith("buffers/") and "var" in key for key in new.tensors)


def test_fedprox_adds_the_gradient_of_the_squared_distance(task, clients):
    """d/dw mu/2 ||w - w_t||^2 = mu (w - w_t): the difference of the two gradients, in closed
    form.
    """
    prox = algorithms.create("fedprox", {"mu": 0.5})
    state = prox.initialise(task, Rng(0))
    received = prox.broadcast(state, 0)
    model = task.model_from(received.tensors)
    with torch.no_grad():
        for index, w in enumerate(model.parameters()):
            w += 0.01 * (index + 1)
    images, labels = clients[0].images[:16], clients[0].labels[:16]
    gradients = []
    for method in (algorithms.create("fedavg"), prox):
        loss = method.objective(clients[0], received, Rng(0))(model, images, labels)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for index, (plain, proximal) in enumerate(zip(*gradients, strict=True)):
        torch.testing.assert_close(
            proximal - plain, torch.full_like(plain, 0.5 * 0.01 * (index + 1)), rtol=1e-3, atol=1e-5
        )


def test_centralized_training_is_on_the_data_of_all(task):
    """Some clients a round, it would train on their data alone."""
    some = attrs.evolve(TINY, algorithm="centralized", active=2)
    with pytest.raises(InputError, match="leave out active, 2"):
        next(rounds(some, task=task))
    next(rounds(attrs.evolve(some, active=3), task=task))


def test_server_momentum_in_closed_form(task):
    """Uploads lie d below the model: v_1 = d, v_2 = (1 + beta) d, w_2 = w_0 - lr (v_1 + v_2)."""
    beta, lr, d = 0.9, 0.5, 0.125
    momentum = algorithms.create("fedavgm", {"server_momentum": beta, "server_lr": lr})
    start = state = momentum.initialise(task, Rng(0))
    for _ in range(2):
        sent = momentum.broadcast(state, 0).tensors
        moved = {n: (w - d if n.startswith("parameters/") else w) for n, w in sent.items()}
        state = momentum.server_update(state, {0: Message(moved, {"samples": 5})}, Rng(0))
    for name, w in start.tensors.items():
        if name.startswith("parameters/"):
            torch.testing.assert_close(
                state.tensors[name], w - lr * (d + (1 + beta) * d), rtol=1e-4, atol=1e-5
            )
    assert not any(name.startswith("velocity/") for name in momentum.broadcast(state, 0).tensors)


ANCHORS = {"ipc": 1, "iterations": 1, "real_batch": 4, "augmentation": "none"}
NARROW = {"generator_width": 4, "discriminator_width": 4}
#: settings that leave a method nothing but FedAvg, and some with which it is another
OFF_AND_ON = [
    ("fedprox", {"mu": 0.0}, {"mu": 1.0}),
    ("fedavgm", {"server_momentum": 0.0}, {}),
    ("moon", {"mu": 0.0, "projection": 0}, {"projection": 0}),
    ("fedmix", {"mixup": 0.0}, {}),
    ("fedgen", {"alpha": 0.0, "beta": 0.0, "generator_steps": 2}, {"generator_steps": 2}),
    ("feddistill", {"weight": 0.0}, {}),
    ("fedensemble", {}, None),
    ("desa", ANCHORS | {"reg": 0.0, "kd": 0.0, "learn_anchors": False}, ANCHORS | {"kd": 0.0}),
    ("dfrd", {"iterations": 0}, {"iterations": 1, "server_batch": 4, "generator_width": 4}),
    ("feddf", {"distill_steps": 0}, {"distill_steps": 1, "pool": 40, "auxiliary": "photographs"}),
    ("fedgan", {"share": 0.0} | NARROW, None),
]


@pytest.fixture(scope="module")
def fedavg_rounds(task):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.baselines.fedavg.clients_at_once", lambda *given: 1)
        return list(rounds(attrs.evolve(PARTIAL, algorithm="fedavg"), task=task))


@pytest.mark.parametrize(("name", "off", "on"), OFF_AND_ON)
def test_without_its_own_term_a_method_is_fedavg_bit_for_bit(
    task, fedavg_rounds, name, off, on, one_by_one
):
    """And with it not."""

    def results(settings):
        own = attrs.evolve(PARTIAL, algorithm=name, settings=PARTIAL.settings | settings)
        return rounds(own, task=task)

    for plain, own in zip(fedavg_rounds, results(off), strict=True):
        for key, w in plain.state.tensors.items():
            if name == "fedavgm":  # which adds the mean difference to the model
                torch.testing.assert_close(own.state.tensors[key], w, rtol=1e-4, atol=1e-5)
            else:
                assert torch.equal(own.state.tensors[key], w), (plain.round, key)
        if name == "fedmix":  # no averages are sent
            assert (own.up, own.down) == (plain.up, plain.down)
    if on is not None:
        *_, last = results(on)
        weight = "parameters/classifier.weight"
        assert not torch.equal(last.state.tensors[weight], plain.state.tensors[weight])


def test_centralized_sends_all_data_once(task, clients):
    first, second = (
        run.up for run in rounds(attrs.evolve(TINY, algorithm="centralized"), task=task)
    )
    assert first == sum(map(len, clients)) * (64 + 8) and second == 0


def test_standalone_clients_start_from_the_weights_that_the_seed_gives(task, clients):
    alone = algorithms.create("standalone", TINY.settings | {"lr": 1e-12})
    own = [client.copy() for client in clients]
    alone.at_clients("train_alone", own, {}, Rng(0).at("round", 1, "client"))
    start = task.new_model(Rng(0).at("initialise", "model"))
    for name, value in start.named_parameters():
        for client in own:
            torch.testing.assert_close(client.memory[f"model/parameters/{name}"], value.detach())


def test_standalone_sends_nothing_and_ignores_the_others(task, clients):
    method = algorithms.create("standalone", TINY.settings)

    def after(*members):
        state, ledger = after_rounds(method, task, [client.copy() for client in members])
        assert ledger.nbytes("up") == ledger.nbytes("down") == 0
        return method.model(state)

    together, apart = after(*clients), after(clients[1])
    assert (len(together), len(apart)) == (3, 1)
    for name, w in pack(apart[0]).items():
        assert torch.equal(pack(together[1])[name], w)
