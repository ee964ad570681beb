"""Sets of several sites from folders of images, and from the checkouts of their substitutes."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.io import imsave

from core import data
from core.data import brains, tissue
from core.data.drawn import draw_nuclei
from core.rng import Rng
from tests.data.test_dense import packed
from tests.sentences import refused


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    imsave(path, array, check_contrast=False)


def square(side, top, left, size, colour):
    """A bright, coloured image with one dark square, and its mask."""
    mask = np.zeros((side, side + 6), np.int32)
    mask[top : top + size, left : left + size] = 1
    return np.where(mask[..., None] > 0, 60, np.array(colour)).astype(np.uint8), mask


def in_text(mask):
    height, width = mask.shape
    return f"{width} {height}\n" + "\n".join(map(str, mask.ravel())) + "\n"


def test_a_mask_of_the_challenge_is_read_row_by_row(tmp_path):
    """The example of the challenge's own description: 5 by 4 pixels, two nuclei."""
    rows, path = ["00000", "01100", "11200", "02220"], tmp_path / "image01_mask.txt"
    path.write_text("5 4\n" + "\n".join("".join(rows)))
    assert tissue.labels_in_text(path).tolist() == [[int(c) for c in row] for row in rows]
    for text in ("5 4\n0\n1", "0 0\n", "4 -1\n0\n0\n0\n0", "2 1\na\nb", ""):
        path.write_text(text)
        refused("image01_mask.txt cannot be read as a mask", lambda: tissue.labels_in_text(path))
    refused("there is no mask", lambda: tissue.labels_in_text(tmp_path / "image02_mask.txt"))


@pytest.fixture
def nuclei(tmp_path):
    """One image of each site to train on and to test on: numbers for nuclei, and black and white."""
    folder = tmp_path / "nuclei"
    for part, side in (("train", 70), ("test", 66)):
        for place, site in enumerate(tissue.SITES):
            image, mask = square(side + place, 20, 30, 12, (200, 160, 190))
            write(folder / part / site / "images/a.png", image)
            white = (255 * mask).astype(np.uint8)
            stored = mask.astype(np.uint16) if site == "tcga" else white
            write(folder / part / site / "instances/a.tif", stored)
    return folder


def test_three_sites_of_nuclei(nuclei, tmp_path):
    path = data.convert("nuclei_cross_site", nuclei, tmp_path)
    converted = data.load("nuclei_cross_site_64", tmp_path)
    assert converted.test.centre.tolist() == [0, 1, 2]
    assert sorted(set(converted.train.centre.tolist())) == [0, 1, 2]
    # each image keeps its size: the rest of the square that holds them all is nothing
    sizes = [(each >= 0).nonzero().max(0).values.tolist() for each in converted.test.instances]
    assert sizes == [[65, 71], [66, 72], [67, 73]]
    wanted = square(67, 20, 30, 12, (200, 160, 190))[1]
    assert (converted.test.instances[1, :67, :73].numpy() == wanted).all()
    with np.load(path) as file:
        arrays = dict(file)
    for change, reason in (
        ({"test_shape": arrays["test_shape"] + 1}, "shapes of .* pixels do not fit"),
        ({"test_shape": -arrays["test_shape"]}, "shapes of .* pixels do not fit"),
        ({"test_site": arrays["test_site"][1:]}, "one pair for each site"),
        ({"test_images": arrays["test_images"][:, 0] / 2}, "must be uint8"),
    ):
        np.savez(path, **arrays | change)
        refused(f"test: .*{reason}", lambda: data.load("nuclei_cross_site_64", tmp_path))


def test_what_a_folder_lacks_is_named(nuclei, tmp_path):
    def no(words, name="nuclei_cross_site", folder=nuclei):
        refused(words, data.convert, name, folder, tmp_path)

    mask = nuclei / "train/cell17/instances/a.tif"
    write(mask, np.zeros((50, 40), np.uint8))
    no("the image has 70 by 76 pixels and its mask 50 by 40")
    mask.rename(mask.with_name("b.tif"))
    no("has not both an image and one of instances named a")
    no("there is no folder .*train/cell17", folder=tmp_path)
    no("there is no folder", "brats2018", tmp_path / "no")
    no("set that is converted .*; your own images get a name that no set here has", "digits")
    assert not (tmp_path / "nuclei_cross_site.npz").exists()


