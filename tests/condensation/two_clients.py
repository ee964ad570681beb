"""A small matching objective of two clients, and its features and losses written out in float64."""

from contextlib import nullcontext

import attrs
import torch
from torch.nn import functional as F

from core import models
from core.baselines.feddm import FeaturesAndLogits
from core.condensation import LatentEncoder
from core.condensation.engine import Condensation, Draws, MatchingObjective, RealData
from core.condensation.latent import Separate
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


def make(encoder=None, sliding=False, **changes):
    """An objective of two clients of two classes each, whose images are all different and unequally
    likely; `changes` are fields of it and of its settings.
    """
    names = attrs.fields_dict(MatchingObjective)
    fields = {name: changes.pop(name) for name in list(changes) if name in names}
    settings = Condensation(**({"iterations": 1, "real_batch": 5, "image_lr": 0.5} | changes))
    generator, number = Rng(1).generator(), sum(SIZES)
    group = torch.repeat_interleave(torch.tensor(SIZES))
    weights = torch.rand(number, generator=generator) ** 2 + 0.01
    probabilities = weights / torch.zeros(len(SIZES)).index_add(0, group, weights)[group]
    images = torch.randint(0, 256, (number, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.tensor([0, 2, 1, 2])
    real = RealData(images, group, probabilities, torch.tensor(OWNER), labels)
    streams = [Rng(7).at("client", client) for client in (0, 1)]
    return MatchingObjective(
        LatentEncoder(network()) if encoder is None else encoder,
        real,
        settings,
        Draws(streams, real.owner, sliding=sliding),
        prepare,
        nullcontext,
        **fields,
    )


def noise():
    return torch.randn(len(GROUP), 1, 8, 8, generator=Rng(2).generator())


def embed64(objective, images, statistics=None):
    """Features in float64, layer by layer, and the statistics (mean, variance) of every
    normalisation (Eq. 4).
    """
    used, model = [], objective.encoder.model
    both = isinstance(model, FeaturesAndLogits)
    model = model.network if both else model
    for position, block in enumerate(model.blocks):
        images = F.conv2d(images, block.conv.weight.double(), block.conv.bias.double(), padding=1)
        own = images.mean((0, 2, 3)), images.var((0, 2, 3), unbiased=False)
        used.append(statistics[position] if statistics else own)
        scale, shift = (
            each.double().view(-1, 1, 1) for each in (block.norm.weight, block.norm.bias)
        )
        mean, variance = (each.view(-1, 1, 1) for each in used[-1])
        images = (images - mean) / (variance + block.norm.eps).sqrt() * scale + shift
        images = F.avg_pool2d(images.relu(), 2)
    features = images.flatten(1)
    if both:
        head = model.classifier
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


def losses64(objective, images, step, averages=None):
    """The loss of every group in float64, client by client and class by class.

    `averages` holds every client's running statistics and is updated.
    """
    real, losses = objective.real, []
    rows, size = objective.rows("batch", step), objective.settings.real_batch
    for client in range(objective.clients):
        groups = [g for g, owner in enumerate(OWNER) if owner == client]
        batch = prepare(real.images[torch.cat([rows[g] for g in groups])]).double()
        features, statistics = embed64(objective, batch)
        if averages is not None:
            averages[client] = statistics = [
                (0.9 * old[0] + 0.1 * new[0], 0.9 * old[1] + 0.1 * new[1])
                for old, new in zip(averages[client], statistics, strict=True)
            ]
        mine = torch.cat([(g == GROUP).nonzero().flatten() for g in groups])
        separate = isinstance(objective.normalisation, Separate)
        condensed, _ = embed64(objective, images[mine], None if separate else statistics)
        counts = [CONDENSED[g] for g in groups]
        for wanted, made in zip(features.split(size), condensed.split(counts), strict=True):
            losses.append(mmd64(wanted, made, objective.settings.kernel))
    return torch.stack(losses)


def running64(model):
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    running = [(layer.running_mean.double(), layer.running_var.double()) for layer in layers]
    return [list(running) for _ in range(2)]
