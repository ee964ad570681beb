"""Data sets with an answer for every pixel: cutting, outlining, layouts, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from skimage.io import imsave

from core import data
from core.data import catalogue, dense, monuseg
from core.data.dense import Picture
from core.data.drawn import draw_nuclei
from core.data.mri import MASKS, column_mask, zero_filled
from core.rng import Rng
from tests.sentences import refused


def picture(site=0, **changes):
    drawn = draw_nuclei(site, Rng(1))
    given = {"image": drawn.image, "instances": drawn.instances} | changes
    return Picture(**given, site=site, name="slide 7")


def test_the_rim_is_what_is_near_another_object():
    instances = np.zeros((9, 12), np.int32)
    instances[1:8, 1:6], instances[1:8, 6:11] = 1, 2
    found = dense.outlined(instances, 1)
    assert (found == 1).sum() == 2 * 5 * 3 and (found > 0).sum() == 70
    assert (dense.outlined(instances, 0) == (instances > 0)).all()


def test_patches_cover_the_picture():
    found = dense.patches([picture()], 24, 2)
    assert found.images.shape == (9, 3, 24, 24) and dense.starts(64, 24) == [0, 20, 40]
    image = torch.from_numpy(picture().image).movedim(-1, 0)
    assert torch.equal(found.images[4], image[:, 20:44, 20:44])
    outline = torch.from_numpy(dense.outlined(picture().instances, 2))
    assert torch.equal(found.masks[8], outline[40:, 40:])


def test_drawn_nuclei_are_the_same_everywhere():
    one, other = (data.load("nuclei_drawn") for _ in range(2))
    assert one.fingerprint == other.fingerprint and one.task_kind == "segmentation"
    assert one.sites == monuseg.ORGANS and set(one.train.masks.unique().tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"instances": np.zeros((64, 60), np.int32)}, "64 by 64 pixels and its mask 64 by 60"),
        ({"instances": np.full((64, 64), -7)}, "the mask holds the number -7"),
        ({"instances": np.full((64, 64), 2**63, np.uint64)}, f"holds the number {2**63}"),
        ({"instances": np.zeros((64, 64))}, "a mask must hold whole numbers"),
        ({"image": np.zeros((4, 64, 64, 3), np.uint8)}, "must be uint8 of shape"),
    ],
)
def test_bad_pictures_are_named(changes, words):
    refused(f"slide 7: .*{words}", lambda: picture(**changes))


def test_pictures_that_do_not_suffice_are_named():
    refused("has 64 by 64 pixels, a patch 80", lambda: dense.patches([picture()], 80, 2))
    train = [picture(0), picture(0)]
    refused(
        "toy: liver has one image; it needs at least one to train on and one to test on",
        lambda: dense.nuclei("toy", [*train, picture(1)], train, ("breast", "liver"), 32),
    )


def packed(root):
    """Eight small pictures of four organs with instance maps and a manifest."""
    folder, entries = root / "monuseg", []
    folder.mkdir()
    for number, organ in enumerate(monuseg.ORGANS):
        for split in ("train", "test"):
            drawn, name = draw_nuclei(number, Rng(2).at(split)), f"{organ}-{split}"
            imsave(folder / f"{name}.png", drawn.image, check_contrast=False)
            mask = drawn.instances.astype(np.uint16)
            imsave(folder / f"{name}.instances.png", mask, check_contrast=False)
            entries.append({"id": name, "organ": organ, "split": split})
    (folder / "manifest.json").write_text(json.dumps(entries))
    return folder


def test_monuseg_with_a_manifest(tmp_path):
    folder = packed(tmp_path)
    found = data.load("monuseg_64", tmp_path)
    assert found.train.images.shape == (4, 3, 64, 64) and found.sites == monuseg.ORGANS
    assert (found.test.instances[2].numpy() == draw_nuclei(2, Rng(2).at("test")).instances).all()
    assert found.test.centre.tolist() == [0, 1, 2, 3]
    (folder / "liver-test.instances.png").unlink()
    refused(r"no image .*liver-test\.instances\.png", lambda: data.load("monuseg_64", tmp_path))
    for content, words in (
        ('[{"id": "a", "organ": "lung", "split": "train"}]', "an entry needs id, organ"),
        ('{"id": 1}', "must hold a list of images"),
        ('[{"id": "a", "organ": "liver", "split": "train"}]', "has 0 images of a"),
    ):
        (folder / "manifest.json").write_text(content)
        refused(words, lambda: data.load("monuseg", tmp_path))
    for name in ("../secret", "*", "a/b", "", "x" * 200, 3.5, None, "<b>"):
        entry = {"id": name, "organ": "liver", "split": "train"}
        (folder / "manifest.json").write_text(json.dumps([entry]))
        refused("is not the name of an image", lambda: data.load("monuseg", tmp_path))


def xml(*polygons):
    regions = ["".join(f"<Vertex X='{x}' Y='{y}'/>" for x, y in corners) for corners in polygons]
    return "<A>" + "".join(f"<Region><V>{one}</V></Region>" for one in regions) + "</A>"


def box(left, top, right, bottom):
    return (left, top), (right, top), (right, bottom), (left, bottom)


def test_monuseg_as_the_challenge_has_it(tmp_path):
    folders = [tmp_path / "monuseg" / name for name in monuseg.OFFICIAL]
    for one in folders:
        one.mkdir(parents=True)
    names = [name for parts in monuseg.IMAGES.values() for part in parts for name in part]
    for name in names:
        image = folders[0] / f"TCGA-{name}-01Z-00-DX1.tif"
        imsave(image, np.zeros((64, 64, 3), np.uint8), check_contrast=False)
        (folders[1] / f"TCGA-{name}-01Z-00-DX1.xml").write_text(xml(box(10, 20, 30, 40)))
    found = data.load("monuseg_64", tmp_path)
    assert len(found.train) == 16 and len(found.test) == 8
    rows, columns = found.test.instances[0].numpy().nonzero()
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 40, 10, 30)
    (folders[1] / "TCGA-A7-A13E-01Z-00-DX1.xml").unlink()
    refused("1 images and 0 annotations", lambda: data.load("monuseg_64", tmp_path))


def test_of_nuclei_that_overlap_the_later_one_is_on_top(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(xml(box(1, 2, 6, 6), box(4, 2, 9, 6)))
    found = monuseg.from_polygons(path, (10, 12))
    assert found[4].tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0]
    path.write_text(xml(box(-1e6, -1e6, 1e6, 1e6)))  # corners far outside draw what is inside
    assert (monuseg.from_polygons(path, (8, 8)) == 1).all()


ENTITIES = "".join(
    f'<!ENTITY {one} "{f"&{before};" * 10}">'
    for before, one in zip("abcdefghi", "bcdefghij", strict=True)
)


ANNOTATIONS = {
    "nothing": "",
    "no polygon": "<A></A>",
    "no number": "<A><Region><Vertex X='a' Y='1'/></Region></A>",
    "no place": xml([("nan", "inf")] * 3),
    "exploding": f'<!DOCTYPE a [<!ENTITY a "xxxxxxxxxx">{ENTITIES}]><A>&j;</A>',
    "a system's file": '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><A>&a;</A>',
    "nested": "<A>" * 100_000,
}


@pytest.mark.parametrize("text", ANNOTATIONS.values(), ids=ANNOTATIONS)
def test_annotations_that_are_none(tmp_path, text):
    (tmp_path / "a.xml").write_text(text)
    refused(r"a\.xml cannot be read as", lambda: monuseg.from_polygons(tmp_path / "a.xml", (8, 8)))


# sets of several sites in one file, as `core.data.sites` describes it


def arrays(answer, side=64):
    """A small file's arrays: two images of each of ten sites to train on, one to test on."""
    draws, found = np.random.default_rng(0), {}
    for part, count in (("train", 2), ("test", 1)):
        masks = np.zeros((count * 10, side, side), np.uint8)
        masks[:, 8:24, 8:24], masks[:, 30:50, 30:50] = 1, 1
        shown = draws.integers(0, 255, masks.shape, dtype=np.uint8)
        found |= {f"{part}_images": shown, f"{part}_site": np.repeat(np.arange(10), count)}
        found[f"{part}_{answer}"] = masks if answer == "masks" else shown[:, ::-1]
    return found


