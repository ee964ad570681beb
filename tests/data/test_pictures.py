"""Pictures are read as they are seen, masks as they are written."""

import numpy as np
import pytest

from core.data.monuseg import read_mask, read_picture


def test_a_palette_is_seen_in_colour_and_kept_in_a_mask(tmp_path):
    image = pytest.importorskip("PIL.Image")
    colours = np.array([[[10, 20, 30], [200, 100, 0]]], dtype=np.uint8)
    path = tmp_path / "palette.png"
    image.fromarray(colours).quantize(2).save(path)
    seen, mask = read_picture(path), read_mask(path)
    assert seen.shape == (1, 2, 3) and np.abs(seen.astype(int) - colours).max() <= 4
    assert mask.shape == (1, 2) and set(mask.ravel()) == {0, 1}
