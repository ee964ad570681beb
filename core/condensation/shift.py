"""Shifts of a batch's feature statistics by an uncertain amount (GDD-FL).

Tian, Wang, Jin, Wang. Communication-Efficient Federated Skin Lesion Classification with
Generalizable Dataset Distillation. MICCAI 2023, Eq. 1 and 2, Algorithm 1.

Where the paper is silent or unclear:

* The line after Eq. 2 has x^ = mu^ (x - mu) / sigma + sigma^. Mean and deviation are the other
  way round in DSU, which has the same formulas otherwise: x^ = sigma^ (x - mu) / sigma + mu^ (Li et
  al., Uncertainty Modeling for Out-of-Distribution Generalization, ICLR 2022). The default is DSU's
  form; "as_printed" is the other.
* mu(x_i) and sigma(x_i) are those of one sample and channel over its positions, and epsilon is
  drawn for every sample and channel, as in DSU. The batch x is one class of one client: Algorithm 1
  treats every class by itself.
* U_p changes the whole batch with probability p, as in DSU.
* Eq. 1 and 2 speak of features, Algorithm 1 applies U_p to images before the encoder. Both can be
  had.
"""

from __future__ import annotations

from contextlib import ExitStack

import attrs
import torch

from core.condensation.augment import Augmentation, augment
from core.condensation.engine import Draws, MatchingObjective
from core.condensation.latent import LatentStatistics
from core.errors import InputError, unknown
from core.models.tensors import at_least_float32
from core.rng import Rng

FORMS = ("dsu", "as_printed")
#: keeps the deviation of a flat image above zero: added to its variance, as in DSU
EPS = 1e-6


