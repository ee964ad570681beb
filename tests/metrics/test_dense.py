"""Measures of masks and images against cases that are worked out by hand, and against other code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial import cKDTree

from core import metrics


def painted(*boxes, side=16):
    """Object 1, 2, ... where a box (top, bottom, left, right) stands."""
    found = np.zeros((side, side), np.int32)
    for number, (top, bottom, left, right) in enumerate(boxes, 1):
        found[top:bottom, left:right] = number
    return found


def test_regions_of_empty_masks():
    nothing, one = painted() > 0, painted((3, 4, 3, 4)) > 0
    perfect = {"dice": 1.0, "sensitivity": 1.0, "specificity": 1.0, "hd95": 0.0}
    assert metrics.regions(nothing, nothing) == metrics.regions(one, one) == perfect
    missed = metrics.regions(one, nothing)
    assert missed["dice"] == missed["sensitivity"] == 0 and missed["specificity"] == 1
    assert missed["hd95"] == math.hypot(16, 16) == metrics.regions(nothing, one)["hd95"]


def rims(mask):
    """Pixels of a mask with a neighbour outside, in rows."""
    inside = np.pad(mask, 1)
    kept = inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    return np.argwhere(mask & ~kept)


@given(arrays(bool, (12, 12)), arrays(bool, (12, 12)))
def test_regions_against_the_definitions(truth, predicted):
    found = metrics.regions(truth, predicted)
    if truth.any() and predicted.any():
        both = (truth & predicted).sum()
        assert found["dice"] == pytest.approx(2 * both / (truth.sum() + predicted.sum()))
        assert found["sensitivity"] == pytest.approx(both / truth.sum())
        there, back = (
            np.percentile(cKDTree(a).query(b)[0], 95)
            for a, b in ((rims(truth), rims(predicted)), (rims(predicted), rims(truth)))
        )
        assert found["hd95"] == pytest.approx(max(there, back), abs=1e-5)
    if not truth.all():
        wanted = (~truth & ~predicted).sum() / (~truth).sum()
        assert found["specificity"] == pytest.approx(wanted)


def test_objects_by_hand():
    # truth: 16 and 4 pixels; found: 12 of the first, nothing of the second, and 9 elsewhere
    truth = painted((0, 4, 0, 4), (10, 12, 10, 12))
    predicted = painted((0, 4, 0, 3), (5, 8, 5, 8))
    found = metrics.objects(truth, predicted)
    assert found["aji"] == pytest.approx(12 / (16 + 4 + 9))
    mine = 16 / 20 * (24 / 28)
    theirs = 12 / 21 * (24 / 28)
    assert found["obj_dice"] == pytest.approx((mine + theirs) / 2)


def test_a_partner_is_taken_once_and_the_best_first():
    # the first object overlaps both that were found; its better partner is the second
    truth = painted((0, 2, 0, 10))
    predicted = painted((0, 2, 0, 3), (0, 2, 3, 10))
    assert metrics.objects(truth, predicted)["aji"] == pytest.approx(14 / (20 + 6))


def test_the_best_partner_is_not_the_one_that_shares_most_pixels():
    """6 of 60 pixels are shared with the first, and 4 of 5 with the second: J = 6 / 64 and 4 / 11."""
    truth = painted((0, 1, 0, 10))
    predicted = painted((0, 10, 0, 6), (0, 1, 6, 10))
    predicted[1, 9] = 2
    found = metrics.objects(truth, predicted)
    assert found["aji"] == pytest.approx(4 / (11 + 60))
    there, back = 8 / 15, (60 * 12 / 70 + 5 * 8 / 15) / 65
    assert found["obj_dice"] == pytest.approx((there + back) / 2)


@given(arrays(np.int64, (8, 8), elements=st.integers(0, 5)), st.integers(6, 2**28))
def test_a_map_is_equal_to_itself_under_other_numbers(instances, factor):
    """As large as they like; without an object, too."""
    other = np.where(instances > 0, factor * (6 - instances), 0)
    assert metrics.objects(instances, other) == pytest.approx({"obj_dice": 1.0, "aji": 1.0})
    missed = 0.0 if instances.any() else 1.0
    assert metrics.objects(instances, 0 * instances) == {"obj_dice": missed, "aji": missed}


def test_objects_are_told_apart_by_their_rims():
    """What has fewer than twenty pixels is noise."""
    classes = np.zeros((24, 24), np.uint8)
    classes[2:12, 2:22] = 2
    classes[4:10, 4:10] = classes[4:10, 14:20] = 1
    classes[20, 20] = 1  # with its rim 13 pixels
    found = metrics.separated(classes, 2)
    assert set(np.unique(found)) == {0, 1, 2} and found[20, 20] == 0
    assert (found == 1).sum() == (found == 2).sum() == 36 + 4 * 12 + 4
    parts = painted((0, 4, 0, 5), (8, 9, 0, 16), (9, 10, 0, 3))  # of 20 pixels, and of 16 + 3
    found = metrics.separated((parts > 0).astype(np.uint8), 0)
    assert np.bincount(found.ravel()).tolist() == [16 * 16 - 20, 20]


def test_similarity_as_another_library_has_it():
    """MONAI's, with the same Gaussian window of 11 pixels."""
    from monai.metrics import SSIMMetric  # takes a second

    draws = np.random.default_rng(0)
    truth = draws.random((24, 24))
    # little contrast, so that what steadies the ratio of variances counts
    truth, other = 0.5 + 0.05 * truth, draws.random((24, 24))
    found = truth + 0.03 * other
    theirs = SSIMMetric(2, data_range=1.0, win_size=11, kernel_sigma=1.5)
    pair = (torch.from_numpy(one)[None, None] for one in (found, truth))
    ours = metrics.reconstruction(truth, found)["ssim"]
    assert ours == pytest.approx(float(theirs(*pair)), abs=1e-5)


def test_images_by_hand():
    truth = np.zeros((16, 16))
    assert metrics.reconstruction(truth, truth) == {"ssim": 1.0, "psnr": 100.0}
    assert metrics.reconstruction(truth, truth + 0.1)["psnr"] == pytest.approx(20)
    # constant images: only the term of the means is left of SSIM, with c1 = 0.01^2
    wanted = (2 * 0.5 * 0.25 + 1e-4) / (0.5**2 + 0.25**2 + 1e-4)
    found = metrics.reconstruction(truth + 0.5, truth + 0.25)
    assert found["ssim"] == pytest.approx(wanted)
