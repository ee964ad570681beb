"""Data sets with masks: cutting, outlining, layouts, and what is refused."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
import torch
from skimage.io import imsave

from core import data
from core.data import dense, monuseg
from core.data.dense import Picture
from core.data.drawn import draw_nuclei
from core.data.pack import pack
from core.errors import InputError
from core.rng import Rng


def picture(site=0, side=64, **changes):
    drawn = draw_nuclei(site, Rng(1))
    given = {"image": drawn.image[:side, :side], "instances": drawn.instances[:side, :side]}
    return Picture(**given | changes, site=site, name="slide 7")


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
    assert torch.equal(
        found.masks[8], torch.from_numpy(dense.outlined(picture().instances, 2)[40:, 40:])
    )


def test_drawn_nuclei_are_the_same_everywhere():
    one, other = data.load("nuclei_drawn"), data.load("nuclei_drawn")
    assert one.fingerprint == other.fingerprint and one.learns == "segmentation"
    assert one.sites == monuseg.ORGANS and set(one.train.masks.unique().tolist()) == {0, 1, 2}


def refused(match, build):
    with pytest.raises(InputError, match=match) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_bad_pictures_are_named():
    refused(
        "slide 7: the image has 64 by 64 pixels and its mask 64 by 60",
        lambda: dense.checked(picture(instances=np.zeros((64, 60), np.int32))),
    )
    for number, kind in ((-7, np.int32), (2**31, np.uint32), (2**63, np.uint64)):
        mask = np.full((64, 64), number, kind)
        refused(
            f"slide 7: the mask holds the number {number}",
            lambda mask=mask: dense.checked(picture(instances=mask)),
        )
    refused(
        "slide 7: a mask must hold whole numbers",
        lambda: dense.checked(picture(instances=np.zeros((64, 64)))),
    )
    refused("has 64 by 64 pixels, a patch 80", lambda: dense.patches([picture()], 80, 2))
    volume = np.zeros((4, 64, 64, 3), np.uint8)
    refused("must be uint8 of shape", lambda: dense.checked(picture(image=volume)))


def test_a_site_with_one_image_is_named():
    train = [picture(0), picture(0)]
    refused(
        "toy: liver has one image; it needs at least one to train on and one to test on",
        lambda: dense.nuclei("toy", [*train, picture(1)], train, ("breast", "liver"), 32),
    )


def test_masks_and_images_must_be_as_many(tmp_path):
    paths = [tmp_path / f"{name}.png" for name in ("a", "b")]
    refused("has 2 images but 1 masks", lambda: dense.paired(paths, paths[:1], tmp_path))
    other = [tmp_path / "a.png", tmp_path / "c.png"]
    refused("b.png has no mask", lambda: dense.paired(paths, other, tmp_path))


def test_split_refuses_masks_that_do_not_fit():
    images, labels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)

    def split(masks):
        return lambda: data.Split(images, labels, masks=masks)

    refused("3 masks for 2 images", split(torch.zeros(3, 8, 8, dtype=torch.uint8)))
    refused("8 by 8 pixels, not torch.uint8", split(torch.zeros(2, 8, 4, dtype=torch.uint8)))
    refused("must be torch.uint8", split(torch.zeros(2, 8, 8)))


@pytest.fixture
def packed(tmp_path):
    """Eight small pictures of four organs as this project packs MoNuSeg."""
    folder, entries = tmp_path / "monuseg", []
    folder.mkdir()
    for number, organ in enumerate(monuseg.ORGANS):
        for split in ("train", "test"):
            drawn = draw_nuclei(number, Rng(2).at(split))
            imsave(folder / f"{organ}-{split}.png", drawn.image, check_contrast=False)
            mask = drawn.instances.astype(np.uint16)
            imsave(folder / f"{organ}-{split}.instances.png", mask, check_contrast=False)
            entries.append({"id": f"{organ}-{split}", "organ": organ, "split": split})
    (folder / "manifest.json").write_text(json.dumps(entries))
    return tmp_path


def test_monuseg_as_it_is_packed(packed):
    found = data.load("monuseg_64", packed)
    assert found.train.images.shape == (4, 3, 64, 64) and found.sites == monuseg.ORGANS
    drawn = draw_nuclei(2, Rng(2).at("test"))
    assert (found.test.instances[2].numpy() == drawn.instances).all()
    assert found.test.centre.tolist() == [0, 1, 2, 3]


def test_a_data_pack_holds_the_images_that_the_manifest_lists(packed):
    target, there = packed / "pack.zip", packed / "there"
    assert "monuseg" in pack(target, packed)
    with zipfile.ZipFile(target) as archive:
        assert len(archive.namelist()) == 2 + 2 * 8  # licences, manifest, images and masks
        archive.extractall(there)
    found = data.load("monuseg_64", there)
    assert found.fingerprint == data.load("monuseg_64", packed).fingerprint


def test_broken_packs_are_named(packed):
    folder = packed / "monuseg"
    (folder / "liver-test.instances.png").unlink()
    refused("no monuseg/liver-test.instances.png", lambda: data.load("monuseg_64", packed))
    refused("has 1 images and 0 masks of liver-test", lambda: monuseg.load_monuseg(packed, 64))
    (folder / "manifest.json").write_text('[{"id": "a", "organ": "lung", "split": "train"}]')
    refused("an entry needs id, organ", lambda: monuseg.load_monuseg(packed, 64))


XML = """<Annotations><Annotation><Regions>
<Region Id="1"><Vertices>{}</Vertices></Region></Regions></Annotation></Annotations>"""


def test_of_nuclei_that_overlap_the_later_one_is_on_top(tmp_path):
    squares = [
        "".join(f'<Vertex X="{x}" Y="{y}"/>' for x, y in ((a, 2), (a + 5, 2), (a + 5, 6), (a, 6)))
        for a in (1, 4)
    ]
    both = '</Vertices></Region><Region Id="2"><Vertices>'.join(squares)
    (tmp_path / "a.xml").write_text(XML.format(both))
    found = monuseg.from_polygons(tmp_path / "a.xml", (10, 12))
    assert found[4].tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0]


def test_monuseg_as_the_challenge_has_it(tmp_path):
    folders = [tmp_path / "monuseg" / name for name in monuseg.OFFICIAL]
    for one in folders:
        one.mkdir(parents=True)
    square = "".join(
        f'<Vertex X="{x}" Y="{y}"/>' for x, y in ((10, 20), (30, 20), (30, 40), (10, 40))
    )
    for parts in monuseg.IMAGES.values():
        for id_ in (*parts[0], *parts[1]):
            name = f"TCGA-{id_}-01Z-00-DX1"
            imsave(
                folders[0] / f"{name}.tif", np.zeros((64, 64, 3), np.uint8), check_contrast=False
            )
            (folders[1] / f"{name}.xml").write_text(XML.format(square))
    found = data.load("monuseg_64", tmp_path)
    assert len(found.train) == 16 and len(found.test) == 8
    rows, columns = found.test.instances[0].numpy().nonzero()
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 40, 10, 30)
    (folders[1] / "TCGA-A7-A13E-01Z-00-DX1.xml").write_text("<nothing/>")
    refused("marks no nucleus", lambda: data.load("monuseg_64", tmp_path))
    (folders[1] / "TCGA-A7-A13E-01Z-00-DX1.xml").unlink()
    refused("1 images and 0 annotations", lambda: data.load("monuseg_64", tmp_path))


def test_the_command_that_gets_it_is_named(tmp_path):
    refused("monuseg.grand-challenge.org", lambda: data.load("monuseg", tmp_path))
