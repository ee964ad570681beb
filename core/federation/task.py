"""Tasks: what is learned, apart from how it is federated."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn

from core import metrics, models
from core.checks import check_kind, shown_briefly
from core.data import Dataset, Split
from core.errors import InputError
from core.federation.runtime import Runtime
from core.federation.tensors import unpack
from core.federation.validation import Field
from core.models import Classifier
from core.rng import Rng
from core.training import cross_entropy


class OwnTest(nn.Module):
    """A client in a test: its model, and the mask (C,) of its classes."""

    def __init__(self, model: nn.Module, classes: torch.Tensor) -> None:
        super().__init__()
        self.model, self.classes = model, classes

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs of the client's model for normalised images (N, C, H, W)."""
        return self.model(images)


@attrs.frozen(eq=False, field_transformer=shown_briefly)
class Task:
    """Image classification: a data set, a model, a loss and the metrics of a test. The tasks of
    `core.federation.dense` have the same methods, so no algorithm has to know which it serves.
    """

    dataset: Dataset
    #: a name of `core.models`, or a class or function that makes a network (see `core.models.build`)
    model: str | Callable[..., nn.Module] = "convnet"
    model_options: dict[str, Any] = attrs.field(factory=dict)
    runtime: Runtime = attrs.field(factory=Runtime)
    #: names of the clients, where each is an institution of the data set
    parties: tuple[str, ...] = ()
    _template: Classifier = attrs.field(init=False, repr=False)

    @_template.default
    def _build_template(self) -> Classifier:
        check_kind("dataset", self.dataset, Dataset)
        check_kind("model_options", self.model_options, dict)
        return self._build(Rng(0))

    @property
    def kind(self) -> str:
        """The kind of task, one of an algorithm's `task_kinds`."""
        return self.dataset.task_kind

    def _build(self, rng: Rng) -> Classifier:
        d = self.dataset
        model = models.build(
            self.model, d.channels, d.size, d.num_classes, rng, **self.model_options
        )
        return model.to(  # type: ignore[call-overload]
            self.runtime.device, memory_format=torch.channels_last, non_blocking=True
        )

    def new_model(self, rng: Rng) -> Classifier:
        """A freshly initialised model on the task's device."""
        return self._build(rng)

    def lacks(self, parts: Sequence[str]) -> list[str]:
        """Return the attributes that the network lacks, such as "classifier.bias", or has by another name."""
        named, missing = dict(self._template.named_parameters()), []
        for name in parts:
            part: Any = self._template
            for step in name.split("."):
                part = getattr(part, step, None)
            if part is None or (isinstance(part, nn.Parameter) and name not in named):
                missing.append(name)
        return missing

    def model_from(self, tensors: Mapping[str, torch.Tensor], prefix: str = "") -> Classifier:
        """The model whose weights are below a prefix (see `core.federation.tensors`)."""
        return unpack(copy.deepcopy(self._template), tensors, prefix)

    def inputs(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 images (N, C, H, W) as network inputs: normalised float32, channels last."""
        return self.dataset.normalise(images).contiguous(memory_format=torch.channels_last)

    @property
    def predictions(self) -> int:
        """Times that `class_counts` counts one image: once, or once for each pixel."""
        return 1

    def targets(self, most: int) -> Field:
        """The form in which a client could send what its images are to be predicted as."""
        targets, classes = self.dataset.train.targets, self.dataset.num_classes
        return Field((None, *targets.shape[1:]), targets.dtype, low=0, high=classes - 1, most=most)

    def counts(self, total: Callable[[int], float] | None = None) -> Field:
        """The form in which a client says how often it has each class, (C,) int64. `total` is the most
        that all counts of a client with so many samples sum to: by default each image counts as
        `class_counts` counts it.
        """

        total = total or (lambda samples: samples * self.predictions)
        return Field((self.dataset.num_classes,), torch.int64, low=0, total=total)

    def class_counts(self, labels: torch.Tensor) -> torch.Tensor:
        """Samples of each class, (C,) int64."""
        return torch.bincount(labels.flatten(), minlength=self.dataset.num_classes)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Outputs as rows of C numbers, one for each single prediction: (..., N, C) as they are."""
        return outputs

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """`core.training.cross_entropy` of logits (N, C) and labels (N,)."""
        return cross_entropy(outputs, labels)

    @torch.no_grad()
    def outputs(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, C) float32 of uint8 images (N, C, H, W), in evaluation mode."""
        model.eval()
        with self.runtime.autocast():
            return torch.cat(
                [
                    model(self.inputs(batch)).float()
                    for batch in images.split(models.at_once(images))
                ]
            )

    def predict(self, outputs: torch.Tensor) -> torch.Tensor:
        """Predicted class numbers (N,) of outputs (N, C)."""
        return outputs.argmax(1)

    def measure(self, model: nn.Module, data: Split) -> dict[str, float]:
        """Return the metrics of a model; for named institutions also `<metric>@<site>`."""
        outputs = self.outputs(model, data.images.to(self.runtime.device)).cpu()
        measured = metrics.classification(outputs, data.labels)
        centre = torch.tensor([]) if data.centre is None else data.centre
        for number, site in enumerate(plain(self.dataset.sites)):
            rows = centre == number
            if rows.any():
                of_site = metrics.classification(outputs[rows], data.labels[rows])
                measured |= {f"{metric}@{site}": value for metric, value in of_site.items()}
        return measured

    def measure_own(self, tests: Sequence[OwnTest], data: Split) -> dict[str, float]:
        """Metrics of a classification over all images that clients test. The images of a class are dealt
        out in turn; a client tests its own classes only. InputError where none is tested.
        """
        turn = turns(data.labels, len(tests))
        parts = [(turn == k) & test.classes.cpu()[data.labels] for k, test in enumerate(tests)]
        outputs = [
            self.outputs(model, data.images[part].to(self.runtime.device)).cpu()
            for model, part in zip(tests, parts, strict=True)
            if part.any()
        ]
        if not outputs:
            raise InputError("no client has a class of the images that clients are to test")
        return metrics.classification(
            torch.cat(outputs), torch.cat([data.labels[part] for part in parts])
        )

    def evaluate(self, model: nn.Module | list[nn.Module], split: str = "test") -> dict[str, float]:
        """Metrics on "train", "val" or "test"; for a list of models their mean, and `<metric>_std`
        over the models. Where the models are those of named clients, each one's are added as
        `<metric>:<name>`. For tests of clients, see `measure_own`.
        """
        data = getattr(self.dataset, split)
        if not isinstance(model, list):
            return self.measure(model, data)
        if tests := [each for each in model if isinstance(each, OwnTest)]:
            return self.measure_own(tests, data)
        each = [self.measure(network, data) for network in model]
        named = (
            zip(plain(self.parties), each, strict=True) if len(self.parties) == len(each) else ()
        )
        own = {f"{metric}:{name}": values[metric] for name, values in named for metric in values}
        return metrics.mean_and_std(each) | own


def plain(names: Sequence[str]) -> list[str]:
    """Return the names of institutions as they are in the names of metrics: other characters than letters
    and digits of any language, `.` and `-` become `_`. Names that would be one get their number.
    """
    short = [re.sub(r"[^\w.-]", "_", name)[:40] for name in names]
    return [f"{name}-{k}" if short.count(name) > 1 else name for k, name in enumerate(short)]


def turns(labels: torch.Tensor, clients: int) -> torch.Tensor:
    """Owners (N,) int64 in 0 .. clients - 1 of labels (N,), each class dealt out one by one."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    place = torch.empty_like(labels)
    place[order] = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    return place % clients
