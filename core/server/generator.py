"""The server trains a generator of features against classifiers that stay fixed.

FedGen (Zhu, Hong, Zhou, ICML 2021) does so against the last layers of its clients (its Eq. 4),
FedMK against the last layer of the global model (its Eq. 10), which is an ensemble of one. A
generator maps noise and a label to features; it is good when the classifiers see the label in the
features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.checks import beta_1, number, whole
from core.errors import InputError, unknown
from core.models import FeatureGenerator
from core.rng import Rng
from core.training import adam, train

NOISES = ("normal", "uniform")
ENSEMBLES = ("logits", "losses")
#: from features (N, D), their labels (N,) and the noise (N, z) behind them to the scalar that is
#: minimised
FeatureLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@attrs.frozen(kw_only=True)
class GeneratorTraining:
    """Training of a generator by Adam in a round; FedGen's code, but 128 features (32 there)."""

    lr: float = attrs.field(default=3e-4, validator=number(0, above=True))
    #: beta_1 of Adam; beta_2 is 0.999
    momentum: float = attrs.field(default=0.9, validator=beta_1)
    #: added to the gradient, as Adam does it (not decoupled)
    weight_decay: float = attrs.field(default=1e-2, validator=number(0))
    #: features drawn for a step; batch normalisation needs two
    batch_size: int = attrs.field(default=128, validator=whole(2))
    steps: int = attrs.field(default=50, validator=whole(0))

    def optimiser(self, generator: FeatureGenerator) -> torch.optim.Adam:
        """The Adam that takes the steps."""
        return adam(generator.parameters(), self.lr, self.momentum, self.weight_decay)


@attrs.frozen(eq=False)
class Heads:
    """The last linear layers of K models: `weight` (K, C, D) and `bias` (K, C)."""

    weight: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def of(cls, models: Sequence[Mapping[str, torch.Tensor]]) -> Heads:
        """The heads of models given as named tensors (see `core.federation.pack`)."""
        return cls(
            *(
                torch.stack([model[f"parameters/classifier.{name}"] for model in models])
                for name in ("weight", "bias")
            )
        )

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """g(z; theta_k) of features (N, D), (K, N, C)."""
        return torch.einsum("nd,kcd->knc", features, self.weight) + self.bias.unsqueeze(1)


def label_shares(counts: torch.Tensor) -> torch.Tensor:
    """n_{k,c} / sum_j n_{j,c}: (K, C) float32 of counts (K, C); 0 for a class without samples."""
    counts = counts.float()
    return counts / counts.sum(0).clamp(min=1)


def ensemble_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    form: str = "logits",
    shares: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy of an ensemble of K classifiers, a scalar (FedGen, Eq. 4; with K = 1 FedMK,
    Eq. 10).

    Args:
        logits: (K, N, C) from `Heads.logits`; labels: (N,) int64.
        form: "logits": the cross-entropy of the averaged logits, l(sigma(1/K sum_k g(z; theta_k)),
            y), as in Eq. 4. "losses": the average of the K cross-entropies, as in FedGen's
            code.
        shares: (K, C) weights of the average, by the class a feature was made for; without them all
            are 1 / K, as in the paper. FedGen's code means to weight by `label_shares`; there a column of
            weights meets a row of losses, which makes the product of their means.

    Raises InputError for an unknown form.
    """
    if form not in ENSEMBLES:
        raise unknown("form of the ensemble", form, ENSEMBLES)
    models = len(logits)
    weight = (
        logits.new_full((models, len(labels)), 1 / models) if shares is None else shares[:, labels]
    )
    if form == "logits":
        return F.cross_entropy((weight.unsqueeze(2) * logits).sum(0), labels)
    each = F.cross_entropy(logits.flatten(0, 1), labels.repeat(models), reduction="none").unflatten(
        0, (models, -1)
    )
    return (weight * each).sum(0).mean()


def diversity(features: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """exp(-mean_ij |e_i - e_j|^2 / z * |f_i - f_j|_1 / D), in (0, 1], of features (N, D) and noise (N, z):
    FedGen's term that keeps a generator from ignoring its noise.
    """
    apart = torch.cdist(features, features, p=1) / features.shape[1]
    noise_apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(2)
    return torch.exp(-(noise_apart * apart).mean())


def draw_noise(kind: str, shape: Sequence[int], draws: torch.Generator) -> torch.Tensor:
    """Noise on the device of `draws`: N(0, 1) ("normal", FedGen's paper) or U(0, 1) ("uniform", its
    code). InputError for another kind.
    """
    if kind not in NOISES:
        raise unknown("noise", kind, NOISES)
    draw = torch.randn if kind == "normal" else torch.rand
    return draw(*shape, generator=draws, device=draws.device)


def draw_labels(distribution: torch.Tensor, count: int, draws: torch.Generator) -> torch.Tensor:
    """Labels (count,) int64 from y ~ p(y), (C,), not normalised. RuntimeError if all entries are 0."""
    return torch.multinomial(distribution, count, replacement=True, generator=draws)


def train_generator(
    generator: FeatureGenerator,
    optimiser: torch.optim.Optimizer,
    loss: FeatureLoss,
    distribution: torch.Tensor,
    settings: GeneratorTraining,
    rng: Rng,
    *,
    noise: str = "normal",
) -> None:
    """Train a generator in place: minimise the expected loss over y ~ p(y) and z ~ G(y, noise).

    Args:
        optimiser: that of the settings, with what it remembers of earlier rounds.
        loss: what features are judged by; see `ensemble_cross_entropy` and `diversity`.
        distribution: p(y), (C,), on the generator's device.
        noise: see `draw_noise`.

    Raises InputError when no class has a positive share.
    """
    if not bool((distribution > 0).any()):
        raise InputError(
            "a generator needs a class to generate: the distribution of labels is zero everywhere"
        )
    draws, samples = (
        rng.at("draws").generator(distribution.device),
        settings.steps * settings.batch_size,
    )
    if settings.steps:
        # every sample is drawn afresh: one pass over all of them is what the expectation asks for
        labels = draw_labels(distribution, samples, draws)
        seeds = draw_noise(noise, (samples, generator.noise), draws)

        def objective(model: nn.Module, seeds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return loss(model(seeds, labels), labels, seeds)

        train(generator, seeds, labels, settings, settings.steps, objective, rng, [optimiser])
