"""What condensed images are compared with: real batches, their expectation and augmentations."""

import itertools
import math

import pytest
import torch

from core.condensation import augment
from core.condensation import problem as problem_module
from core.condensation.engine import REAL_SIDES, condense, embed_all
from core.condensation.problem import Draws, Problem
from core.rng import Rng
from tests.condensation.two_clients import (
    AUGMENTATION,
    GROUP,
    OWNER,
    SIZES,
    embed64,
    make,
    network,
    noise,
    prepare,
)


@pytest.mark.parametrize("augmentation", ["none", AUGMENTATION])
def test_the_expectation_is_the_weighted_mean_of_all_images(augmentation):
    """E_{P_w}[psi(T)] of Eq. 10 in float64, under the statistics and the augmentation that belong
    to the draw.
    """
    problem = make(augmentation=augmentation, estimator="expectation", pool=2)
    side, real = REAL_SIDES["expectation"](problem), problem.real
    assert problem.entries == (1 if augmentation == "none" else 2)
    for step in range(3):
        target, drawn = side(step)
        inputs = prepare(real.images)
        if drawn is not None:
            inputs = augment(inputs, drawn, real.group)
        for g, owner in enumerate(OWNER):
            mine = real.group == g
            statistics = [
                (mean[owner].double(), variance[owner].double())
                for mean, variance in zip(
                    target.statistics.means, target.statistics.variances, strict=True
                )
            ]
            features, _ = embed64(problem, inputs[mine].double(), statistics)
            mean = (real.probabilities[mine].double()[:, None] * features).sum(0)
            torch.testing.assert_close(target.features[g, 0].double(), mean, rtol=1e-4, atol=1e-5)
    assert torch.equal(side(0)[0].features, side(2)[0].features)
    if augmentation != "none":
        assert not torch.equal(side(0)[0].features, side(1)[0].features)


