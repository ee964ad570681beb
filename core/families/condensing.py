"""Clients that upload condensed images: all served as one batch, images on the wire, the server that
learns from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import torch
from torch import nn

from core import models, server
from core.checks import number, part, whole
from core.condensation import augment, draw_augmentation, initial_images
from core.condensation.engine import Condensation, RealData
from core.data import Dataset
from core.errors import Diverged
from core.federation import Algorithm, Client, Field, Format, Message, State, Task
from core.models import Classifier, at_once
from core.progress import counted
from core.rng import Rng
from core.server import ServerTraining

#: normalised pixels lie within some units of 0; condensed ones beyond this came from divergence
FAR = 1e4
#: groups that are condensed at once: their number, and not that of clients, decides the memory
MOST_GROUPS = 1000
WIRE = {"uint8": torch.uint8, "float32": torch.float32}


@attrs.frozen(kw_only=True, slots=False)
class ServerSide:
    """Hyper-parameters of the server's training on condensed images."""

    server_lr: float = attrs.field(default=0.005, validator=number(0, above=True))
    server_momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    server_weight_decay: float = attrs.field(default=1e-6, validator=number(0))
    server_batch: int = attrs.field(default=256, validator=whole(1))
    #: passes over the condensed images in a round
    server_epochs: int = attrs.field(default=1000, validator=whole(1))
    #: batches in a round; when given they take the place of `server_epochs`
    server_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: factor of the learning rate in the second half of a round
    server_decay: float = attrs.field(default=0.1, validator=number(0, 1, above=True))

    @property
    def training(self) -> ServerTraining:
        """Settings of the server's training."""
        return part(self, ServerTraining, "server_", batch_size=self.server_batch)


def chunks(clients: Sequence[Client], most: int = MOST_GROUPS) -> Iterator[list[Client]]:
    """Lists of clients with at most `most` groups (a class of a client) together, or one client."""
    some, total = list[Client](), 0
    for client in clients:
        groups = int((client.class_counts > 0).sum())
        if some and total + groups > most:
            yield some
            some, total = [], 0
        some.append(client)
        total += groups
    yield some


class Condensing(Algorithm):
    """Clients upload images, made for many clients in one batched program, `client_updates`, which a
    subclass writes; what there are more of than memory allows goes in parts, see `chunks`.
    """

    def at_clients(
        self,
        call: str,
        clients: Sequence[Client],
        messages: Mapping[int, Message],
        rng: Rng,
        form: Format | None = None,
    ) -> dict[int, Message]:
        """Run a remote call, part by part."""
        answers: dict[int, Message] = {}
        parts = list(chunks(clients))
        for some in counted(parts, "parts", len(parts)):
            answers |= super().at_clients(call, some, messages, rng, form)
        return answers

    def model(self, state: State) -> nn.Module:
        """The global model."""
        return state.task.model_from(state.tensors)

    def measures(self, state: State) -> dict[str, float]:
        """`copied_images`: where images start from real ones, the share of the server's images that equal
        an image of the training set in all pixels; nothing where that is elsewhere, and here all black.
        """
        data, places = state.task.dataset, ("uploaded/", "knowledge/")
        if getattr(self.settings, "init", "noise") == "noise" or not data.train.images.any():
            return {}
        names = [k for k in state.tensors if k.startswith(places) and k.endswith("/images")]
        known = {image.numpy().tobytes() for image in data.train.images.cpu()}
        copies = []
        for images in map(state.tensors.__getitem__, names):
            sent = images if images.dtype == torch.uint8 else to_wire(images, data.mean, data.std)
            copies += [image.numpy().tobytes() in known for image in sent.cpu()]
        return {"copied_images": sum(copies) / max(len(copies), 1)}


