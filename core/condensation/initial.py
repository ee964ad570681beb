"""Initialisation of condensed images."""

from __future__ import annotations

from collections.abc import Callable

import torch

from core.errors import InputError, unknown

KINDS = ("noise", "real", "real_average")
#: real images behind one picture of "real_average", as in FedVCK's released code and in a public program
#: of FedDM
AVERAGED = 5


def initial_images(
    kind: str,
    images: torch.Tensor,
    group: torch.Tensor,
    counts: torch.Tensor,
    normalise: Callable[[torch.Tensor], torch.Tensor],
    generator: torch.Generator,
) -> torch.Tensor:
    """Images to start condensation from, as network inputs: counts.sum() images, those of group 0
    first.

    Args:
        kind: "noise", every value from N(0, 1), which FedVCK prints, so that no pixel comes from a
            real image; "real", random real images of the group: none twice until all have been
            used; "real_average", each the mean of five random real images of the group: five
            different ones where the group has as many.
        images: real images (N, C, H, W) uint8; group: (N,) int64, ascending, their groups.
        counts: (G,) int64, condensed images per group.
        normalise: from uint8 images to network inputs, as `Dataset.normalise`.
        generator: numbers are drawn where it is, then moved to the device of the images.

    Returns: (counts.sum(), C, H, W) float32. Raises InputError for an unknown kind, and for a group
    without real images, unless they start from noise.
    """
    if kind not in KINDS:
        raise unknown("initialisation of condensed images", kind, KINDS)
    total = int(counts.sum())
    if kind == "noise":
        noise = torch.randn(total, *images.shape[1:], generator=generator, device=generator.device)
        return noise.to(images.device)
    sizes = torch.bincount(group, minlength=len(counts))
    if bool(((sizes == 0) & (counts > 0)).any()):
        raise InputError("a group without real images can only start from noise")
    owner = torch.repeat_interleave(torch.arange(len(counts), device=group.device), counts)
    first = (sizes.cumsum(0) - sizes)[owner]
    if kind == "real":
        rank = torch.arange(total, device=group.device) - (counts.cumsum(0) - counts)[owner]
        return normalise(images[_shuffled(group, generator)[first + rank % sizes[owner]]])
    rows = first[:, None] + _different(sizes[owner], AVERAGED, generator)
    summed = normalise(images[rows[:, 0]])
    for column in rows.T[1:]:  # one image at a time, to save memory
        summed = summed + normalise(images[column])
    return summed / AVERAGED


def _shuffled(group: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows (N,) in a random order within each group, the groups themselves in order."""
    # float64 keeps the random part beside the group's number
    keys = torch.rand(len(group), generator=generator, device=generator.device, dtype=torch.float64)
    return torch.argsort(group + keys.to(group.device))


def _different(sizes: torch.Tensor, number: int, generator: torch.Generator) -> torch.Tensor:
    """(M, number) whole numbers below `sizes` (M,), all different in a row; with repetition where
    sizes are too small.

    The k-th pick is one of the size - k places that are left, and moves up by one for every earlier
    pick at or before.
    """
    uniform = torch.rand(
        len(sizes), number, generator=generator, device=generator.device, dtype=torch.float64
    )
    uniform, enough = uniform.to(sizes.device), sizes >= number
    picks = sizes.new_empty(len(sizes), 0)
    for k in range(number):
        left = torch.where(enough, sizes - k, sizes)
        pick = (uniform[:, k] * left).long().minimum(left - 1)
        for earlier in picks.sort(1).values.unbind(1):
            pick = pick + (enough & (pick >= earlier)).long()
        picks = torch.cat([picks, pick[:, None]], 1)
    return picks
