"""Deep leakage: what can be read back from a gradient.

Zhu, Liu, Han. Deep Leakage from Gradients. NeurIPS 2019, Algorithm 1 ("DLG"); L-BFGS with learning
rate 1 as in the authors' experiments. Gradients are matched in the squared Euclidean distance,
summed over all parameters.

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
    """What an attack found: images (N, C, H, W), probabilities of their labels (N, classes), and
    the distance of the gradients after every iteration (iterations,), of which the images belong to
    the smallest.
    """

    images: torch.Tensor
    labels: torch.Tensor
    distance: torch.Tensor


@attrs.frozen(eq=False)
class Matches:
    """The original that is most like each restored image: its row (N,), and the peak
    signal-to-noise ratio (N,), dB.
    """

    row: torch.Tensor
    psnr: torch.Tensor


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Gradients:
    """The gradient of the mean cross-entropy on a batch with respect to every parameter: what
    FedSGD would send.

    The model is used in the mode it is in, and is not changed. `labels` (N,) int64, or
    probabilities (N, classes).
    """
    model = copy.deepcopy(model)
    loss = F.cross_entropy(model(images), labels)
    names = dict(model.named_parameters())
    return dict(zip(names, torch.autograd.grad(loss, list(names.values())), strict=True))


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
    if leaked.keys() != weights.keys() or any(
        leaked[name].shape != weights[name].shape for name in weights
    ):
        raise InputError(
            "the leaked gradient does not belong to this model: names or shapes of parameters differ"
        )
    device = next(iter(weights.values())).device
    draws, dtype = rng.generator(device), next(iter(weights.values())).dtype
    # x' ~ N(0, 1), y' ~ N(0, 1)
    images = torch.randn(shape, generator=draws, device=device, dtype=dtype).requires_grad_()
    logits = torch.randn(
        shape[0], classes, generator=draws, device=device, dtype=dtype
    ).requires_grad_()

    def distance() -> torch.Tensor:
        # grad W' = d l(F(x', W), y') / dW
        target = logits.softmax(1) if labels is None else labels
        loss = F.cross_entropy(functional_call(model, weights, (images,)), target)
        dummy = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        # D = || grad W' - grad W ||^2
        return torch.stack(
            [
                (mine - leaked[name]).square().sum()
                for name, mine in zip(weights, dummy, strict=True)
            ]
        ).sum()

    sought = [images] if labels is not None else [images, logits]
    best, history = search_images(distance, sought, settings)
    found = logits.softmax(1).detach() if labels is None else F.one_hot(labels, classes).to(dtype)
    return Restored(best[0], best[1].softmax(1) if labels is None else found, history)


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
    for _ in range(settings.iterations):
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


def best_matches(restored: torch.Tensor, originals: torch.Tensor, span: float = 1.0) -> Matches:
    """For every restored image (N, C, H, W) the original (M, C, H, W) with the highest peak
    signal-to-noise ratio.

    `span` is the difference between the largest and the smallest value that a pixel may have. Equal
    images have an infinite ratio. Unrelated images have one too, of about 6 to 12 dB: compare with
    a control.

    Raises InputError for images of different shapes, or none.
    """
    if restored.shape[1:] != originals.shape[1:] or not len(restored) or not len(originals):
        raise InputError(
            f"images to compare must have one shape, not {tuple(restored.shape)} and "
            f"{tuple(originals.shape)}"
        )
    first, second = (each.detach().flatten(1).double() for each in (restored, originals))
    error = (
        torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").square()
        / first.shape[1]
    )
    smallest, row = error.min(1)
    return Matches(row, 10 * torch.log10(span**2 / smallest))
