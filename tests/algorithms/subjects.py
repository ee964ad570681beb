"""Every algorithm with tiny settings, which a new one gets by itself, and the clients that it meets."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch

from core import algorithms, data
from core.federation import Algorithm, Client, RoundResult, Runtime, Schedule, Task, rounds, task_of

#: small values of settings, by name: an algorithm gets those that it has
SMALL: dict[str, Any] = {
    "local_steps": 2,
    "initial_steps": 2,
    "batch_size": 16,
    "iterations": 2,
    "inner_steps": 2,
    "inner_batch": 8,
    "images_per_class": 2,
    "ipc": 2,
    "min_images": 2,
    "real_batch": 4,
    "augmentation": "color_crop_cutout_flip_scale_rotate",
    "matches": 2,
    "network_steps": 2,
    "encoder_width": 4,
    "encoder_depth": 2,
    "server_steps": 2,
    "server_batch": 16,
    "pool": 12,
    "alignment": 12,
    "align_batch": 8,
    "student_epochs": 1,
    "distill_steps": 3,
    "distill_batch": 8,
    "patience": 2,
    "noise": 4,
    "generator_width": 4,
    "generator_hidden": 8,
    "generator_steps": 2,
    "generator_batch": 8,
    "discriminator_width": 4,
    "gan_steps": 3,
    "latents": 4,
    "gan_batch": 2,
    "scored_images": 8,
    "projection": 6,
}


def needs(library: str, **settings: Any) -> list[dict[str, Any]]:
    """One way through an algorithm, where a library is there that it needs."""
    return [settings] if importlib.util.find_spec(library) else []


#: ways through an algorithm, each a subject of its own
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "dc": [{"init": "real"}],
    "dfrd": [{"student_steps": 2}, {"variant": "released", "student_steps": 2}],
    "feddf": [{"check_every": 1}],
    "feddistill": [{"tracking": "run"}, {"sharing": "logits"}],
    "feddm": [{}, {"estimator": "expectation", "candidates": 4, "clip_norm": 0.5}],
    "fediod": [
        {},
        {"task_kind": "segmentation", "pretrain_steps": 1},
        *needs("opacus", importance="class_ratio", private=True, pretrain_steps=1),
    ],
    "fedgen": [{}, {"order": "by_class", "counted": "batches"}],
    "fedkd": [
        {"fresh_noise": True},
        *needs("opacus", private=True, protects="upload", local_rounds=2),
    ],
    "fedmd": [{}, {"tested": "clients"}],
    "fedmk": needs("ot", compare_size=1) or [{}],
    "fedvck": [
        {"tell_loss": True},
        {"candidates": 7, "estimator": "expectation", "batches": "sliding", "keep_rounds": 2},
        {"estimator": "feature_bank", "kernel": "gaussian", "wo_latent": True},
        {"variant": "released"},
    ],
    "gddfl": [{}, {"shift_layer": 1, "shift": "as_printed", "shift_probability": 1.0}],
}
#: these send images of their clients: that is what they are compared for
SEND_IMAGES = ("centralized", "random_selection")
#: these need every client in every round
TAKE_ALL = ("centralized",)
ROUNDS, ACTIVE, SEED = 3, 3, 7
#: of the clients; as texts they sort in another order
IDS, EMPTY, NOBODYS = (0, 1, 2, 3, 10), 2, 9


@attrs.frozen(eq=False)
class Subject:
    """An algorithm with tiny settings."""

    name: str
    kind: type[Algorithm]
    settings: Any
    #: the task that it learns here
    task_kind: str = "classification"

    def new(self) -> Algorithm:
        """The algorithm, with nothing that was kept from before."""
        active = None if self.name in TAKE_ALL else ACTIVE
        return self.kind(
            self.settings, Schedule(clients=5, active=active, rounds=ROUNDS, evaluate_every=ROUNDS)
        )

    def run(self, clients: list[Client], seed: int = SEED, **more: Any) -> Iterator[RoundResult]:
        """Its rounds with these clients."""
        return rounds(self.new(), task(self.task_kind), clients, seed, **more)


def tiny(kind: type[Algorithm], more: Mapping[str, Any]) -> Any:
    """Settings of an algorithm, printed or released: those of `SMALL` that it has, and more."""
    more = {key: value for key, value in more.items() if key != "task_kind"}
    base = kind.Settings.released() if more.pop("variant", "") == "released" else kind.Settings()
    defaults = {field.name: field.default for field in attrs.fields(kind.Settings)}
    small = {
        name: value
        for name, value in SMALL.items()
        if name in defaults and isinstance(defaults[name], (type(value), type(None)))
    }
    return attrs.evolve(base, **small | more)


def subjects() -> dict[str, Subject]:
    """Every registered algorithm with its variants, by a name for people."""
    return {
        " ".join([name, *(f"{key}={value}" for key, value in more.items())]): Subject(
            name,
            algorithms.find(name),
            tiny(algorithms.find(name), more),
            more.get("task_kind", algorithms.find(name).task_kinds[0]),
        )
        for name in algorithms.names()
        for more in VARIANTS.get(name, [{}])
    }


@functools.cache
def task(learns: str = "classification") -> Task:
    """Digits and a narrow network; where every pixel has an answer, drawings and a narrow U-Net."""
    if learns == "classification":
        return Task(data.load("digits"), "convnet", {"width": 4}, Runtime())
    return task_of(data.load(DRAWN[learns]), "unet", {"width": 2})


def on_a_gpu(learns: str, *parts: slice) -> tuple[Task, list[Client]]:
    """The task with few test images and a client for each part, on what stands in for `cuda`."""
    here = task(learns)
    few = here.dataset.test.rows(torch.arange(8 if learns == "classification" else 1))
    there = attrs.evolve(
        here, dataset=attrs.evolve(here.dataset, test=few), runtime=Runtime(torch.device("cuda"))
    )
    train = here.dataset.train
    return there, [
        Client(k, there, train.images[rows].to("cuda"), train.targets[rows].to("cuda"))
        for k, rows in enumerate(parts)
    ]


DRAWN = {"segmentation": "nuclei_drawn", "reconstruction": "mri_drawn"}


def crowd(learns: str = "classification") -> list[Client]:
    """Clients of many images, one, none, one class (or site); nobody has a 9."""
    train = task(learns).dataset.train
    rows = torch.arange(len(train))
    parts = [rows[:8], rows[8:9], rows[:0], rows[-4:], rows[30:38]]
    if learns == "classification":
        rows = train.labels.ne(NOBODYS).nonzero().flatten()
        threes = rows[train.labels[rows] == 3]
        parts = [rows[:30], rows[30:31], rows[:0], threes[-8:], rows[31:61]]
    return [
        Client(id_, task(learns), train.images[part], train.targets[part])
        for id_, part in zip(IDS, parts, strict=True)
    ]
