"""Bi-level condensation: images on which a network learns what it would learn from real ones
(FedMK, Eq. 3-8).

Liu, Yu, Zhou. Meta Knowledge Condensation for Federated Learning. The inner loop takes gradient
steps on the made-up images, the meta knowledge; the outer loop moves the images down the loss that
the network then has on real data, and its gradient goes through the inner steps. Where there are
several, each has made-up images of its own, as in Wang et al. 2018, whom the paper follows.

The paper is silent on what batch normalisation does in the outer loss. A network that was trained
on knowledge is tested with the statistics of knowledge, so by default real images are normalised by
the statistics of the knowledge of the last inner step, and the gradient knows it
(`statistics="knowledge"`); `"batch"` is plain training mode.

All clients run as one program. On a CPU narrow networks stand alongside each other
(`core.condensation.alongside`); else it is `torch.func.vmap` over stacked weights, or over shared
ones. That pays on a GPU, and on a CPU with small batches; with large ones the same function runs
client by client. The numbers are the same within rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.func import grad, grad_and_value, vmap
from torch.nn import functional as F

from core.checks import number, one_of, whole
from core.condensation.alongside import Alongside
from core.condensation.knowledge import KnowledgeNetwork
from core.models import Classifier
from core.models.images_last import images_first, images_last
from core.progress import counted
from core.rng import Rng

Weights = dict[str, torch.Tensor]
#: from a network's weights, a client's knowledge (M, ...) and whatever else the loss looks at to a
#: scalar
Loss = Callable[[Weights, torch.Tensor, Any], torch.Tensor]

#: images per client, made-up and real, up to which vmap pays on a CPU
SMALL = 256
#: clients alongside each other at once
CLIENTS = 10
STATISTICS = ("knowledge", "batch")


def dynamic_weights(loss: torch.Tensor, tau: float) -> torch.Tensor:
    """phi = 1 / (1 + exp(-tau * l)) of each sample's loss, (N,); in [1/2, 1), as a loss is not
    negative (Eq. 7).
    """
    return torch.sigmoid(tau * loss)


def class_balanced_weights(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """N / (classes that occur * samples of the class) of each label (N,): every class weighs the
    same, the mean is 1.

    FedMK compares with it in Table 6 and gives no formula; this is the usual one.
    """
    counts = torch.bincount(labels, minlength=classes)
    return len(labels) / ((counts > 0).sum() * counts[labels])


@attrs.frozen(eq=False)
class BilevelStep:
    """What one step gives for K clients.

    `gradient` of the outer loss with respect to the knowledge, (K, M, ...); `loss`, the outer loss,
    (K,); `weights` after the inner steps, (K, ...) each. None of them carries a graph.
    """

    gradient: torch.Tensor
    loss: torch.Tensor
    weights: Weights


def steps_of(
    knowledge: torch.Tensor, data: Mapping[str, Any], steps: int, clients: bool = False
) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """Knowledge (M, ...), or with `clients` (K, M, ...), in so many equal parts, each with its data.

    Raises ValueError where M is no multiple of `steps`.
    """
    size, rest = divmod(knowledge.shape[int(clients)], steps)
    if rest:
        raise ValueError(f"{knowledge.shape[int(clients)]} images are no {steps} equal batches")
    parts = []
    for first in range(0, steps * size, size):
        rows = (slice(None),) * clients + (slice(first, first + size),)
        mine = {
            name: value[rows] if name == "knowledge_labels" else value
            for name, value in data.items()
        }
        parts.append((knowledge[rows], mine))
    return parts


def descend(
    loss: Loss, weights: Weights, knowledge: torch.Tensor, data: Any, lr: float, steps: int
) -> Weights:
    """w*: the weights after `steps` plain gradient steps down `loss`, each on its part of the
    knowledge, as a differentiable function of `knowledge`.
    """
    for part, mine in steps_of(knowledge, data, steps):
        # w <- w - eta grad_w L(w, D^)   (Eq. 5)
        slope = grad(loss)(weights, part, mine)
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
    batched: bool | None = None,
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
        batched: all clients by vmap, or one after the other; None: what is faster, see the head of
            this file.
    """

    def objective(
        knowledge: torch.Tensor, weights: Weights, data: Any
    ) -> tuple[torch.Tensor, Weights]:
        adapted = descend(inner, weights, knowledge, data, lr, steps)
        return outer(adapted, *steps_of(knowledge, data, steps)[-1]), adapted

    one = grad_and_value(objective, has_aux=True)
    if batched is None:
        seen = knowledge.shape[1] + max(
            (value.shape[1] for value in data.values() if value.ndim > 2), default=0
        )
        batched = knowledge.is_cuda or seen <= SMALL
    if batched:
        gradient, (loss, adapted) = vmap(one, in_dims=(0, None if shared else 0, 0))(
            knowledge, weights, dict(data)
        )
        return BilevelStep(gradient, loss, adapted)
    each = [
        one(
            knowledge[k],
            weights if shared else {name: weight[k] for name, weight in weights.items()},
            {name: value[k] for name, value in data.items()},
        )
        for k in range(len(knowledge))
    ]
    return BilevelStep(
        torch.stack([gradient for gradient, _ in each]),
        torch.stack([loss for _, (loss, _) in each]),
        {name: torch.stack([adapted[name] for _, (_, adapted) in each]) for name in weights},
    )


