"""GDD-FL: the budget of the paper, and its two losses."""

import attrs
import pytest
import torch

from core import algorithms
from core.baselines import dm
from core.families.condensing import gather
from core.models import initialise
from core.rng import Rng
from tests.algorithms.on_digits import ONE_SHOT, first_images, on_digits, uploads_of

SMALL = ONE_SHOT | {"image_lr": 10.0}
TINY = on_digits("gddfl", clients=2)


def gddfl(**more):
    return algorithms.create("gddfl", SMALL | more)


def uploaded(task, clients, name="gddfl", **more):
    return first_images(algorithms.create(name, SMALL | more), task, clients)


def test_the_budget_of_the_paper():
    """MICCAI 2023, Sec. 2.2 and 3.2: 300 epochs, SGD with learning rate 1, batch 64, p = 0.5."""
    settings = algorithms.create("gddfl").settings
    assert (settings.iterations, settings.image_lr, settings.real_batch) == (300, 1.0, 64)
    assert (settings.shift, settings.shift_probability, settings.shift_layer) == ("dsu", 0.5, 0)


def test_without_a_shift_both_losses_are_alike(task, clients):
    """p = 0: L_U + L_{S,T} = 2 L_{S,T}, which is DM at twice the learning rate."""
    both = uploaded(task, clients, shift_probability=0.0)
    twice = uploaded(task, clients, "dm", image_lr=20.0)
    assert (both - twice).abs().max() <= 1
    assert not torch.equal(both, uploaded(task, clients, "dm"))
    # with a shift they are not, wherever it is
    for shift in ({}, {"shift": "as_printed"}, {"shift_layer": 1}, {"shift_layer": 2}):
        shifted = uploaded(task, clients, shift_probability=1.0, **shift)
        assert (shifted - both).abs().max() > 1, shift


def test_both_networks_are_drawn_anew_where_they_are_fresh(task, clients):
    algorithm = gddfl(encoders="two", networks="fresh")
    rngs = [Rng(1), Rng(2)]
    real, _ = gather(clients, rngs)
    objective = algorithm.matching_objective(task, real, Rng(7), rngs)
    for number in (1, 4):
        objective.resample(number)
        both = objective.encoder.model
        for network, name in ((both.first, "network"), (both.second, "second")):
            drawn = algorithm.settings.encoder(task, Rng(0))
            initialise(drawn, Rng(7).at(name, number))
            assert torch.equal(network.classifier.weight, drawn.classifier.weight)


def test_two_fixed_networks_match_the_mean_of_their_logits(task, clients):
    """Against a plain loop: all images in every batch, so that no draw plays a part."""
    client = clients[0]
    rows = torch.cat([(client.labels == label).nonzero()[:6, 0] for label in (3, 7)])
    few = attrs.evolve(client, images=client.images[rows], labels=client.labels[rows])
    fixed = {"encoders": "two", "networks": "fixed", "replacement": False, "real_batch": 6}
    algorithm = gddfl(**fixed, image_lr=50.0, image_momentum=0.0)
    real, _ = gather([few], [Rng(3)])
    objective = algorithm.matching_objective(task, real, Rng(5), [Rng(3)])
    models = objective.encoder.model.first, objective.encoder.model.second
    # from a start of its own: where a rectifier is within rounding of its edge, a step of 50 tells
    start = torch.randn((2, 1, 1, 8, 8), generator=Rng(1).generator())
    found = algorithm.condense(task, real, start, Rng(5), [Rng(3)])
    images = start.clone()
    for _ in range(3):
        for group, label in enumerate((3, 7)):
            made = images[group].clone().requires_grad_()
            true = task.inputs(few.images[few.labels == label])
            loss = sum((m(true).mean(0) - m(made).mean(0)).square().sum() for m in models)
            images[group] -= 50.0 * torch.autograd.grad(loss, made)[0]
    assert (found - start).abs().max() > 0.01
    torch.testing.assert_close(found, images, rtol=1e-4, atol=1e-4)
    assert not torch.equal(*(model.classifier.weight for model in models))


def test_a_constant_augmentation_is_one_for_all(task, clients):
    real, _ = gather(clients[:1], [Rng(3)])

    def draws(stream=3, **more):
        algorithm = algorithms.create("dm", SMALL | {"augmentation": "crop_rotate_scale", **more})
        objective = algorithm.matching_objective(task, real, Rng(5), [Rng(stream)])
        return torch.cat([objective.augmentation(entry).affine for entry in (0, 1, 7)])

    constant = [draws(stream, augmentation_draws="constant") for stream in (3, 4)]
    assert all((found == constant[0][0]).all() for found in constant)
    assert len(draws().flatten(1).unique(dim=0)) > 3


@pytest.mark.parametrize("networks", ["fixed", "fresh"])
def test_fixed_networks_are_each_clients_own(task, clients, monkeypatch, networks):
    """Fresh ones are drawn from the stream that all clients share, for all clients at once."""
    algorithm, seen, condense = gddfl(networks=networks), [], dm.DM.condense
    streams = [algorithm.drawn_from(Rng(3), [Rng(k)]).key for k in range(2)]
    assert (streams[0] != streams[1]) == (networks == "fixed")
    monkeypatch.setattr(
        dm.DM, "condense", lambda *given: seen.append(given[2].groups) or condense(*given)
    )
    uploads_of(algorithm, algorithm.initialise(task, Rng(0)), clients, Rng(1))
    assert len(seen) == (len(clients) if networks == "fixed" else 1)
