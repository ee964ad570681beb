"""Shadow models of an attack on FedAvg: one after the other, beside each other, and as one program of
stacked networks.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import attrs
import torch
from torch import nn

from core.experiments.bench.timing import random_task, seconds, spread
from core.federation import LocalTraining, Runtime, Task, supervised, train
from core.models import Classifier, Stacked
from core.models.convnet import Block, ConvNet
from core.rng import Rng
from core.training import batches, sgd

NETWORKS, WIDTH, STEPS, PAIRS = 8, 64, 1, 3
PLAN = LocalTraining(lr=0.003)
#: what an attack trains: so many shadow models, each on half of 10,000 images, ten times over
SHADOWS, SAMPLES = 64, 5000 * PLAN.local_epochs


def one(task: Task, number: int) -> Classifier:
    """A shadow model, trained by the package's own loop."""
    model, data = task.new_model(Rng(0)), task.dataset.train
    images, labels = (each.to(task.runtime.device) for each in (data.images, data.labels))
    train(model, images, labels, PLAN, STEPS, supervised(task), Rng(number))
    return model


def one_by_one(task: Task) -> list[Classifier]:
    """All shadow models, one after the other."""
    return [one(task, number) for number in range(NETWORKS)]


def side_by_side(task: Task) -> list[Classifier]:
    """The same, as many at once as there are threads."""
    return list(task.runtime.side_by_side(partial(one, task), range(NETWORKS)))


class Grouped(nn.Module):
    """K networks like one ConvNet as one: maps of all beside each other, grouped convolutions, and
    normalisation by channel, which knows no group.
    """

    def __init__(self, like: ConvNet, count: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(widened(block, count) for block in like.blocks))  # type: ignore[arg-type]
        self.weight = nn.Parameter(like.classifier.weight.detach().repeat(count, 1, 1))
        self.bias = nn.Parameter(like.classifier.bias.detach().repeat(count, 1, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (K, N, classes) for every network's own inputs (K, N, C, H, W)."""
        maps = inputs.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        features = self.blocks(maps).unflatten(1, (len(inputs), -1)).flatten(2).transpose(0, 1)
        return torch.baddbmm(self.bias, features, self.weight.transpose(1, 2))


def widened(block: Block, count: int) -> Block:
    """A block of so many networks at once, each with the weights of this one."""
    own, wide = block.conv, copy.deepcopy(block)
    sides = own.in_channels * count, own.out_channels * count
    wide.conv = nn.Conv2d(*sides, 3, padding=own.padding, groups=count)  # type: ignore[arg-type]
    wide.norm = nn.BatchNorm2d(sides[1])
    with torch.no_grad():
        wide.conv.weight.copy_(own.weight.repeat(count, 1, 1, 1))
        assert wide.conv.bias is not None and own.bias is not None
        wide.conv.bias.copy_(own.bias.repeat(count))
    return wide


def together(
    task: Task,
    outputs_of: Callable[[torch.Tensor], torch.Tensor],
    parameters: Iterable[nn.Parameter],
) -> None:
    """Local training of all networks in one program, with the batches that each has alone."""
    data, device = task.dataset.train, task.runtime.device
    images, labels, optimiser = (
        data.images.to(device),
        data.labels.to(device),
        sgd(parameters, PLAN),
    )
    drawn = (
        batches(len(labels), PLAN.batch_size, STEPS, Rng(number).at("batches"), device)
        for number in range(NETWORKS)
    )
    for each in zip(*drawn, strict=True):
        rows = torch.stack(each)
        with task.runtime.autocast():
            outputs = outputs_of(task.inputs(images[rows.flatten()]).unflatten(0, rows.shape))
        # the sum of the networks' losses: no network has a part in another's
        loss = NETWORKS * task.loss(outputs.flatten(0, 1), labels[rows].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def grouped(task: Task) -> Grouped:
    """All shadow models as grouped convolutions."""
    model = Grouped(task.new_model(Rng(0)), NETWORKS).to(task.runtime.device)  # type: ignore[arg-type]
    together(task, model.train(), model.parameters())
    return model


def by_vmap(task: Task) -> list[Classifier]:
    """All shadow models by `torch.func.vmap`."""
    models = [task.new_model(Rng(0)).train() for _ in range(NETWORKS)]
    stacked = Stacked(models, batched=True)
    together(task, stacked.each, (p for model in models for p in model.parameters()))
    return models


WAYS: dict[str, Callable[[Task], Any]] = {
    "plain": one_by_one,
    "side by side": side_by_side,
    "grouped convolutions": grouped,
    "vmap": by_vmap,
}


def measure(runtime: Runtime) -> dict[str, Any]:
    """Samples per second of every way, and the hours that an attack with 64 shadow models takes."""
    task = random_task(runtime, STEPS * PLAN.batch_size, 3, 32, 10)
    task = attrs.evolve(task, model_options={"width": WIDTH})
    for way in WAYS.values():
        way(task)  # warm-up
    times = [
        {name: seconds(partial(way, task), runtime.device) for name, way in WAYS.items()}
        for _ in range(PAIRS)
    ]
    samples = NETWORKS * STEPS * PLAN.batch_size
    found: dict[str, Any] = {}
    for name in WAYS:
        rate = samples / statistics.median(each[name] for each in times)
        found[name] = {"rate": rate, "attack_hours": SHADOWS * SAMPLES / rate / 3600}
        if name != "plain":
            found[name]["ratio"] = spread([each["plain"] / each[name] for each in times])
    return {
        "what": f"{NETWORKS} shadow models of FedAvg, ConvNet-{WIDTH}, 3x32x32, batch "
        f"{PLAN.batch_size}; plain: one after the other",
        "unit": "samples/s",
        "contestants": found,
    }
