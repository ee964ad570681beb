"""Differential privacy of what leaves a client: noise, and the accountant that says what it buys.

One rule holds for all functions here: **one call that adds noise is one release, and one release is
one step of the accountant**. A noise multiplier is the ratio of the noise's standard deviation to
the L2 sensitivity of the whole release, whatever its number of rows. So a multiplier from
`noise_multiplier` can be handed to `clip_and_noise` or `noisy_votes` as it is, and `spent_epsilon`
of the same numbers is what was spent.

Two data sets are neighbours when one client's data are replaced: everything that the client
computes may change, within the bound that the mechanism sets. This protects a client's whole data
set, and with it every sample in it. Where clients are sampled (a sample rate below 1) the
accountant's bound is for data sets of which one lacks the client, and for clients that take part
independently of each other (Poisson sampling); it does not cover a fixed number of clients, as
`Schedule.active` draws them.

The accountant is Opacus' (Rényi differential privacy, Mironov 2017; sampled Gaussian mechanism,
Mironov et al. 2019): the package opacus is imported where it is used, and nothing else needs it.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import attrs
import torch

from core.checks import check_number, check_whole, number
from core.errors import InputError

#: orders of the Rényi divergence that are tried: Opacus' own, and larger ones for small budgets
ORDERS = [
    *(1 + x / 10 for x in range(1, 100)),
    *range(12, 64),
    *(2**power for power in range(6, 13)),
]
#: `noise_multiplier` spends all but at most this share of the budget that it is given
PRECISION = 1e-3


def delta_below_one(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    """Validator: 0 < delta < 1."""
    number(0, 1, above=True)(instance, attribute, value)
    if value == 1:
        raise InputError(f"{attribute.name} must be below 1")


def epsilon_within_full(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    """Validator: no budget, or a part of `full_epsilon`, which fixes the noise."""
    if value is not None:
        number(0, instance.full_epsilon, above=True)(instance, attribute, value)


def noise_multiplier(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The noise that makes `steps` releases (epsilon, delta)-differentially private: about the
    smallest that does.

    Args:
        epsilon, delta: the budget; epsilon > 0, 0 < delta < 1.
        sample_rate: the chance that a client takes part in a release, independently of all others,
            in (0, 1].
        steps: releases in all, at least 1.

    Raises InputError for values out of range, for a budget that no reasonable noise meets, and when
    the package opacus is not installed.
    """
    check_release(delta, sample_rate, steps)
    check_number("epsilon", epsilon, 0, above=True)
    new_accountant()
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        # that another order would be tighter: the bound is valid all the same
        warnings.simplefilter("ignore")
        try:
            return float(
                get_noise_multiplier(
                    target_epsilon=epsilon,
                    target_delta=delta,
                    sample_rate=sample_rate,
                    steps=steps,
                    accountant="rdp",
                    epsilon_tolerance=PRECISION * epsilon,
                    alphas=ORDERS,
                )
            )
        except ValueError as error:
            raise InputError(
                f"no noise meets epsilon {epsilon:g} in {steps} releases ({error})"
            ) from None


