"""Measures of masks: overlap of regions, distance of their borders, and how well single objects are
found. Dice, distances and rates come from MONAI; object Dice and AJI it does not have.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch

from core.errors import InputError

#: an object of fewer pixels is noise
SMALLEST = 20


def regions(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Dice, sensitivity, specificity and HD95 (pixels) of two masks (H, W), bool: 1, 1, 1 and 0 where both
    are empty; where one is, the distance is the image's diagonal. InputError for shapes that differ.
    """
    from monai.metrics import (
        compute_confusion_matrix_metric,
        compute_dice,
        compute_hausdorff_distance,
        get_confusion_matrix,
    )

    _check(truth, predicted)
    y, y_hat = (torch.from_numpy(mask)[None, None].float() for mask in (truth, predicted))
    if truth.any() and predicted.any():
        with warnings.catch_warnings():  # MONAI calls one of its own functions the old way
            warnings.simplefilter("ignore", FutureWarning)
            distance = float(
                compute_hausdorff_distance(y_hat, y, include_background=True, percentile=95)
            )
    else:
        distance = math.hypot(*truth.shape) if truth.any() or predicted.any() else 0.0
    counts = get_confusion_matrix(y_hat, y)
    rates = {
        name: float(compute_confusion_matrix_metric(name, counts))
        for name in ("sensitivity", "specificity")
    }
    # without a positive, or without a negative, none of them was missed
    rates = {name: 1.0 if math.isnan(value) else value for name, value in rates.items()}
    return {"dice": float(compute_dice(y_hat, y, ignore_empty=False)), **rates, "hd95": distance}


def objects(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Object Dice and AJI of two instance maps (H, W), 0 the background: 1 where neither has an object, 0
    where one has none. InputError for shapes that differ.
    """
    _check(truth, predicted)
    shared, areas, predicted_areas = _overlaps(truth, predicted)
    if not len(areas) or not len(predicted_areas):
        both = float(len(areas) == len(predicted_areas))
        return {"obj_dice": both, "aji": both}
    # |y^i n y^j| / |y^i u y^j|
    jaccard = shared / (areas[:, None] + predicted_areas[None] - shared)
    # Sirinukunwattana et al. 2015, 2017: the mean of both directions. J(.) overlaps most by the
    # Jaccard index, as for the AJI; their own program counts shared pixels, which gives the same or
    # less
    dice = (
        _one_way_dice(shared, jaccard, areas, predicted_areas)
        + _one_way_dice(shared.T, jaccard.T, predicted_areas, areas)
    ) / 2
    return {"obj_dice": dice, "aji": _aggregated(shared, jaccard, areas, predicted_areas)}


def _check(truth: np.ndarray, predicted: np.ndarray) -> None:
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
    areas, predicted_areas = (np.asarray(table.sum(axis)).ravel() for axis in (1, 0))
    rows, columns = (np.flatnonzero(sizes[1:]) + 1 for sizes in (areas, predicted_areas))
    return table[rows][:, columns].toarray(), areas[rows], predicted_areas[columns]


def _numbered(instances: np.ndarray) -> np.ndarray:
    """The numbers of a map, flat, with those that it lacks left out: 0 stays the background."""
    names, numbers = np.unique(instances, return_inverse=True)
    return numbers.ravel() + int(names[0] > 0)


def _one_way_dice(
    shared: np.ndarray, jaccard: np.ndarray, areas: np.ndarray, other_areas: np.ndarray
) -> float:
    """Mean over objects, weighted by area, of Dice with the object that overlaps each most."""
    best = jaccard.argmax(1)  # J(.)
    dice = 2 * shared[np.arange(len(areas)), best] / (areas + other_areas[best])
    return float((areas / areas.sum() * dice).sum())


def _aggregated(
    shared: np.ndarray, jaccard: np.ndarray, areas: np.ndarray, predicted_areas: np.ndarray
) -> float:
    """AJI(y, y^) (FedIOD, Eq. 12), each object in one pair J(y^i) at most, by falling Jaccard index. One
    without a partner counts with its own area.
    """
    rows, columns = np.nonzero(shared)
    single, predicted_single = np.ones(len(areas), bool), np.ones(len(predicted_areas), bool)
    together = union = 0.0
    for k in np.argsort(-jaccard[rows, columns], kind="stable"):
        i, j = rows[k], columns[k]
        if single[i] and predicted_single[j]:
            single[i] = predicted_single[j] = False
            # sum_i |y^i n J(y^i)|, sum_i |y^i u J(y^i)|
            together += shared[i, j]
            union += areas[i] + predicted_areas[j] - shared[i, j]
    # ... + sum_{j in J} |y^^j|
    return float(together / (union + areas[single].sum() + predicted_areas[predicted_single].sum()))


def separated(classes: np.ndarray, border: int) -> np.ndarray:
    """Objects (H, W), numbered from 1, of classes 0 background, 1 inside, 2 border: connected insides, each
    grown by the `border` pixels taken from it; those of fewer than `SMALLEST` pixels are dropped.
    """
    from scipy.ndimage import label
    from skimage.segmentation import expand_labels

    parts, _ = label(classes == 1)
    grown = expand_labels(parts, border)
    sizes = np.bincount(grown.ravel())
    return np.where(sizes[grown] < SMALLEST, 0, grown)