def moments(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean mu(x_i) and deviation sigma(x_i) of maps (..., C, H, W): (..., C, 1, 1)."""
    mean = features.mean((-2, -1), keepdim=True)
    variance = (features - mean).square().mean((-2, -1), keepdim=True)
    return mean, (variance + EPS).sqrt()


def uncertainty(statistic: torch.Tensor) -> torch.Tensor:
    """Deviation Sigma of a statistic (..., B, C, 1, 1) over a batch, (..., 1, C, 1, 1) (Eq. 1)."""
    # Sigma^2(x) = 1/|x| sum_i (mu(x_i) - E[mu(x)])^2
    centred = statistic - statistic.mean(-4, keepdim=True)
    return centred.square().mean(-4, keepdim=True).sqrt()


def shifted(features: torch.Tensor, noise: torch.Tensor, form: str = "dsu") -> torch.Tensor:
    """Batches with statistics of their own, shifted by given noise (Eq. 1, 2 and the line after).

    Args:
        features: (..., B, C, H, W), one batch or several; each is shifted by its own uncertainty.
        noise: epsilon_mu and epsilon_sigma, (2, ..., B, C), standard normal numbers.
        form: "dsu" or "as_printed".

    Returns: the same shape and dtype; computed in float32 or wider. Raises InputError for an
    unknown form.
    """
    if form not in FORMS:
        raise unknown("form of the shift", form, FORMS)
    with torch.autocast(features.device.type, enabled=False):
        x = at_least_float32(features)
        epsilon_mu, epsilon_sigma = noise.to(x.dtype)[..., None, None]
        mu, sigma = moments(x)
        # mu^(x) = mu(x) + epsilon_mu Sigma_mu(x), sigma^(x) = sigma(x) + epsilon_sigma
        # Sigma_sigma(x)
        mu_hat = mu + epsilon_mu * uncertainty(mu)
        sigma_hat = sigma + epsilon_sigma * uncertainty(sigma)
        normalised = (x - mu) / sigma
        if form == "as_printed":
            # x^ = mu^(x) (x - mu(x)) / sigma(x) + sigma^(x)
            return (mu_hat * normalised + sigma_hat).to(features.dtype)
        # x^ = sigma^(x) (x - mu(x)) / sigma(x) + mu^(x)
        return (sigma_hat * normalised + mu_hat).to(features.dtype)


def uncertain_shift(
    features: torch.Tensor, p: float, rng: Rng | torch.Generator, form: str = "dsu"
) -> torch.Tensor:
    """U_p of one batch: its statistics shifted at random with probability p, else the batch as it
    is (Eq. 1, 2).

    Args:
        features: (B, C, H, W), floating point: images or the maps of an inner layer.
        p: the probability, in [0, 1]; the paper has 0.5.
        rng: numbers are drawn where its generator is (the CPU for an `Rng`), then copied.
        form: "dsu", or "as_printed" with mean and deviation the other way round.

    Returns: the same shape and dtype. Raises InputError for another p, form or shape.
    """
    if features.ndim != 4:
        raise InputError(
            f"a batch to shift has the shape (B, C, H, W), not {tuple(features.shape)}"
        )
    if not 0 <= p <= 1:
        raise InputError(f"p, the probability of a shift, must lie in [0, 1], not {p!r}")
    generator = rng.generator() if isinstance(rng, Rng) else rng
    chosen = torch.rand((), generator=generator, device=generator.device) < p
    noise = torch.randn(2, *features.shape[:2], generator=generator, device=generator.device)
    changed = shifted(features, noise.to(features.device), form)
    return torch.where(chosen.to(features.device), changed, features)


@attrs.frozen
class Shift:
    """Form, probability p and place of a shift: layer 0 is the image, n the maps after block n."""

    form: str
    p: float
    layer: int

    def change(self, maps: torch.Tensor, groups: slice, draws: Draws, step: int) -> torch.Tensor:
        """U_p of groups' batches, maps (g * B, C, H, W), drawn from each client's own stream."""
        batches = maps.unflatten(0, (groups.stop - groups.start, -1))
        batch, channels = batches.shape[1:3]
        chosen = draws.uniform(1, "shifted", step)[groups] < self.p
        noise = draws.normal(2 * batch * channels, "shift", step)[groups]
        noise = noise.view(-1, 2, batch, channels).transpose(0, 1)
        changed = shifted(batches, noise, self.form)
        return torch.where(chosen[..., None, None, None], changed, batches).flatten(0, 1)


@attrs.frozen(eq=False)
class ShiftedMatching(MatchingObjective):
    """Both losses of Algorithm 1: real images match as they are and under U_p, with features (G, B, 2D)
    side by side. It needs fresh batches: the uncertainty is that of a batch.
    """

    shift: Shift = attrs.field(default=Shift("dsu", 0.5, 0))

    def block(
        self,
        rows: torch.Tensor,
        clients: slice,
        groups: slice,
        step: int,
        augmentation: Augmentation | None,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """psi(A_c(x)) and psi(A_c(U_p(x))) side by side, (g * B, 2D), of some groups' batches."""
        plain, used = super().block(rows, clients, groups, step, augmentation)
        group, layer = self.real.group[rows.flatten()], self.shift.layer
        inputs = self.prepare(self.real.images[rows.flatten()])
        if layer == 0:
            inputs = self.shift.change(inputs, groups, self.draws, step)
        inputs = augment(inputs, augmentation, group)
        with ExitStack() as stack:
            if layer:
                network_block = self.encoder.model.get_submodule(f"blocks.{layer - 1}")
                hook = network_block.register_forward_hook(
                    lambda module, given, maps: self.shift.change(maps, groups, self.draws, step)
                )
                stack.callback(hook.remove)
            owner = self.real.owner[group] - clients.start
            changed, _ = self.embed(inputs, owner, None, clients.stop - clients.start)
        return torch.cat([plain, changed], 1), used

    def losses(
        self, target: torch.Tensor, features: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """L_U + L_{S,T} of every group, (G,): line 9 to 11 of Algorithm 1."""
        plain, changed = target.chunk(2, -1)
        # L_{S,T} = || O_c^T - O_c^S ||^2, L_U = || O_c^U - O_c^S ||^2
        return super().losses(changed, features, weights) + super().losses(plain, features, weights)
