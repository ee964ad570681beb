"""Leakage: what can be read back from a gradient, from weights or from condensed images.

Zhu, Liu, Han. Deep Leakage from Gradients. NeurIPS 2019, Algorithm 1 ("DLG"); L-BFGS with learning
rate 1 as in the authors' experiments. Gradients are matched in the squared Euclidean distance,
summed over all parameters.

Zhao, Mopuri, Bilen. iDLG: Improved Deep Leakage from Gradients. 2020: the label of a single image
need not be looked for, it can be read off (`revealed_labels`).

FedMK (Fig. 6) feeds "the extracted meta knowledge and a trained model" to this attack. An attacker
who holds the knowledge can compute the model's gradient on it and nothing else, so the attack is
given that gradient. At best it restores the knowledge, so what it says about the real images is
what the knowledge says: `best_matches` measures both.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import attrs
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from core.checks import number, whole
from core.errors import InputError
from core.progress import counted
from core.rng import Rng

Gradients = dict[str, torch.Tensor]


@attrs.frozen(kw_only=True)
class DeepLeakage:
    """Hyper-parameters of the attack; the defaults are those of the authors."""

    #: outer iterations of L-BFGS, each of up to `inner` steps
    iterations: int = attrs.field(default=300, validator=whole(1))
    inner: int = attrs.field(default=20, validator=whole(1))
    lr: float = attrs.field(default=1.0, validator=number(0, above=True))


@attrs.frozen(eq=False)
class Restored:
    """Images (N, C, H, W) of the smallest gradient distance, their labels' probabilities (N, classes), and
    the distance after every finite iteration.
    """

    images: torch.Tensor
    labels: torch.Tensor
    distance: torch.Tensor


@attrs.frozen(eq=False)
class Matches:
    """The original most like each restored image: row (N,), and peak signal-to-noise ratio (N,), dB."""

    row: torch.Tensor
    psnr: torch.Tensor


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Gradients:
    """FedSGD's upload: the gradient of the mean cross-entropy on a batch, whose `labels` are (N,) int64 or
    probabilities (N, classes), with the model in the mode it is in.
    """
    model = copy.deepcopy(model)
    loss = F.cross_entropy(model(images), labels)
    names = dict(model.named_parameters())
    return dict(zip(names, torch.autograd.grad(loss, list(names.values())), strict=True))


def gradients_of_step(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    lr: float,
    weight_decay: float = 0.0,
) -> Gradients:
    """The gradient behind one step of SGD, from the weights before and after (with momentum, behind the
    first): FedAvg's upload of one local step gives away FedSGD's.
    """
    # w' = w - lr (g + decay w)
    return {name: (w - after[name]) / lr - weight_decay * w for name, w in before.items()}


def revealed_labels(bias_gradient: torch.Tensor) -> torch.Tensor:
    """Labels, in order, that the gradient (classes,) of the last layer's bias gives away (iDLG, Eq. 3):
    the batch mean of p_c - [y = c] is below 0 only where c is the label of some image.
    """
    return (bias_gradient < 0).nonzero()[:, 0]


def deep_leakage(
    model: nn.Module,
    leaked: Mapping[str, torch.Tensor],
    shape: tuple[int, int, int, int],
    classes: int,
    settings: DeepLeakage,
    rng: Rng,
    labels: torch.Tensor | None = None,
) -> Restored:
    """Look for images, and their labels, on which the model has the leaked gradient (DLG, Algorithm
    1).

    Args:
        model: the model whose gradient leaked, with the weights it had then; it is not changed.
            Batch normalisation is best in evaluation mode, where its statistics are known.
        leaked: see `gradients`.
        shape: (N, C, H, W) of the images; the attacker is taken to know their number.
        labels: (N,) int64 where they are known too; without them they are looked for along with the
            images.

    Raises InputError when the gradient is not that of this model or the attack finds nothing
    finite.
    """
    model = copy.deepcopy(model)
    weights = {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    shapes = [{name: value.shape for name, value in each.items()} for each in (weights, leaked)]
    if shapes[0] != shapes[1]:
        raise InputError(
            "the leaked gradient does not belong to this model: names or shapes of parameters differ"
        )
    like = next(iter(weights.values()))
    draws = rng.generator(like.device)
    # x' ~ N(0, 1), y' ~ N(0, 1)
    images, logits = (
        torch.randn(size, generator=draws, device=like.device, dtype=like.dtype).requires_grad_()
        for size in (shape, (shape[0], classes))
    )

    def distance() -> torch.Tensor:
        # grad W' = d l(F(x', W), y') / dW
        target = logits.softmax(1) if labels is None else labels
        loss = F.cross_entropy(functional_call(model, weights, (images,)), target)
        dummy = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        # D = || grad W' - grad W ||^2
        pairs = zip(weights, dummy, strict=True)
        return torch.stack([(slope - leaked[name]).square().sum() for name, slope in pairs]).sum()

    variables = [images] if labels is not None else [images, logits]
    best, history = search_images(distance, variables, settings)
    answers = best[1].softmax(1) if labels is None else F.one_hot(labels, classes).to(like.dtype)
    return Restored(best[0], answers, history)


def search_images(
    distance: Callable[[], torch.Tensor], sought: list[torch.Tensor], settings: DeepLeakage
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The best values of what is sought, by L-BFGS, and the distance after every iteration."""
    optimiser = torch.optim.LBFGS(sought, lr=settings.lr, max_iter=settings.inner)

    def closure() -> torch.Tensor:
        optimiser.zero_grad(set_to_none=True)
        value = distance()
        value.backward(inputs=sought)
        return value

    best, smallest, history = [each.detach().clone() for each in sought], math.inf, []
    for _ in counted(range(settings.iterations), "reconstruction", settings.iterations):
        optimiser.step(closure)
        value = float(distance().detach())
        if not math.isfinite(value):
            break
        history.append(value)
        if value < smallest:
            best, smallest = [each.detach().clone() for each in sought], value
    if not history:
        raise InputError("deep leakage diverged in its first iteration; try a smaller lr")
    return best, torch.tensor(history)


def best_matches(restored: torch.Tensor, originals: torch.Tensor) -> Matches:
    """Return for each restored image (N, C, H, W) in [0, 1] the original (M, C, H, W) with the highest peak
    signal-to-noise ratio, infinite for equal images. Unrelated ones have 6 to 12 dB: compare with a control.
    InputError for images of different shapes, or none.
    """
    if restored.shape[1:] != originals.shape[1:] or not len(restored) or not len(originals):
        raise InputError(
            f"images to compare must have one shape, not {tuple(restored.shape)} and "
            f"{tuple(originals.shape)}"
        )
    smallest, row = _errors(restored, originals).min(1)
    return Matches(row, -10 * torch.log10(smallest))


def _errors(images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Mean squared errors (N, M) of each image with each other one, float64."""
    first, second = (each.detach().flatten(1).double() for each in (images, others))
    far = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    return far.square() / first.shape[1]


def nearest_upload(
    targets: tuple[torch.Tensor, torch.Tensor], uploads: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Scores (T,) of membership: minus the mean squared error of each target to the nearest upload of its
    class. Both are pixels or features, with labels. Chen, Yu, Zhang, Fritz: GAN-Leaks, CCS 2020.
    """
    far = _errors(targets[0], uploads[0])
    far[targets[1][:, None] != uploads[1]] = torch.finfo(far.dtype).max
    return -far.amin(1)
