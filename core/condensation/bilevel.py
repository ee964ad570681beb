"""Bi-level condensation: images on which a network learns what it would learn from real ones.

Liu, Yu, Zhou. Meta Knowledge Condensation for Federated Learning (FedMK), Eq. 3-8. The inner loop
takes gradient steps on condensed images, the paper's meta knowledge. The outer loop takes
gradient steps on these images, down the loss that the network then has on real ones, through the
inner steps. Several inner steps have images of their own, as in Wang et al. 2018, whom the paper follows.

The paper is silent on batch normalisation in the outer loss. A network that was trained on knowledge
is tested with the statistics of knowledge. So by default real images are normalised by the statistics
of the last inner step's knowledge, and the gradient goes through them (`statistics="knowledge"`);
`"batch"` is plain training mode.

All clients are one program, `torch.func.vmap` over stacked weights, or over shared ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional as F

from core.checks import number, one_of, whole
from core.models import Classifier, replace_layers
from core.progress import counted
from core.rng import Rng

Weights = dict[str, torch.Tensor]
#: a loss of a client: from weights, its knowledge (M, ...) and other data to a scalar
Loss = Callable[[Weights, torch.Tensor, Any], torch.Tensor]

#: clients in one batch; bounds the memory
CLIENTS = 10
STATISTICS = ("knowledge", "batch")


class KnowledgeNetwork(nn.Module):
    """A copy of a network as a function of its weights, twice differentiable; its batch normalisation
    takes statistics of a batch, or of its first images, and keeps none.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self.norms = list[_LeadingNorm]()

        def leading(layer: nn.Module) -> nn.Module | None:
            if not isinstance(layer, nn.BatchNorm2d):
                return None
            self.norms.append(_LeadingNorm(layer))
            return self.norms[-1]

        replace_layers(self.model, leading)

    def weights(self) -> Weights:
        """The network's parameters by name, detached."""
        return {name: value.detach() for name, value in self.model.named_parameters()}

    def logits(
        self, weights: Weights, images: torch.Tensor, lead: int | None = None
    ) -> torch.Tensor:
        """Logits (N, C) of images (N, ...), normalised by statistics of the first `lead`."""
        for norm in self.norms:
            norm.lead = lead
        return functional_call(self.model, weights, (images,))


