"""What is learned, apart from how it is federated."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core import metrics, models
from core.data import Dataset
from core.federation.runtime import Runtime
from core.federation.tensors import unpack
from core.models import Classifier
from core.rng import Rng


@attrs.frozen(eq=False)
class Task:
    """Image classification: a data set, a model, a loss and the metrics of a test.

    Segmentation and reconstruction are other tasks with the same methods, so no algorithm has to
    know which it serves.
    """

    dataset: Dataset
    model: str = "convnet"
    model_options: dict[str, Any] = attrs.field(factory=dict)
    runtime: Runtime = attrs.field(factory=Runtime)
    _template: Classifier = attrs.field(init=False, repr=False)

    @_template.default
    def _build_template(self) -> Classifier:
        return self._build(Rng(0))

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

    def model_from(self, tensors: Mapping[str, torch.Tensor], prefix: str = "") -> Classifier:
        """The model whose weights stand below a prefix (see `core.federation.tensors`)."""
        return unpack(copy.deepcopy(self._template), tensors, prefix)

    def inputs(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 images (N, C, H, W) as the network takes them: normalised float32, channels
        last.
        """
        return self.dataset.normalise(images).contiguous(memory_format=torch.channels_last)

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of logits (N, C) and labels (N,), in float32."""
        return F.cross_entropy(outputs.float(), labels)

    @torch.no_grad()
    def outputs(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, C) in float32 of uint8 images (N, C, H, W), with the model in evaluation
        mode.
        """
        model.eval()
        with self.runtime.autocast():
            return torch.cat(
                [
                    model(self.inputs(batch)).float()
                    for batch in images.split(models.at_once(images))
                ]
            )

    def evaluate(self, model: nn.Module | list[nn.Module], split: str = "test") -> dict[str, float]:
        """Metrics on "train", "val" or "test"; for a list of models their mean, and `<metric>_std`
        over the models.
        """
        data = getattr(self.dataset, split)
        images, labels = data.images.to(self.runtime.device), data.labels
        each = [
            metrics.classification(self.outputs(one, images).cpu(), labels)
            for one in (model if isinstance(model, list) else [model])
        ]
        return metrics.mean_and_std(each) if isinstance(model, list) else each[0]