def test_connected_parts_or_numbers():
    """A mask of nucleus and background, and one that has a number for each."""
    flat = np.array([[255, 0, 255], [255, 0, 255]], np.uint8)
    assert tissue.numbered(flat).tolist() == [[1, 0, 2], [1, 0, 2]]
    assert tissue.numbered(np.stack([flat] * 3, 2)).tolist() == [[1, 0, 2], [1, 0, 2]]
    assert tissue.numbered(np.array([[3, 0, 7]])).tolist() == [[3, 0, 7]]


def test_the_substitute_for_nuclei(tmp_path):
    """Every third of 15 and of the 6 that are bright and coloured, and MoNuSeg's own split."""
    folder = tmp_path / "given"
    cpm = folder / "cell_seg_matlab/data/MICCAI_competition_dataset"
    for number in range(1, 16):
        image, mask = square(66 + number, 10, number, 8, (210, 160, 180))
        write(cpm / f"image{number:02d}.png", image)
        other = {4: 5, 5: 4}.get(number, number)  # as in the copy that there is
        (cpm / f"image{other:02d}_mask.txt").write_text(in_text(mask))
    bowl = folder / "kaggle-dsbowl-2018-dataset-fixes/stage1_train"
    for name, colour in (("a", (230, 190, 240)), ("b", (20, 20, 20)), ("c", (230, 190, 240))):
        image, mask = square(64, 8, 8, 8, colour)
        for own in (bowl / f"{name}{copy}" for copy in range(3)):
            write(own / f"images/{name}{own.name[-1]}.png", image)
            for part in range(2):
                write(own / f"masks/{part}.png", np.roll(mask * 255, 20 * part, 1).astype(np.uint8))
    refused("MoNuSeg is not in", lambda: data.convert("nuclei_stand_in", folder, tmp_path))
    packed(tmp_path)
    data.convert("nuclei_stand_in", folder, tmp_path)
    with np.load(tmp_path / "nuclei_stand_in.npz") as file:
        sites = [np.bincount(file[f"{part}_site"]).tolist() for part in ("train", "test")]
        first = file["test_shape"][np.flatnonzero(file["test_site"] == 0)[0]]
    assert sites == [[10, 4, 4], [5, 4, 2]] and first.tolist() == [69, 75]
    test = data.load("nuclei_stand_in_64", tmp_path).test
    drawn = draw_nuclei(1, Rng(2).at("test")).instances
    assert (test.instances[1, :64, :64].numpy() == drawn).all()
    last = test.instances[test.centre == 2][0]
    assert last.unique().tolist() == [-1, 0, 1, 2] and (last > 0).sum() == 2 * 64


def case(place, image, mask=None):
    """A slice, or a slice and its mask, under the same names."""
    if mask is None:
        return write(place / "1.png", image)
    write(place / "images/1.png", image)
    return write(place / "masks/1.png", mask)