class _LeadingNorm(nn.Module):
    """Batch normalisation by the statistics of the first images of a batch."""

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        # named as in the layer: weights are given by name
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        #: how many images of the batch give statistics; None: all
        self.lead: int | None = None

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Normalised maps (N, C, H, W)."""
        variance, mean = torch.var_mean(maps[: self.lead], (0, 2, 3), unbiased=False)
        scale = (variance + self.eps).rsqrt() * self.weight
        return torch.addcmul((self.bias - mean * scale)[:, None, None], maps, scale[:, None, None])


def dynamic_weights(loss: torch.Tensor, tau: float) -> torch.Tensor:
    """phi = 1 / (1 + exp(-tau * l)) of each loss, (N,); in [1/2, 1), as no loss is negative (Eq. 7)."""
    return torch.sigmoid(tau * loss)


def class_balanced_weights(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """N / (classes that occur * samples of the class) of each label (N,), with mean 1. FedMK's Table 6
    gives no formula; this is the usual one.
    """
    counts = torch.bincount(labels, minlength=classes)
    return len(labels) / ((counts > 0).sum() * counts[labels])


@attrs.frozen(eq=False)
class BilevelStep:
    """An outer step of K clients without a graph: `gradient` with respect to the knowledge, (K, M, ...),
    outer `loss`, (K,), and `weights` after the inner steps, (K, ...) each.
    """

    gradient: torch.Tensor
    loss: torch.Tensor
    weights: Weights


def inner_batches(
    knowledge: torch.Tensor, data: Mapping[str, Any], steps: int
) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """Knowledge (M, ...) in `steps` equal parts, each with its labels and the other data."""
    size = len(knowledge) // steps
    labels = data["knowledge_labels"].split(size) if "knowledge_labels" in data else None
    return [
        (part, dict(data) if labels is None else {**data, "knowledge_labels": labels[step]})
        for step, part in enumerate(knowledge.split(size))
    ]


def descend(
    loss: Loss, weights: Weights, knowledge: torch.Tensor, data: Any, lr: float, steps: int
) -> Weights:
    """w*: the weights after `steps` plain gradient steps down `loss`, each on its part of the
    knowledge, as a differentiable function of `knowledge`.
    """
    for part, part_data in inner_batches(knowledge, data, steps):
        # w <- w - eta grad_w L(w, D^)   (Eq. 5)
        slope = grad(loss)(weights, part, part_data)
        weights = {name: weight - lr * slope[name] for name, weight in weights.items()}
    return weights


def bilevel_step(
    inner: Loss,
    outer: Loss,
    weights: Weights,
    knowledge: torch.Tensor,
    data: Mapping[str, torch.Tensor],
    *,
    lr: float,
    steps: int = 1,
    shared: bool = False,
) -> BilevelStep:
    """The gradient grad_D^ L(w*(D^), D) of Eq. 6 for K clients, through the inner steps.

    Args:
        inner: L(w, D^), from the weights, the knowledge and the data of one client to a scalar.
        outer: L(w*, D), with the same arguments.
        weights: named tensors (K, ...), one set per client; with `shared` one set without that
            dimension for all.
        knowledge: (K, M, ...).
        data: what the losses look at beside that: named tensors (K, ...).
        lr: eta; steps: inner steps, each on the next M / steps of the knowledge.
    """

    def objective(
        knowledge: torch.Tensor, weights: Weights, data: Any
    ) -> tuple[torch.Tensor, Weights]:
        adapted = descend(inner, weights, knowledge, data, lr, steps)
        return outer(adapted, *inner_batches(knowledge, data, steps)[-1]), adapted

    each_client = vmap(
        grad_and_value(objective, has_aux=True),
        in_dims=(0, None if shared else 0, 0),
        chunk_size=CLIENTS,
    )
    gradient, (loss, adapted) = each_client(knowledge, weights, dict(data))
    return BilevelStep(gradient, loss, adapted)


def network_losses(network: KnowledgeNetwork, statistics: str = "knowledge") -> tuple[Loss, Loss]:
    """Inner and outer loss of a classifier for `bilevel_step`: mean cross-entropy on the knowledge, and,
    weighted, on real images. Their data: `knowledge_labels` (M,), `images`, `labels`, `weights` (B,).
    """

    def inner(weights: Weights, knowledge: torch.Tensor, data: Any) -> torch.Tensor:
        # L(w, D^)
        return F.cross_entropy(network.logits(weights, knowledge), data["knowledge_labels"])

    def outer(weights: Weights, knowledge: torch.Tensor, data: Any) -> torch.Tensor:
        if statistics == "knowledge":
            lead = len(knowledge)
            images = torch.cat([knowledge, data["images"]])
            logits = network.logits(weights, images, lead)[lead:]
        else:
            logits = network.logits(weights, data["images"])
        # L(w*, Phi, D) = 1/N sum_i phi_i l(w*, x_i, y_i)   (Eq. 8)
        losses = F.cross_entropy(logits, data["labels"], reduction="none")
        return (data["weights"] * losses).mean()

    return inner, outer


@attrs.frozen(kw_only=True, slots=False)
class Extraction:
    """Hyper-parameters of a client's extraction in a round. FedMK states none; the defaults come from
    held-out training images of MNIST, `horizon` and `statistics` from table `fedmk/tuning`.
    """

    #: outer iterations; 0: the knowledge stays as it starts
    iterations: int = attrs.field(default=200, validator=whole(0))
    #: alpha of Eq. 6 and 8, eta_S in the book
    image_lr: float = attrs.field(default=300.0, validator=number(0, above=True))
    #: eta of Eq. 5
    inner_lr: float = attrs.field(default=0.05, validator=number(0, above=True))
    #: inner steps per outer iteration, each on images of its own; the paper's formulas are written
    #: for one, "here", says a footnote
    inner_steps: int = attrs.field(default=1, validator=whole(1))
    #: images of the knowledge in an inner step
    inner_batch: int = attrs.field(default=64, validator=whole(1))
    #: real images in an outer step
    real_batch: int = attrs.field(default=64, validator=whole(1))
    #: iterations after which the inner steps start at the received model w^c again; in between they
    #: go on from where those of the last iteration ended. 1: every iteration starts at w^c, as in
    #: Eq. 3; as many as iterations: w^c is never set back, another interpretation of Eq. 5
    horizon: int = attrs.field(default=50, validator=whole(1))
    #: what real images are normalised by
    statistics: str = attrs.field(
        default="knowledge", validator=one_of("kind of statistics", *STATISTICS)
    )


@attrs.frozen(eq=False)
class ExtractionProblem:
    """One client: real images (N, C, H, W) uint8 with labels and weights phi (N,); knowledge to start
    from (M, C, H, W) float32 with labels (M,); the stream of its batches.
    """

    images: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    knowledge: torch.Tensor
    knowledge_labels: torch.Tensor
    rng: Rng


def extract(
    model: Classifier,
    problems: Sequence[ExtractionProblem],
    settings: Extraction,
    prepare: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Extract the knowledge of clients that start from the same model: Eq. 5 and 8, again and
    again.

    A client's batches come from its own stream, so it gets the same knowledge alone as in company.
    `prepare` turns uint8 images into network inputs.

    Returns: every client's knowledge (M, C, H, W), and the outer loss of every iteration,
    (iterations, clients).
    """
    images, labels, phi, knowledge, knowledge_labels = (
        torch.cat([getattr(problem, name) for problem in problems])
        for name in ("images", "labels", "weights", "knowledge", "knowledge_labels")
    )
    network = KnowledgeNetwork(model)
    inner, outer = network_losses(network, settings.statistics)
    real_rows, knowledge_rows = draw_batches(problems, settings)
    # once where images are used more than once, though it takes four bytes a number
    prepared = settings.iterations * settings.real_batch * len(problems) > len(images)
    images = prepare(images) if prepared else images
    losses = [phi.new_empty(0, len(problems))]
    drawn = zip(real_rows.unbind(1), knowledge_rows.unbind(1), strict=True)
    for iteration, (real, rows) in enumerate(counted(drawn, "extraction", settings.iterations)):
        if iteration % settings.horizon == 0:
            weights, shared = network.weights(), True
        batch = images[real]
        if not prepared:
            batch = prepare(batch.flatten(0, 1)).unflatten(0, real.shape)
        data = {
            "knowledge_labels": knowledge_labels[rows],
            "images": batch,
            "labels": labels[real],
            "weights": phi[real],
        }
        step = bilevel_step(
            inner,
            outer,
            weights,
            knowledge[rows],
            data,
            lr=settings.inner_lr,
            steps=settings.inner_steps,
            shared=shared,
        )
        # D^ <- D^ - alpha grad_D^ L(w*, Phi, D)   (Eq. 8)
        knowledge.index_add_(
            0, rows.flatten(), step.gradient.flatten(0, 1), alpha=-settings.image_lr
        )
        losses.append(step.loss[None])
        weights, shared = step.weights, False
    sizes = [len(problem.knowledge) for problem in problems]
    return list(knowledge.split(sizes)), torch.cat(losses)


def draw_batches(
    problems: Sequence[ExtractionProblem], settings: Extraction
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of real images (K, iterations, B) and of knowledge (K, iterations, steps * m)."""

    def draw(purpose: str, size: int, tensor: str) -> torch.Tensor:
        first, rows = 0, []
        for problem in problems:
            count = len(getattr(problem, tensor))
            draws = problem.rng.at(purpose).generator()
            passes = -(-settings.iterations * size // count)
            orders = [torch.randperm(count, generator=draws) for _ in range(max(passes, 1))]
            taken = torch.cat(orders)[: settings.iterations * size]
            rows.append(first + taken.view(settings.iterations, size))
            first += count
        return torch.stack(rows).to(problems[0].labels.device)

    knowledge_batch = settings.inner_steps * settings.inner_batch
    return draw("real", settings.real_batch, "labels"), draw(
        "knowledge", knowledge_batch, "knowledge_labels"
    )
