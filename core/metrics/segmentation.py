"""Measures of masks: overlap of regions, distance of their borders, and how well single objects are
found. Dice, distances and rates come from MONAI; object Dice and AJI it does not have.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch

from core.errors import InputError


def regions(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Dice, sensitivity, specificity and HD95 (pixels) of two masks (H, W), bool.

    Where both masks are empty, Dice and sensitivity are 1 and the distance is 0; where one is, the
    distance is the diagonal of the image, because nothing could be further away. Raises InputError
    for shapes that differ.
    """
    from monai.metrics import (
        compute_confusion_matrix_metric,
        compute_dice,
        compute_hausdorff_distance,
        get_confusion_matrix,
    )

    _same(truth, predicted)
    y, found = (torch.from_numpy(one)[None, None].float() for one in (truth, predicted))
    if truth.any() and predicted.any():
        with warnings.catch_warnings():  # MONAI calls one of its own functions the old way
            warnings.simplefilter("ignore", FutureWarning)
            distance = float(
                compute_hausdorff_distance(found, y, include_background=True, percentile=95)
            )
    else:
        distance = math.hypot(*truth.shape) if truth.any() or predicted.any() else 0.0
    counts = get_confusion_matrix(found, y)
    rates = {
        name: float(compute_confusion_matrix_metric(name, counts))
        for name in ("sensitivity", "specificity")
    }
    # without a positive, or without a negative, none of them was missed
    rates = {name: 1.0 if math.isnan(value) else value for name, value in rates.items()}
    return {"dice": float(compute_dice(found, y, ignore_empty=False)), **rates, "hd95": distance}


def objects(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Object Dice and AJI of two instance maps (H, W): 0 is background, every other number an
    object.

    Both are 1 where there is no object in either, and 0 where there is in one only. Raises
    InputError for shapes that differ.
    """
    _same(truth, predicted)
    together, mine, theirs = _overlaps(truth, predicted)
    if not len(mine) or not len(theirs):
        both = float(len(mine) == len(theirs))
        return {"obj_dice": both, "aji": both}
    # |y^i n y^j| / |y^i u y^j|
    jaccard = together / (mine[:, None] + theirs[None] - together)
    return {
        "obj_dice": _object_dice(together, jaccard, mine, theirs),
        "aji": _aggregated(together, jaccard, mine, theirs),
    }


def _same(truth: np.ndarray, predicted: np.ndarray) -> None:
    if truth.shape != predicted.shape or truth.ndim != 2:
        raise InputError(
            f"the masks to compare have shapes {truth.shape} and {predicted.shape}; both must be (H, W)"
        )
    if min(truth.min(initial=0), predicted.min(initial=0)) < 0:
        raise InputError("a mask to compare marks padding (-1): cut it to the picture first")


def _overlaps(
    truth: np.ndarray, predicted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels that objects share, (n, m), and pixels of each, (n,) and (m,)."""
    from scipy.sparse import coo_array

    pixels = np.ones(truth.size), (_numbered(truth), _numbered(predicted))
    table = coo_array(pixels).tocsr()
    mine, theirs = (np.asarray(table.sum(axis)).ravel() for axis in (1, 0))
    rows, columns = (np.flatnonzero(one[1:]) + 1 for one in (mine, theirs))
    return table[rows][:, columns].toarray(), mine[rows], theirs[columns]


def _numbered(instances: np.ndarray) -> np.ndarray:
    """The numbers of a map, flat, with those that it lacks left out: 0 stays the background."""
    names, numbers = np.unique(instances, return_inverse=True)
    return numbers.ravel() + int(names[0] > 0)


def _object_dice(
    together: np.ndarray, jaccard: np.ndarray, mine: np.ndarray, theirs: np.ndarray
) -> float:
    """The mean of two sums over objects, weighted by their areas, of the Dice of each with the
    object of the other map that overlaps it most: J(y^i), J(y^^j) (Sirinukunwattana et al. 2015, 2017).
    Most by the Jaccard index, as for the AJI; their own program counts shared pixels, which gives the
    same or less.
    """

    def one_way(
        shared: np.ndarray, overlap: np.ndarray, own: np.ndarray, other: np.ndarray
    ) -> float:
        best = overlap.argmax(1)  # J(.)
        dice = 2 * shared[np.arange(len(own)), best] / (own + other[best])
        return float((own / own.sum() * dice).sum())

    return (
        one_way(together, jaccard, mine, theirs) + one_way(together.T, jaccard.T, theirs, mine)
    ) / 2


def _aggregated(
    together: np.ndarray, jaccard: np.ndarray, mine: np.ndarray, theirs: np.ndarray
) -> float:
    """AJI(y, y^) (FedIOD, Eq. 12). J(y^i) is sorted and not repeated: pairs are made in the order of
    their Jaccard index, each object in one pair at most. An object without a partner counts with its
    own area.
    """
    rows, columns = np.nonzero(together)
    free, open_ = np.ones(len(mine), bool), np.ones(len(theirs), bool)
    shared = union = 0.0
    for k in np.argsort(-jaccard[rows, columns], kind="stable"):
        i, j = rows[k], columns[k]
        if free[i] and open_[j]:
            free[i] = open_[j] = False
            # sum_i |y^i n J(y^i)|, sum_i |y^i u J(y^i)|
            shared += together[i, j]
            union += mine[i] + theirs[j] - together[i, j]
    # ... + sum_{j in J} |y^^j|
    return float(shared / (union + mine[free].sum() + theirs[open_].sum()))


#: an object of fewer pixels is noise
SMALLEST = 20


def separated(classes: np.ndarray, border: int) -> np.ndarray:
    """Objects (H, W), numbered from 1, of a map of classes: 0 background, 1 inside, 2 border.

    Connected parts of the inside are objects; each grows over the `border` pixels that were taken
    from it, and parts of fewer than 20 pixels then are dropped.
    """
    from scipy.ndimage import label
    from skimage.segmentation import expand_labels

    parts, _ = label(classes == 1)
    grown = expand_labels(parts, border)
    sizes = np.bincount(grown.ravel())
    return np.where(sizes[grown] < SMALLEST, 0, grown)
