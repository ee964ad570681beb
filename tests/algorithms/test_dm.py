"""DM: another random network in every iteration, the step in closed form, and that it learns."""

import attrs
import torch

from core import algorithms
from core.condensation import LatentEncoder, augment
from core.condensation.engine import condense
from core.families import condensing
from core.federation import Runtime
from core.models import initialise
from core.rng import Rng
from lab import Experiment, make_clients, make_task

SMALL = {
    "images_per_class": 1,
    "iterations": 3,
    "real_batch": 8,
    "encoder_width": 4,
    "encoder_depth": 2,
    "augmentation": "none",
}
TINY = Experiment(algorithm="dm", dataset="digits", model_options={"width": 8}, clients=2, rounds=1)


def pieces(**more):
    """A problem, its start and the rest of what a client computes, step by step."""
    task = make_task(TINY, Runtime())
    clients, rngs = make_clients(TINY, task), [Rng(1), Rng(2)]
    algorithm = algorithms.create("dm", SMALL | more)
    real, _ = condensing.gather(clients, rngs)
    settings, group = algorithm.settings, torch.arange(real.groups)
    group = group.repeat_interleave(settings.images_per_class)
    start = condensing.starts(settings.init, real, group, task, rngs)
    start = start.unflatten(0, (real.groups, settings.images_per_class))
    return algorithm, task, real, rngs, start


def test_the_defaults_are_those_of_the_authors_code():
    settings = algorithms.create("dm").settings
    assert (settings.iterations, settings.real_batch) == (20_000, 256)
    assert (settings.image_lr, settings.image_momentum) == (1, 0.5)
    released = algorithms.create("dm", variant="released").settings
    assert (settings.init, settings.replacement) == ("noise", True)
    assert (released.init, released.replacement) == ("real", False)


def test_every_iteration_matches_mean_features_at_another_random_network():
    """Three steps with momentum by autograd on the formula, at networks made anew; two images of
    each class, under the augmentation of the real ones.
    """
    algorithm, task, real, rngs, start = pieces(images_per_class=2, augmentation="scale_rotate")
    group = torch.arange(real.groups).repeat_interleave(2)
    objective = algorithm.matching_objective(task, real, Rng(7), rngs)
    images = algorithm.condense(task, real, start, Rng(7), rngs).flatten(0, 1)
    s, velocity = start.flatten(0, 1), 0.0
    weights = []
    for step in range(3):
        encoder = LatentEncoder(algorithm.settings.encoder(task, Rng(0)))
        initialise(encoder.model, Rng(7).at("network", step))
        weights.append(encoder.model.classifier.weight.clone())
        psi = encoder.model.embed
        rows, drawn = objective.rows("batch", step), objective.augmentation(step)
        real_mean = torch.stack(
            [
                psi(augment(task.inputs(real.images[own]), drawn, torch.full_like(own, g))).mean(0)
                for g, own in enumerate(rows)
            ]
        )
        s = s.detach().requires_grad_()
        made_mean = psi(augment(s, drawn, group)).unflatten(0, (real.groups, 2)).mean(1)
        (gradient,) = torch.autograd.grad((made_mean - real_mean).square().sum(), s)
        velocity = 0.5 * velocity + gradient
        s = s - 1.0 * velocity
    torch.testing.assert_close(images, s.detach(), rtol=1e-3, atol=1e-4)
    assert not torch.equal(weights[0], weights[1])


def test_stored_features_are_matched_at_their_own_random_network():
    """A pool of two: the third step has the first network again, on both sides."""
    algorithm, task, real, rngs, start = pieces()
    objective = algorithm.matching_objective(task, real, Rng(7), rngs)
    stored = {"estimator": "expectation", "pool": 2, "image_momentum": 0.0}
    objective = attrs.evolve(objective, settings=attrs.evolve(objective.settings, **stored))
    s, group = start.flatten(0, 1), torch.arange(real.groups)
    images, _ = condense(objective, s, group)
    for number in (0, 1, 0):
        encoder = LatentEncoder(algorithm.settings.encoder(task, Rng(0)))
        initialise(encoder.model, Rng(7).at("network", number))
        features = encoder.model.embed(task.inputs(real.images))
        means = torch.stack([features[real.group == g].mean(0) for g in group])
        s = s.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((encoder.model.embed(s) - means).square().sum(), s)
        s = s - 1.0 * gradient
    torch.testing.assert_close(images, s.detach(), rtol=1e-3, atol=1e-4)


def test_batches_without_replacement_hold_different_images():
    """As in the authors' code, and each of its own group; with replacement some come twice."""
    for replacement in (False, True):
        algorithm, task, real, rngs, _ = pieces(replacement=replacement, real_batch=30)
        objective = algorithm.matching_objective(task, real, Rng(7), rngs)
        for step in range(3):
            rows = objective.rows("batch", step)
            assert (real.group[rows] == torch.arange(real.groups)[:, None]).all()
            different = [len(own.unique()) for own in rows]
            enough = real.group.bincount().clamp(max=30).tolist()
            assert (different == enough) != replacement


def test_images_start_from_noise_or_from_real_images():
    _, task, real, _, noise = pieces(images_per_class=40)
    assert noise.shape[:2] == (real.groups, 40)
    assert abs(float(noise.mean())) < 0.02 and abs(float(noise.std()) - 1) < 0.02
    *_, start = pieces(init="real", images_per_class=2)
    inputs = task.inputs(real.images)
    for group in range(real.groups):
        mine = inputs[real.group == group]
        for image in start[group]:
            assert (mine == image).flatten(1).all(1).any()
