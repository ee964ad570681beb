"""Membership inference: whether an image was among the data that an upload was computed from.

Carlini, Chien, Nasr, Song, Terzis, Tramèr. Membership Inference Attacks From First Principles. IEEE
S&P 2022: the likelihood ratio attack, LiRA, online (Algorithm 1) and offline. It compares how
confident a model is of an image with how confident shadow models are that were made with the image,
and others that were made without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import torch

from core.checks import one_of, whole
from core.errors import InputError
from core.rng import Rng

#: rates of false positives at which the rate of true ones is reported
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
#: variances may not vanish: an image of which all shadow models are equally sure
SMALLEST = 1e-12


def _even(instance: object, attribute: attrs.Attribute, value: int) -> None:
    whole(4)(instance, attribute, value)
    if value % 2:
        raise InputError(f"{attribute.name} must be even, as they come in pairs, not {value}")


@attrs.frozen(kw_only=True)
class LikelihoodRatio:
    """Hyper-parameters of the attack."""

    #: shadow models, half of them with an image and half without
    shadows: int = attrs.field(default=64, validator=_even)
    #: an image has a variance of its own ("each"), or all share one ("pooled"), which the authors
    #: advise for fewer than 64 shadow models
    variance: str = attrs.field(
        default="pooled", validator=one_of("kind of variance", "each", "pooled")
    )


@attrs.frozen(eq=False)
class Evidence:
    """Confidences that an attacker has of T images, and the truth."""

    #: (T,) confidences of the attacked model
    target: np.ndarray
    #: (S, T) those of the shadow models
    shadows: np.ndarray
    #: (S, T) bool, which of them were made with the image, at least two with and two without
    inside: np.ndarray
    #: (T,) bool, the truth
    member: np.ndarray


@attrs.frozen(eq=False)
class Verdicts:
    """Scores of an attack on T images; larger ones speak for membership."""

    evidence: Evidence
    #: (T,) log of the likelihood ratio
    online: np.ndarray
    #: (T,) log of the chance that a model made without the image is less confident
    offline: np.ndarray

    @property
    def member(self) -> np.ndarray:
        """(T,) bool, the truth."""
        return self.evidence.member

    @property
    def auc(self) -> float:
        """Area under the ROC curve of the online attack."""
        return auc(self.online, self.member)


def confidence(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """phi = log(p / (1 - p)) of the true class, (N,) float64, from logits (N, C) and labels (N,)."""
    logits, labels = logits.double(), labels[:, None]
    # log p - log(1 - p): the normaliser cancels, and nothing is rounded to 0 or 1 on the way
    others = logits.scatter(1, labels, -math.inf)
    return logits.gather(1, labels)[:, 0] - others.logsumexp(1)


def draw(labels: torch.Tensor, shadows: int, rng: Rng) -> torch.Tensor:
    """Members among N images of each shadow model, (shadows, N) bool: a random half of every class;
    the next model has the other half.
    """
    generator, halves = rng.generator(), []
    for _ in range(shadows // 2):
        order = torch.randperm(len(labels), generator=generator)
        order = order[labels.cpu()[order].argsort(stable=True)]
        # every second image in an order by class, random within a class
        half = torch.zeros(len(labels), dtype=torch.bool)
        half[order[::2]] = True
        halves += [half, ~half]
    return torch.stack(halves)


def likelihood_ratios(evidence: Evidence, variance: str = "pooled") -> Verdicts:
    """Attack T images; for `variance` see `LikelihoodRatio`. InputError for confidences that are not finite,
    and for an image with fewer than two shadow models of either kind.
    """
    target, shadows, inside = evidence.target, evidence.shadows, evidence.inside
    if not (np.isfinite(target).all() and np.isfinite(shadows).all()):
        raise InputError("a confidence is not finite: has a shadow model diverged?")
    with_, without = (gaussian(shadows, side, variance) for side in (inside, ~inside))
    # log p(phi | N(mu_in, s_in^2)) - log p(phi | N(mu_out, s_out^2))
    online = log_density(target, *with_) - log_density(target, *without)
    # log(1 - Pr[Z > phi]), Z ~ N(mu_out, s_out^2)
    mean, var = without
    z = torch.as_tensor((target - mean) / np.sqrt(var))
    # its logarithm: the chance itself is 1 for all that are far out
    return Verdicts(evidence, online, torch.special.log_ndtr(z).numpy())


def gaussian(
    values: np.ndarray, chosen: np.ndarray, variance: str
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and unbiased variance, (T,), of the chosen values (S, T) of every column."""
    count = chosen.sum(0)
    if count.min() < 2:
        raise InputError("every image needs two shadow models with it and two without")
    mean = np.where(chosen, values, 0).sum(0) / count
    squares = np.where(chosen, (values - mean) ** 2, 0).sum(0)
    var = squares / (count - 1)
    if variance == "pooled":
        var = np.full_like(var, squares.sum() / (count - 1).sum())
    return mean, np.maximum(var, SMALLEST)


