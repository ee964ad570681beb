"""Fourier masks and what they leave of an image."""

from __future__ import annotations

import numpy as np
import pytest

from core import data
from core.data.mri import MASKS, column_mask, zero_filled
from core.errors import InputError
from core.rng import Rng


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("size", [32, 33, 64])
def test_a_mask_keeps_a_quarter_and_the_centre(kind, size):
    mask = column_mask(size, 4, kind, Rng(0))
    assert mask.sum() == round(size / 4) and mask[size // 2]
    assert (mask == column_mask(size, 4, kind, Rng(0))).all()


def test_which_columns_are_measured():
    """A share of 0.08 of the lowest (fastMRI), 20 of 256; the others at equal distances or at random."""
    assert np.flatnonzero(column_mask(32, 4, "centre", Rng(0))).tolist() == [*range(12, 20)]
    for kind in ("random", "equispaced"):
        masks = [column_mask(256, 4, kind, Rng(seed)) for seed in range(20)]
        assert all(mask[118:138].all() for mask in masks)
        assert sum(mask[[117, 138]].any() for mask in masks) < 20
    others = np.flatnonzero(np.delete(masks[0], np.s_[118:138]))
    assert len(others) == 44 and others[0] == 0 and others[-1] == 235
    assert set(np.diff(others).tolist()) == {5, 6}


def test_closed_forms():
    """All measurements give the image back; the zero frequency alone the mean of each row."""
    images = np.random.default_rng(0).random((2, 8, 8))
    np.testing.assert_allclose(zero_filled(images, np.ones(8, bool)), images)
    wanted = np.repeat(images.mean(2, keepdims=True), 8, 2)
    np.testing.assert_allclose(zero_filled(images, np.arange(8) == 4), wanted)


def test_what_does_not_fit_is_named():
    for shape in ((8, 8, 5), (2, 8, 8, 8)):
        with pytest.raises(InputError, match="is it a volume with other axes"):
            zero_filled(np.zeros(shape), np.ones(8, bool))
    with pytest.raises(InputError, match="random, equispaced or centre"):
        column_mask(8, 4, "spiral", Rng(0))


def test_drawn_heads_lose_detail():
    found = data.load("mri_drawn")
    assert found.task_kind == "reconstruction" and found.sites == ("brats2020", "fastmri", "ixi")
    error = (found.test.images.float() - found.test.masks.float()).abs().mean()
    assert 2 < error < 60 and len(found.val) == 12
