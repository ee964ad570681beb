"""FedAvg, FedProx, FedAvgM, centralized and standalone training against closed forms; what all
methods have in common that are FedAvg with another objective.
"""

import attrs
import pytest
import torch

from core import algorithms
from core.errors import InputError
from core.federation import Ledger, Message, Runtime, pack
from core.rng import Rng
from lab import Experiment, make_clients, make_task, rounds
from tests.algorithms.on_digits import on_digits

TINY = on_digits("fedavg", {"local_steps": 3, "batch_size": 16})


@pytest.fixture(scope="module")
def clients(task):
    return make_clients(TINY, task)


def test_the_registry_is_the_files():
    assert {"centralized", "fedavg", "fedavgm", "fedprox", "standalone"} <= set(algorithms.names())
    for name in algorithms.names():
        algorithm = algorithms.create(name)
        assert attrs.has(type(algorithm.settings)) and algorithm.__doc__
        assert isinstance(algorithms.create(name, variant="released").settings, algorithm.Settings)


def test_the_server_averages_parameters_and_running_statistics_by_samples(task, clients):
    fedavg = algorithms.create("fedavg", TINY.settings)
    state = fedavg.initialise(task, Rng(0))
    uploads = {
        c.id: fedavg.client_update(c, fedavg.broadcast(state, c.id), Rng(c.id)) for c in clients
    }
    new = fedavg.server_update(state, uploads, Rng(0))
    total = sum(map(len, clients))
    for name in state.tensors:
        by_hand = sum(len(c) / total * uploads[c.id].tensors[name].double() for c in clients)
        torch.testing.assert_close(new.tensors[name].double(), by_hand, rtol=1e-5, atol=1e-6)
    assert any(name.startswith("buffers/") and "var" in name for name in new.tensors)


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


def test_centralized_training_is_on_the_data_of_all():
    """Some clients a round, it would train on their data alone."""
    some = attrs.evolve(TINY, algorithm="centralized", active=2)
    with pytest.raises(InputError, match="leave out active, 2"):
        next(rounds(some, task=make_task(some, Runtime())))
    everybody = attrs.evolve(some, active=3)
    next(rounds(everybody, task=make_task(everybody, Runtime())))


def test_a_strong_proximal_term_keeps_clients_near_the_server(task, clients):
    far = {}
    for mu in (0.01, 10.0):
        prox = algorithms.create("fedprox", TINY.settings | {"mu": mu, "local_steps": 10})
        state = prox.initialise(task, Rng(0))
        upload = prox.client_update(clients[0], prox.broadcast(state, 0), Rng(1))
        far[mu] = sum(
            (upload.tensors[n] - w).square().sum()
            for n, w in state.tensors.items()
            if "parameters" in n
        )
    assert far[10.0] < far[0.01]


def test_server_momentum_in_closed_form(task):
    """With uploads that always lie d below the model: v_1 = d, v_2 = (1 + beta) d, w_2 = w_0 - lr
    (v_1 + v_2).
    """
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


def test_without_momentum_the_server_of_fedavgm_is_that_of_fedavg(task):
    runs = [
        list(rounds(attrs.evolve(TINY, algorithm=name, settings=TINY.settings | more), task=task))
        for name, more in (("fedavg", {}), ("fedavgm", {"server_momentum": 0.0}))
    ]
    for name, w in runs[0][0].state.tensors.items():
        torch.testing.assert_close(runs[1][0].state.tensors[name], w, rtol=1e-4, atol=1e-5)


#: settings that leave a method nothing but FedAvg
OFF = [
    ("fedprox", {"mu": 0.0}),
    ("moon", {"mu": 0.0, "projection": 0}),
    ("fedmix", {"mixup": 0.0}),
    ("fedgen", {"alpha": 0.0, "beta": 0.0, "generator_steps": 2}),
    ("fedgen", {"generated_steps": 0, "generator_steps": 2}),
    ("feddistill", {"weight": 0.0}),
    ("fedensemble", {}),
]


@pytest.mark.parametrize(("name", "off"), OFF)
def test_without_its_own_term_a_method_is_fedavg_bit_for_bit(task, name, off, one_by_one):
    """Three rounds with two of three clients active, so that memories, averages and generators have
    come into play.
    """
    plain = attrs.evolve(TINY, rounds=3, active=2)
    method = attrs.evolve(plain, algorithm=name, settings=TINY.settings | off)
    for a, b in zip(rounds(plain, task=task), rounds(method, task=task), strict=True):
        for key, w in a.state.tensors.items():
            assert torch.equal(b.state.tensors[key], w), (a.round, key)


def test_without_mixing_no_averages_are_sent(task):
    plain = attrs.evolve(TINY, rounds=2)
    *_, a = rounds(plain, task=task)
    off = attrs.evolve(plain, algorithm="fedmix", settings=TINY.settings | {"mixup": 0.0})
    *_, b = rounds(off, task=task)
    for way in ("up", "down"):
        assert a.ledger.total(way) == b.ledger.total(way)