def step_alongside(
    inner: Loss,
    outer: Loss,
    weights: Weights,
    knowledge: torch.Tensor,
    data: Mapping[str, torch.Tensor],
    lr: float,
    steps: int,
) -> BilevelStep:
    """`bilevel_step` with losses (K,) of all clients at once; no weights are shared, so the
    derivative of their sum holds that of each.
    """
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    # parts that are no views: the derivative of a view is as large as the whole
    parts = [
        (images_last(part).requires_grad_(), mine)
        for part, mine in steps_of(knowledge.detach(), data, steps, clients=True)
    ]
    for part, mine in parts:
        # w <- w - eta grad_w L(w, D^)   (Eq. 5)
        total = inner(weights, part, mine).sum()
        slopes = torch.autograd.grad(total, list(weights.values()), create_graph=True)
        weights = {
            name: weight - lr * slope
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }
    # grad_D^ L(w*(D^), D)   (Eq. 6)
    loss = outer(weights, *parts[-1])
    slopes = torch.autograd.grad(loss.sum(), [part for part, _ in parts])
    gradient = torch.empty_like(knowledge, memory_format=torch.contiguous_format)
    for slope, (part, _) in zip(slopes, steps_of(gradient, {}, steps, clients=True), strict=True):
        images_first(slope, part)
    adapted = {name: weight.detach() for name, weight in weights.items()}
    return BilevelStep(gradient, loss.detach(), adapted)


def network_losses(
    network: KnowledgeNetwork | Alongside, statistics: str = "knowledge"
) -> tuple[Loss, Loss]:
    """The inner and the outer loss of a classifier, for `bilevel_step`.

    Their data hold `knowledge_labels` (M,), and `images` (B, ...), `labels` (B,) and `weights` (B,)
    of a batch of real images; with networks alongside each other all of them have a dimension
    (K, ...) in front, and the losses are (K,). The inner loss is the mean cross-entropy on the
    knowledge, the outer one that on the real images, weighted.
    """

    def inner(weights: Weights, knowledge: torch.Tensor, data: Any) -> torch.Tensor:
        # L(w, D^)
        return _cross_entropy(network.logits(weights, knowledge), data["knowledge_labels"]).mean(-1)

    def outer(weights: Weights, knowledge: torch.Tensor, data: Any) -> torch.Tensor:
        if statistics == "knowledge":
            logits = network.logits_beside(weights, data["images"], knowledge)
        else:
            logits = network.logits(weights, data["images"])
        # L(w*, Phi, D) = 1/N sum_i phi_i l(w*, x_i, y_i)   (Eq. 8)
        return (data["weights"] * _cross_entropy(logits, data["labels"])).mean(-1)

    return inner, outer


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """l of each sample, (..., N), of logits (..., N, C)."""
    return F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")


