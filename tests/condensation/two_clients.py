"""A small problem of condensation with two clients, and its features and losses written out in float64."""

from contextlib import nullcontext

import attrs
import torch
from torch.nn import functional as F

from core import models
from core.condensation import LatentEncoder
from core.condensation.problem import Condensation, Draws, Problem, RealData
from core.rng import Rng

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"
#: real images per group; two clients, the first with groups 0 and 1
SIZES, OWNER = (6, 9, 1, 7), (0, 0, 1, 1)
#: condensed images per group
CONDENSED = (2, 3, 1, 2)
GROUP = torch.repeat_interleave(torch.tensor(CONDENSED))


def prepare(images):
    return images.float() / 127.5 - 1


def network(norm="batch"):
    """A small ConvNet with scales, shifts and running statistics that all matter."""
    model = models.build("convnet", 1, 8, 4, Rng(5), width=3, depth=2, norm=norm)
    generator = Rng(6).generator()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            with torch.no_grad():
                layer.weight.uniform_(0.5, 1.5, generator=generator)
                layer.bias.uniform_(-0.5, 0.5, generator=generator)
            layer.running_mean.uniform_(-1, 1, generator=generator)
            layer.running_var.uniform_(0.5, 2, generator=generator)
    return model


def make(model=None, **changes):
    """A problem with two clients of two classes each, whose images are all different and unequally
    likely.
    """
    options = {
        name: changes.pop(name) for name in list(changes) if name in attrs.fields_dict(Problem)
    }
    settings = Condensation(**({"iterations": 1, "real_batch": 5, "image_lr": 0.5} | changes))
    generator, number = Rng(1).generator(), sum(SIZES)
    group = torch.repeat_interleave(torch.tensor(SIZES))
    weights = torch.rand(number, generator=generator) ** 2 + 0.01
    probabilities = weights / torch.zeros(len(SIZES)).index_add(0, group, weights)[group]
    real = RealData(
        torch.randint(0, 256, (number, 1, 8, 8), generator=generator, dtype=torch.uint8),
        group,
        probabilities,
        torch.tensor(OWNER),
        torch.tensor([0, 2, 1, 2]),
    )
    return Problem(
        LatentEncoder(network() if model is None else model),
        real,
        settings,
        Draws([Rng(7).at("client", 0), Rng(7).at("client", 1)], real.owner),
        prepare,
        nullcontext,
        **options,
    )


def noise():
    return torch.randn(len(GROUP), 1, 8, 8, generator=Rng(2).generator())


def embed64(problem, images, statistics=None):
    """Features in float64, layer by layer, and the statistics (mean, variance) of every
    normalisation (Eq. 4).
    """
    used = []
    for position, block in enumerate(problem.encoder.model.blocks):
        images = F.conv2d(images, block.conv.weight.double(), block.conv.bias.double(), padding=1)
        mean, variance = (
            statistics[position]
            if statistics
            else (images.mean((0, 2, 3)), images.var((0, 2, 3), unbiased=False))
        )
        used.append((mean, variance))
        scale, shift = (
            block.norm.weight.double().view(-1, 1, 1),
            block.norm.bias.double().view(-1, 1, 1),
        )
        images = (images - mean.view(-1, 1, 1)) / (
            variance.view(-1, 1, 1) + block.norm.eps
        ).sqrt() * scale + shift
        images = F.avg_pool2d(images.relu(), 2)
    features = images.flatten(1)
    if problem.head:
        head = problem.encoder.model.classifier
        features = torch.cat([features, features @ head.weight.double().T + head.bias.double()], 1)
    return features, used


def mmd64(x, y, kernel):
    """K_XX + K_YY - 2 K_XY, as means over all pairs (Eq. 3)."""
    both = torch.cat([x, y])
    squares = (both[:, None] - both[None]).square().sum(-1)
    if kernel == "gaussian":
        width = squares.detach().sum() / (len(both) * (len(both) - 1))
        gram = sum(torch.exp(-squares / (width * m)) for m in (0.25, 0.5, 1, 2, 4))
    else:
        gram = both @ both.T
    n = len(x)
    return gram[:n, :n].mean() + gram[n:, n:].mean() - 2 * gram[:n, n:].mean()


def losses64(problem, images, step, averages=None):
    """The loss of every group in float64, client by client and class by class.

    `averages` holds every client's running statistics and is updated.
    """
    real, losses = problem.real, []
    rows = problem.rows("batch", step)
    for client in range(problem.clients):
        groups = [g for g, owner in enumerate(OWNER) if owner == client]
        batch = prepare(real.images[torch.cat([rows[g] for g in groups])]).double()
        features, statistics = embed64(problem, batch)
        if averages is not None:
            averages[client] = statistics = [
                (0.9 * old[0] + 0.1 * new[0], 0.9 * old[1] + 0.1 * new[1])
                for old, new in zip(averages[client], statistics, strict=True)
            ]
        mine = torch.cat([(g == GROUP).nonzero().flatten() for g in groups])
        condensed, _ = embed64(problem, images[mine], None if problem.free else statistics)
        start = 0
        for place, g in enumerate(groups):
            count, size = CONDENSED[g], problem.settings.real_batch
            losses.append(
                mmd64(
                    features[place * size : (place + 1) * size],
                    condensed[start : start + count],
                    problem.settings.kernel,
                )
            )
            start += count
    return torch.stack(losses)


def running64(model, clients=2):
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    return [
        [(layer.running_mean.double(), layer.running_var.double()) for layer in layers]
        for _ in range(clients)
    ]
