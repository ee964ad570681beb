"""Sets of several sites in one file, as `core.data.sites` describes it."""

from __future__ import annotations

import numpy as np
import pytest

from core import data
from core.errors import InputError


def arrays(answer, sites, train=2, side=64):
    """A small file's arrays: `train` images of each site to train on, one to test on."""
    draws, found = np.random.default_rng(0), {}
    for split, count in (("train", train), ("test", 1)):
        n = count * sites
        instances = np.zeros((n, side, side), np.int32)
        instances[:, 8:24, 8:24], instances[:, 30:50, 30:50] = 1, 2
        shown = draws.integers(0, 255, (n, side, side), dtype=np.uint8)
        wanted = {"instances": instances, "masks": (instances > 0).astype(np.uint8)}
        found |= {
            f"{split}_images": shown,
            f"{split}_site": np.repeat(np.arange(sites), count),
            f"{split}_{answer}": wanted.get(answer, shown[:, ::-1]),
        }
    return found


KINDS = {
    "nuclei_cross_site_64": ("instances", 3, "segmentation"),
    "brats2018_64": ("masks", 10, "segmentation"),
    "mri_cross_domain_t1_64": ("targets", 3, "reconstruction"),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_read(name, tmp_path):
    answer, sites, learns = KINDS[name]
    np.savez(tmp_path / f"{name.removesuffix('_64')}.npz", **arrays(answer, sites))
    found = data.load(name, tmp_path)
    assert found.learns == learns and len(found.sites) == sites
    assert found.train.images.shape == (2 * sites, 1, 64, 64)
    assert found.train.centre.tolist() == np.repeat(np.arange(sites), 2).tolist()
    assert (found.test.instances is not None) == (answer == "instances")
    if learns == "reconstruction":
        assert (found.train.masks == found.train.images.flip(2)).all()
    assert bool(found.weights) == (answer == "instances")


def test_large_images_are_cut_where_they_stand(tmp_path):
    np.savez(tmp_path / "brats2018.npz", **arrays("masks", 10, side=128))
    found = data.load("brats2018_64", tmp_path)
    assert found.train.images.shape == (80, 1, 64, 64)
    assert found.train.centre.tolist() == 4 * [site for site in range(10) for _ in range(2)]
    # nothing of an object lies beyond row 50 or column 50
    assert found.train.masks[:20].any() and not found.train.masks[20:].any()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"train_masks": None}, "has no array train_masks"),
        ({"train_masks": np.zeros((3, 64, 64), np.uint8)}, "20 images, 3 masks and 20 sites"),
        ({"train_masks": np.zeros((20, 64, 32), np.uint8)}, "64 by 64 pixels and their masks"),
        ({"train_masks": np.full((20, 64, 64), 4, np.uint8)}, "the label 4, but the labels are 0"),
        ({"train_images": np.zeros((20, 9, 64, 64), np.uint8)}, "a volume with other axes"),
        ({"train_images": np.zeros((20, 64, 64))}, "must be uint8"),
        ({"train_images": np.zeros((20, 64, 48), np.uint8)}, r"\(20, 64, 48\): is it a volume"),
        (arrays("masks", 10, side=56), "images of 56 pixels, smaller than a patch of 64"),
        ({"train_site": np.full(20, 11)}, "site 11, but the sites are 0 to 9"),
    ],
)
def test_what_does_not_fit_is_named(change, reason, tmp_path):
    given = {k: v for k, v in (arrays("masks", 10) | change).items() if v is not None}
    np.savez(tmp_path / "brats2018.npz", **given)
    with pytest.raises(InputError, match=reason) as caught:
        data.load("brats2018_64", tmp_path)
    assert "\n" not in str(caught.value)


def test_the_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(
        InputError,
        match=r"no nuclei_cross_site\.npz.*run fedcon data convert nuclei_cross_site FOLDER.*tnbc",
    ):
        data.load("nuclei_cross_site", tmp_path)