@attrs.frozen(kw_only=True, slots=False)
class Extraction:
    """Hyper-parameters of a client's extraction of knowledge in a round.

    FedMK prints none of them. The defaults come from a few rounds on held-out training images of
    MNIST, `horizon` and `statistics` from the book's table `fedmk/tuning`.
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
    #: Eq. 3; as many as iterations: w^c moves all the time, as Eq. 5 can be read
    horizon: int = attrs.field(default=50, validator=whole(1))
    #: what real images are normalised by
    statistics: str = attrs.field(
        default="knowledge", validator=one_of("kind of statistics", *STATISTICS)
    )


@attrs.frozen(eq=False)
class ExtractionProblem:
    """One client: its real images (N, C, H, W) uint8 with labels (N,) and weights phi (N,), the
    knowledge (M, C, H, W) float32 that it starts from with labels (M,), and the stream that its
    batches are drawn from.
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
    batched: bool | None = None,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Extract the knowledge of clients that start from the same model: Eq. 5 and 8, again and
    again.

    A client's batches come from its own stream, so it gets the same knowledge alone as in company.

    Args:
        prepare: from uint8 images to network inputs.
        batched: see `bilevel_step`; None: alongside each other, where they can.

    Returns: every client's knowledge (M, C, H, W), and the outer loss of every iteration,
    (iterations, clients).
    """
    if not settings.iterations:
        found = [problem.knowledge for problem in problems]
        return found, found[0].new_empty(0, len(problems))
    start = KnowledgeNetwork(model).weights()
    take_step = step_of(model, len(problems), settings, batched)
    real, made = draw_batches(problems, settings)
    images, labels, phi, knowledge, knowledge_labels = (
        torch.cat([getattr(problem, name) for problem in problems])
        for name in ("images", "labels", "weights", "knowledge", "knowledge_labels")
    )
    # once where images are seen more than once, though it takes four bytes a number
    once = settings.iterations * settings.real_batch * len(problems) > len(images)
    images = prepare(images) if once else images
    losses = []
    drawn = zip(real.unbind(1), made.unbind(1), strict=True)
    for iteration, (here, mine) in enumerate(counted(drawn, "extraction", settings.iterations)):
        if iteration % settings.horizon == 0:
            weights, shared = start, True
        data = {
            "knowledge_labels": knowledge_labels[mine],
            "labels": labels[here],
            "weights": phi[here],
            "images": images[here]
            if once
            else prepare(images[here].flatten(0, 1)).unflatten(0, here.shape),
        }
        step = take_step(weights, knowledge[mine], data, shared=shared)
        # D^ <- D^ - alpha grad_D^ L(w*, Phi, D)   (Eq. 8)
        knowledge.index_add_(
            0, mine.flatten(), step.gradient.flatten(0, 1), alpha=-settings.image_lr
        )
        losses.append(step.loss)
        weights, shared = step.weights, False
    return list(knowledge.split([len(problem.knowledge) for problem in problems])), torch.stack(
        losses
    )


def step_of(
    model: Classifier, clients: int, settings: Extraction, batched: bool | None
) -> Callable[..., BilevelStep]:
    """`bilevel_step` of so many clients as a function of weights, knowledge, data and `shared`."""
    how: dict[str, Any] = {"lr": settings.inner_lr, "steps": settings.inner_steps}
    on_cpu = next(model.parameters()).device.type == "cpu"
    sizes = {min(CLIENTS, clients - first) for first in range(0, clients, CLIENTS)}
    wide = {size: Alongside.of(model, size) if on_cpu else None for size in sizes}
    if batched is not None or None in wide.values():
        losses = network_losses(KnowledgeNetwork(model), settings.statistics)
        return functools.partial(bilevel_step, *losses, batched=batched, **how)
    each = {size: network_losses(one, settings.statistics) for size, one in wide.items() if one}

    def step(weights: Weights, knowledge: torch.Tensor, data: Weights, shared: bool) -> BilevelStep:
        if shared:
            weights = {name: one.expand(clients, *one.shape) for name, one in weights.items()}
        found = []
        for first in range(0, clients, CLIENTS):
            rows = slice(first, first + CLIENTS)
            mine, seen = (
                {name: one[rows] for name, one in both.items()} for both in (weights, data)
            )
            some = knowledge[rows]
            found.append(step_alongside(*each[len(some)], mine, some, seen, **how))
        if len(found) == 1:
            return found[0]
        return BilevelStep(
            torch.cat([one.gradient for one in found]),
            torch.cat([one.loss for one in found]),
            {name: torch.cat([one.weights[name] for one in found]) for name in weights},
        )

    return step


def draw_batches(
    problems: Sequence[ExtractionProblem], settings: Extraction
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of real images (K, iterations, B) and of knowledge (K, iterations, steps * m), counted
    over all clients.
    """
    found: list[torch.Tensor] = []
    for purpose, size, tensor in (
        ("real", settings.real_batch, "labels"),
        ("knowledge", settings.inner_steps * settings.inner_batch, "knowledge_labels"),
    ):
        first, rows = 0, []
        for problem in problems:
            count = len(getattr(problem, tensor))
            draws = problem.rng.at(purpose).generator()
            passes = -(-settings.iterations * size // count)
            order = torch.cat([torch.randperm(count, generator=draws) for _ in range(passes)])
            rows.append(first + order[: settings.iterations * size].view(settings.iterations, size))
            first += count
        found.append(torch.stack(rows).to(problems[0].labels.device))
    return found[0], found[1]
