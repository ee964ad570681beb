"""An audit of differential privacy: the least epsilon that is compatible with what an attacker sees.

Jagielski, Ullman, Oprea. Auditing Differentially Private Machine Learning. NeurIPS 2020: whoever
tells two neighbouring data sets apart too well refutes a claimed epsilon. An accountant bounds
epsilon from above, by a proof about a mechanism; an audit bounds it from below, by running the
program, and so finds a program that is not the mechanism.

Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini, Terzis. Tight Auditing of Differentially
Private Machine Learning. USENIX Security 2023: the claim is about Gaussian noise, so that errors
refute a distance mu of two normals (Dong, Roth, Su. Gaussian Differential Privacy. 2022), which is
then said as an epsilon. That takes far fewer trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from core.errors import InputError
from core.privacy.differential import check_release
from core.rng import Rng

#: from the data's answers, and a generator, to what leaves the client
Release = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-Gaussian differential privacy (mu: 1 / noise multiplier), which solves delta(epsilon) =
    Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2). InputError for delta not in (0, 1).
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    check_release(delta, 1, 1)
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
        return float(norm.cdf(-epsilon / mu + mu / 2) - tail - delta)

    # beyond the upper end the first term alone is below delta
    return float(brentq(excess, 0, mu * (mu / 2 - norm.ppf(delta)))) if excess(0) > 0 else 0.0


def least_distance(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    confidence: float = 0.95,
) -> float:
    """The least mu, with this confidence, that the errors of a test of two data sets leave; 0 at worst.
    Both error rates are raised to the ends of their Clopper-Pearson intervals. InputError for counts
    that are no part of their cases.
    """
    from scipy.stats import beta, norm

    errors = ((false_positives, negatives), (false_negatives, positives))
    if any(not 0 <= wrong <= cases or cases == 0 for wrong, cases in errors):
        raise InputError("an audit needs counts of errors, each of at least one case")
    level = 1 - (1 - confidence) / 2
    alpha, gamma = (
        1.0 if wrong == cases else float(beta.ppf(level, wrong + 1, cases - wrong))
        for wrong, cases in errors
    )
    # FN >= Phi(Phi^-1(1 - FP) - mu)
    return max(0.0, float(norm.ppf(1 - alpha) - norm.ppf(gamma)))


def audited_epsilon(
    release: Release,
    canaries: tuple[torch.Tensor, torch.Tensor],
    releases: int,
    trials: int,
    delta: float,
    rng: Rng,
    confidence: float = 0.95,
) -> float:
    """A lower bound on epsilon of so many releases of a mechanism, by the game between two data
    sets.

    The attacker sees the releases of one of two canaries, projects their sum on the canaries'
    difference, and guesses by a threshold. A tenth of the trials gives the threshold, their median;
    the others are counted.

    Args:
        canaries: two answers that neighbouring data sets may give, as different as they may be.
        trials: games with each of the canaries, at least 20.

    Raises InputError for fewer, for canaries that are equal, and where a release is not finite.
    """
    if trials < 20:
        raise InputError(f"an audit needs at least 20 games, not {trials}")
    direction = (canaries[1] - canaries[0]).flatten()
    if not 0 < float(direction.norm()) < float("inf"):
        raise InputError("the canaries of an audit must be finite and differ")
    direction = direction / direction.norm()

    def projected(which: int, game: int) -> float:
        draws = rng.at("game", which, game).generator(direction.device)
        out = sum(release(canaries[which], draws) for _ in range(releases))
        return float(torch.as_tensor(out).flatten() @ direction)

    first, second = (
        torch.tensor([projected(which, game) for game in range(trials)], dtype=torch.float64)
        for which in (0, 1)
    )
    if not (first.isfinite().all() and second.isfinite().all()):
        raise InputError("a release of the audited mechanism is not finite: nothing can be counted")
    part = trials // 10
    threshold = torch.cat([first[:part], second[:part]]).median()
    no, yes = first[part:], second[part:]
    wrong = int((no > threshold).sum()), int((yes <= threshold).sum())
    return gaussian_epsilon(
        least_distance(wrong[0], len(no), wrong[1], len(yes), confidence), delta
    )