def test_large_images_are_cut_where_they_stand(tmp_path):
    np.savez(tmp_path / "brats2018.npz", **arrays("masks", 128))
    found = data.load("brats2018_64", tmp_path)
    assert found.task_kind == "segmentation" and not found.weights and found.test.instances is None
    assert found.train.images.shape == (80, 1, 64, 64) and found.test.images.shape[2] == 128
    assert found.train.centre.tolist() == 4 * [site for site in range(10) for _ in range(2)]
    # nothing of an object lies beyond row 50 or column 50
    assert found.train.masks[:20].any() and not found.train.masks[20:].any()
    heads = {key: of % 3 if "site" in key else of for key, of in arrays("targets").items()}
    np.savez(tmp_path / "mri_cross_domain_t1.npz", **heads)
    found = data.load("mri_cross_domain_t1_64", tmp_path)
    assert found.task_kind == "reconstruction" and found.sites == ("brats2020", "fastmri", "ixi")
    assert torch.equal(found.train.masks, found.train.images.flip(2))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"train_masks": None}, "has no array train_masks"),
        ({"train_masks": np.zeros((3, 64, 64), np.uint8)}, "train: masks must be .* 20 images"),
        ({"train_masks": np.zeros((20, 64, 32), np.uint8)}, "train: masks must be .* of 64 by 64"),
        ({"train_masks": np.full((20, 64, 64), 4, np.uint8)}, "the label 4, the labels are 0 to 1"),
        ({"train_images": np.zeros((20, 9, 64, 64), np.uint8)}, "a volume with other axes"),
        ({"train_images": np.zeros((20, 64, 64))}, "images must be squares, uint8"),
        (arrays("masks", 56), "images of 56 pixels, smaller than a patch of 64"),
        ({"train_site": np.full(20, 11)}, "site holds class 11, but the classes are .* 0 to 9"),
    ],
)
def test_what_does_not_fit_is_named(change, reason, tmp_path):
    given = {k: v for k, v in (arrays("masks") | change).items() if v is not None}
    np.savez(tmp_path / "brats2018.npz", **given)
    refused(f"brats2018.npz.*{reason}", lambda: data.load("brats2018_64", tmp_path))


