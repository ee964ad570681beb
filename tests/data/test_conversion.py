"""Sets of several sites from the folders in which their makers give them out; the folders are small and
written here.
"""

from __future__ import annotations

import sys

import h5py
import nibabel
import numpy as np
import pytest
from skimage.io import imsave

from core import data
from core.data import brains, tissue, volumes
from core.data.drawn import draw_nuclei
from core.rng import Rng
from tests.data.test_dense import box, packed, refused, xml


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
    """Cell17, MoNuSeg and TNBC with one image for every place where the makers have some."""
    folder = tmp_path / "nuclei"
    for split, side in (("train", 70), ("test", 66)):
        image, mask = square(side, 20, 30, 12, (200, 160, 190))
        write(folder / f"cell17/{split}/gbm/image01.png", image)
        (folder / f"cell17/{split}/gbm/image01_mask.txt").write_text(in_text(mask))
    official = folder / "monuseg/MoNuSeg 2018 Training Data"
    for image, note in (
        (official / "Tissue Images", official / "Annotations"),
        (folder / "monuseg/MoNuSegTestData",) * 2,
    ):
        write(image / "TCGA-1.tif", np.full((80, 80, 3), 200, np.uint8))
        note.mkdir(parents=True, exist_ok=True)
        (note / "TCGA-1.xml").write_text(xml(box(10, 20, 29, 39)))
    for patient in range(1, 12):
        image, mask = square(64, 5, patient, 9, (220, 170, 200))
        write(folder / f"tnbc/Slide_{patient:02d}/{patient:02d}_1.png", image)
        write(folder / f"tnbc/GT_{patient:02d}/{patient:02d}_1.png", (mask * 255).astype(np.uint8))
    return folder


def test_three_sites_of_nuclei(nuclei, tmp_path):
    path = data.convert("nuclei_cross_site", nuclei, tmp_path)
    found = data.load("nuclei_cross_site_64", tmp_path)
    assert found.test.centre.tolist() == [0, 1, 2, 2, 2]
    assert sorted(set(found.train.centre.tolist())) == [0, 1, 2]
    # each image keeps its size: the rest of the square that holds them all is nothing
    own = [(one >= 0).nonzero().max(0).values.tolist() for one in found.test.instances]
    assert own == [[65, 71], [79, 79], *[[63, 69]] * 3]
    wanted = square(66, 20, 30, 12, (200, 160, 190))[1]
    assert (found.test.instances[0, :66, :72].numpy() == wanted).all()
    rows, columns = (found.test.instances[1] > 0).nonzero().T
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 39, 10, 29)
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
    def convert():
        return data.convert("nuclei_cross_site", nuclei, tmp_path)

    mask = nuclei / "cell17/train/gbm/image01_mask.txt"
    mask.write_text(in_text(np.zeros((5, 4), int)))
    refused("the image has 70 by 76 pixels and its mask 5 by 4", convert)
    mask.unlink()
    refused("there is no mask", convert)
    refused("there is no folder", lambda: data.convert("brats2018", tmp_path / "no", tmp_path))
    refused("no image01.png", lambda: data.convert("nuclei_cross_site", nuclei / "tnbc", tmp_path))
    words = "set that is converted .*; your own images get a name that no set here has"
    refused(words, lambda: data.convert("digits", tmp_path, tmp_path))
    assert not (tmp_path / "nuclei_cross_site.npz").exists()


def test_connected_parts_or_numbers():
    """A mask of nucleus and background, and one that has a number for each."""
    flat = np.array([[255, 0, 255], [255, 0, 255]], np.uint8)
    assert tissue.numbered(flat).tolist() == [[1, 0, 2], [1, 0, 2]]
    assert tissue.numbered(np.stack([flat] * 3, 2)).tolist() == [[1, 0, 2], [1, 0, 2]]
    assert tissue.numbered(np.array([[3, 0, 7]])).tolist() == [[3, 0, 7]]


