"""What the papers say, and what the authors' code has instead."""

import pytest

from core import algorithms

#: MICCAI 2023, Sec. 3.2
ONE_SHOT = {"server_lr": 0.01, "server_batch": 64, "server_epochs": 50, "server_decay": 1.0}
GRADIENTS = {"iterations": 1000, "real_batch": 256, "image_lr": 0.1}
FEATURES = {"iterations": 20_000, "real_batch": 256, "image_lr": 1, "image_momentum": 0.5}
ALL = "color_crop_cutout_flip_scale_rotate"
LOSSES = {"reg": 1.0, "reg_temperature": 0.07, "kd_temperature": 20.0}
PRINTED = {
    "dc": ONE_SHOT | GRADIENTS | {"augmentation": "none"},
    "desa": LOSSES | {"estimator": "minibatch", "ipc": 50, "iterations": 1000},
    "dm": ONE_SHOT | FEATURES,
    "dsa": ONE_SHOT | GRADIENTS | {"augmentation": ALL},
    "feddf": {"lr": 0.1, "batch_size": 64, "distill_steps": 10_000, "patience": 1_000},
    "feddm": {"init": "noise", "statistics": "own"},
    "fedmk": {"images_per_class": 20, "tau": 5.0, "weights": "dynamic", "sharing": True},
    "gddfl": ONE_SHOT,
    "moon": {"temperature": 0.5, "projection": 256},
    "random_selection": ONE_SHOT,
}

NO_MOMENTUM = {"momentum": 0.0, "weight_decay": 0.0}
FEDGEN = NO_MOMENTUM | {"batch_size": 32, "local_steps": 20}
REAL = {"init": "real", "replacement": False}
GAME = {"draws": "each_step", "moments": "anew", "ema_start": "zero", "output": "inputs"}
TERMS = {"transferability_form": "released", "temperature": 10.0, "embedding_bound": 0.25}
RELEASED = {
    "dc": {"replacement": False},
    # the mean over ten classes, and a factor of 0.9, for kd
    "desa": NO_MOMENTUM
    | {"local_epochs": 1, "kd": 0.09, "replacement": False, "encoder": "convnet"},
    "dfrd": NO_MOMENTUM | GAME | TERMS | {"local_steps": 20, "server_momentum": 0.0},
    "dm": REAL,
    "dsa": REAL,
    "feddf": {"clip_norm": 5.0, "distill_batch": 64, "local_augmentation": "crop_flip"},
    "feddistill": FEDGEN | {"absent": "zero", "tracking": "run"},
    "feddm": {"init": "real", "server_weight_decay": 5e-4},
    "fedensemble": FEDGEN,
    "fedgen": FEDGEN
    | {"generator_batch": 32, "noise": "uniform", "ensemble": "losses", "labels": "uniform"},
    "fedkd": {"fresh_noise": True, "local_augmentation": "crop_flip"},
    "fedmd": {"tested": "clients"},
    "gddfl": {"networks": "fixed", "encoders": "two", "augmentation_draws": "constant"}
    | {"augmentation": "color", "iterations": 100, "server_epochs": 100, "replacement": False},
    "moon": {"mu": 5.0, "local_augmentation": "crop_flip"},
    "random_selection": {"server_epochs": 100, "choice": "first"},
}
DIFFERING = [name for name in algorithms.names() if name not in ("fediod", "fedvck")]


@pytest.mark.parametrize("name", PRINTED)
def test_defaults_are_those_of_the_papers(name):
    settings = algorithms.create(name).settings
    assert {key: getattr(settings, key) for key in PRINTED[name]} == PRINTED[name]


@pytest.mark.parametrize("name", DIFFERING)
def test_the_released_values(name):
    released = {key: pair[1] for key, pair in algorithms.switches(name).items()}
    assert released == RELEASED.get(name, {})
