"""GDD-FL: the paper's budget, its two losses, and that it learns."""

import torch

from core import algorithms
from core.experiments import Experiment, make_clients, make_task
from core.federation import Runtime
from core.rng import Rng

SMALL = {
    "images_per_class": 1,
    "iterations": 3,
    "real_batch": 8,
    "encoder_width": 4,
    "encoder_depth": 2,
    "augmentation": "none",
    "image_lr": 10.0,
}
TINY = Experiment(
    algorithm="gddfl", dataset="digits", model_options={"width": 8}, clients=2, rounds=1
)


def uploaded(task, name="gddfl", **more):
    algorithm = algorithms.create(name, SMALL | more)
    client = make_clients(TINY, task)[0]
    message = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0)
    return algorithm.client_update(client, message, Rng(3)).tensors["images"].int()


def test_the_budget_of_the_paper():
    """MICCAI 2023, Sec. 2.2 and 3.2: 300 epochs, SGD with learning rate 1, batch 64, p = 0.5."""
    settings = algorithms.create("gddfl").settings
    assert (settings.iterations, settings.image_lr, settings.real_batch) == (300, 1.0, 64)
    assert (settings.shift, settings.shift_probability, settings.shift_layer) == ("dsu", 0.5, 0)


def test_without_a_shift_both_losses_are_alike():
    """p = 0: L_U + L_{S,T} = 2 L_{S,T}, which is DM at twice the learning rate."""
    task = make_task(TINY, Runtime())
    both = uploaded(task, shift_probability=0.0)
    twice = uploaded(task, "dm", image_lr=20.0)
    assert (both - twice).abs().max() <= 1
    assert not torch.equal(both, uploaded(task, "dm"))


def test_form_place_and_probability_of_the_shift_matter(task):
    plain = uploaded(task)
    for change in (
        {"shift": "as_printed"},
        {"shift_layer": 1},
        {"shift_layer": 2},
        {"shift_probability": 1.0},
        {"shift_layer": 1, "shift": "as_printed"},
    ):
        assert not torch.equal(uploaded(task, **change), plain), change
