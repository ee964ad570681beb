"""What GDD-FL, DM, DC, DSA and random selection share: one upload, its bytes, one batch, resuming,
odd clients.
"""

import attrs
import pytest
import torch

from core import algorithms
from core.errors import InputError
from core.experiments import Experiment, make_clients, make_task, rounds
from core.families import condensing
from core.federation import Ledger, Runtime
from core.rng import Rng
from tests.algorithms.on_digits import on_digits

CONDENSING = ["gddfl", "dm", "dc", "dsa"]
ALL = [*CONDENSING, "random_selection"]
FAST = {"images_per_class": 2, "server_steps": 4}
FEW = FAST | {"iterations": 2, "real_batch": 4, "encoder_width": 4, "encoder_depth": 2}
LOOPS = {"iterations": 1, "matches": 2, "network_steps": 2}
TINY = on_digits("dm")


def settings_of(name, **more):
    base = FAST if name == "random_selection" else FEW | (LOOPS if name in ("dc", "dsa") else {})
    return base | more


def create(name, **more):
    return algorithms.create(name, settings_of(name, **more))


def run(name, task, **more):
    return list(
        rounds(attrs.evolve(TINY, algorithm=name, settings=settings_of(name)), task=task, **more)
    )


@pytest.mark.parametrize("name", CONDENSING)
def test_one_upload_of_pixels_and_labels(name, task, clients):
    """One byte a pixel and channel, one a label; so many images of every class that a client
    holds.
    """
    first, second = run(name, task)
    held = sum(int((client.class_counts > 0).sum()) for client in clients)
    assert first.ledger.total("up") == {"images": held * 2 * 64, "labels": held * 2}
    assert set(first.ledger.total("down")) == {"meta"} and first.down < 3 * 40  # a seed, no model
    assert (second.up, second.down) == (0, 0)


@pytest.mark.parametrize("name", ALL)
def test_later_rounds_change_nothing(name, task):
    first, second = run(name, task)
    assert first.state.meta["spoken"] and second.metrics == first.metrics
    assert all(
        torch.equal(value, second.state.tensors[key]) for key, value in first.state.tensors.items()
    )


@pytest.mark.parametrize("name", ALL)
def test_the_server_trains_the_first_model_on_what_it_received(name, task):
    """The images stay in the state, with their clients; the model is that of a training on them."""
    algorithm = create(name)
    state, ledger = algorithm.initialise(task, Rng(0)), Ledger()
    ledger.open_round()
    new = algorithm.round(state, make_clients(TINY, task), ledger, Rng(5))
    images, labels = new.tensors["uploaded/images"], new.tensors["uploaded/labels"]
    assert images.dtype == torch.uint8 and len(images) == len(labels) == len(
        new.tensors["uploaded/client"]
    )
    knowledge = condensing.Knowledge(images, labels, torch.zeros_like(labels))
    again = condensing.learn(task, state, knowledge, algorithm.settings, Rng(5).at("server"))
    for key, value in again.named_parameters():
        assert torch.equal(new.tensors[f"parameters/{key}"], value)


def test_the_servers_settings_are_those_of_the_paper():
    """MICCAI 2023, Sec. 3.2."""
    for name in ALL:
        settings = algorithms.create(name, {"images_per_class": 10}).settings
        training = settings.training
        assert (training.lr, training.batch_size, training.epochs, training.decay) == (
            0.01,
            64,
            50,
            1.0,
        )
        assert training.total(200) == 50 * 4


def test_an_encoder_that_is_too_deep_for_the_images(task, clients):
    with pytest.raises(InputError, match="depth 4 needs images of at least 16x16"):
        algorithm = create("dm", encoder_depth=4)
        algorithm.client_update(
            clients[0], algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0), Rng(0)
        )


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gddfl", {"iterations": 40, "image_lr": 10.0}),
        ("dm", {"iterations": 40, "image_lr": 10.0}),
        ("dc", {"iterations": 15, "image_lr": 2.0}),
        ("dsa", {"iterations": 15, "image_lr": 2.0, "augmentation": "crop"}),
    ],
    ids=str,
)
def test_each_beats_chance_on_digits(name, more):
    settings = {
        "images_per_class": 1,
        "real_batch": 8,
        "encoder_width": 8,
        "encoder_depth": 2,
        "server_steps": 100,
    }
    if name in ("gddfl", "dm"):
        settings["augmentation"] = "none"
    experiment = Experiment(
        algorithm=name,
        dataset="digits",
        model_options={"width": 16},
        clients=3,
        rounds=1,
        settings=settings | more,
    )
    *_, last = rounds(experiment, task=make_task(experiment, Runtime()))
    assert last.metrics["accuracy"] > 0.3  # chance is 0.10


def test_images_far_from_any_image_are_not_sent(task):
    with pytest.raises(InputError, match="condensation has diverged"):
        list(rounds(attrs.evolve(TINY, settings=settings_of("dm", image_lr=1e38)), task=task))