def log_density(values: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """log N(values; mean, var)."""
    return -0.5 * ((values - mean) ** 2 / var + np.log(2 * math.pi * var))


def auc(scores: np.ndarray, member: np.ndarray) -> float:
    """Area under the ROC curve. Raises InputError where members or others are missing."""
    from sklearn.metrics import roc_auc_score

    if member.all() or not member.any():
        raise InputError("an attack is judged by members and by others; one kind is missing")
    return float(roc_auc_score(member, scores))


def roc(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ROC curve: rising false positive rates, and the largest true positive rate at each."""
    from sklearn.metrics import roc_curve

    wrong, right, _ = roc_curve(member, scores, drop_intermediate=False)
    last = np.append(wrong[1:] > wrong[:-1], True)
    return wrong[last], right[last]


def true_positives(scores: np.ndarray, member: np.ndarray, rate: float) -> float:
    """The largest share of members detected while at most a share `rate` of others is accused."""
    wrong, right = roc(scores, member)
    return float(right[wrong <= rate].max())


def precision(recall: float, false_rate: float, share: float) -> float:
    """The share of members among those who are called members, where a `share` of all are members;
    `recall` of the members and `false_rate` of the others are called so. 1 where nobody is.
    """
    called = share * recall + (1 - share) * false_rate
    return share * recall / called if called else 1.0


def defence(aucs: Sequence[float]) -> dict[str, float]:
    """Maximum and mean over clients of the AUC, which counts as 0.5 where it is lower, and the
    share of clients on which it is at most 0.5 (FedVCK, "Privacy Analysis").
    """
    raised = [max(value, 0.5) for value in aucs]
    return {
        "mia_auc_max": max(raised),
        "mia_auc_mean": sum(raised) / len(raised),
        "mia_defense_rate": sum(value <= 0.5 for value in aucs) / len(aucs),
    }


def defence_by_chance(members: Sequence[int]) -> dict[str, float]:
    """The expectation of `defence` under an attack that knows nothing, for clients with so many members each
    and as many others: AUCs normal around 0.5 with variance (2 n + 1) / (12 n^2) (Mann and Whitney), good
    from about 20 members on. InputError without a client or a member.
    """
    if not members or min(members) < 1:
        raise InputError("chance is known for clients with members, at least one each")
    n = torch.tensor(members, dtype=torch.float64)
    deviation = ((2 * n + 1) / (12 * n**2)).sqrt()
    # E max(0, X) = s / sqrt(2 pi);  E max_k max(0, X_k) = int_0^inf 1 - prod_k Phi(x / s_k) dx
    x = torch.linspace(0, 10 * float(deviation.max()), 20_001, dtype=torch.float64)
    above = 1 - torch.special.ndtr(x[:, None] / deviation).prod(1)
    return {
        "mia_auc_max": 0.5 + float(torch.trapezoid(above, x)),
        "mia_auc_mean": 0.5 + float(deviation.mean()) / math.sqrt(2 * math.pi),
        "mia_defense_rate": 0.5,
    }
