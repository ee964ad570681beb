"""Condensation of all groups as one batch, against the equations written out in float64."""

import math
from contextlib import nullcontext
from fractions import Fraction

import attrs
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional as F

from core import models
from core.baselines.feddm import FeaturesAndLogits
from core.condensation import LatentEncoder, LatentStatistics, augment, engine
from core.condensation.engine import (
    REAL_SIDES,
    Condensation,
    Draws,
    MatchingObjective,
    condense,
    condensed_counts,
    milestones,
    progress,
)
from core.condensation.latent import RunningAverage, Separate
from core.rng import Rng
from tests.condensation.small import real_data, stirred

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
#: real images per group; two clients, the first with groups 0 and 1
SIZES, OWNER = (6, 9, 1, 7), (0, 0, 1, 1)
#: condensed images per group
CONDENSED = (2, 3, 1, 2)
GROUP = torch.repeat_interleave(torch.tensor(CONDENSED))


def prepare(images):
    return images.float() / 127.5 - 1


def network(norm="batch"):
    return stirred(models.build("convnet", 1, 8, 4, Rng(5), width=3, depth=2, norm=norm))


def make(encoder=None, sliding=False, **changes):
    """An objective of two clients with two classes each; `changes` are fields of it or its settings."""
    names = attrs.fields_dict(MatchingObjective)
    fields = {name: changes.pop(name) for name in list(changes) if name in names}
    settings = Condensation(**{"iterations": 1, "real_batch": 5, "image_lr": 0.5} | changes)
    real = real_data(SIZES, OWNER, [0, 2, 1, 2])
    weights = torch.rand(sum(SIZES), generator=Rng(1).generator()) ** 2 + 0.01
    whole = torch.zeros(len(SIZES)).index_add(0, real.group, weights)
    real = attrs.evolve(real, probabilities=weights / whole[real.group])
    draws = Draws([Rng(7).at("client", client) for client in (0, 1)], real.owner, sliding=sliding)
    encoder = LatentEncoder(network()) if encoder is None else encoder
    return MatchingObjective(encoder, real, settings, draws, prepare, nullcontext, **fields)


def noise():
    return torch.randn(len(GROUP), 1, 8, 8, generator=Rng(2).generator())


def embed64(objective, images, statistics=None):
    """Features in float64, and the statistics (mean, variance) of every normalisation (Eq. 4)."""
    used, model = [], objective.encoder.model
    both = isinstance(model, FeaturesAndLogits)
    model = model.network if both else model
    for position, block in enumerate(model.blocks):
        images = F.conv2d(images, block.conv.weight.double(), block.conv.bias.double(), padding=1)
        own = images.mean((0, 2, 3)), images.var((0, 2, 3), unbiased=False)
        used.append(statistics[position] if statistics else own)
        parts = (*used[-1], block.norm.weight.double(), block.norm.bias.double())
        mean, variance, scale, shift = (each.view(-1, 1, 1) for each in parts)
        images = (images - mean) / (variance + block.norm.eps).sqrt() * scale + shift
        images = F.avg_pool2d(images.relu(), 2)
    features = images.flatten(1)
    if both:
        head = model.classifier
        features = torch.cat([features, features @ head.weight.double().T + head.bias.double()], 1)
    return features, used


def mmd64(x, y, kernel):
    """K_XX + K_YY - 2 K_XY, as means over all pairs (Eq. 3)."""
    both = torch.cat([x, y])
    squares = (both[:, None] - both[None]).square().sum(-1)
    if kernel == "gaussian":
        width = squares.detach().sum() / (len(both) * (len(both) - 1))
        gram = sum(torch.exp(-squares / (width * m)) for m in (0.25, 0.5, 1, 2, 4))
    else:
        gram = both @ both.T
    n = len(x)
    return gram[:n, :n].mean() + gram[n:, n:].mean() - 2 * gram[:n, n:].mean()


