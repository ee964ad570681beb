"""GDD-FL: the paper's budget, its two losses, and that it learns."""

import attrs
import pytest
import torch

from core import algorithms
from core.baselines import dm
from core.condensation.shift import shifted
from core.errors import InputError
from core.families.condensing import gather
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


def test_both_networks_are_drawn_anew_where_they_are_fresh(task):
    algorithm = algorithms.create("gddfl", SMALL | {"encoders": "two", "networks": "fresh"})
    real, _ = gather(make_clients(TINY, task), [Rng(1), Rng(2)])
    objective = algorithm.matching_objective(task, real, Rng(7), [Rng(1), Rng(2)])
    for number in (1, 4):
        objective.resample(number)
        both = objective.encoder.model
        for network, name in ((both.first, "network"), (both.second, "second")):
            drawn = algorithm.settings.encoder(task, Rng(0))
            initialise(drawn, Rng(7).at(name, number))
            assert torch.equal(network.classifier.weight, drawn.classifier.weight)


@pytest.mark.parametrize(
    "moved", [{"shift": "as_printed"}, {"shift_layer": 1}, {"shift_probability": 1.0}]
)
def test_two_networks_refuse_a_shift_that_they_would_not_make(moved):
    with pytest.raises(InputError, match="nothing is shifted"):
        algorithms.create("gddfl", SMALL | {"encoders": "two"} | moved)


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


def test_an_instance_norm_undoes_the_shift():
    """Why the released second network is a plain one: its convolutions are followed by U_p, and U_p
    by an instance norm.
    """
    maps = torch.randn(6, 3, 9, 9, dtype=torch.float64)
    noise = 0.1 * torch.randn(2, 6, 3, dtype=torch.float64)
    norm = torch.nn.GroupNorm(3, 3, eps=0, dtype=torch.float64)
    changed = shifted(maps, noise)
    assert (changed - maps).abs().max() > 0.01
    torch.testing.assert_close(norm(changed), norm(maps), rtol=1e-5, atol=1e-5)
    # and where the drawn deviation is negative, the map changes its sign
    noise[1] = -1e3
    torch.testing.assert_close(norm(shifted(maps, noise)), -norm(maps), rtol=1e-5, atol=1e-5)


def test_two_fixed_networks_match_the_mean_of_their_logits():
    """Against a plain loop: all images in every batch, so that no draw plays a part."""
    task = make_task(TINY, Runtime())
    client = make_clients(TINY, task)[0]
    rows = torch.cat([(client.labels == label).nonzero()[:6, 0] for label in (3, 7)])
    few = attrs.evolve(client, images=client.images[rows], labels=client.labels[rows])
    given = SMALL | {
        "encoders": "two",
        "networks": "fixed",
        "replacement": False,
        "real_batch": 6,
        "image_lr": 50.0,
        "image_momentum": 0.0,
    }
    algorithm = algorithms.create("gddfl", given)
    real, _ = gather([few], [Rng(3)])
    networks = Rng(5)
    objective = algorithm.matching_objective(task, real, networks, [Rng(3)])
    both = objective.encoder.model.first, objective.encoder.model.second
    shape = (2, 1, *task.dataset.train.images.shape[1:])
    # from a start of its own: where a rectifier is within rounding of its edge, a step of 50 tells
    start = torch.randn(shape, generator=Rng(1).generator())
    found = algorithm.condense(task, real, start, networks, [Rng(3)])
    images = start.clone()
    for _ in range(3):
        for group, label in enumerate((3, 7)):
            made = images[group].clone().requires_grad_()
            true = task.inputs(few.images[few.labels == label])
            loss = sum(
                (network(true).mean(0) - network(made).mean(0)).square().sum() for network in both
            )
            images[group] -= 50.0 * torch.autograd.grad(loss, made)[0]
    assert (found - start).abs().max() > 0.01
    torch.testing.assert_close(found, images, rtol=1e-4, atol=1e-4)
    assert not torch.equal(both[0].classifier.weight, both[1].classifier.weight)


def test_a_constant_augmentation_is_one_for_all(task):
    client = make_clients(TINY, task)[0]
    real, _ = gather([client], [Rng(3)])

    def draws(stream=3, **more):
        settings = SMALL | {"augmentation": "crop_rotate_scale", **more}
        objective = algorithms.create("dm", settings).matching_objective(
            task, real, Rng(5), [Rng(stream)]
        )
        return torch.cat([objective.augmentation(entry).affine for entry in (0, 1, 7)])

    for client in (3, 4):
        found = draws(client, augmentation_draws="constant")
        assert (found == draws(augmentation_draws="constant")[0]).all()
    assert len(draws().flatten(1).unique(dim=0)) > 3


def test_released_is_one_loss_at_fixed_networks():
    settings = algorithms.create("gddfl", variant="released").settings
    assert (settings.iterations, settings.encoders, settings.networks) == (100, "two", "fixed")
    assert not settings.replacement and settings.augmentation_draws == "constant"


def test_fixed_networks_are_each_clients_own(monkeypatch):
    """Fresh ones are drawn from the stream that all clients share."""
    run = attrs.evolve(TINY, settings=SMALL | {"networks": "fixed"})
    for fixed in (True, False):
        algorithm = (run if fixed else TINY).new_algorithm()
        streams = [algorithm.drawn_from(Rng(3), [Rng(k)]).key for k in range(2)]
        assert (streams[0] != streams[1]) == fixed
    seen = []
    condense = dm.DM.condense
    monkeypatch.setattr(
        dm.DM,
        "condense",
        lambda self, task, real, *rest: (
            seen.append(real.groups) or condense(self, task, real, *rest)
        ),
    )
    task = make_task(run, Runtime())
    clients = make_clients(run, task)
    algorithm = run.new_algorithm()
    state = algorithm.initialise(task, Rng(0))
    messages = {client.id: algorithm.broadcast(state, client.id) for client in clients}
    algorithm.at_clients("client_update", clients, messages, Rng(1).at("client"))
    assert len(seen) == len(clients)
