"""FL-MRCM: the domain identifier, and what goes where."""

from __future__ import annotations

import math

import attrs
import pytest
import torch

from core.baselines.flmrcm import Identifier, encoder_loss, identifier_loss
from core.errors import InputError
from core.federation import Client, Message, loop
from core.models import count_parameters, fresh
from core.rng import Rng
from lab import make_clients, rounds
from tests.algorithms.on_digits import last_round
from tests.algorithms.on_drawings import on_heads

TINY = on_heads(
    "flmrcm",
    {"local_steps": 3, "batch_size": 4, "latents": 5, "target": 1},
    rounds=2,
    evaluate_every=2,
)


def test_losses_by_hand():
    own, target = torch.tensor([1.0, -2.0]), torch.tensor([0.5])

    def c(z):
        return 1 / (1 + math.exp(-z))

    wanted = -(math.log(c(1.0)) + math.log(c(-2.0))) / 2 - math.log(1 - c(0.5))
    assert identifier_loss(own, target).item() == pytest.approx(wanted)
    halves = [math.log(c(z)) + math.log(1 - c(z)) for z in (1.0, -2.0)]
    assert encoder_loss(own).item() == pytest.approx(-sum(halves) / 4)
    assert encoder_loss(torch.zeros(3)).item() == pytest.approx(math.log(2))


def test_the_identifier_learns_to_tell_and_the_encoder_is_pulled(task):
    """Adam's first step on the identifier's loss; then the slope of loss and alignment."""
    algorithm = attrs.evolve(TINY, settings=TINY.settings | {"adversarial": 0.3}).new_algorithm()
    client, model, lr = make_clients(TINY, task)[0], task.new_model(Rng(1)), 1e-3
    latents = model.encode(task.inputs(client.images[:5]))[-1].detach() + 1
    identifier = fresh(Identifier, latents.shape[1], rng=Rng(0))
    weights = list(identifier.parameters())
    before = [w.detach().clone() for w in weights]
    images, labels = client.images[:4], client.labels[:4]
    own = model.encode(task.inputs(images))[-1]
    loss = identifier_loss(identifier(own.detach()), identifier(latents))
    slopes = torch.autograd.grad(loss, weights)
    adam = torch.optim.Adam(weights, lr)
    total = algorithm.aligned(task, identifier, adam, latents)(model, images, labels)
    for old, slope, new in zip(before, slopes, weights, strict=True):
        # Adam: m / (sqrt(v) + eps) = g / (|g| + eps) in the first step
        wanted = -lr * slope / (slope.abs() + 1e-8)
        torch.testing.assert_close(new.detach() - old, wanted, rtol=0, atol=1e-3 * lr)
    wanted = task.loss(model(task.inputs(images)), labels) + 0.3 * encoder_loss(identifier(own))
    assert total.item() == pytest.approx(wanted.item(), rel=1e-5)
    pairs = (torch.autograd.grad(one, list(model.parameters())) for one in (total, wanted))
    for found, right in zip(*pairs, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-6)


def test_the_target_is_heard_anew_in_every_round_and_the_others_are_told(task):
    """With a rate that moves nothing the model stays, and the images that are drawn do not."""
    still = attrs.evolve(TINY, settings=TINY.settings | {"lr": 1e-12, "adversarial": 0.0})
    first, last = rounds(still, task=task)
    latents = last.state.tensors["latents"]
    assert not torch.allclose(first.state.tensors["latents"], latents, rtol=1e-3, atol=1e-3)
    # the model goes to all three for training, and to the target before
    numbers = count_parameters(task.new_model(Rng(0)))
    assert len(latents) == 5
    assert last.ledger.total("down")["parameters"] == 2 * (3 + 1) * numbers * 4


def test_without_alignment_it_is_fedavg(task):
    aligned = last_round(TINY, task, adversarial=0.0)
    settings = {k: v for k, v in TINY.settings.items() if k not in ("latents", "target")}
    plain = last_round(attrs.evolve(TINY, algorithm="fedavg", settings=settings), task)
    for name, value in plain.state.tensors.items():
        torch.testing.assert_close(value, aligned.state.tensors[name], rtol=1e-4, atol=1e-5)


def aligning(algorithm, task):
    """A state whose server knows the target's latent maps."""
    state = algorithm.initialise(task, Rng(0))
    return attrs.evolve(state, tensors=state.tensors | {"latents": torch.ones(5, 16, 4, 4)})


def test_the_target_trains_without_alignment(task):
    algorithm, clients = TINY.new_algorithm(), make_clients(TINY, task)
    state = aligning(algorithm, task)
    assert "latents" not in algorithm.broadcast(state, 1).tensors
    assert "latents" in algorithm.broadcast(state, 0).tensors
    algorithm.client_update(clients[1], algorithm.broadcast(state, 1), Rng(0))
    assert not clients[1].memory


@pytest.mark.parametrize("active", [None, 2])
def test_a_target_that_is_nobody_is_refused(active):
    nobody = attrs.evolve(TINY, active=active, settings=TINY.settings | {"target": 3})
    with pytest.raises(InputError, match=r"target must be one of the 3 clients, .* not 3"):
        nobody.new_algorithm()


def emptied(experiment, task):
    """The clients of an experiment, but for the data of the target."""
    clients = make_clients(experiment, task)
    clients[1] = Client(1, task, clients[1].images[:0], clients[1].labels[:0])
    return clients


def test_a_target_without_data_is_refused(task):
    algorithm = TINY.new_algorithm()
    with pytest.raises(InputError, match=r"client 1, is not among .* 0, 2"):
        list(loop.rounds(algorithm, task, emptied(TINY, task), 0))


def test_a_run_in_which_the_target_was_never_heard_is_no_result(task):
    """With some clients a round nobody knows before the end that it never takes part."""
    some = attrs.evolve(TINY, active=1)
    running = loop.rounds(some.new_algorithm(), task, emptied(some, task), 0)
    next(running)
    with pytest.raises(InputError, match="client 1, was heard in none of the 2 rounds"):
        next(running)


def test_the_identifier_goes_on_with_its_optimiser(task):
    """It steps with the network: two passes over the client's images in batches of four."""
    passes = {k: v for k, v in TINY.settings.items() if k != "local_steps"}
    passes |= {"local_epochs": 2}
    algorithm = attrs.evolve(TINY, settings=passes).new_algorithm()
    client = make_clients(TINY, task)[0]
    message = algorithm.broadcast(aligning(algorithm, task), 0)
    for t in (1, 2):
        algorithm.client_update(client, message, Rng(t))
        steps = {int(v) for name, v in client.memory.items() if "/adam/step/" in name}
        assert steps == {t * 2 * -(-len(client) // 4)}
    assert client.memory["identifier/parameters/hidden.weight"].shape == (16, 16, 1, 1)


def test_the_target_tells_what_the_model_makes_of_images_drawn_from_its_own(task):
    """Each latent map is that of one of its images, normalised; other draws take others."""
    algorithm, client = TINY.new_algorithm(), make_clients(TINY, task)[1]
    message = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 1)
    model = task.model_from(message.tensors).eval()
    with torch.no_grad():
        known = model.encode(task.inputs(client.images))[-1].flatten(1)
    drawn = []
    for seed in range(3):
        (answer,) = algorithm.encode(
            [client], {1: Message(message.tensors)}, [Rng(seed, ("client", 1))]
        ).values()
        apart = torch.cdist(answer.tensors["latents"].flatten(1), known)
        assert float(apart.amin(1).max()) < 1e-3 < float(apart.amax(1).min())
        drawn.append(tuple(apart.argmin(1).tolist()))
    assert len(set(drawn)) == 3
