"""Condensation of all groups as one batch, against the equations written out in float64."""

import math
from fractions import Fraction

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.condensation import LatentStatistics
from core.condensation.augment import augment
from core.condensation.engine import _slots, condense, condensed_counts
from core.condensation.problem import Condensation
from core.errors import InputError
from core.rng import Rng
from tests.condensation.two_clients import (
    AUGMENTATION,
    GROUP,
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


def test_the_rounding_of_a_share_does_not_cost_an_image():
    """0.07 of 100 is 7, but 7.000000000000001 in float64."""
    counts = condensed_counts(torch.tensor([100, 101]), Condensation(share=0.07, min_images=1))
    assert counts.tolist() == [7, 8]


def test_condensed_images_are_augmented_as_the_real_ones():
    """One step of siamese augmentation: the gradient of the linear MMD goes through the augmentation
    of the image's group, the one that the real batch of that group had.
    """
    problem = make(network("none"), augmentation=AUGMENTATION, image_momentum=0.0)
    images, trace = condense(problem, noise(), GROUP)
    drawn, rows, real = problem.augmented(0), problem.rows("batch", 0), problem.real
    start = noise().requires_grad_()
    losses = []
    for g in range(4):
        batch, mine = rows[g], g == GROUP
        seen = augment(prepare(real.images[batch]), drawn, torch.full((len(batch),), g))
        shown = augment(start[mine], drawn, torch.full((int(mine.sum()),), g))
        wanted, found = (problem.encoder.model.embed(one).mean(0) for one in (seen, shown))
        losses.append((wanted - found).square().sum())
    (slope,) = torch.autograd.grad(sum(losses), start)
    torch.testing.assert_close(trace[0], torch.stack(losses).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(images, noise() - 0.5 * slope, rtol=1e-4, atol=1e-5)
