"""One round of an algorithm with its server, beside the same work as released code writes it: client by
client, in float32, with a new copy of every batch and a loss that is printed.

    python benchmarks/runs.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core.condensation import siamese_augment
from core.data import Dataset, Split
from core.federation import Client, Runtime, Task
from core.models import FeatureGenerator, fresh
from core.rng import Rng
from core.server import Projector
from timing import clients_of, keep, options, race, whole_run

#: clients, and images of each, of FedMK's grey ones; channels of the ConvNet; images of a batch
CLIENTS, IMAGES, GREY, WIDTH, BATCH = 2, 160, 1500, 128, 64
#: condensed images of a class, real ones in a step, steps; epochs of a server
CONDENSED, REAL, ITERATIONS, EPOCHS = 5, 64, 6, 4
#: FedMK's iterations and steps of its server
BILEVEL = 50
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


def together(found: Sequence[Any]) -> list[torch.Tensor]:
    """Images and labels of all clients."""
    return [torch.cat(each) for each in zip(*found, strict=True)]


def fedvck(clients: list[Client]) -> None:
    """Condensation in training mode; then epochs with an augmented pass and one for the contrast."""
    model, frozen = new_model(clients[0]), new_model(clients[0]).train().requires_grad_(False)
    images, labels = together([matched(client, frozen) for client in clients])
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


def fedmk(clients: list[Client]) -> None:
    """The bi-level loop of each client, through the graph of its inner step; then a generator of features
    that learns from the last layer, and the model from knowledge and such features.
    """
    data, draw, found = clients[0].task.dataset, Rng(7).generator(), []
    for client in clients:
        model, real = new_model(client), data.normalise(client.images)
        with torch.no_grad():  # weights of the real samples
            F.cross_entropy(model.eval()(real), client.labels, reduction="none").mul(5).sigmoid()
        labels = torch.arange(data.num_classes).repeat_interleave(20)
        made = torch.randn(len(labels), *real.shape[1:], generator=draw).requires_grad_()
        weights: Any = dict(model.train().named_parameters())
        for _ in range(BILEVEL):
            own, some = (torch.randperm(len(x), generator=draw)[:BATCH] for x in (made, real))
            inner = F.cross_entropy(functional_call(model, weights, (made[own],)), labels[own])
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            after = zip(weights.items(), slopes, strict=True)
            stepped = {name: value - 0.01 * slope for (name, value), slope in after}
            logits = functional_call(model, stepped, (real[some],))
            outer = F.cross_entropy(logits, client.labels[some])
            (gradient,) = torch.autograd.grad(outer, made)
            with torch.no_grad():
                made -= gradient
            weights = {name: value.detach().requires_grad_() for name, value in stepped.items()}
            outer.item()
        found.append((made.detach(), labels))
    images, labels = together(found)
    model = new_model(clients[0])
    generator = fresh(FeatureGenerator, data.num_classes, model.feature_size, rng=Rng(8))

    def judged(count: int) -> torch.Tensor:
        some = labels[torch.randint(len(labels), (count,), generator=draw)]
        features = generator(torch.randn(count, generator.noise, generator=draw), some)
        return F.cross_entropy(model.classifier(features), some)

    of_generator = torch.optim.Adam(generator.parameters(), lr=3e-4, weight_decay=1e-2)
    for _ in range(50):
        step(of_generator, judged(128))
    of_model = torch.optim.SGD(model.train().parameters(), lr=0.05)
    for _ in range(BILEVEL):
        rows = torch.randperm(len(labels), generator=draw)[:256]
        step(of_model, judged(256) + F.cross_entropy(model(images[rows]), labels[rows]))


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
    clients = clients_of(task, CLIENTS)
    grey = clients_of(random_task(runtime, CLIENTS * GREY, 1, 28, model="lenet"), CLIENTS)
    vck = {"iterations": ITERATIONS, "real_batch": REAL, "min_images": CONDENSED, "pool": 2}
    vck |= {"server_batch": BATCH, "server_epochs": EPOCHS, "first_model": "server"}
    contestants: dict[str, tuple[Any, list[Client], dict[str, Any], str]] = {
        "fedavg": (fedavg, clients, {"batch_size": BATCH, "local_epochs": 1}, "printed"),
        "fedvck": (fedvck, clients, vck | {"estimator": "expectation"}, "released"),
        "fedmk": (fedmk, grey, {"iterations": BILEVEL, "server_steps": BILEVEL}, "printed"),
    }
    found = {}
    for name, (loop, members, settings, variant) in contestants.items():

        def plain(_: int, loop: Any = loop, members: list[Client] = members) -> None:
            loop(members)

        def ours(_: int, given: Any = (members, name, settings, variant)) -> None:
            whole_run(*given)

        found[name] = race(ours, plain, "plain", pairs)
    return found


if __name__ == "__main__":
    given = options(__doc__).parse_args()
    here = Runtime.choose(given.device, given.precision)
    what = f"one round with its server, {CLIENTS} clients, {ITERATIONS} iterations, {REAL} real images a "
    what += f"class and step, random pixels of 3x32x32 (fedmk: 1x28x28, {BILEVEL} iterations), against a "
    what += "plain loop in float32; fedvck: released settings with exact expectations"
    keep("run", what, measure(here, given.pairs), here)