def losses64(objective, images, step, averages=None):
    """The loss of every group in float64; clients' running statistics in `averages` are updated."""
    real, losses = objective.real, []
    rows, size = objective.rows("batch", step), objective.settings.real_batch
    for client in range(objective.clients):
        groups = [g for g, owner in enumerate(OWNER) if owner == client]
        batch = prepare(real.images[torch.cat([rows[g] for g in groups])]).double()
        features, statistics = embed64(objective, batch)
        if averages is not None:
            averages[client] = statistics = [
                (0.9 * old[0] + 0.1 * new[0], 0.9 * old[1] + 0.1 * new[1])
                for old, new in zip(averages[client], statistics, strict=True)
            ]
        mine = torch.cat([(g == GROUP).nonzero().flatten() for g in groups])
        separate = isinstance(objective.normalisation, Separate)
        condensed, _ = embed64(objective, images[mine], None if separate else statistics)
        counts = [CONDENSED[g] for g in groups]
        for wanted, made in zip(features.split(size), condensed.split(counts), strict=True):
            losses.append(mmd64(wanted, made, objective.settings.kernel))
    return torch.stack(losses)


# --- condensation of both


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": "gaussian"},
        {"normalisation": Separate()},
        {"sliding": True},
        {"running": True},
        {"normalisation": Separate(), "logits": True, "resampled": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_three_steps_of_condensation_in_float64(options):
    """Momentum 0.5, gradient of the sum over classes by autograd in float64, statistics by hand."""
    options, model, averages = dict(options), network(), None
    encoder = LatentEncoder(FeaturesAndLogits(model) if options.pop("logits", False) else model)
    if options.pop("resampled", False):
        weight = encoder.model.network.blocks[0].conv.weight
        centre, direction = weight.clone(), torch.randn(weight.shape, generator=Rng(8).generator())
        encoder.resample = lambda step: weight.copy_(centre + 0.2 * step * direction)
    if options.pop("running", False):
        options["normalisation"] = RunningAverage(start=LatentStatistics.running(model, 2))
        layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
        running = [(layer.running_mean.double(), layer.running_var.double()) for layer in layers]
        averages = [list(running) for _ in range(2)]
    objective = make(encoder, iterations=3, **options)
    images, trace = condense(objective, noise(), GROUP)

    expected, velocity = noise().double(), torch.zeros(len(GROUP), 1, 8, 8, dtype=torch.float64)
    for step in range(3):
        objective.resample(step)
        expected.requires_grad_()
        losses = losses64(objective, expected, step, averages)
        torch.testing.assert_close(trace[step].double(), losses.detach(), rtol=1e-4, atol=1e-6)
        (gradient,) = torch.autograd.grad(losses.sum(), [expected])
        velocity = 0.5 * velocity + gradient
        expected = expected.detach() - 0.5 * velocity
    torch.testing.assert_close(images.double(), expected, rtol=1e-4, atol=2e-5)
    assert (images - noise()).abs().max() > 0.01


# --- clients by themselves


def test_the_gradient_is_clipped_client_by_client():
    objective = make()
    owner = objective.real.owner[GROUP]
    free = condense(objective, noise(), GROUP)[0] - noise()
    norms = [float(free[owner == client].norm() / 0.5) for client in (0, 1)]
    assert abs(norms[0] - norms[1]) > 0.01 * max(norms)
    bound = sum(norms) / 2  # one client lies above, one below
    clipped = condense(make(clip_norm=bound), noise(), GROUP)[0] - noise()
    for client, norm in enumerate(norms):
        wanted = free[owner == client] * min(1.0, bound / norm)
        torch.testing.assert_close(clipped[owner == client], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "expectation"},
        {"normalisation": Separate(), "clip_norm": 0.1, "augmentation": "color_crop_flip"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_images_do_not_depend_on_how_many_are_embedded_at_once(monkeypatch, changes):
    results = []
    for most in (1, 10**6):
        monkeypatch.setattr(engine, "at_once", lambda images, most=most: most)
        results.append(condense(make(iterations=4, **changes), noise(), GROUP))
    (images, losses), (together, traced) = results
    assert (together - noise()).abs().max() > 1e-3
    torch.testing.assert_close(images, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses, traced, rtol=1e-4, atol=1e-6)


def test_watching_changes_nothing_and_sees_every_step():
    seen, plan = [], make(iterations=3)
    watched, trace = condense(
        plan, noise(), GROUP, lambda step, images: seen.append((step, images.clone()))
    )
    assert [step for step, _ in seen] == [0, 1, 2] and torch.equal(seen[0][1], noise())
    assert torch.equal(watched, condense(plan, noise(), GROUP)[0]) and trace.shape == (3, 4)


# --- the real side


def close(statistics, wanted, client):
    for layer, (mean, variance) in zip(statistics.layers, wanted, strict=True):
        both = torch.stack([mean, variance])
        torch.testing.assert_close(layer[:, client].double(), both, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("augmentation", ["none", AUGMENTATION])
def test_the_expectation_is_the_weighted_mean_of_all_images(augmentation):
    """E_{P_w}[psi(T)] of Eq. 10 in float64, by statistics of a batch drawn by importance."""
    objective = make(augmentation=augmentation, estimator="expectation", pool=2)
    side, real = REAL_SIDES["expectation"](objective), objective.real
    for step in range(3):
        target, inputs = side(step), prepare(real.images)
        rows = objective.rows("statistics", objective.entry(step))
        if target.augmentation is not None:
            inputs = augment(inputs, target.augmentation, real.group)
        for client in (0, 1):
            groups = [g for g, owner in enumerate(OWNER) if owner == client]
            _, used = embed64(objective, inputs[rows[groups].flatten()].double())
            close(target.statistics, used, client)
            for g in groups:
                mine = real.group == g
                features, _ = embed64(objective, inputs[mine].double(), used)
                mean = (real.probabilities[mine].double()[:, None] * features).sum(0)
                wanted = target.features[g, 0].double()
                torch.testing.assert_close(wanted, mean, rtol=1e-4, atol=1e-5)
    assert side(0) is side(2)
    assert (side(0) is side(1)) == (augmentation == "none")


@pytest.mark.parametrize("estimator", ["minibatch", "feature_bank"])
def test_batches_tend_to_the_expectation(estimator):
    """Within five standard errors, and not to the plain mean: images are not drawn evenly."""
    encoder = LatentEncoder(network("none"))
    exact = REAL_SIDES["expectation"](make(encoder, estimator="expectation"))(0).features[:, 0]
    objective = make(encoder, estimator=estimator, real_batch=8)
    side, draws = REAL_SIDES[estimator](objective), 300
    means = torch.stack([side(step).features.mean(1) for step in range(draws)])
    assert not torch.equal(means[0], means[1])
    error = 5 * means.std(0) / math.sqrt(draws) + 1e-6
    assert ((means.mean(0) - exact).abs() <= error).all()
    everything = objective.embed_all(0).features.split(SIZES)
    plain = torch.stack([features.mean(0) for features in everything])
    assert ((means.mean(0) - plain).abs() > error).any()


BANK, EXACT = {"estimator": "feature_bank"}, {"estimator": "expectation"}


@pytest.mark.parametrize(
    ("changes", "resampled", "entries"),
    [
        ({"augmentation": "flip"}, False, [0, 1, 2, 3, 4, 5]),
        ({"augmentation": "flip"} | BANK, False, [0, 1, 0, 1, 0, 1]),
        (EXACT, False, [0, 0, 0, 0, 0, 0]),
        (EXACT, True, [0, 1, 0, 1, 0, 1]),
        ({"augmentation": "flip", "refresh": 4} | EXACT, False, [0, 1, 0, 1, 2, 3]),
    ],
)
def test_a_pool_holds_so_many_augmentations_and_weights(changes, resampled, entries):
    objective = make(pool=2, **changes)
    if resampled:
        objective.encoder.resample = lambda number: None
    assert [objective.entry(step) for step in range(6)] == entries
    side = REAL_SIDES[objective.settings.estimator](objective)
    augmentations = [side(step).augmentation for step in range(6)]
    if "augmentation" in changes:
        assert len({id(drawn) for drawn in augmentations}) == len(set(entries))


def test_every_group_has_an_augmentation_of_its_own_from_its_clients_stream():
    objective = make(augmentation=AUGMENTATION)
    drawn = torch.cat([objective.augmentation(step).colour for step in range(40)])
    coloured = drawn[drawn[:, 0] != 0]
    assert 10 < len(coloured) == len(set(map(tuple, coloured.tolist())))
    alone = Draws(objective.draws.rngs[1:], torch.zeros(2, dtype=torch.int64))
    one, both = alone.augmentation(AUGMENTATION, 8, "augment", 3), objective.augmentation(3)
    assert torch.equal(one.affine, both.affine[2:]) and torch.equal(one.cutout, both.cutout[2:])


def test_sliding_batches_share_all_images_but_one():
    sliding, fresh = make(sliding=True, real_batch=4), make(real_batch=4)
    for step in range(10):
        before, after = (sliding.rows("batch", number) for number in (step, step + 1))
        assert torch.equal(before[:, 1:], after[:, :-1])
    assert not torch.equal(fresh.rows("batch", 0)[:, 1:], fresh.rows("batch", 1)[:, :-1])


# --- the optimiser of images, and the loss on the way


@pytest.mark.parametrize("kind", ["sgd", "scaled", "adam"])
def test_two_steps_with_momentum(kind):
    """Adam's step is the sign of g, and again for the same g; SGD goes g, then (1 + b) g."""
    changes = {"image_lr": 1e-3, "image_optimiser": kind, "estimator": "expectation"}
    plain = make(iterations=1, image_lr=1.0, estimator="expectation")
    gradient = noise() - condense(plain, noise(), GROUP)[0]
    sizes = torch.tensor(CONDENSED)[GROUP].view(-1, 1, 1, 1)
    first = {"sgd": gradient, "scaled": sizes * gradient, "adam": gradient.sign()}[kind]
    large = gradient.abs() > 0.1 * gradient.abs().max()  # the sign of a small one may change
    for iterations, total in ((1, 1.0), (2, 2.0 if kind == "adam" else 2.5)):
        images, _ = condense(make(iterations=iterations, **changes), noise(), GROUP)
        steps = (noise() - images) / 1e-3
        torch.testing.assert_close(steps[large], total * first[large], rtol=0.03, atol=1e-3)


def test_the_loss_on_the_way():
    assert milestones(160) == [1, 2, 5, 10, 20, 50, 100, 160] and milestones(5) == [1, 2, 5]
    trace = torch.arange(12.0).view(4, 3)  # four steps of three groups
    # sums of the groups: 1, 7, 13, 19 and 2, 5, 8, 11
    expected = torch.tensor([[1, 7, (13 + 19) / 2], [2, 5, (8 + 11) / 2]])
    torch.testing.assert_close(progress(trace, torch.tensor([0, 0, 1]), 2), expected)


# --- settings


@given(st.integers(1, 1000), st.integers(1, 50_000), st.integers(1, 7))
@example(300, 50, 1)
@example(70, 100, 1)
def test_condensed_images_are_a_share_rounded_up_but_at_least_a_few(per_mille, images, least):
    """Exactly: 0.3 of 50 is a little above 15 in float32, 0.07 of 100 a little above 7 in float64."""
    settings = Condensation(share=per_mille / 1000, min_images=least)
    wanted = max(least, math.ceil(Fraction(per_mille, 1000) * images))
    assert condensed_counts(torch.tensor([images]), settings).tolist() == [wanted]
