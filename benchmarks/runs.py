"""One round of an algorithm with its server, beside the same work as released code writes it: client by
client, in float32, with a new copy of every batch and a loss that is printed.

    python benchmarks/runs.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core.condensation import siamese_augment
from core.data import Dataset, Split
from core.federation import Client, Runtime, Task
from core.rng import Rng
from core.server import Projector
from timing import Side, clients_of, keep, options, race, whole_run

#: clients, and images of each; channels of the ConvNet; images of a batch
CLIENTS, IMAGES, WIDTH, BATCH = 2, 160, 128, 64
#: condensed images of a class, real ones in a step, steps; epochs of a server
CONDENSED, REAL, ITERATIONS, EPOCHS = 5, 64, 6, 4
AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def step(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Descend, and look at the loss."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    loss.item()


def new_model(client: Client) -> Any:
    """A network with its weights in PyTorch's own layout."""
    return client.task.new_model(Rng(0)).to(memory_format=torch.contiguous_format)


def fit(model: Any, images: torch.Tensor, labels: torch.Tensor, epochs: int, loss: Loss) -> None:
    """Epochs over a DataLoader, by SGD."""
    pairs = TensorDataset(images, labels)
    loader = DataLoader(pairs, BATCH, shuffle=True, generator=Rng(1).generator())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-6)
    model.train()
    for _ in range(epochs):
        for some, theirs in loader:
            step(optimiser, loss(some, theirs))


def fedavg(clients: list[Client]) -> None:
    """A local epoch, then the mean of the state dictionaries."""
    states = []
    for client in clients:
        model, real = new_model(client), client.task.dataset.normalise(client.images)
        fit(model, real, client.labels, 1, lambda x, y, model=model: F.cross_entropy(model(x), y))
        states.append(model.state_dict())
    {name: sum(state[name] for state in states) / len(states) for name in states[0]}


def matched(client: Client, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Distribution matching of a client by a frozen network: images and labels. Every step has fresh real
    images, augmented class by class.
    """
    images, draw = client.task.dataset.normalise(client.images), Rng(2).generator()
    classes = client.labels.unique()
    rows = [torch.nonzero(client.labels == c).flatten() for c in classes]
    made = torch.randn(len(rows), CONDENSED, *images.shape[1:], generator=draw).requires_grad_()
    optimiser = torch.optim.SGD([made], lr=1.0, momentum=0.5)
    for number in range(ITERATIONS):
        real = [images[own[torch.randint(len(own), (REAL,), generator=draw)]] for own in rows]
        means = []
        for each in (real, made):
            pairs = ((some, Rng(3).at(number, place)) for place, some in enumerate(each))
            changed = [siamese_augment(some, AUGMENTATION, rng) for some, rng in pairs]
            means.append(model.embed(torch.cat(changed)).unflatten(0, (len(rows), -1)).mean(1))
        optimiser.zero_grad()
        loss = (means[0] - means[1]).square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_([made], 30.0)
        optimiser.step()
        loss.item()
    return made.detach().flatten(0, 1), classes.repeat_interleave(CONDENSED)


def fedvck(clients: list[Client]) -> None:
    """Condensation in training mode; then epochs with an augmented pass and one for the contrast."""
    model, frozen = new_model(clients[0]), new_model(clients[0]).train().requires_grad_(False)
    found = [matched(client, frozen) for client in clients]
    images, labels = (torch.cat(each) for each in zip(*found, strict=True))
    projector = Projector(model.feature_size, Rng(5))
    with torch.no_grad():
        features = model.embed(images)
    prototypes = torch.stack([features[labels == c].mean(0) for c in labels.unique()])

    def loss(some: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        logits = model(siamese_augment(some, AUGMENTATION, Rng(4)))
        own = F.normalize(projector(model.embed(some)), dim=1)
        likeness = own @ F.normalize(prototypes, dim=1).T / 0.1
        return F.cross_entropy(logits, theirs) + 0.1 * F.cross_entropy(likeness, theirs)

    fit(model, images, labels, EPOCHS, loss)


def random_task(runtime: Runtime, samples: int, channels: int, size: int, **network: Any) -> Task:
    """Five classes of random pixels: speed does not depend on what the images show."""
    shape, draw = (samples, channels, size, size), Rng(0).generator()
    images = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    split, half = Split(images, torch.arange(samples) % 5), (0.5,) * channels
    found = Dataset("random", split, split, split, tuple("abcde"), half, half, fingerprint="")
    return Task(found, **network, runtime=runtime)


def measure(runtime: Runtime, pairs: int) -> dict[str, Any]:
    """Runs an hour of each algorithm, and the ratio to its plain loop."""
    task = random_task(runtime, CLIENTS * IMAGES, 3, 32, model_options={"width": WIDTH})
    clients, local = clients_of(task, CLIENTS), {"batch_size": BATCH, "local_epochs": 1}
    vck = {"iterations": ITERATIONS, "real_batch": REAL, "min_images": CONDENSED, "pool": 2}
    vck |= {"server_batch": BATCH, "server_epochs": EPOCHS, "first_model": "server"}
    exact = vck | {"estimator": "expectation"}

    def loop(method: Callable[[list[Client]], None]) -> Side:
        return lambda _: method(clients)

    def ours(name: str, settings: dict[str, Any], variant: str) -> Side:
        return lambda _: whole_run(clients, name, settings, variant) and None

    return {
        "fedavg": race(ours("fedavg", local, "printed"), loop(fedavg), "plain", pairs),
        "fedvck": race(ours("fedvck", exact, "released"), loop(fedvck), "plain", pairs),
    }


if __name__ == "__main__":
    given = options(__doc__).parse_args()
    here = Runtime.choose(given.device, given.precision)
    what = f"one round with its server, {CLIENTS} clients, {ITERATIONS} iterations, {REAL} real images a "
    what += "class and step, random pixels of 3x32x32, against a plain loop in float32; fedvck: released "
    what += "settings with exact expectations"
    keep("run", what, measure(here, given.pairs), here)