def test_pack_of_a_set_in_a_folder(tmp_path):
    """Its images and masks go with the manifest."""
    import zipfile

    from lab.datapack import pack

    packed(tmp_path)
    assert "monuseg" in pack(tmp_path / "pack.zip", tmp_path)
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        assert len(archive.namelist()) == 2 + 2 * 8  # licences, manifest, images and masks
        archive.extractall(tmp_path / "there")
    found = data.load("monuseg_64", tmp_path / "there")
    assert found.fingerprint == data.load("monuseg_64", tmp_path).fingerprint
    assert catalogue.SOURCES["monuseg"].sites == monuseg.ORGANS


# Fourier masks, and what they leave of an image


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


def test_drawn_heads_lose_detail():
    found = data.load("mri_drawn")
    assert found.task_kind == "reconstruction" and found.sites == ("brats2020", "fastmri", "ixi")
    error = (found.test.images.float() - found.test.masks.float()).abs().mean()
    assert 2 < error < 60 and len(found.val) == 12
    for shape in ((8, 8, 5), (2, 8, 8, 8)):
        refused("is it a volume with", lambda s=shape: zero_filled(np.zeros(s), np.ones(8, bool)))
    refused("random, equispaced or centre", lambda: column_mask(8, 4, "spiral", Rng(0)))
