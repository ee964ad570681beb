"""FedMix: the expansion against mixup itself, the averages, and who is sent them."""

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from core import algorithms
from core.baselines.fedmix import averages, mixup_loss
from core.federation import Client, Message
from core.models import initialise
from core.rng import Rng
from tests.algorithms.on_digits import on_digits

TINY = on_digits("fedmix", {"local_steps": 2, "batch_size": 16}, clients=4, rounds=3)


@pytest.fixture
def smooth():
    """A network without kinks in float64, a batch, and an average with its shares of classes."""
    draws = torch.Generator().manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Softplus(), nn.Flatten(), nn.Linear(16, 3)
    model = nn.Sequential(*layers)
    initialise(model, Rng(0))
    x, x_g = torch.randn(6, 1, 4, 4, generator=draws).double().split((5, 1))
    y, y_g = torch.randint(3, (5,), generator=draws), torch.tensor([[0.2, 0.8, 0.0]]).double()
    return model.double(), x, y, x_g, y_g


def exact(model, x, y, x_g, y_g, share):
    """The loss of mixup with one partner for the whole batch (Eq. 2 of FedMix)."""
    target = (1 - share) * F.one_hot(y, 3) + share * y_g
    return F.cross_entropy(model((1 - share) * x + share * x_g), target)


def test_the_expansion_is_mixup_up_to_second_order(smooth):
    """Half the lambda, a quarter of the error."""
    errors = []
    for share in (0.02, 0.01, 0.005):
        found = mixup_loss(smooth[0], F.cross_entropy, *smooth[1:], share)
        errors.append(abs(float((found - exact(*smooth, share)).detach())))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)


def test_the_gradient_of_the_weights_by_finite_differences(smooth):
    model, x, y, x_g, y_g = smooth

    def loss(weight):
        def network(inputs):
            return torch.func.functional_call(model, {"0.weight": weight}, (inputs,))

        return mixup_loss(network, F.cross_entropy, x, y, x_g, y_g, 0.3)

    assert torch.autograd.gradcheck(
        loss, model[0].weight.detach().clone().requires_grad_(), atol=1e-6
    )


def test_the_objective_mixes_normalised_images_with_a_drawn_average(task, clients):
    """Of all that came, in one round or another."""
    method, client = algorithms.create("fedmix", {"mixup": 0.2}), clients[0]
    came = [averages(other, 5, Rng(0)).tensors for other in clients[1:3]]
    client.memory = {
        name.replace("averages", f"averages/{number}"): value
        for number, one in enumerate(came)
        for name, value in one.items()
    }
    images, shares = (
        torch.cat([one[f"averages/{name}"] for one in came]) for name in ("images", "labels")
    )
    state = method.initialise(task, Rng(0))
    model, batch, labels = method.network(task, state.tensors), client.images[:6], client.labels[:6]
    objective = method.objective(client, method.broadcast(state, 0), Rng(3))
    draws, drawn = Rng(3).generator(), set()
    for _ in range(6):  # another average for every batch
        chosen = torch.randint(len(shares), (1,), generator=draws)
        drawn.add(int(chosen))
        mean, found = task.inputs(images[chosen]), objective(model, batch, labels)
        inputs = task.inputs(batch)
        wanted = mixup_loss(model, task.loss, inputs, labels, mean, shares[chosen], 0.2)
        torch.testing.assert_close(found, wanted)
    assert min(drawn) < len(came[0]["averages/labels"]) <= max(drawn)


def test_images_meet_in_an_average_by_chance(task):
    """Also where a client has its images class by class: no average then is of one class."""
    labels = torch.arange(2).repeat_interleave(30)
    images = torch.arange(60, dtype=torch.uint8).view(60, 1, 1, 1).expand(60, 1, 8, 8)
    client = Client(0, task, images, labels)
    first, second = (averages(client, 20, Rng(seed)).tensors for seed in (0, 1))
    assert ((first["averages/labels"][:, :2] > 0.1).all()) and len(first["averages/labels"]) == 3
    assert not torch.equal(first["averages/images"], second["averages/images"])


@settings(max_examples=25)
@given(st.integers(0, 10), st.one_of(st.none(), st.integers(2, 5)), st.integers(0, 99))
def test_every_image_is_in_one_average_and_none_in_too_small_a_group(
    task, samples, mean_batch, seed
):
    """Every image has a label of its own, so the shares of classes tell who is in which average."""
    draws = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (samples, 1, 8, 8), dtype=torch.uint8, generator=draws)
    labels = torch.randperm(10, generator=draws)[:samples]
    found = averages(Client(0, task, images, labels), mean_batch, Rng(seed)).tensors
    members = found["averages/labels"] > 0
    sizes, least = members.sum(1), min(mean_batch or samples, samples)
    number = max(1, samples // (mean_batch or samples)) if samples > 1 else 0
    assert len(sizes) == len(found["averages/images"]) == number
    if samples > 1:
        assert (members.sum(0)[labels] == 1).all() and int(sizes.sum()) == samples
        assert int(sizes.min()) >= least and int(sizes.max() - sizes.min()) <= 1
    for mean, shares, row in zip(
        found["averages/images"], found["averages/labels"], members, strict=True
    ):
        inside = images[torch.isin(labels, row.nonzero().squeeze(1))].double().mean(0)
        assert float((mean - inside).abs().max()) <= 0.5 + 1e-5
        torch.testing.assert_close(shares, row / row.sum())


def test_who_was_away_is_sent_what_came_meanwhile(task):
    """Of three clients' averages, one got the first and then missed a round that brought two."""
    method = algorithms.create("fedmix")
    state = method.initialise(task, Rng(0))
    pieces = {
        f"averages/{n}/{name}": torch.full((1, 1), float(n))
        for n in range(3)
        for name in ("images", "labels")
    }
    meta = {"averaged": [0, 1, 2], "sent": {"0": 1}}
    state = attrs.evolve(state, tensors=state.tensors | pieces, meta=meta)
    upload = method.broadcast(method.initialise(task, Rng(0)), 0)
    uploads = {k: Message(upload.tensors, {"samples": 1}) for k in (1, 2)}
    state = method.server_update(state, uploads, Rng(0))

    def sent(id_):
        names = method.broadcast(state, id_).tensors
        return [n for n in range(3) if f"averages/{n}/labels" in names]

    assert [sent(id_) for id_ in range(4)] == [[1, 2], [], [], [0, 1, 2]]