def test_the_substitute_for_nuclei(tmp_path):
    folder = tmp_path / "given"
    cpm = folder / "cell_seg_matlab/data/MICCAI_competition_dataset"
    for number in range(1, 16):
        image, mask = square(66 + number, 10, number, 8, (210, 160, 180))
        write(cpm / f"image{number:02d}.png", image)
        other = {4: 5, 5: 4}.get(number, number)  # as in the copy that there is
        (cpm / f"image{other:02d}_mask.txt").write_text(in_text(mask))
    bowl = folder / "kaggle-dsbowl-2018-dataset-fixes/stage1_train"
    for name, colour in (("a", (230, 190, 240)), ("b", (20, 20, 20)), ("c", (230, 190, 240))):
        for copy in range(3):
            image, mask = square(64, 8, 8, 8, colour)
            own = bowl / f"{name}{copy}"
            write(own / f"images/{name}{copy}.png", image)
            for part in range(2):
                shifted = np.roll(mask * 255, 20 * part, 1).astype(np.uint8)
                write(own / f"masks/{part}.png", shifted)
    refused("MoNuSeg is not in", lambda: data.convert("nuclei_stand_in", folder, tmp_path))
    packed(tmp_path)
    data.convert("nuclei_stand_in", folder, tmp_path)
    with np.load(tmp_path / "nuclei_stand_in.npz") as file:
        sites = [np.bincount(file[f"{part}_site"]).tolist() for part in ("train", "test")]
        first = file["test_shape"][np.flatnonzero(file["test_site"] == 0)[0]]
    # every third of 15 and of the 6 that are bright and coloured, and MoNuSeg's own split
    assert sites == [[10, 4, 4], [5, 4, 2]] and first.tolist() == [69, 75]
    found = data.load("nuclei_stand_in_64", tmp_path)
    assert found.sites == ("cpm15", "monuseg", "dsb2018")
    assert (
        found.test.instances[1, :64, :64].numpy() == draw_nuclei(1, Rng(2).at("test")).instances
    ).all()
    last = found.test.instances[found.test.centre == 2][0]
    assert last.unique().tolist() == [-1, 0, 1, 2] and (last > 0).sum() == 2 * 64


def save(path, array, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine), path)


def test_a_volume_lies_as_its_header_says(tmp_path):
    """The same head stored along other axes gives the same slices."""
    volume = np.random.default_rng(0).random((4, 5, 6)).astype(np.float32)
    save(tmp_path / "a.nii.gz", volume)
    turned = np.array([[0, 0, 1, 0], [-1, 0, 0, 4], [0, 1, 0, 0], [0, 0, 0, 1]])
    # stored axes are: front to back, bottom to top, left to right
    save(tmp_path / "b.nii.gz", volume.transpose(1, 2, 0)[::-1].copy(), turned)
    one, other = (volumes.nifti(tmp_path / f"{name}.nii.gz") for name in "ab")
    np.testing.assert_array_equal(one, other)
    # front at the top, left at the left: the first row is the last of the second axis
    np.testing.assert_array_equal(one[2, 0], volume[:, -1, 2])
    assert one.shape == (6, 5, 4)
    save(tmp_path / "axes.nii.gz", np.zeros((2, 2, 2, 3), np.float32))
    save(tmp_path / "nan.nii.gz", np.full((2, 2, 2), np.nan, np.float32))
    (tmp_path / "text.nii.gz").write_bytes(b"no volume")
    for name, words in {
        "axes": r"has the axes \(2, 2, 2, 3\)",
        "nan": "not finite",
        "text": "cannot be read as a volume",
        "none": "there is no volume",
    }.items():
        refused(words, lambda name=name: volumes.nifti(tmp_path / f"{name}.nii.gz"))


