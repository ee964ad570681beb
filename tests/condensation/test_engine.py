"""Condensation of all groups as one batch, against the equations written out in float64."""

import itertools
import math
from contextlib import nullcontext
from fractions import Fraction

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from core import models
from core.condensation import LatentEncoder, LatentStatistics, augment
from core.condensation import problem as problem_module
from core.condensation.engine import REAL_SIDES, _slots, condense, condensed_counts, embed_all
from core.condensation.problem import Condensation, Draws, Problem, RealData
from core.errors import InputError
from core.rng import Rng

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
#: real images per group; two clients, the first with groups 0 and 1
SIZES, OWNER = (6, 9, 1, 7), (0, 0, 1, 1)
#: condensed images per group
CONDENSED = (2, 3, 1, 2)
GROUP = torch.repeat_interleave(torch.tensor(CONDENSED))


def prepare(images):
    return images.float() / 127.5 - 1


def network(norm="batch"):
    """A small ConvNet with scales, shifts and running statistics that all matter."""
    model = models.build("convnet", 1, 8, 4, Rng(5), width=3, depth=2, norm=norm)
    generator = Rng(6).generator()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            with torch.no_grad():
                layer.weight.uniform_(0.5, 1.5, generator=generator)
                layer.bias.uniform_(-0.5, 0.5, generator=generator)
            layer.running_mean.uniform_(-1, 1, generator=generator)
            layer.running_var.uniform_(0.5, 2, generator=generator)
    return model


def make(model=None, **changes):
    """A problem with two clients of two classes each, whose images are all different and unequally
    likely.
    """
    options = {
        name: changes.pop(name) for name in list(changes) if name in attrs.fields_dict(Problem)
    }
    settings = Condensation(**({"iterations": 1, "real_batch": 5, "image_lr": 0.5} | changes))
    generator, number = Rng(1).generator(), sum(SIZES)
    group = torch.repeat_interleave(torch.tensor(SIZES))
    weights = torch.rand(number, generator=generator) ** 2 + 0.01
    probabilities = weights / torch.zeros(len(SIZES)).index_add(0, group, weights)[group]
    real = RealData(
        torch.randint(0, 256, (number, 1, 8, 8), generator=generator, dtype=torch.uint8),
        group,
        probabilities,
        torch.tensor(OWNER),
        torch.tensor([0, 2, 1, 2]),
    )
    return Problem(
        LatentEncoder(network() if model is None else model),
        real,
        settings,
        Draws([Rng(7).at("client", 0), Rng(7).at("client", 1)], real.owner),
        prepare,
        nullcontext,
        **options,
    )


def noise():
    return torch.randn(len(GROUP), 1, 8, 8, generator=Rng(2).generator())


def embed64(problem, images, statistics=None):
    """Features in float64, layer by layer, and the statistics (mean, variance) of every
    normalisation (Eq. 4).
    """
    used = []
    for position, block in enumerate(problem.encoder.model.blocks):
        images = F.conv2d(images, block.conv.weight.double(), block.conv.bias.double(), padding=1)
        mean, variance = (
            statistics[position]
            if statistics
            else (images.mean((0, 2, 3)), images.var((0, 2, 3), unbiased=False))
        )
        used.append((mean, variance))
        scale, shift = (
            block.norm.weight.double().view(-1, 1, 1),
            block.norm.bias.double().view(-1, 1, 1),
        )
        images = (images - mean.view(-1, 1, 1)) / (
            variance.view(-1, 1, 1) + block.norm.eps
        ).sqrt() * scale + shift
        images = F.avg_pool2d(images.relu(), 2)
    features = images.flatten(1)
    if problem.head:
        head = problem.encoder.model.classifier
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


def losses64(problem, images, step, averages=None):
    """The loss of every group in float64, client by client and class by class.

    `averages` holds every client's running statistics and is updated.
    """
    real, losses = problem.real, []
    rows = problem.rows("batch", step)
    for client in range(problem.clients):
        groups = [g for g, owner in enumerate(OWNER) if owner == client]
        batch = prepare(real.images[torch.cat([rows[g] for g in groups])]).double()
        features, statistics = embed64(problem, batch)
        if averages is not None:
            averages[client] = statistics = [
                (0.9 * old[0] + 0.1 * new[0], 0.9 * old[1] + 0.1 * new[1])
                for old, new in zip(averages[client], statistics, strict=True)
            ]
        mine = torch.cat([(g == GROUP).nonzero().flatten() for g in groups])
        condensed, _ = embed64(problem, images[mine], None if problem.free else statistics)
        start = 0
        for place, g in enumerate(groups):
            count, size = CONDENSED[g], problem.settings.real_batch
            losses.append(
                mmd64(
                    features[place * size : (place + 1) * size],
                    condensed[start : start + count],
                    problem.settings.kernel,
                )
            )
            start += count
    return torch.stack(losses)


