"""FedVCK beside its authors' code (https://github.com/Youth-49/FedVCK_2024), from a checkout: time and
accuracy on the same clients and test images. Nothing of their code is here; what their `run.sh` states
for CIFAR-10 is stated here too.

    python benchmarks/authors.py ../FedVCK_2024
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tempfile
from typing import Any

import torch
from torch import nn

from core.federation import Client, Runtime, Task, distribute
from timing import keep, options, race, some_of, whole_run

CLIENTS, ROUNDS, ITERATIONS, CONDENSED, REAL, BATCH, EPOCHS = 10, 2, 40, 5, 16, 64, 60
SHARED = {"dsa": True, "dsa_strategy": "color_crop_cutout_flip_scale_rotate", "con_temp": 0.1}
CLIENT: dict[str, Any] = {
    **{"compression_ratio": 0.0, "init": "random_noise", "clip_norm": 30.0, "kernel": "linear"},
    **{"image_lr": 1.0, "image_momentum": 0.5, "image_weight_decay": 0.0},
    **{"gamma": 1.0, "lamda": 0.5, "b": 0.3},
    # networks that clients would train; no round does
    **{"lr": 0.01, "momentum": 0.5, "weight_decay": 0.0, "local_ep": 40},
}
SERVER: dict[str, Any] = {
    **{"global_model_name": "ConvNetBN", "join_ratio": 1.0, "lr_server": 0.005},
    **{"momentum_server": 0.9, "weight_decay_server": 1e-6},
    **{"lr_head": 0.01, "momentum_head": 0.9, "weight_decay_head": 0.0},
    **{"weighted_matching": False, "weighted_sample": False, "weighted_mmd": True},
    **{"contrastive_way": "supcon_asym_syn", "con_beta": 0.1, "preserve_all": False, "eval_gap": 1},
    **{"train_set": None, "test_set": None, "model_identification": ""},
}


def theirs(task: Task, clients: list[Client]) -> nn.Module:
    """The server's network after their rounds, by ConvNet-128 in float32 from a seed of the clock."""
    names = ("src.client", "src.server", "src.utils", "dataset.data.dataset")
    modules = of_client, of_server, utils, dataset = [importlib.import_module(n) for n in names]
    for module in modules:  # they look at the memory of a card between steps
        module.get_gpu_mem_info = lambda *_: (0, 0, 0)
    data, device = task.dataset, task.runtime.device
    info = {"name": data.name, "channel": data.channels, "im_size": (data.size, data.size)}
    info["num_classes"] = data.num_classes
    test = [(data.normalise(data.test.images[:1]), data.test.labels[:1])]
    with (
        torch.random.fork_rng(),
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        shared = {**SHARED, "dataset_info": info, "ipc": CONDENSED, "device": device}
        shared["save_root_path"] = folder
        learners = []
        for client in clients:
            own = sorted(set(client.labels.tolist()))
            pairs = list(zip(data.normalise(client.images), client.labels.tolist(), strict=True))
            images = dataset.PerLabelDatasetNonIID(pairs, own, data.channels, device)
            # they take one iteration more, and one epoch
            plan = {"dc_iterations": ITERATIONS - 1, "real_batch_size": REAL, **CLIENT, **shared}
            learners.append(of_client.Client(cid=client.id, train_set=images, classes=own, **plan))
        model = utils.get_model("ConvNetBN", info)
        plan = {"batch_size": BATCH, "model_epochs": EPOCHS - 1, "communication_rounds": ROUNDS}
        plan |= {"topk": min(5, data.num_classes), "test_loader": test, **SERVER, **shared}
        of_server.Server(global_model=model, clients=learners, **plan).fit()
    return model


def main() -> None:
    """Time both in turn, seed by seed, and print and keep what was found."""
    given = options(__doc__, "mnist").parse_args()
    sys.path.insert(0, str(given.checkout.resolve()))
    runtime = Runtime.choose(given.device, given.precision)
    task = some_of(given.dataset, given.images, runtime, width=128)
    settings = {"iterations": ITERATIONS, "real_batch": REAL, "share": 0.001}
    settings |= {"min_images": CONDENSED, "server_batch": BATCH, "server_epochs": EPOCHS}
    settings |= {"estimator": "expectation", "pool": 2}

    def dealt(seed: int) -> list[Client]:
        parts = distribute(task, {"name": "dirichlet", "alpha": 0.1}, CLIENTS, seed)
        return [client for client in parts if len(client)]

    found = race(
        lambda seed: whole_run(dealt(seed), "fedvck", settings, "released", ROUNDS, seed),
        lambda seed: theirs(task, dealt(seed)),
        "the authors' code",
        given.pairs,
        task,
    )
    what = f"{ROUNDS} rounds of FedVCK, {CLIENTS} clients at Dirichlet alpha 0.1, {given.images} images of "
    what += f"{given.dataset}, {ITERATIONS} iterations, {EPOCHS} epochs of the server; ours: exact means"
    keep("run-authors", what, {"fedvck, authors' code": found}, runtime)


if __name__ == "__main__":
    main()
