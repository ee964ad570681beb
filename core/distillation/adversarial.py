"""A generator on the server against a discriminator at each client (FedIOD, Eq. 2)."""

from __future__ import annotations

import torch
from torch.nn import functional

from core.errors import unknown

GAN_LOSSES = ("linear", "non_saturating")
WEIGHTED = ("real", "generator")


def generated(logits: torch.Tensor) -> torch.Tensor:
    """D_k(x) in [0, 1], (K, N): how sure D_k is that an image was generated, the mean over patches of
    logits (K, N, 1, h, w), positive for real. Eq. 2 has D_k small on real images.
    """
    return torch.sigmoid(-logits.float()).mean((2, 3, 4))


def gan_losses(
    fake: torch.Tensor,
    real: torch.Tensor,
    weights: torch.Tensor,
    loss: str = "linear",
    weighted: str = "real",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each discriminator, (K,), and its part of the generator's loss, (K,).

    Args:
        fake, real: logits (K, N, 1, h, w) of generated and of real images; weights: pi_k, (K,).
        loss: "linear" as in the paper: L_gan^k = E[pi_k D_k(x'_k)] + E[1 - D_k(G(w))], which D_k
            minimises and the generator maximises. The discriminator's outputs lie between 0 and 1,
            where the paper says nothing: without a bound the loss has none. "non_saturating" as
            released: binary cross-entropy, summed over patches; the generator minimises that of its
            images taken for real.
        weighted: the place of pi_k. "real": before the discriminator's term on real images, as in
            the paper. "generator": before the generator's loss, as released.

    Raises InputError for an unknown name.
    """
    if loss not in GAN_LOSSES:
        raise unknown("adversarial loss", loss, GAN_LOSSES)
    if weighted not in WEIGHTED:
        raise unknown("place of the weights", weighted, WEIGHTED)
    if loss == "linear":
        # E[D_k(x'_k)], E[1 - D_k(G(w))]
        on_real, on_fake = generated(real).mean(1), 1 - generated(fake).mean(1)
        fooled = -on_fake
    else:
        on_real, on_fake, fooled = (
            functional.softplus(logits.float()).sum((2, 3, 4)).mean(1)
            for logits in (-real, fake, -fake)
        )
    if weighted == "real":
        return weights * on_real + on_fake, fooled
    return on_real + on_fake, weights * fooled