ON = [
    ("fedprox", {"mu": 1.0}),
    ("moon", {"projection": 0}),
    ("fedmix", {}),
    ("fedgen", {"generator_steps": 2}),
    ("feddistill", {}),
]


@pytest.mark.parametrize(("name", "on"), ON)
def test_with_its_own_term_it_is_not(task, name, on):
    plain, method = (
        attrs.evolve(TINY, algorithm=which, rounds=3, settings=TINY.settings | more)
        for which, more in (("fedavg", {}), (name, on))
    )
    (*_, a), (*_, b) = rounds(plain, task=task), rounds(method, task=task)
    assert not torch.equal(
        a.state.tensors["parameters/classifier.weight"],
        b.state.tensors["parameters/classifier.weight"],
    )


ALONE = attrs.evolve(
    TINY,
    clients=1,
    rounds=5,
    evaluate_every=5,
    partition={"name": "iid"},
    model_options={"width": 8, "depth": 2},
    settings={"local_steps": 30, "batch_size": 32, "lr": 0.02},
)
GENTLE = [
    ("fedavg", {}),
    ("fedprox", {}),
    ("fedavgm", {"server_momentum": 0.3}),
    ("moon", {}),
    ("fedmix", {}),
    ("fedgen", {"alpha": 1.0, "beta": 1.0, "generator_steps": 10}),
    ("feddistill", {}),
    ("fedensemble", {}),
]


def accuracies(experiment, task, seeds):
    return torch.tensor(
        [
            [*rounds(attrs.evolve(experiment, seed=seed), task=task)][-1].metrics["accuracy"]
            for seed in seeds
        ]
    )


@pytest.fixture(scope="module")
def alone():
    task = make_task(ALONE, Runtime())
    return task, accuracies(attrs.evolve(ALONE, algorithm="centralized"), task, range(3))


@pytest.mark.parametrize(("name", "settings"), GENTLE)
def test_one_client_learns_what_centralized_training_learns(alone, name, settings):
    """With one client and IID data there is nothing to correct: within seed noise all methods are
    equal.
    """
    task, centralized = alone
    (found,) = accuracies(
        attrs.evolve(ALONE, algorithm=name, settings=ALONE.settings | settings), task, [0]
    )
    assert centralized.mean() > 0.9
    assert abs(found - centralized.mean()) < 3 * centralized.std() + 0.02


def test_centralized_sends_all_data_once(task, clients):
    experiment = attrs.evolve(TINY, algorithm="centralized")
    first, second = (result.up for result in rounds(experiment, task=task))
    pixels = task.dataset.channels * task.dataset.size**2
    assert first == sum(len(c) for c in clients) * (pixels + 8) and second == 0


def test_standalone_clients_start_from_the_weights_that_the_seed_gives(task, clients):
    alone = algorithms.create("standalone", TINY.settings | {"lr": 1e-12})
    start = pack(task.new_model(Rng(0).at("initialise", "model")), "model/")
    alone.at_clients("train_alone", clients, {}, Rng(0).at("round", 1, "client"))
    for client in clients:
        for name, value in start.items():
            if name.startswith("model/parameters/"):
                torch.testing.assert_close(client.memory[name], value)
        client.memory = {}


def test_standalone_sends_nothing_and_ignores_the_others(task, clients):
    alone = algorithms.create("standalone", TINY.settings)
    start = alone.initialise(task, Rng(0))

    def after(those):
        ledger = Ledger()
        ledger.open_round()
        fresh = [attrs.evolve(client, memory={}) for client in those]
        state = alone.round(start, fresh, ledger, Rng(3))
        assert ledger.nbytes("up") == ledger.nbytes("down") == 0
        return state

    together, apart = after(clients), after(clients[1:2])
    models = alone.model(together)
    assert len(models) == 3 and len(alone.model(apart)) == 1
    for name, w in pack(alone.model(apart)[0]).items():
        assert torch.equal(pack(models[1])[name], w)


@pytest.mark.parametrize(
    "name",
    [
        "centralized",
        "fedavg",
        "fedavgm",
        "feddistill",
        "fedensemble",
        "fedgen",
        "fedmix",
        "fedprox",
        "moon",
        "standalone",
    ],
)
def test_each_method_beats_chance_on_digits(name):
    experiment = Experiment(
        algorithm=name,
        dataset="digits",
        model_options={"width": 16},
        clients=4,
        rounds=5,
        partition={"name": "dirichlet", "alpha": 0.5},
        evaluate_every=5,
        settings={"local_steps": 10, "batch_size": 32}
        | ({"generator_steps": 10} if name == "fedgen" else {}),
    )
    *_, last = rounds(experiment, task=make_task(experiment, Runtime()))
    assert last.metrics["accuracy"] > 0.25  # chance is 0.10
