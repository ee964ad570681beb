"""Files are written whole."""

import threading

import numpy as np
import pytest

from core.data.monuseg import read_mask, read_picture
from core.files import write_whole


def test_two_writers_of_one_file_leave_that_of_one(tmp_path):
    """Each is in the middle of its file while the other begins."""
    path, met = tmp_path / "file", threading.Barrier(2)

    def write(letter):
        def half_by_half(part):
            with part.open("w") as file:
                file.write(50 * letter)
                file.flush()
                met.wait(10)
                file.write(50 * letter)

        write_whole(path, half_by_half)

    writers = [threading.Thread(target=write, args=(letter,)) for letter in "AB"]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert path.read_text() in (100 * "A", 100 * "B")
    assert list(tmp_path.iterdir()) == [path]


def test_a_palette_is_seen_in_colour_and_kept_in_a_mask(tmp_path):
    image = pytest.importorskip("PIL.Image")
    colours = np.array([[[10, 20, 30], [200, 100, 0]]], dtype=np.uint8)
    path = tmp_path / "palette.png"
    image.fromarray(colours).quantize(2).save(path)
    seen, mask = read_picture(path), read_mask(path)
    assert seen.shape == (1, 2, 3) and np.abs(seen.astype(int) - colours).max() <= 4
    assert mask.shape == (1, 2) and set(mask.ravel()) == {0, 1}
