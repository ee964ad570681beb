"""Tasks that predict something for every pixel: segmentation, and images from images."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from core import metrics, models
from core.data import Dataset, Split
from core.errors import InputError
from core.federation.runtime import Runtime
from core.federation.task import Task
from core.federation.validation import Field


class Dense(Task):
    """A task with an answer for every pixel. A network sees patches of the size that it learned on; a larger
    test image is cut into such patches, whose predictions are put together, means where they overlap.
    """

    #: how many values a pixel of a generator's condition can have
    conditions: int

    def condition(self, targets: torch.Tensor) -> torch.Tensor:
        """Return what a client may tell a generator of an image: class numbers (N, H, W), uint8."""
        raise NotImplementedError

    @property
    def predictions(self) -> int:
        """Pixels of a patch."""
        return self.dataset.size**2

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """(..., N, C, H, W) as (..., N * H * W, C): every pixel is a prediction of its own."""
        return outputs.movedim(-3, -1).flatten(-4, -2)

    @torch.no_grad()
    def outputs(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Outputs (N, C, H, W) float32 for uint8 images (N, C, H, W), in evaluation mode."""
        from monai.inferers import sliding_window_inference

        model.eval()
        side = self.dataset.size
        at_once = models.at_once(images[..., :side, :side])

        def apply(part: torch.Tensor) -> torch.Tensor:
            return model(part).float()

        together = at_once if images.shape[-2:] == (side, side) else 1
        with self.runtime.autocast():
            parts = [
                sliding_window_inference(
                    self.inputs(part), (side, side), at_once, apply, overlap=0.0
                )
                for part in images.split(together)
            ]
        return torch.cat(cast(list[torch.Tensor], parts))

    def measure(self, model: nn.Module, data: Split) -> dict[str, float]:
        """Means over images; where the split says where they come from, also those of each site, as
        `<metric>@<site>`, and the mean of the sites, as `<metric>@average`.
        """
        tested = self._tested(model, data)
        each = [self.measure_one(outputs, data, number) for number, outputs in tested]
        measured = _means(each)
        if data.centre is None or not self.dataset.sites:
            return measured
        by_site = {
            name: _means([each[i] for i in (data.centre == number).nonzero().flatten().tolist()])
            for number, name in enumerate(self.dataset.sites)
            if (data.centre == number).any()
        }
        for name, own in by_site.items():
            measured |= {f"{metric}@{name}": value for metric, value in own.items()}
        average = _means(list(by_site.values()))
        return measured | {f"{metric}@average": value for metric, value in average.items()}

    def _tested(self, model: nn.Module, data: Split) -> Iterator[tuple[int, torch.Tensor]]:
        """The number of each image and the outputs (1, C, H, W) for it, without its padding. Those as
        large as a patch that follow each other go through the network together.
        """
        side = self.dataset.size
        many = models.at_once(data.images[..., :side, :side])
        for (height, width), group in itertools.groupby(range(len(data)), partial(_size, data)):
            at_once = many if height == width == side else 1
            for part in torch.tensor(list(group)).split(at_once):
                images = data.images[part, :, :height, :width].to(self.runtime.device)
                yield from zip(part.tolist(), self.outputs(model, images).split(1), strict=True)

    def measure_one(self, outputs: torch.Tensor, data: Split, number: int) -> dict[str, float]:
        """The metrics of the outputs (1, C, H, W) for one image of a split, without its padding."""
        raise NotImplementedError


