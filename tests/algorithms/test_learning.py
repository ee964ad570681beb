"""Every kind of method learns: after a few rounds it is far above the chance level of 0.1 on digits."""

import attrs
import pytest

from lab import Experiment, make_task, rounds

BASE = Experiment(
    algorithm="fedavg",
    dataset="digits",
    model_options={"width": 16},
    clients=4,
    rounds=4,
    partition={"name": "dirichlet", "alpha": 0.5},
)
LOCAL = {"local_steps": 10, "batch_size": 32}
PLAIN = [
    "centralized",
    "fedavg",
    "fedavgm",
    "feddistill",
    "fedensemble",
    "fedmix",
    "fedprox",
    "moon",
    "scaffold",
    "standalone",
]
GAME = {"iterations": 5, "server_batch": 8, "generator_width": 4, "noise": 8}
ONE_UPLOAD = {
    "images_per_class": 1,
    "real_batch": 8,
    "encoder_width": 8,
    "encoder_depth": 2,
    "server_steps": 100,
}
MATCHING = ONE_UPLOAD | {"iterations": 30, "image_lr": 10.0, "augmentation": "none"}
GRADIENTS = ONE_UPLOAD | {"iterations": 8, "image_lr": 2.0}
PUBLIC = {"auxiliary": "photographs"}
DIGEST = PUBLIC | {"local_steps": 10, "initial_steps": 20, "alignment": 500, "align_batch": 64}
NARROW = {"generator_width": 4, "discriminator_width": 8, "noise": 8}
ANCHORS = {"ipc": 2, "iterations": 10, "real_batch": 8, "estimator": "expectation"}
#: method, settings and number of rounds
CASES = [
    *((name, LOCAL, 4) for name in PLAIN),
    ("fedgen", LOCAL | {"generator_steps": 10}, 4),
    ("fedgan", LOCAL | NARROW, 3),
    ("dfrd", LOCAL | GAME, 3),
    ("desa", LOCAL | ANCHORS, 3),
    ("feddf", LOCAL | PUBLIC | {"pool": 640, "distill_steps": 10, "distill_batch": 64}, 3),
    ("fedmd", DIGEST | {"student_epochs": 10, "lr": 0.01}, 3),
    ("fedmd", DIGEST | {"tested": "clients", "lr": 3e-3}, 3),
    ("gddfl", MATCHING, 1),
    ("dm", MATCHING, 1),
    ("dc", GRADIENTS, 1),
    ("dsa", GRADIENTS | {"augmentation": "crop"}, 1),
    ("random_selection", {"images_per_class": 10, "server_steps": 100}, 1),
]


@pytest.mark.parametrize(("name", "settings", "number"), CASES)
def test_it_is_better_than_chance(name, settings, number):
    run = attrs.evolve(
        BASE, algorithm=name, settings=settings, rounds=number, evaluate_every=number
    )
    *_, last = rounds(run, task=make_task(run))
    assert last.metrics["accuracy"] > 0.25