def spent_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` releases with this noise, at this delta: infinite without noise, 0 without a
    release. InputError for values out of range, and without the package opacus.
    """
    check_release(delta, sample_rate, steps, least=0)
    if not noise_multiplier >= 0:
        raise InputError(
            f"noise_multiplier must be a number of at least 0, not {noise_multiplier!r}"
        )
    if steps == 0 or math.isinf(noise_multiplier):
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    accountant = new_accountant()
    accountant.history = [(noise_multiplier, sample_rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # where delta is large the bound can lie below 0
        return max(0.0, float(accountant.get_epsilon(delta, alphas=ORDERS)))


def affordable_steps(
    epsilon: float, delta: float, noise_multiplier: float, sample_rate: float, most: int
) -> int:
    """The most releases, up to `most` and perhaps 0, within (epsilon, delta); raises as `spent_epsilon`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if spent_epsilon(noise_multiplier, sample_rate, middle, delta) <= epsilon:
            low = middle
        else:
            high = middle - 1
    return low


def clip_and_noise(
    per_sample_gradients: torch.Tensor,
    max_norm: float,
    noise_multiplier: float,
    generator: torch.Generator,
    checked: bool = False,
) -> torch.Tensor:
    """The Gaussian mechanism on rows of bounded length (DP-SGD, Abadi et al. 2016; GS-WGAN, Chen et
    al. 2020).

    Every row g becomes g / max(1, ||g|| / max_norm), then noise is added to every number. Rows are
    answers about synthetic or public samples (the gradient with respect to one image, the logits of
    one image): a client's data may change all N of them, each by up to 2 max_norm, so the L2
    sensitivity of the release is 2 max_norm sqrt(N), and the noise has `noise_multiplier` times
    this as its standard deviation.

    Args:
        per_sample_gradients: (N, ...) floating point, one row per synthetic or public sample.
        generator: on the tensor's device; with a noise multiplier of 0 nothing is drawn.
        checked: the caller knows that all values are finite.

    Returns the noised rows, in the shape and dtype that came in. Raises InputError for a bad bound
    or multiplier, and for values that are not finite: a clipped row that is not a number would be
    one still.
    """
    check_number("max_norm", max_norm, 0, above=True)
    if not checked and not bool(torch.isfinite(per_sample_gradients).all()):
        raise InputError(
            "what should be clipped holds values that are not finite (did a client's training diverge?)"
        )
    rows = per_sample_gradients.flatten(1)
    # g <- g / max(1, ||g|| / C)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    clipped = (rows / (norms / max_norm).clamp_min(1.0)).view_as(per_sample_gradients)
    return with_noise(clipped, 2 * max_norm * math.sqrt(len(rows)), noise_multiplier, generator)


def noisy_votes(
    votes: torch.Tensor, noise_multiplier: float, generator: torch.Generator, sharers: int = 1
) -> torch.Tensor:
    """Votes with Gaussian noise: what GNMax takes the largest of (Papernot et al. ICLR 2018, Eq. 1;
    PATE, 2017).

    A client votes for one class per query. Its data may change all N votes, and a changed vote
    takes one from a class and gives one to another, so the L2 sensitivity of N queries is sqrt(2
    N). Taking the largest afterwards costs no privacy. The bound does not depend on the data: it
    does not gain from queries on which the clients agree.

    Args:
        votes: (N, C) floating point, counts of votes or one client's one-hot votes.
        sharers: with K > 1 each of K clients adds its part of the noise, a K-th of the variance,
            and the SUM over clients carries it all: the guarantee is for those who see the sum
            (secure aggregation), not for one upload.

    Returns (N, C) in the dtype that came in. Raises InputError for a bad multiplier or no sharers.
    """
    check_whole("sharers", sharers, 1)
    sensitivity = math.sqrt(2 * len(votes))
    return with_noise(votes, sensitivity / math.sqrt(sharers), noise_multiplier, generator)


def with_noise(
    values: torch.Tensor, sensitivity: float, multiplier: float, generator: torch.Generator
) -> torch.Tensor:
    """Values plus N(0, (multiplier sensitivity)^2), independently for every number.

    The noise is drawn in float64: PyTorch's float32 numbers on a CPU never exceed 5.77 deviations,
    so that delta would not be what the accountant says.
    """
    check_number("noise_multiplier", multiplier, 0)
    if multiplier == 0:
        return values
    noise = torch.randn(
        values.shape, generator=generator, device=values.device, dtype=torch.float64
    )
    return (values + multiplier * sensitivity * noise).to(values.dtype)


def new_accountant() -> Any:
    """Opacus's accountant of Renyi privacy. Raises InputError where Opacus is not installed."""
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise InputError(
            "accounting for privacy needs the package opacus; install it with: pip install opacus"
        ) from None
    return RDPAccountant()


def check_release(delta: float, sample_rate: float, steps: int, least: int = 1) -> None:
    """Raise InputError for a delta, a rate or a number of steps that no release can have."""
    if not 0 < delta < 1:
        raise InputError(f"delta must be a number above 0 and below 1, not {delta!r}")
    check_number("sample_rate", sample_rate, 0, 1, above=True)
    check_whole("steps", steps, least)