def test_the_stored_statistics_are_those_of_a_batch_drawn_by_importance():
    problem = make(estimator="expectation")
    target, _ = REAL_SIDES["expectation"](problem)(0)
    rows = problem.rows("statistics", 0)
    for client in (0, 1):
        groups = [g for g, owner in enumerate(OWNER) if owner == client]
        _, used = embed64(problem, prepare(problem.real.images[rows[groups].flatten()]).double())
        for layer, (mean, variance) in enumerate(used):
            torch.testing.assert_close(
                target.statistics.means[layer][client].double(), mean, rtol=1e-4, atol=1e-5
            )
            torch.testing.assert_close(
                target.statistics.variances[layer][client].double(), variance, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("estimator", ["minibatch", "feature_bank"])
def test_batches_tend_to_the_expectation(estimator):
    """Without normalisation the mean target of many batches is the exact one, within five standard
    errors.
    """
    model = network("none")
    exact, _ = REAL_SIDES["expectation"](make(model, estimator="expectation"))(0)
    problem = make(model, estimator=estimator, real_batch=8)
    side, draws = REAL_SIDES[estimator](problem), 300
    means = torch.stack([side(step)[0].features.mean(1) for step in range(draws)])
    error = means.std(0) / math.sqrt(draws)
    difference = (means.mean(0) - exact.features[:, 0]).abs()
    assert (difference <= 5 * error + 1e-6).all()
    # the batches are not drawn evenly: the plain mean of a group lies far off
    plain = embed_plain(problem)
    assert ((means.mean(0) - plain).abs() > 5 * error + 1e-6).any()


def embed_plain(problem):
    """The unweighted mean feature of every group."""
    features, _ = problem.embed(
        prepare(problem.real.images), torch.zeros(sum(SIZES), dtype=torch.int64), None
    )
    return torch.stack([features[problem.real.group == g].mean(0) for g in range(len(SIZES))])


@pytest.mark.parametrize("estimator", ["minibatch", "feature_bank"])
def test_every_row_of_a_batch_comes_from_its_own_group(estimator):
    problem = make(network("none"), estimator=estimator, augmentation="flip", pool=2)
    side, real = REAL_SIDES[estimator](problem), problem.real
    for step in range(4):
        target, drawn = side(step)
        features, _ = problem.embed(
            augment(prepare(real.images), drawn, real.group), real.owner[real.group], None
        )
        assert target.features.shape[:2] == (len(SIZES), problem.settings.real_batch)
        for g in range(len(SIZES)):
            nearest = torch.cdist(target.features[g], features).min(1)
            assert (nearest.values < 1e-4).all() and (real.group[nearest.indices] == g).all()


def test_the_bank_draws_anew_at_every_step_and_a_minibatch_never_repeats_an_augmentation():
    bank = make(estimator="feature_bank", augmentation=AUGMENTATION, pool=2)
    side = REAL_SIDES["feature_bank"](bank)
    assert not torch.equal(side(0)[0].features, side(2)[0].features)
    assert [bank.entry(step) for step in range(5)] == [0, 1, 0, 1, 0]
    fresh = make(augmentation=AUGMENTATION, pool=2)
    assert [fresh.entry(step) for step in range(5)] == [0, 1, 2, 3, 4]


def test_every_group_has_an_augmentation_of_its_own_from_its_clients_stream():
    problem = make(augmentation=AUGMENTATION)
    drawn = torch.cat([problem.augmented(step).colour for step in range(40)])
    coloured = drawn[drawn[:, 0] != 0]
    assert 10 < len(coloured) == len(set(map(tuple, coloured.tolist())))
    alone = Draws(problem.draws.rngs[1:], torch.zeros(2, dtype=torch.int64))
    for step in range(5):
        one, both = alone.augmentation(AUGMENTATION, 8, "augment", step), problem.augmented(step)
        assert torch.equal(one.affine, both.affine[2:]) and torch.equal(one.cutout, both.cutout[2:])


def test_sliding_batches_share_all_images_but_one():
    problem = make(sliding=True, real_batch=4)
    rows = [problem.rows("batch", step) for step in range(11)]
    for before, after in itertools.pairwise(rows):
        assert torch.equal(before[:, 1:], after[:, :-1])
    assert len({tuple(row[1, -1:].tolist()) for row in rows}) > 1
    fresh = make(real_batch=4)
    assert not torch.equal(fresh.rows("batch", 0)[:, 1:], fresh.rows("batch", 1)[:, :-1])
    assert (problem.real.group[rows[7]] == torch.arange(4)[:, None]).all()


@pytest.mark.parametrize("most", [1, 10, 15, 10**6])
def test_real_batches_are_embedded_in_runs_of_whole_clients(monkeypatch, most):
    """A client with two groups of 5 images: 15 images hold one client, 20 both. The result does not
    change.
    """
    problem = make(iterations=2)
    monkeypatch.setattr(problem_module, "at_once", lambda images: 10**6)
    expected, used = problem.batch("batch", 0, None)
    monkeypatch.setattr(problem_module, "at_once", lambda images: most)
    both = [(slice(0, 2), slice(0, 4))]
    assert list(problem.blocks([5] * 4)) == (
        both if most >= 20 else [(slice(0, 1), slice(0, 2)), (slice(1, 2), slice(2, 4))]
    )
    features, statistics = problem.batch("batch", 0, None)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(
        statistics.means + statistics.variances, used.means + used.variances, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "expectation"},
        {"kernel": "gaussian"},
        {"free": True},
        {"head": True, "clip_norm": 0.1},
        {"augmentation": "color_crop_flip", "image_momentum": 0.5},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_condensed_images_do_not_depend_on_how_many_are_embedded_at_once(monkeypatch, changes):
    found = []
    for most in (1, 10**6):
        monkeypatch.setattr(problem_module, "at_once", lambda images, most=most: most)
        found.append(condense(make(iterations=4, **changes), noise(), GROUP))
    (images, losses), (together, traced) = found
    assert (together - noise()).abs().max() > 1e-3
    torch.testing.assert_close(images, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses, traced, rtol=1e-4, atol=1e-6)


def test_blocks_hold_as_many_clients_as_fit(monkeypatch):
    monkeypatch.setattr(problem_module, "at_once", lambda images: 20)
    problem = make()
    problem.draws.sizes, problem.draws.rngs = [1, 2, 1, 3, 9, 1], [Rng(0)] * 6

    def blocks(counts):
        return [(c.start, c.stop, g.start, g.stop) for c, g in problem.blocks(counts)]

    # groups of 5 images, so four of them fit
    assert blocks([5] * 17) == [(0, 3, 0, 4), (3, 4, 4, 7), (4, 5, 7, 16), (5, 6, 16, 17)]
    # the second client has 19 images, the others one in each group: it fits with the first, and all
    # else together
    assert blocks([1, 10, 9] + [1] * 14) == [(0, 2, 0, 3), (2, 6, 3, 17)]


def test_a_pool_that_is_renewed_holds_new_augmentations_after_so_many_steps():
    drawn = [
        make(estimator="expectation", augmentation=AUGMENTATION, pool=2, refresh=4).entry(step)
        for step in range(10)
    ]
    assert drawn == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5]
    problem = make(estimator="expectation", augmentation=AUGMENTATION, pool=2, refresh=4)
    side = REAL_SIDES["expectation"](problem)
    features = [side(step)[0].features for step in range(6)]
    assert torch.equal(features[0], features[2]) and not torch.equal(features[0], features[4])


@pytest.mark.parametrize(("norm", "batches"), [("batch", 1), ("instance", 0)])
def test_only_batch_normalisation_needs_a_batch_for_its_statistics(norm, batches, monkeypatch):
    seen, whole = [], Problem.batch
    monkeypatch.setattr(
        Problem, "batch", lambda self, *given: seen.append(given) or whole(self, *given)
    )
    problem = make(network(norm))
    features, statistics, _ = embed_all(problem, 0)
    assert len(seen) == batches and len(statistics.means) == 2 * batches
    assert len(features) == len(problem.real.images)


def test_a_pool_holds_disturbed_weights_also_without_augmentation():
    problem = make(estimator="expectation", pool=3, disturb=lambda step: None)
    assert [problem.entry(step) for step in range(5)] == [0, 1, 2, 0, 1]
    assert [make(estimator="expectation", pool=3).entry(step) for step in range(3)] == [0, 0, 0]
