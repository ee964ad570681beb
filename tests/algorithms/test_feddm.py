"""FedDM: what is matched, disturbed weights, and what is sent."""

import math

import attrs
import pytest
import torch

from core import algorithms
from core.baselines.feddm import disturbance
from core.condensation import LatentEncoder, draw
from core.condensation.engine import Condensation, Draws, RealData, condense, condensed_counts
from core.families import condensing
from core.federation import pack
from core.rng import Rng
from tests.algorithms.on_digits import after_rounds, on_digits, uploads_of

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
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
    """One long step by autograd, at the model itself; each side is normalised by its own batch, or
    both by the model in evaluation mode.
    """
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


def losses(task, real, start, group, **settings):
    """The loss of every group before the first step, at weights that are not disturbed."""
    still = {"rho": 0.0, "iterations": 1, "image_lr": 1e-9}
    algorithm = feddm(**still | settings)
    objective = algorithm.matching_objective(task, received(task, algorithm), real, [Rng(3)])
    return condense(objective, start, group)[1][0]


def of_classes(task, sizes):
    """So many real images of the first classes, of one client."""
    images, labels = task.dataset.train.images, task.dataset.train.labels
    chosen = torch.cat([(labels == c).nonzero()[:size, 0] for c, size in enumerate(sizes)])
    group = torch.repeat_interleave(torch.tensor(sizes))
    share = 1 / torch.tensor(sizes)[group]
    classes = torch.arange(len(sizes))
    return RealData(images[chosen], group, share, torch.zeros_like(classes), classes)


@pytest.mark.parametrize("estimator", ["minibatch", "feature_bank", "expectation"])
def test_only_by_the_models_statistics_contrast_is_seen(task, estimator):
    """Half the contrast, with batches of all images: an own batch normalisation takes it out."""
    real, whole = of_classes(task, [6, 6, 6]), {"real_batch": 6, "replacement": False}
    noise = torch.randn(15, 1, 8, 8, generator=Rng(1).generator())
    group = torch.arange(3).repeat_interleave(5)
    for statistics, same in (("own", True), ("running", False)):
        given = whole | {"statistics": statistics, "estimator": estimator}
        full, half = (losses(task, real, scale * noise, group, **given) for scale in (1, 0.5))
        assert torch.allclose(full, half, rtol=1e-2) == same


@pytest.mark.parametrize("sizes", [[6, 6, 6], [4, 8, 2]])
def test_perfect_images_of_unequal_classes_have_a_loss_by_their_own_statistics(task, sizes):
    """A real batch has the largest class once, the others as often as fits; the condensed images
    are all real ones, once.
    """
    real = of_classes(task, sizes)
    whole = {"real_batch": max(sizes), "replacement": False}
    start, apart = task.inputs(real.images), torch.zeros(real.groups)
    by_model = losses(task, real, start, real.group, statistics="running", **whole)
    torch.testing.assert_close(by_model, apart, rtol=0, atol=1e-8)
    own = losses(task, real, start, real.group, statistics="own", **whole)
    assert bool((own < 1e-8).all()) == (len(set(sizes)) == 1)
    assert bool((own > 1e-4).all()) == (len(set(sizes)) > 1)


def test_the_server_keeps_its_model_and_one_seed(task, clients):
    """Not the images of the round; disturbance leaves the model alone that it was sent."""
    algorithm = feddm()
    state = algorithm.initialise(task, Rng(0))
    new, ledger = after_rounds(algorithm, task, clients)
    assert new.meta == {"round": 1, "seed": state.meta["seed"]}
    assert new.tensors.keys() == state.tensors.keys()
    sizes = torch.stack([client.class_counts for client in clients])
    images = int(condensed_counts(sizes[sizes > 0], Condensation(share=0.05)).sum())
    assert ledger.total("up") == {"images": images * 64, "labels": images}


@pytest.mark.parametrize("init", ["real", "noise"])
def test_images_that_start_from_real_ones_and_hardly_move_are_images_of_the_client(
    task, clients, init
):
    """As in the public program; from noise none of them is."""
    algorithm, client = feddm(init=init, image_lr=1e-9), clients[0]
    state = algorithm.initialise(task, Rng(0))
    sent = uploads_of(algorithm, state, [client], Rng(3))[client.id].tensors
    own = [
        (client.images[client.labels == label] == image).all((1, 2, 3)).any()
        for image, label in zip(sent["images"], sent["labels"], strict=True)
    ]
    assert all(own) if init == "real" else not any(own)


def test_the_public_program_starts_from_real_images():
    settings = algorithms.create("feddm", variant="released").settings
    assert (settings.init, settings.server_weight_decay) == ("real", 5e-4)
    assert settings.statistics == "own"  # records with batch normalisation say so
    assert algorithms.create("feddm").settings.init == "noise"
