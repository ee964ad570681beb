"""Parts of AsynDGAN and FedIOD where every pixel has an answer: a generator from label maps,
judges that see an image beside its map, and a perceptual loss on a client's own network.

The label maps are the clients' own: each sends its maps once, before the first step, and the server
draws from them. They are the "auxiliary task-relevant label" of FedIOD's Table 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn import functional

from core.errors import InputError
from core.federation import Client, Dense, Field, Task
from core.models import DensePatchDiscriminator, LabelToImage, UNet, fresh, planes
from core.rng import Rng


@attrs.frozen(eq=False)
class LabelMaps:
    """Label maps of one batch, (N, S, S) uint8, and whose they are: `rows` (K, N) int64 has the number
    of a map among client k's own, and -1 where it is another client's.
    """

    labels: torch.Tensor
    rows: torch.Tensor

    def of(self, position: int) -> dict[str, torch.Tensor]:
        """Return what the server sends to one client beside the images of a batch: it learns which maps
        are its own, and nothing of the owners of the others.
        """
        return {"conditions/labels": self.labels, "conditions/rows": self.rows[position]}

    @classmethod
    def received(cls, messages: Sequence[Mapping[str, torch.Tensor]]) -> LabelMaps | None:
        """The maps that several clients were sent; None where there were none."""
        if "conditions/labels" not in messages[0]:
            return None
        rows = torch.stack([message["conditions/rows"] for message in messages])
        return cls(messages[0]["conditions/labels"], rows)


def dense(task: Task) -> Dense:
    """A task of pixels. Raises InputError for another one."""
    if not isinstance(task, Dense):
        raise InputError(f"{task.dataset.name} has one label per image and no maps of labels")
    return task


def generator(task: Task, rng: Rng, *, width: int) -> LabelToImage:
    """A fresh generator of images from label maps, on the task's device."""
    return fresh(
        LabelToImage,
        dense(task).conditions,
        task.dataset.channels,
        width=width,
        rng=rng,
        device=task.runtime.device,
    )


def judge(task: Task, rng: Rng, *, width: int, layers: int = 2) -> DensePatchDiscriminator:
    """A fresh discriminator of images beside their label maps, on the task's device. Raises InputError
    where the images are too small for so many layers.
    """
    data, form = task.dataset, {"width": width, "layers": layers}
    seen = data.channels + dense(task).conditions, data.size
    return fresh(DensePatchDiscriminator, *seen, rng=rng, device=task.runtime.device, **form)


def maps_of(client: Client) -> torch.Tensor:
    """The label maps that a client tells the server, (N, S, S) uint8, one for each image."""
    return dense(client.task).condition(client.labels)


def maps_field(task: Task) -> Field:
    """The form in which it sends them."""
    data = task.dataset
    high, most = dense(task).conditions - 1, len(data.train)
    return Field((None, data.size, data.size), torch.uint8, low=0, high=high, most=most)


def painted(task: Task, generator: LabelToImage | nn.Module, labels: torch.Tensor) -> torch.Tensor:
    """Images of label maps (N, S, S), some at a time: (N, C, S, S) in [0, 1]."""
    with torch.no_grad(), task.runtime.autocast():
        return torch.cat([generator(part).float() for part in labels.split(32)])


def draw(maps: Sequence[torch.Tensor], count: int, rng: Rng) -> LabelMaps:
    """Label maps for a batch, drawn with replacement from each client in turn, the first one at random."""
    draws = rng.generator()
    first = int(torch.randint(len(maps), (1,), generator=draws))
    labels, rows = [], torch.full((len(maps), count), -1)
    for n in range(count):
        owner = (first + n) % len(maps)
        row = int(torch.randint(len(maps[owner]), (1,), generator=draws))
        rows[owner, n] = row
        labels.append(maps[owner][row])
    return LabelMaps(torch.stack(labels), rows)


def with_planes(task: Task, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Normalised images (..., N, C, S, S) with the planes of their maps as further channels."""
    shown = planes(labels, dense(task).conditions)
    return torch.cat([inputs, shown.expand(*inputs.shape[:-3], *shown.shape[-3:])], -3)


def perceptual_loss(network: nn.Module, made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """sum_l |phi_l(x) - phi_l(x')|^2 / (D_l h_l w_l), the mean over images (Johnson et al. ECCV 2016, Eq.
    2), by the encoder of a client's U-Net in the place of VGG, of normalised images (N, C, S, S) of the
    same label maps. InputError for a network that is no U-Net.
    """
    if not isinstance(network, UNet):
        raise InputError("the perceptual loss needs networks with an encoder: model 'unet'")
    with torch.no_grad():
        wanted = network.encode(real)
    pairs: Any = zip(network.encode(made), wanted, strict=True)
    return torch.stack([functional.mse_loss(a.float(), b.float()) for a, b in pairs]).sum()
