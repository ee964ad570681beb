"""Condensation of all groups as one batch, against the equations written out in float64."""

import itertools
import math
from fractions import Fraction

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.baselines.feddm import FeaturesAndLogits
from core.condensation import LatentEncoder, LatentStatistics, augment, engine
from core.condensation.engine import (
    REAL_SIDES,
    Condensation,
    Draws,
    MatchingObjective,
    condense,
    condensed_counts,
)
from core.condensation.latent import Normalisation, RunningAverage, Separate
from core.errors import InputError
from core.rng import Rng
from tests.condensation.two_clients import (
    AUGMENTATION,
    GROUP,
    OWNER,
    SIZES,
    embed64,
    losses64,
    make,
    network,
    noise,
    prepare,
    running64,
)


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
        averages = running64(model)
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


def test_one_step_follows_finite_differences():
    """The displacement is -lr dL/ds; central differences of the float64 loss, with no automatic
    gradient at all.
    """
    objective = make()
    moved = (noise() - condense(objective, noise(), GROUP)[0]) / objective.settings.image_lr
    start, h = noise().double(), 1e-5
    assert moved.abs().max() > 0.01
    for pixel in range(3, start.numel(), 41):
        probe = torch.zeros_like(start)
        probe.view(-1)[pixel] = h
        ahead, behind = (losses64(objective, start + sign * probe, 0).sum() for sign in (1, -1))
        slope = float((ahead - behind) / (2 * h))
        assert float(moved.view(-1)[pixel]) == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_condensed_images_are_augmented_as_the_real_ones():
    """One step of siamese augmentation: the gradient of the linear MMD goes through the augmentation
    of the image's group, the one that the real batch of that group had.
    """
    objective = make(LatentEncoder(network("none")), augmentation=AUGMENTATION, image_momentum=0.0)
    images, trace = condense(objective, noise(), GROUP)
    drawn, rows, real = objective.augmentation(0), objective.rows("batch", 0), objective.real
    start = noise().requires_grad_()
    losses = []
    for g in range(4):
        batch, mine = rows[g], g == GROUP
        shown = augment(prepare(real.images[batch]), drawn, torch.full((len(batch),), g))
        made = augment(start[mine], drawn, torch.full((int(mine.sum()),), g))
        means = [objective.encoder.model.embed(one).mean(0) for one in (shown, made)]
        losses.append((means[0] - means[1]).square().sum())
    (slope,) = torch.autograd.grad(sum(losses), start)
    torch.testing.assert_close(trace[0], torch.stack(losses).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(images, noise() - 0.5 * slope, rtol=1e-4, atol=1e-5)


# --- clients by themselves


def test_a_client_condenses_as_if_it_were_alone():
    """The images of client 0 do not depend on what client 1 holds or starts from."""
    objective, start = make(iterations=3), noise()
    together, _ = condense(objective, start, GROUP)
    changed = attrs.evolve(objective.real, images=objective.real.images.clone())
    changed.images[changed.owner[changed.group] == 1] = 0
    start[objective.real.owner[GROUP] == 1] += 1
    beside, _ = condense(attrs.evolve(objective, real=changed), start, GROUP)
    mine = objective.real.owner[GROUP] == 0
    torch.testing.assert_close(beside[mine], together[mine], rtol=0, atol=1e-6)


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
        {"kernel": "gaussian"},
        {"normalisation": Separate(), "clip_norm": 0.1},
        {"augmentation": "color_crop_flip"},
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


def test_blocks_hold_as_many_clients_as_fit(monkeypatch):
    monkeypatch.setattr(engine, "at_once", lambda images: 20)
    owner = torch.repeat_interleave(torch.tensor([1, 2, 1, 3, 9, 1]))
    objective = attrs.evolve(make(), draws=Draws([Rng(0)] * 6, owner))

    def blocks(counts):
        return [(c.start, c.stop, g.start, g.stop) for c, g in objective.blocks(counts)]

    # groups of 5 images, so four of them fit
    assert blocks([5] * 17) == [(0, 3, 0, 4), (3, 4, 4, 7), (4, 5, 7, 16), (5, 6, 16, 17)]
    # the second client has 19 images, the others one in each group
    assert blocks([1, 10, 9] + [1] * 14) == [(0, 2, 0, 3), (2, 6, 3, 17)]


def test_watching_changes_nothing_and_sees_every_step():
    seen = []
    watched, trace = condense(
        make(iterations=3), noise(), GROUP, lambda step, images: seen.append((step, images + 0))
    )
    assert [step for step, _ in seen] == [0, 1, 2] and torch.equal(seen[0][1], noise())
    assert torch.equal(watched, condense(make(iterations=3), noise(), GROUP)[0])
    assert trace.shape == (3, 4)


# --- the real side


def close(statistics, wanted, client):
    for layer, (mean, variance) in zip(statistics.layers, wanted, strict=True):
        both = torch.stack([mean, variance])
        torch.testing.assert_close(layer[:, client].double(), both, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("augmentation", ["none", AUGMENTATION])
def test_the_expectation_is_the_weighted_mean_of_all_images(augmentation):
    """E_{P_w}[psi(T)] of Eq. 10 in float64, under the augmentation and the statistics of the draw,
    which are those of a batch drawn by importance.
    """
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
    """Without normalisation the mean target of many batches is the exact one, within five standard
    errors, and not the plain mean: images are not drawn evenly.
    """
    encoder = LatentEncoder(network("none"))
    exact = REAL_SIDES["expectation"](make(encoder, estimator="expectation"))(0).features[:, 0]
    objective = make(encoder, estimator=estimator, real_batch=8)
    side, draws = REAL_SIDES[estimator](objective), 300
    means = torch.stack([side(step).features.mean(1) for step in range(draws)])
    error = 5 * means.std(0) / math.sqrt(draws) + 1e-6
    assert ((means.mean(0) - exact).abs() <= error).all()
    everything = objective.embed_all(0).features.split(SIZES)
    plain = torch.stack([features.mean(0) for features in everything])
    assert ((means.mean(0) - plain).abs() > error).any()


@pytest.mark.parametrize(
    ("changes", "resampled", "entries"),
    [
        ({"augmentation": "flip"}, False, [0, 1, 2, 3, 4, 5]),
        ({"augmentation": "flip", "estimator": "feature_bank"}, False, [0, 1, 0, 1, 0, 1]),
        ({"estimator": "expectation"}, False, [0, 0, 0, 0, 0, 0]),
        ({"estimator": "expectation"}, True, [0, 1, 0, 1, 0, 1]),
        (
            {"augmentation": "flip", "estimator": "expectation", "refresh": 4},
            False,
            [0, 1, 0, 1, 2, 3],
        ),
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


def test_a_bank_draws_anew_at_every_step():
    side = REAL_SIDES["feature_bank"](make(estimator="feature_bank"))
    assert not torch.equal(side(0).features, side(1).features)


def test_every_group_has_an_augmentation_of_its_own_from_its_clients_stream():
    objective = make(augmentation=AUGMENTATION)
    drawn = torch.cat([objective.augmentation(step).colour for step in range(40)])
    coloured = drawn[drawn[:, 0] != 0]
    assert 10 < len(coloured) == len(set(map(tuple, coloured.tolist())))
    alone = Draws(objective.draws.rngs[1:], torch.zeros(2, dtype=torch.int64))
    one, both = alone.augmentation(AUGMENTATION, 8, "augment", 3), objective.augmentation(3)
    assert torch.equal(one.affine, both.affine[2:]) and torch.equal(one.cutout, both.cutout[2:])


def test_sliding_batches_share_all_images_but_one():
    objective = make(sliding=True, real_batch=4)
    rows = [objective.rows("batch", step) for step in range(11)]
    for before, after in itertools.pairwise(rows):
        assert torch.equal(before[:, 1:], after[:, :-1])
    assert len({tuple(row[1, -1:].tolist()) for row in rows}) > 1
    fresh = make(real_batch=4)
    assert not torch.equal(fresh.rows("batch", 0)[:, 1:], fresh.rows("batch", 1)[:, :-1])


@pytest.mark.parametrize(("norm", "batches"), [("batch", 1), ("instance", 0), ("fixed", 0)])
def test_only_statistics_that_are_not_given_need_a_batch(norm, batches, monkeypatch):
    drawn, rows = [], MatchingObjective.rows
    monkeypatch.setattr(
        MatchingObjective, "rows", lambda *given: drawn.append(given) or rows(*given)
    )
    model = network("batch" if norm == "fixed" else norm)
    given = LatentStatistics.running(model, 2) if norm == "fixed" else None
    objective = make(LatentEncoder(model), normalisation=Normalisation(given))
    target = objective.embed_all(0)
    assert len(drawn) == batches and len(target.features) == sum(SIZES)
    if norm == "fixed":
        expected = model.eval().embed(prepare(objective.real.images))
        torch.testing.assert_close(target.features, expected, rtol=1e-4, atol=1e-5)


# --- settings


@given(st.integers(1, 1000), st.integers(1, 50_000), st.integers(1, 7))
def test_condensed_images_are_a_share_rounded_up_but_at_least_a_few(per_mille, size, least):
    """Exactly: 0.3 of 50 is a little above 15 in float32, 0.07 of 100 a little above 7 in float64."""
    for share, images in ((per_mille, size), (300, 50), (70, 100)):
        settings = Condensation(share=share / 1000, min_images=least)
        wanted = max(least, math.ceil(Fraction(share, 1000) * images))
        assert condensed_counts(torch.tensor([images]), settings).tolist() == [wanted]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share": 0}, "share"),
        ({"share": 1.5}, "share"),
        ({"min_images": 0}, "min_images"),
        ({"kernel": "cubic"}, "kernel"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"estimator": "exact"}, "estimator"),
        ({"estimator": "expectation", "kernel": "gaussian"}, "linear kernel"),
        ({"image_optimiser": "adm"}, "optimiser"),
        ({"refresh": 0}, "refresh"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Condensation(**settings)
