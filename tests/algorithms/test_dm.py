"""DM: another random network in every iteration, and the step in closed form."""

import pytest
import torch

from core import algorithms
from core.condensation import LatentEncoder, augment
from core.families import condensing
from core.federation import Client
from core.models import initialise
from core.rng import Rng
from tests.algorithms.on_digits import ONE_SHOT, on_digits

TINY = on_digits("dm", clients=2)


@pytest.fixture
def pieces(task, clients):
    """A function of settings that gives the algorithm, real images, random streams and a start."""

    def make(**more):
        rngs, algorithm = [Rng(1), Rng(2)], algorithms.create("dm", ONE_SHOT | more)
        real, _ = condensing.gather(clients, rngs)
        number = algorithm.settings.images_per_class
        group = torch.arange(real.groups).repeat_interleave(number)
        start = condensing.starts("noise", real, group, task, rngs)
        return algorithm, real, rngs, start.unflatten(0, (real.groups, number))

    return make


def test_every_iteration_matches_mean_features_at_another_random_network(task, pieces):
    """Three steps with momentum by autograd, under the augmentation of the real images."""
    algorithm, real, rngs, start = pieces(images_per_class=2, augmentation="scale_rotate")
    group = torch.arange(real.groups).repeat_interleave(2)
    objective = algorithm.matching_objective(task, real, Rng(7), rngs)
    images = algorithm.condense(task, real, start, Rng(7), rngs).flatten(0, 1)
    s, velocity, weights = start.flatten(0, 1), 0.0, []
    for step in range(3):
        model = LatentEncoder(algorithm.settings.encoder(task, Rng(0))).model
        initialise(model, Rng(7).at("network", step))
        weights.append(model.classifier.weight)
        rows, kind = objective.rows("batch", step), objective.augmentation(step)
        inputs = [
            augment(task.inputs(real.images[own]), kind, torch.full_like(own, g))
            for g, own in enumerate(rows)
        ]
        real_mean = torch.stack([model.embed(some).mean(0) for some in inputs])
        s = s.detach().requires_grad_()
        features = model.embed(augment(s, kind, group))
        apart = features.unflatten(0, (real.groups, 2)).mean(1) - real_mean
        (gradient,) = torch.autograd.grad(apart.square().sum(), s)
        velocity = 0.5 * velocity + gradient
        s = s - 1.0 * velocity
    torch.testing.assert_close(images, s.detach(), rtol=1e-3, atol=1e-4)
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("replacement", [False, True])
def test_batches_without_replacement_hold_different_images(task, pieces, replacement):
    """As in the authors' code, and each of its own group; with replacement some come twice."""
    algorithm, real, rngs, _ = pieces(replacement=replacement, real_batch=30)
    objective = algorithm.matching_objective(task, real, Rng(7), rngs)
    enough = real.group.bincount().clamp(max=30).tolist()
    for step in range(3):
        rows = objective.rows("batch", step)
        assert (real.group[rows] == torch.arange(real.groups)[:, None]).all()
        assert ([len(own.unique()) for own in rows] == enough) != replacement


@pytest.mark.parametrize(
    ("name", "init"),
    [
        *(("dm", "real"), ("dm", "real_average"), ("dm", "noise"), ("dc", "real")),
        *(("feddm", "real"), ("fedvck", "real"), ("fedvck", "noise")),
    ],
)
def test_the_record_says_which_uploads_are_images_of_a_client(task, name, init):
    """The only image of a class is sent as it is; another changes where steps are large."""
    train = task.dataset.train
    rows = [(train.labels == c).nonzero()[:n, 0] for c, n in enumerate((1, 8))]
    few = Client(0, task, train.images[torch.cat(rows)], train.labels[torch.cat(rows)])
    given = ONE_SHOT | {"init": init, "image_lr": 5.0 if name == "dm" else 1e-4, "server_steps": 1}
    known = algorithms.settings_fields(name)
    algorithm = algorithms.create(name, {key: given[key] for key in given if key in known})
    state = algorithm.initialise(task, Rng(0))
    upload = algorithm.client_update(few, algorithm.broadcast(state, 0), Rng(1))
    state = algorithm.server_update(state, {0: upload}, Rng(2))
    sent = [(few.images == image).flatten(1).all(1).any() for image in upload.tensors["images"]]
    copied = sum(map(bool, sent)) / len(sent)
    assert algorithm.measures(state) == ({} if init == "noise" else {"copied_images": copied})
    assert bool(sent[0]) == (init != "noise") and (name != "dm" or not sent[-1])
