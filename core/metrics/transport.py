"""Distance of two sets of points: the earth mover's distance (FedMK, Table 7).

FedMK names neither the ground distance nor the space that it is measured in. It cites DeepEMD
(Zhang, Cai, Lin, Shen, CVPR 2020), whose ground distance is one minus the cosine, so that is the
default here.

The exact solver is that of POT, imported where it is used.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch

from core.errors import InputError, unknown

GROUNDS = ("cosine", "euclidean")
#: steps of the network simplex after which POT would give up; it needs far fewer
STEPS = 10_000_000


def solver() -> ModuleType:
    """POT. Raises InputError where it is not installed."""
    try:
        import ot
    except ImportError:
        raise InputError(
            "the earth mover's distance needs the package POT: pip install POT"
        ) from None
    return ot


def earth_movers_distance(
    first: torch.Tensor, second: torch.Tensor, ground: str = "cosine"
) -> float:
    """The least mean distance over which the mass of one set must be carried to become the other.

    Every point of a set carries the same share of a mass of 1.

    Args:
        first: (N, ...), second: (M, ...): points, flattened to vectors (N, D) and (M, D), on any
            device.
        ground: "cosine", one minus the cosine of the angle between two vectors, in [0, 2] (a vector
            of zeros has distance 1 to all); or "euclidean".

    Raises InputError for sets that are empty, not finite or of different dimension, for an unknown
    ground distance, and where POT is not installed.
    """
    first, second = (each.detach().to("cpu", torch.float64).flatten(1) for each in (first, second))
    if not len(first) or not len(second) or first.shape[1] != second.shape[1]:
        raise InputError(
            "the earth mover's distance needs two sets of vectors of one length, none of them empty, "
            f"not {tuple(first.shape)} and {tuple(second.shape)}"
        )
    costs = ground_costs(first, second, ground)
    if not bool(torch.isfinite(costs).all()):
        raise InputError("the earth mover's distance needs finite vectors")
    ot = solver()
    ends = ot.unif(len(first)), ot.unif(len(second))
    value, log = ot.emd2(*ends, costs.numpy(), numItermax=STEPS, log=True)
    if log["warning"] or not math.isfinite(value):
        raise InputError(
            "the earth mover's distance was not found: the transport problem did not converge"
        )
    return max(float(value), 0.0)


def ground_costs(first: torch.Tensor, second: torch.Tensor, ground: str) -> torch.Tensor:
    """(N, M) distances between single points."""
    if ground == "euclidean":
        # by differences: by products, equal points would not have distance 0
        return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    if ground == "cosine":
        unit = (torch.nn.functional.normalize(each, dim=1) for each in (first, second))
        return (1 - next(unit) @ next(unit).T).clamp_min(0)
    raise unknown("ground distance", ground, GROUNDS)