def test_tumours_in_ten_nodes_by_size(tmp_path):
    """Thirteen cases, of as many pixels of tumour as their number, the last of three; two are tested on."""
    folder = tmp_path / "brats"
    for number in range(1, 14):
        mask = np.zeros((224, 224), np.uint8)
        mask[2, 2 : 2 + (number if number < 13 else 3)] = 4
        name = f"{'c' if number % 2 else 'a'}{number:02d}"
        part = "test" if name in ("c11", "c13") else "train"
        case(folder / part / name, np.full_like(mask, number), mask)
    arrays = brains.tumours(folder)
    assert arrays["train_images"][:, 0, 0].tolist() == [2, 4, 6, 8, 10, 12, 1, 3, 5, 7, 9]
    assert arrays["train_masks"].sum((1, 2)).tolist() == [2, 4, 6, 8, 10, 12, 1, 3, 5, 7, 9]
    # eleven cases in ten nodes: the two smallest share the first
    assert arrays["train_site"].tolist() == [0, 2, 4, 6, 8, 9, 0, 1, 3, 5, 7]
    # 11 is larger than all but the last node's; 3 is as large as the second node's
    assert arrays["test_site"].tolist() == [9, 1]
    data.convert("brats2018", folder, tmp_path)
    converted = data.load("brats2018_64", tmp_path)
    assert len(converted.train) == 11 * 16 and converted.test.images.shape == (2, 1, 224, 224)
    for mask, words in (
        (np.zeros((224, 224), np.uint8), "the masks mark no tumour"),
        (np.ones((224, 220), np.uint8), "must be grey, 224 by 224 pixels"),
    ):
        write(folder / "train/a02/masks/1.png", mask)
        refused(words, lambda: brains.tumours(folder))
    refused("there is no folder .*train", lambda: brains.tumours(tmp_path))


def test_heads_of_three_sites(tmp_path):
    folder, draws = tmp_path / "heads", np.random.default_rng(0)
    for part in ("train", "test"):
        for site in brains.SITES:
            for volume in range(2 if site == "ixi" else 1):
                case(folder / part / site / f"v{volume}", draws.integers(0, 255, (256, 256), "u1"))
    case(folder / "val/ixi/v0", np.full((256, 256), 9, np.uint8))
    data.convert("mri_cross_domain_t2", folder, tmp_path)
    converted = data.load("mri_cross_domain_t2", tmp_path)
    assert converted.task_kind == "reconstruction" and converted.sites == brains.SITES
    assert converted.train.centre.tolist() == [0, 1, 2, 2] and converted.val.centre.tolist() == [2]
    image, target = (of[0, 0].numpy() / 255 for of in (converted.test.images, converted.test.masks))
    # a quarter of the columns of its spectrum is what is left of a slice
    power = [np.sum(np.abs(np.fft.fft2(each)) ** 2) for each in (image, target)]
    assert power[0] < power[1] and image.mean() == pytest.approx(target.mean(), rel=0.05)
    (folder / "train/ixi").rename(folder / "train/ixy")
    refused("there is no folder .*train/ixi", lambda: brains.heads(folder))


def test_the_substitutes_of_2d_images(tmp_path):
    folder = tmp_path / "QNN"
    for number in range(1, 97):
        image, mask = np.full((16, 16), 40 + number, np.uint8), np.zeros((16, 16), np.uint8)
        mask[4, : 1 + number % 12] = 255
        write(folder / f"images/{number}.png", image)
        write(folder / f"masks/{number}_mask.png", mask)
    write(folder / "images/7 (1).png", image)  # a second copy, which is left alone
    for name in ("tumours_stand_in", "mri_stand_in"):
        data.convert(name, folder, tmp_path)
    # 24 of the 96: in every 24, 12 to train on, 4 public and 8 of the test
    tumours = data.load("tumours_stand_in_64", tmp_path)
    assert len(tumours.train) == 16 * 4 and tumours.test.images.shape == (8, 1, 128, 128)
    assert tumours.test.images[:, 0, 0, 0].tolist() == list(range(41 + 16 * 4, 137, 4))
    by_node = [tumours.train.masks[tumours.train.centre == k].float().mean() for k in range(10)]
    assert by_node == sorted(by_node)
    heads = data.load("mri_stand_in_64", tmp_path)
    parts = (heads.train, heads.val, heads.test)
    assert heads.sites == ("random", "equispaced", "centre")
    # a block of 24 neighbours belongs to one site
    assert [len(one) for one in parts] == [48, 16, 8] and not any(one.centre.any() for one in parts)
    assert (heads.test.masks[:, 0, 0, 0] == tumours.test.images[:, 0, 0, 0]).all()