@pytest.mark.parametrize(("package", "read"), [("nibabel", volumes.nifti), ("h5py", volumes.hdf5)])
def test_a_reader_that_is_absent_is_named(package, read, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    refused(f"needs the package {package}; install it with", lambda: read(tmp_path / "x"))


def test_which_slices_are_used_and_which_part_of_them():
    """Slice k has k bright pixels of 100: those with 6 to 45, of which sixteen, evenly spaced."""
    slices = (np.arange(100) < np.arange(46)[:, None]).reshape(46, 10, 10).astype(np.uint8)
    found = brains._kept(slices).sum((1, 2))
    assert (len(found), found[0], found[-1]) == (16, 6, 45)
    assert set(np.diff(found.astype(int)).tolist()) == {2, 3}
    assert brains._kept(slices[:8]).sum((1, 2)).tolist() == [6, 7]
    numbers = np.arange(2 * 6 * 3).reshape(2, 6, 3)
    middle = volumes.centred(numbers, 4)
    np.testing.assert_array_equal(middle[:, :, :3], numbers[:, 1:5])
    assert not middle[:, :, 3].any()
    assert volumes.eight_bits(np.array([[[0.0, 5.0, 10.0]]])).tolist() == [[[0, 128, 255]]]


def test_tumours_in_ten_nodes_by_size(tmp_path):
    """Thirteen cases, of as many pixels of tumour as their number."""
    folder, draws = tmp_path / "brats", np.random.default_rng(0)
    for number in range(1, 14):
        label = np.zeros((20, 24, 5), np.int16)
        label[2, 2 : 2 + number, 3] = 4
        name = f"Brats18_{'c' if number % 2 else 'a'}{number:02d}_1"
        save(
            folder / f"HGG/{name}/{name}_t2.nii.gz", draws.uniform(1, 900, label.shape).astype("f4")
        )
        save(folder / f"HGG/{name}/{name}_seg.nii.gz", label)
    arrays = brains.tumours(folder)
    # in the order of their names: 2, 4, ... 12, 1, 3, ... 13; the last two are tested on
    assert arrays["train_images"].shape == (11, 224, 224)
    assert arrays["train_masks"].sum((1, 2)).tolist() == [2, 4, 6, 8, 10, 12, 1, 3, 5, 7, 9]
    # eleven cases in ten nodes: the two smallest share the first
    assert arrays["train_site"].tolist() == [0, 2, 4, 6, 8, 9, 0, 1, 3, 5, 7]
    # 11 is larger than all but the last node's
    assert arrays["test_site"].tolist() == [9, 9]
    data.convert("brats2018", folder, tmp_path)
    found = data.load("brats2018_64", tmp_path)
    assert len(found.train) == 11 * 16 and found.test.images.shape == (2, 1, 224, 224)
    case = folder / "HGG/Brats18_a02_1/Brats18_a02_1_seg.nii.gz"
    for label, words in (
        (np.full((20, 24, 5), 7, np.int16), "the mask holds the label 7; BraTS has"),
        (np.zeros((20, 24, 5), np.int16), "the mask marks no tumour"),
        (np.zeros((20, 24, 4), np.int16), "the image has the axes"),
    ):
        save(case, label)
        refused(words, lambda: brains.tumours(folder))
    refused("holds no case HGG", lambda: brains.tumours(tmp_path))


def test_a_case_of_the_size_of_a_nodes_largest_is_one_of_that_node(tmp_path):
    """Cases of 1 to 10 pixels, one a node, and three to test on."""
    sizes = [*range(1, 11), 1, 3, 99]
    masks = [(np.arange(100) < size).reshape(1, 10, 10).astype(np.uint8) for size in sizes]
    arrays = brains.by_size([(200 * mask, mask) for mask in masks], 10, tmp_path)
    assert arrays["train_site"].tolist() == [*range(10)]
    assert arrays["test_site"].tolist() == [0, 2, 9]
    assert arrays["test_masks"].sum((1, 2)).tolist() == [1, 3, 99]


def test_heads_of_three_sites(tmp_path):
    folder = tmp_path / "heads"
    volume = np.random.default_rng(0).uniform(1, 9, (200, 210, 20)).astype(np.float32)
    for kind in ("Training", "Validation"):
        name = f"BraTS20_{kind}_001"
        save(folder / f"MICCAI_BraTS2020_{kind}Data/{name}/{name}_t2.nii", volume)
    for split in ("train", "val"):
        path = folder / f"multicoil_{split}/file_brain_AXT2_200_{split}.h5"
        path.parent.mkdir()
        with h5py.File(path, "w") as file:
            file["reconstruction_rss"] = volume.transpose(2, 0, 1)[:3]
    for number in range(12):
        save(folder / f"IXI-T2/IXI{number:03d}-Guys-0-T2.nii.gz", volume[:, :, :2])
    data.convert("mri_cross_domain_t2", folder, tmp_path)
    with np.load(tmp_path / "mri_cross_domain_t2.npz") as file:
        counts = [
            np.bincount(file[f"{s}_site"], minlength=3).tolist() for s in ("train", "val", "test")
        ]
        image, target = file["test_images"][0] / 255, file["test_targets"][0] / 255
    # 16 slices of a volume at most; 9, 1 and 2 of IXI's twelve subjects
    assert counts == [[16, 3, 18], [0, 0, 2], [16, 3, 4]]
    # a quarter of the columns of its spectrum is what is left of a slice
    power = [np.sum(np.abs(np.fft.fft2(one)) ** 2) for one in (image, target)]
    assert power[0] < power[1] and image.mean() == pytest.approx(target.mean(), rel=0.05)
    found = data.load("mri_cross_domain_t2_64", tmp_path)
    assert found.learns == "reconstruction" and found.test.images.shape[2:] == (256, 256)
    with h5py.File(path, "w") as file:
        file["kspace"] = np.zeros((2, 2))
    refused("it has no 'reconstruction_rss'", lambda: volumes.hdf5(path))
    path.write_bytes(b"no file of that kind")
    refused("cannot be read as a volume", lambda: volumes.hdf5(path))
    for kind in ("Training", "Validation"):
        name = f"BraTS20_{kind}_001"
        t1 = folder / f"MICCAI_BraTS2020_{kind}Data/{name}/{name}_t1.nii"
        save(t1, np.ones((8, 8, 2), np.float32))
    refused("holds no AXT1 file", lambda: brains.heads(folder, "t1"))


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
    assert heads.sites == ("random", "equispaced", "centre")
    assert [len(one) for one in (heads.train, heads.val, heads.test)] == [48, 16, 8]
    # a block of 24 neighbours belongs to one site
    assert not any(one.centre.any() for one in (heads.train, heads.val, heads.test))
    assert (heads.test.masks[:, 0, 0, 0] == tumours.test.images[:, 0, 0, 0]).all()
