"""MOON: its loss against NumPy, what a client remembers, what a projection head costs."""

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core import algorithms
from core.baselines import moon as moon_module
from core.baselines.moon import Projected, contrast
from core.federation import Client
from core.models import build, count_parameters
from core.models.convnet import ConvNet
from core.rng import Rng
from lab import rounds
from tests.algorithms.on_digits import on_digits

TINY = on_digits("moon", {"local_steps": 3, "batch_size": 16})


def cosine(a, b):
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(2, 9), st.floats(0.05, 2), st.integers(0, 999))
def test_the_contrast_against_numpy(n, d, tau, seed):
    z, z_glob, z_prev = np.random.default_rng(seed).normal(size=(3, n, d))
    near, far = np.exp(cosine(z, z_glob) / tau), np.exp(cosine(z, z_prev) / tau)
    found = contrast(*(torch.from_numpy(each) for each in (z, z_glob, z_prev)), tau)
    assert float(found) == pytest.approx(-np.log(near / (near + far)).mean(), rel=1e-9)


def test_the_gradient_of_the_contrast_by_finite_differences():
    z, z_glob, z_prev = torch.randn(
        3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    assert torch.autograd.gradcheck(
        lambda each: contrast(each, z_glob, z_prev, 0.5), z.requires_grad_()
    )


@pytest.mark.parametrize("projection", [0, 6])
def test_the_objective_is_the_loss_and_mu_times_the_contrast(task, clients, projection):
    moon = algorithms.create("moon", {"mu": 3.0, "projection": projection})
    state, other = (moon.initialise(task, Rng(seed)) for seed in (0, 1))
    previous = moon.initialise(task, Rng(2)).tensors
    clients[0].memory = {f"previous/{name}": value for name, value in previous.items()}
    model = moon.network(task, other.tensors).train()
    places = torch.tensor([3, 0, 8, 5])
    images, labels = clients[0].some(places), clients[0].labels[places]
    total = moon.contrastive(clients[0], moon.broadcast(state, 0))(model, images, places)
    inputs = task.inputs(images)
    with torch.no_grad():
        z = moon.network(task, other.tensors).train().embed(inputs).double().numpy()
        near, far = (
            np.exp(cosine(z, moon.network(task, w).eval().embed(inputs).double().numpy()) / 0.5)
            for w in (state.tensors, previous)
        )
        plain = task.loss(moon.network(task, other.tensors).train()(inputs), labels)
    assert float(total.detach() - plain) == pytest.approx(
        -3 * np.log(near / (near + far)).mean(), rel=1e-4
    )


def seen(task, clients, monkeypatch, **more):
    """A client with 50 images: its answer in its second round, and how many images the frozen
    networks saw.
    """
    count, embed = [0], ConvNet.embed

    def counted(self, images):
        count[0] += 0 if self.training else len(images)
        return embed(self, images)

    monkeypatch.setattr(ConvNet, "embed", counted)
    moon = algorithms.create("moon", {"batch_size": 16, "projection": 0, "mu": 5.0} | more)
    largest = max(clients, key=len)
    client = Client(0, task, largest.images[:50], largest.labels[:50])
    first, second = (moon.broadcast(moon.initialise(task, Rng(seed)), 0) for seed in (0, 1))
    moon.client_update(client, first, Rng(0))
    assert count[0] == 0
    answer = moon.client_update(client, second, Rng(1)).tensors
    return answer, count[0]


def test_frozen_networks_see_an_image_once_in_a_round(task, clients, monkeypatch):
    monkeypatch.setattr(moon_module, "at_once", lambda images: 16)  # in four parts
    kept, images = seen(task, clients, monkeypatch, local_epochs=3)
    assert images == 2 * (50 + 1)  # a single image tells how much room the features take
    monkeypatch.setattr(moon_module, "KEPT", 0)
    anew, images = seen(task, clients, monkeypatch, local_epochs=3)
    assert images == 2 * (3 * 50 + 1)
    assert kept.keys() == anew.keys()
    for name, value in kept.items():
        torch.testing.assert_close(value, anew[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "views"),
    [({"local_steps": 2}, 32), ({"local_epochs": 2, "local_augmentation": "crop_flip"}, 100)],
)
def test_they_see_it_anew_where_it_changes_or_comes_once(
    task, clients, monkeypatch, settings, views
):
    assert seen(task, clients, monkeypatch, **settings)[1] == 2 * (views + 1)


def test_in_its_first_round_a_client_has_nothing_to_contrast_with(task):
    """Whatever mu is, the first round is that of FedAvg on the same network."""
    first = [
        next(rounds(attrs.evolve(TINY, settings=TINY.settings | {"mu": mu}), task=task))
        for mu in (0.0, 50.0)
    ]
    for name, value in first[0].state.tensors.items():
        assert torch.equal(first[1].state.tensors[name], value)


def test_a_client_remembers_its_own_last_model_and_nothing_else(task, clients):
    moon = algorithms.create("moon", TINY.settings | {"projection": 6})
    sent = moon.broadcast(moon.initialise(task, Rng(0)), 0)
    for seed in (1, 2):
        answer = moon.client_update(clients[0], sent, Rng(seed))
        assert clients[0].memory.keys() == {f"previous/{name}" for name in answer.tensors}
        for name, value in answer.tensors.items():
            assert torch.equal(clients[0].memory[f"previous/{name}"], value)
            assert name.startswith("buffers/") or not torch.equal(value, sent.tensors[name])


def test_a_strong_contrast_keeps_features_near_those_of_the_global_model(task, clients):
    near = {}
    for mu in (0.0, 10.0):
        moon = algorithms.create(
            "moon", TINY.settings | {"mu": mu, "local_steps": 12, "projection": 0}
        )
        sent = moon.broadcast(moon.initialise(task, Rng(0)), 0)
        clients[0].memory = {
            f"previous/{name}": value
            for name, value in moon.initialise(task, Rng(5)).tensors.items()
        }
        answer = moon.client_update(clients[0], sent, Rng(1))
        with torch.no_grad():
            inputs = task.inputs(clients[0].images)
            mine, globally = (
                task.model_from(m.tensors).eval().embed(inputs).numpy() for m in (answer, sent)
            )
        near[mu] = cosine(mine, globally).mean()
    assert near[10.0] > near[0.0]


def test_a_projection_head_is_two_layers_with_a_rectifier_between_them(task):
    model = Projected(task.new_model(Rng(0)), 6, torch.device("cpu")).eval()
    model.initialise(Rng(1))
    inputs = task.inputs(task.dataset.test.images[:20])
    with torch.no_grad():
        hidden = model.encoder.embed(inputs).double() @ model.head[0].weight.double().T
        hidden = (hidden + model.head[0].bias.double()).clamp(min=0)
        wanted = hidden @ model.head[2].weight.double().T + model.head[2].bias.double()
        torch.testing.assert_close(model.embed(inputs).double(), wanted, rtol=1e-4, atol=1e-5)


def test_the_codes_command_has_a_weight_of_five_and_crops():
    """The paper tunes the weight over 0.1, 1, 5 and 10, and has 5 on CIFAR-10."""
    released = algorithms.create("moon", variant="released").settings
    assert (released.mu, released.local_augmentation) == (5.0, "crop_flip")
    assert (released.temperature, released.projection) == (0.5, 256)


def test_what_a_projection_head_costs(task):
    """D features: D (D + 1) + 256 (D + 1) for the head, and a last layer of 257 C in place of C (D
    + 1) numbers.
    """
    features, classes = task.new_model(Rng(0)).feature_size, task.dataset.num_classes
    plain = 4 * count_parameters(task.new_model(Rng(0)))
    head = 4 * ((features + 256) * (features + 1) + 257 * classes - classes * (features + 1))
    for projection, size in ((0, plain), (256, plain + head)):
        settings = TINY.settings | {"projection": projection}
        result = next(rounds(attrs.evolve(TINY, settings=settings), task=task))
        assert result.ledger.total("up")["parameters"] == 3 * size
        assert result.ledger.total("down")["parameters"] == 3 * size


def test_fedvck_prints_what_moon_sends_without_a_head():
    """PathMNIST, ten clients: 12.13 MB in FedVCK's Table 9; the head of MOON's own paper would make
    it 191.60 MB.
    """
    network = build("convnet", 3, 28, 9, Rng(0))
    plain = count_parameters(network)
    headed = count_parameters(Projected(network, 256, torch.device("meta")))
    assert [round(10 * 4 * size / 2**20, 2) for size in (plain, headed)] == [12.13, 191.60]


def test_the_encoder_starts_as_that_of_fedavg(task):
    plain = algorithms.create("fedavg").initialise(task, Rng(0)).tensors
    headed = algorithms.create("moon").initialise(task, Rng(0)).tensors
    for name, value in plain.items():
        kind, weight = name.split("/", 1)
        if not weight.startswith("classifier"):
            assert torch.equal(headed[f"{kind}/encoder.{weight}"], value)