def gather(
    clients: Sequence[Client], rngs: Sequence[Rng], most: int | None = None
) -> tuple[RealData, torch.Tensor]:
    """The clients' images, sorted by client and class, at most `most` random ones of each, with uniform
    probabilities; and the sizes of the groups (G,), which count all.
    """
    images, labels, owners = [], [], []
    for position, (client, rng) in enumerate(zip(clients, rngs, strict=True)):
        device = client.labels.device
        order = torch.randperm(len(client), generator=rng.at("candidates").generator()).to(device)
        order = order[client.labels[order].argsort(stable=True)]
        images.append(client.some(order))
        labels.append(client.labels[order])
        owners.append(torch.full_like(client.labels, position))
    label, owner, pixels = torch.cat(labels), torch.cat(owners), torch.cat(images)
    classes = clients[0].task.dataset.num_classes
    key, group, sizes = torch.unique(
        owner * classes + label, return_inverse=True, return_counts=True
    )
    if most is not None:
        first = sizes.cumsum(0) - sizes
        within = torch.arange(len(group), device=group.device) - first[group] < most
        group, pixels = group[within], pixels[within]
    share = 1 / torch.bincount(group, minlength=len(key))
    return RealData(pixels, group, share[group], key // classes, key % classes), sizes


def starts(
    kind: str, real: RealData, group: torch.Tensor, task: Task, rngs: Sequence[Rng]
) -> torch.Tensor:
    """Initial condensed images (`kind`: see `initial_images`), (M, C, H, W): one image for
    every entry of `group` (M,) ascending, drawn from its client's own stream.
    """
    counts, owner = torch.bincount(group, minlength=real.groups), real.owner[real.group]
    parts = []
    for position, rng in enumerate(rngs):
        _, own = torch.unique(real.group[owner == position], return_inverse=True)
        parts.append(
            initial_images(
                kind,
                real.images[owner == position],
                own,
                counts[real.owner == position],
                task.inputs,
                rng.at("start").generator(real.images.device),
            )
        )
    return torch.cat(parts)


def instance_convnet(task: Task, rng: Rng, width: int, depth: int) -> Classifier:
    """A ConvNet with instance normalisation for the task's images, on its device, whatever the task's
    own network is; not channels last, which slows the gradient of its normalisation.
    """
    data = task.dataset
    network = models.build(
        "convnet",
        data.channels,
        data.size,
        data.num_classes,
        rng,
        width=width,
        depth=depth,
        norm="instance",
    )
    return network.to(task.runtime.device)


def upload_format(state: State, settings: Condensation, wire: str) -> dict[str, Field]:
    """Form of what a client sends that condenses all its data: see `images_format`."""
    data, least = state.task.dataset, settings.min_images
    # more than a client with all data would send
    return images_format(data, least, len(data.train) + data.num_classes * least, wire)


def images_format(data: Dataset, least: int, most: int, wire: str = "uint8") -> dict[str, Field]:
    """The form of `least` to `most` images as they travel, and their labels, one byte a label."""
    rows = partial(Field, least=least, most=most)
    return {
        "images": rows((None, data.channels, data.size, data.size), WIRE[wire]),
        "labels": rows((None,), torch.uint8, low=0, high=data.num_classes - 1),
    }


def to_wire(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Normalised images (N, C, H, W) as uint8, the nearest grey level in 0 .. 255; `mean` and `std` per
    channel of pixels in [0, 1]. `Dataset.normalise` is the inverse within half a level.
    """
    scale, shift = (
        torch.tensor(values, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
        for values in (std, mean)
    )
    levels = (images * scale + shift) * 255
    return levels.round().clamp(0, 255).to(torch.uint8)


def encode(images: torch.Tensor, dataset: Dataset, wire: str) -> torch.Tensor:
    """Condensed images (M, C, H, W) as they travel, uint8 or float32. Diverged where `FAR` from any."""
    if not (images.abs() < FAR).all():  # also where a value is no number
        raise Diverged(
            "condensation has diverged, its images are not finite or far out of range: try a "
            "smaller image_lr"
        )
    return to_wire(images, dataset.mean, dataset.std) if wire == "uint8" else images


def uploads(
    clients: Sequence[Client],
    real: RealData,
    images: torch.Tensor,
    group: torch.Tensor,
    wire: str = "uint8",
) -> dict[int, Message]:
    """Images with labels of each client, of all images (M, C, H, W) and their groups (M,)."""
    owner, label = real.owner[group], real.label[group].to(torch.uint8)
    data = clients[0].task.dataset
    return {
        client.id: Message(
            {
                "images": encode(images[owner == position], data, wire),
                "labels": label[owner == position],
            }
        )
        for position, client in enumerate(clients)
    }


def collect(uploads: Mapping[int, Message]) -> tuple[torch.Tensor, torch.Tensor]:
    """All uploaded images, in their wire format, and their labels (M,) int64."""
    return (
        torch.cat([upload.tensors["images"] for upload in uploads.values()]),
        torch.cat([upload.tensors["labels"] for upload in uploads.values()]).long(),
    )


def inputs(task: Task, images: torch.Tensor) -> torch.Tensor:
    """Images in their wire format as network inputs."""
    return task.inputs(images) if images.dtype == torch.uint8 else images


@attrs.frozen(eq=False)
class Knowledge:
    """The server's condensed images with labels, and the round (M,) int64 each came in, from 0."""

    images: torch.Tensor
    labels: torch.Tensor
    round: torch.Tensor

    @classmethod
    def of(cls, state: State) -> Knowledge | None:
        """The knowledge that a state holds; None before the first upload."""
        names = ("images", "labels", "round")
        if "knowledge/images" not in state.tensors:
            return None
        return cls(*(state.tensors[f"knowledge/{name}"] for name in names))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Named tensors, as in a state."""
        return {
            "knowledge/images": self.images,
            "knowledge/labels": self.labels,
            "knowledge/round": self.round,
        }

    def since(self, first: int) -> Knowledge:
        """The part from a round on."""
        later = self.round >= first
        return Knowledge(self.images[later], self.labels[later], self.round[later])

    def features(self, task: Task, model: Classifier) -> torch.Tensor:
        """psi(s) of all images, (M, D) float32."""
        parts = self.images.split(at_once(self.images))
        return torch.cat([model.embed(inputs(task, images)) for images in parts]).float()

    @staticmethod
    def extended(
        old: Knowledge | None, images: torch.Tensor, labels: torch.Tensor, t: int
    ) -> Knowledge:
        """Old knowledge, if any, and that of round t."""
        new = Knowledge(images, labels, torch.full_like(labels, t))
        if old is None:
            return new
        return Knowledge(
            torch.cat([old.images, new.images]),
            torch.cat([old.labels, new.labels]),
            torch.cat([old.round, new.round]),
        )


def augmenter(
    strategy: str, size: int, rng: Rng, device: torch.device, draws: str = "batch"
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A function that gives every batch one augmentation of its own, or one kind of it with other
    parameters for every "image"; None for the strategy "none".
    """
    if strategy == "none":
        return None
    generator = rng.at("augment").generator(device)

    def transform(batch: torch.Tensor) -> torch.Tensor:
        if draws == "image":
            each = draw_augmentation(strategy, len(batch), size, generator, device, one_kind=True)
            return augment(batch, each, torch.arange(len(batch), device=device))
        drawn = draw_augmentation(strategy, 1, size, generator, device)
        return augment(batch, drawn, torch.zeros(len(batch), dtype=torch.int64, device=device))

    return transform


def learn(
    task: Task,
    state: State,
    knowledge: Knowledge,
    settings: ServerSide,
    rng: Rng,
    contrast: server.Contrast | None = None,
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None,
    plain_pass: bool = False,
) -> nn.Module:
    """The global model of `state`, trained on condensed images (Eq. 16 of FedVCK)."""
    model = task.model_from(state.tensors)
    server.update_model(
        model,
        knowledge.images,
        knowledge.labels,
        settings.training,
        rng.at("learn"),
        prepare=lambda images: inputs(task, images),
        autocast=task.runtime.autocast,
        loss=task.loss,
        contrast=contrast,
        augment=augment,
        plain_pass=plain_pass,
    )
    return model