class Segmentation(Dense):
    """A task of classes of pixels: 0 background, 2 the rim of objects where there is a border class."""

    @property
    def conditions(self) -> int:  # type: ignore[override]
        """The classes: a generator is given the mask."""
        return self.dataset.num_classes

    def condition(self, targets: torch.Tensor) -> torch.Tensor:
        """The mask itself."""
        return targets

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy with the data set's weights of classes; without such, cross-entropy plus
        Dice loss (FedIOD, appendix: nuclei, and tumours). Logits (N, C, H, W), classes (N, H, W).
        """
        outputs, weights = outputs.float(), self.dataset.weights
        if weights:
            return F.cross_entropy(outputs, labels.long(), _on(outputs.device, weights))
        from monai.losses import DiceCELoss

        return DiceCELoss(to_onehot_y=True, softmax=True)(outputs, labels[:, None].long())

    def predict(self, outputs: torch.Tensor) -> torch.Tensor:
        """Class numbers (N, H, W) of logits (N, C, H, W)."""
        return outputs.argmax(1)

    def objects(self, classes: torch.Tensor) -> np.ndarray:
        """Objects (H, W), numbered from 1, of one map of predicted classes."""
        return metrics.separated(classes.cpu().numpy(), self.dataset.border)

    def measure_one(self, outputs: torch.Tensor, data: Split, number: int) -> dict[str, float]:
        """Dice, sensitivity, specificity, HD95 of the foreground; object Dice and AJI if known."""
        classes = self.predict(outputs)[0]
        assert data.masks is not None
        height, width = classes.shape
        measured = metrics.regions(
            data.masks[number, :height, :width].numpy() > 0, classes.cpu().numpy() > 0
        )
        if data.instances is None:
            return measured
        objects = data.instances[number, :height, :width].numpy()
        return measured | metrics.objects(objects, self.objects(classes))


class Reconstruction(Dense):
    """A task of values of pixels: images (N, C, H, W), uint8 at rest, in [0, 1] from a network."""

    #: a generator is given the outline of what is not background
    conditions = 2
    #: of [0, 1]: what is darker is background
    DARK = 0.1

    def condition(self, targets: torch.Tensor) -> torch.Tensor:
        """The contour of the foreground (FedIOD, appendix), (N, H, W): 1 on it, else 0."""
        inside = (targets.float().mean(1, keepdim=True) > 255 * self.DARK).float()
        rim = inside * (1 + F.max_pool2d(-inside, 3, 1, 1))
        return rim[:, 0].byte()

    @property
    def predictions(self) -> int:
        """Pixels of a patch, for each of its channels."""
        return self.dataset.size**2 * self.dataset.num_classes

    def class_counts(self, labels: torch.Tensor) -> torch.Tensor:
        """Pixels, once for each channel: there are no classes that a client could have more of."""
        pixels = labels.numel() // self.dataset.num_classes
        return torch.full((self.dataset.num_classes,), pixels, device=labels.device)

    def targets(self, most: int) -> Field:
        """Images, 8 bits a pixel."""
        targets = self.dataset.train.targets
        return Field((None, *targets.shape[1:]), targets.dtype, most=most)

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean absolute error of images in [0, 1] (FL-MRCM, Guo et al. CVPR 2021)."""
        return (outputs.float() - labels.float() / 255).abs().mean()

    def predict(self, outputs: torch.Tensor) -> torch.Tensor:
        """Images (N, C, H, W) in [0, 1]."""
        return outputs.clamp(0, 1)

    def measure_one(self, outputs: torch.Tensor, data: Split, number: int) -> dict[str, float]:
        """SSIM and PSNR, means over channels."""
        assert data.masks is not None
        images, truth = self.predict(outputs)[0].cpu().numpy(), data.masks[number].numpy() / 255
        return _means([metrics.reconstruction(*pair) for pair in zip(truth, images, strict=True)])


@functools.cache
def _on(device: torch.device, values: tuple[float, ...]) -> torch.Tensor:
    """Numbers on a device; kept, as a step that is replayed there takes nothing from the host."""
    return torch.tensor(values).to(device, non_blocking=True)


def _size(data: Split, number: int) -> tuple[int, int]:
    """Height and width of an image of a split, without its padding."""
    if data.instances is None:
        return data.images.shape[2], data.images.shape[3]
    own = data.instances[number] >= 0
    return int(own.any(1).sum()), int(own.any(0).sum())


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


TASKS: dict[str, type[Task]] = {
    "classification": Task,
    "segmentation": Segmentation,
    "reconstruction": Reconstruction,
}


def task_of(
    dataset: Dataset,
    model: str | Callable[..., nn.Module] = "convnet",
    model_options: dict[str, Any] | None = None,
    runtime: Runtime | None = None,
    parties: tuple[str, ...] = (),
) -> Task:
    """Return the task of a data set, learned with a network as `Task` takes it. Raises InputError for a
    network that is unknown, or that gives another kind of answer.
    """
    kind, dense = TASKS[dataset.task_kind], models.is_dense(model)
    if dense is not None and dense != (kind is not Task):
        asks = "an answer for each pixel" if kind is not Task else "one class for an image"
        fit = ", ".join(name for name in models.every_name() if models.is_dense(name) != dense)
        raise InputError(f"{dataset.name} asks for {asks}: {model} gives none; take {fit}")
    return kind(dataset, model, model_options or {}, runtime or Runtime(), parties)
