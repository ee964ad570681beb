"""FedDM: what is matched, disturbed weights, and what is sent."""

import math

import attrs
import pytest
import torch

from core import algorithms
from core.baselines.feddm import disturbance
from core.condensation import LatentEncoder, draw
from core.condensation.engine import Draws, condensed_counts
from core.families import condensing
from core.federation import pack
from core.rng import Rng
from tests.algorithms.on_digits import on_digits

FAST = {"iterations": 2, "real_batch": 8, "pool": 2, "server_steps": 4, "share": 0.05}
TINY = on_digits("feddm", FAST, evaluate_every=9)


def feddm(**settings):
    return algorithms.create("feddm", FAST | settings)


def weights(encoder):
    return torch.cat([parameter.flatten() for parameter in encoder.model.parameters()])


@pytest.mark.parametrize("rho", [0.5, 5.0, 1000.0])
def test_weights_are_drawn_from_a_ball_around_the_model(task, rho):
    """w = w_t + min(1, rho / ||g||) g with g ~ N(0, 1): on the sphere, unless it is larger than
    g.
    """
    encoder = LatentEncoder(task.new_model(Rng(0)))
    centre = weights(encoder).clone()
    disturb = disturbance(encoder, rho, Rng(4))
    moves = []
    for number in (0, 1, 0):
        disturb(number)
        moves.append(weights(encoder) - centre)
    # always from the centre, and the same for the same number
    torch.testing.assert_close(moves[0], moves[2], rtol=0, atol=0)
    assert not torch.allclose(moves[0], moves[1])
    expected = min(rho, math.sqrt(len(centre)))  # the norm of so many normal numbers
    for move in moves:
        assert float(move.norm()) == pytest.approx(expected, rel=1e-3 if rho < 100 else 0.1)
    # all directions are alike: every layer has its share of the squared norm
    share = float(moves[0][-10:].square().sum() / moves[0].square().sum())
    assert 0 < share < 10 * 10 / len(centre)


def test_all_clients_of_a_round_disturb_alike_and_rounds_differ(task):
    """The server sends a seed; with rho of 0 nothing moves."""
    algorithm = feddm()
    state = algorithm.initialise(task, Rng(0))
    assert algorithm.broadcast(state, 0).meta == algorithm.broadcast(state, 2).meta
    assert disturbance(LatentEncoder(task.new_model(Rng(0))), 0.0, Rng(4)) is None
    moved = []
    for number in (0, 1):
        encoder = LatentEncoder(task.new_model(Rng(0)))
        disturbance(encoder, 1.0, Rng(state.meta["seed"]).at("round", number))(0)
        moved.append(weights(encoder))
    assert not torch.equal(*moved)


def received(task, algorithm):
    """What the server sends in round 1, with a model that has seen some images."""
    state = algorithm.initialise(task, Rng(0))
    model = task.model_from(state.tensors).train()
    for part in task.dataset.train.images[:120].split(40):
        model.embed(task.inputs(part) * 2 + 1)
    tensors = state.tensors | pack(model)
    return algorithm.broadcast(attrs.evolve(state, tensors=tensors), 0)


@pytest.mark.parametrize(("statistics", "rate"), [("own", 20.0), ("running", 50_000.0)])
def test_features_and_logits_are_matched_class_by_class(task, clients, statistics, rate):
    """One long step by autograd, normalised by own batches or the model's statistics."""
    algorithm = feddm(rho=0.0, iterations=1, image_lr=rate, statistics=statistics)
    client, rngs, message = clients[0], [Rng(3)], received(task, algorithm)
    found = algorithm.client_update(client, message, Rng(3)).tensors["images"].int()
    real, sizes = condensing.gather([client], rngs)
    group = torch.repeat_interleave(condensed_counts(sizes, algorithm.settings))
    start = condensing.starts("noise", real, group, task, rngs).requires_grad_()
    uniform = Draws(rngs, real.owner).uniform(8, "batch", 0)
    rows = draw(real.probabilities, real.group, real.groups, uniform)
    model = task.model_from(message.tensors).train(statistics == "own")

    def matched(inputs):
        features = model.embed(inputs)
        return torch.cat([features, model.classifier(features)], 1)

    wanted = matched(task.inputs(real.images[rows.flatten()])).unflatten(0, rows.shape).mean(1)
    found_at = matched(start)
    means = torch.stack([found_at[group == g].mean(0) for g in range(real.groups)])
    (slope,) = torch.autograd.grad((means - wanted.detach()).square().sum(), start)
    before, moved = (
        condensing.encode((start - step * slope).detach(), task.dataset, "uint8").int()
        for step in (0, rate)
    )
    assert (found - moved).abs().max() <= 1
    assert (moved - before).abs().max() > 9
