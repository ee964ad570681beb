"""The authors' FedVCK, from a checkout of their repository: a round of it, as
`benchmarks.runs` times it. Nothing of their code is here; what `run.sh` of theirs states
is stated here too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from core.errors import InputError
from core.federation import Client, Task

#: the modules that a round needs
MODULES = ("src.client", "src.server", "src.utils", "dataset.data.dataset")
AUGMENTED = {"dsa": True, "dsa_strategy": "color_crop_cutout_flip_scale_rotate", "con_temp": 0.1}
#: their CIFAR-10 line of run.sh, with as many images a class as are asked for
CONDENSATION: dict[str, Any] = {
    "compression_ratio": 0.0,
    "init": "random_noise",
    "clip_norm": 30.0,
    "kernel": "linear",
    "image_lr": 1.0,
    "image_momentum": 0.5,
    "image_weight_decay": 0.0,
    "gamma": 1.0,
    "lamda": 0.5,
    "b": 0.3,
    # networks that clients would train; no round does
    "lr": 0.01,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "local_ep": 40,
}
TRAINING: dict[str, Any] = {
    "global_model_name": "ConvNetBN",
    "join_ratio": 1.0,
    "lr_server": 0.005,
    "momentum_server": 0.9,
    "weight_decay_server": 1e-6,
    "lr_head": 0.01,
    "momentum_head": 0.9,
    "weight_decay_head": 0.0,
    "weighted_matching": False,
    "weighted_sample": False,
    "weighted_mmd": True,
    "contrastive_way": "supcon_asym_syn",
    "con_beta": 0.1,
    "preserve_all": False,
    "eval_gap": 1,
    "train_set": None,
    "test_set": None,
    "model_identification": "",
}


def modules(checkout: Path) -> list[ModuleType]:
    """Their modules, made to run without an NVIDIA card. Raises InputError where there are none."""
    missing = [name for name in MODULES if not (checkout / f"{name.replace('.', '/')}.py").exists()]
    if missing:
        raise InputError(
            f"{checkout} is no checkout of the authors' FedVCK: it has no {missing[0]} "
            "(git clone https://github.com/Youth-49/FedVCK_2024)"
        )
    sys.path.insert(0, str(checkout.resolve()))
    try:
        found = [importlib.import_module(name) for name in MODULES]
    except ImportError as error:
        raise InputError(f"the authors' code does not load: {error}") from None
    finally:
        sys.path.remove(str(checkout.resolve()))
    for module in found:  # they look at the memory of a card between steps
        module.get_gpu_mem_info = lambda *_: (0, 0, 0)  # type: ignore[attr-defined]
    return found


def fedvck(
    checkout: Path,
    task: Task,
    clients: Sequence[Client],
    iterations: int,
    condensed: int,
    real_batch: int,
    batch: int,
    epochs: int,
    rounds: int = 1,
) -> Callable[[], nn.Module]:
    """Rounds with their server, which is tested on one image; ConvNet-128, float32. What is called
    returns the server's network.
    """
    of_client, of_server, utils, dataset = modules(checkout)
    data, device = task.dataset, task.runtime.device
    info = {"name": data.name, "channel": data.channels, "im_size": (data.size, data.size)}
    info["num_classes"] = data.num_classes
    parts = []
    for client in clients:
        pairs = list(zip(data.normalise(client.images), client.labels.tolist(), strict=True))
        own = sorted(set(client.labels.tolist()))
        images = dataset.PerLabelDatasetNonIID(pairs, own, data.channels, device)
        parts.append({"cid": client.id, "train_set": images, "classes": own})
    test = [(data.normalise(data.test.images[:1]), data.test.labels[:1])]
    shared = {"dataset_info": info, "ipc": condensed, "device": device, **AUGMENTED}
    # they take one iteration more, and one epoch
    condensing = {"dc_iterations": iterations - 1, "real_batch_size": real_batch, **CONDENSATION}
    training = {"batch_size": batch, "model_epochs": epochs - 1, "test_loader": test, **TRAINING}
    training |= {"topk": min(5, data.num_classes), "communication_rounds": rounds}

    def run() -> nn.Module:
        with _apart() as folder:
            here = {**shared, "save_root_path": folder}
            learners = [of_client.Client(**part, **condensing, **here) for part in parts]
            model = utils.get_model("ConvNetBN", info)
            of_server.Server(global_model=model, clients=learners, **training, **here).fit()
            return model

    return run


@contextlib.contextmanager
def _apart() -> Iterator[str]:
    """A folder for what they write. They seed PyTorch's generator by the clock, and print."""
    with (
        torch.random.fork_rng(),
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield folder