def running64(model, clients=2):
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    return [
        [(layer.running_mean.double(), layer.running_var.double()) for layer in layers]
        for _ in range(clients)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": "gaussian"},
        {"free": True},
        {"head": True},
        {"sliding": True},
        {"moving": True},
        {"free": True, "head": True, "disturb": True},
    ],
    ids=str,
)
def test_three_steps_of_condensation_in_float64(options):
    """Momentum 0.5, gradient of the sum over classes by autograd in float64, statistics by hand."""
    model, averages = network(), None
    if options.get("moving"):
        options, averages = (
            options | {"moving": LatentStatistics.running(model, 2)},
            running64(model),
        )
    problem = make(model, iterations=3, **{k: v for k, v in options.items() if k != "disturb"})
    if options.get("disturb"):
        weight = problem.encoder.model.blocks[0].conv.weight
        centre, direction = weight.clone(), torch.randn(weight.shape, generator=Rng(8).generator())
        problem = attrs.evolve(
            problem, disturb=lambda step: weight.copy_(centre + 0.2 * step * direction)
        )
    images, trace = condense(problem, noise(), GROUP)

    expected, velocity = noise().double(), torch.zeros(len(GROUP), 1, 8, 8, dtype=torch.float64)
    for step in range(3):
        if problem.disturb:
            problem.disturb(step)
        expected.requires_grad_()
        losses = losses64(problem, expected, step, averages)
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
    problem = make()
    moved = ((noise() - condense(problem, noise(), GROUP)[0]) / problem.settings.image_lr).double()
    start, h = noise().double(), 1e-5
    assert moved.abs().max() > 0.01
    for pixel in range(3, start.numel(), 41):
        probe = torch.zeros_like(start)
        probe.view(-1)[pixel] = h
        slope = (
            losses64(problem, start + probe, 0).sum() - losses64(problem, start - probe, 0).sum()
        ) / (2 * h)
        assert moved.view(-1)[pixel] == pytest.approx(float(slope), rel=1e-3, abs=1e-5)


def test_a_client_condenses_as_if_it_were_alone():
    """The images of client 0 do not depend on what client 1 holds or starts from."""
    problem, start = make(iterations=3), noise()
    together, _ = condense(problem, start, GROUP)
    changed = attrs.evolve(problem.real, images=problem.real.images.clone())
    changed.images[changed.owner[changed.group] == 1] = 0
    start[problem.real.owner[GROUP] == 1] += 1
    mine = problem.real.owner[GROUP] == 0
    torch.testing.assert_close(
        condense(attrs.evolve(problem, real=changed), start, GROUP)[0][mine],
        together[mine],
        rtol=0,
        atol=1e-6,
    )


def test_the_gradient_is_clipped_client_by_client():
    problem = make()
    owner = problem.real.owner[GROUP]
    free = condense(problem, noise(), GROUP)[0] - noise()
    norms = [float(free[owner == client].norm() / problem.settings.image_lr) for client in (0, 1)]
    assert abs(norms[0] - norms[1]) > 0.01 * max(norms)
    bound = sum(norms) / 2  # one client lies above, one below
    clipped = condense(make(clip_norm=bound), noise(), GROUP)[0] - noise()
    for client, norm in enumerate(norms):
        torch.testing.assert_close(
            clipped[owner == client],
            free[owner == client] * min(1.0, bound / norm),
            rtol=1e-4,
            atol=1e-5,
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


def test_watching_changes_nothing_and_sees_every_step():
    seen = []
    watched, trace = condense(
        make(iterations=3), noise(), GROUP, lambda step, images: seen.append((step, images + 0))
    )
    assert [step for step, _ in seen] == [0, 1, 2] and torch.equal(seen[0][1], noise())
    assert torch.equal(
        watched, condense(make(iterations=3), noise(), GROUP)[0]
    ) and trace.shape == (3, 4)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any))
def test_slots_give_every_image_a_place_in_the_row_of_its_group(sizes):
    group = torch.repeat_interleave(torch.tensor(sizes))
    slots, weights = _slots(group, len(sizes))
    assert weights.shape == (len(sizes), max(sizes)) and weights.sum(1).tolist() == sizes
    assert len(set(slots.tolist())) == len(group)
    assert (slots // max(sizes)).tolist() == group.tolist()
    assert weights.view(-1)[slots].min() == 1


@given(st.integers(1, 1000), st.integers(1, 50_000), st.integers(1, 7))
def test_condensed_images_are_a_share_rounded_up_but_at_least_a_few(per_mille, size, least):
    counts = condensed_counts(
        torch.tensor([size]), Condensation(share=per_mille / 1000, min_images=least)
    )
    assert counts.tolist() == [max(least, math.ceil(Fraction(per_mille, 1000) * size))]


def test_condensed_counts_of_the_paper():
    counts = condensed_counts(torch.tensor([1, 100, 250, 251, 5000]), Condensation(share=0.02))
    assert counts.tolist() == [5, 5, 5, 6, 100]
    # 0.3 * 50 is 15, but a little more in float32
    assert condensed_counts(torch.tensor([50]), Condensation(share=0.3, min_images=1)).tolist() == [
        15
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"estimator": "expectation", "kernel": "gaussian"}, "linear kernel"),
        ({"share": 0}, "share"),
        ({"share": 1.5}, "share"),
        ({"min_images": 0}, "min_images"),
        ({"kernel": "cubic"}, "kernel"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"estimator": "exact"}, "estimator"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Condensation(**settings)


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


@pytest.mark.parametrize("kind", ["scaled", "adam"])
def test_a_client_that_stops_early_has_the_images_that_it_has_alone(kind):
    changes = {
        "estimator": "expectation",
        "iterations": 60,
        "image_lr": 0.05,
        "stop_factor": 1.3,
        "image_optimiser": kind,
    }
    both = make(**changes)
    images, trace = condense(both, noise(), GROUP)
    assert len(trace) < 60 and len(trace) % 10 == 0
    first = trace[:, :2].sum(1)
    assert first[-10:].mean() < first[:10].mean() / 1.3
    other, mine = noise(), both.real.owner[GROUP] == 0
    other[~mine] *= 0.1
    beside, _ = condense(make(**changes), other, GROUP)
    torch.testing.assert_close(beside[mine], images[mine], rtol=0, atol=1e-5)


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
