"""MoNuSeg: nuclei in stained tissue of four organs, each of which is a client (Kumar et al. 2017,
2020). Two layouts are read, in the folder `monuseg`: images with instance maps and a `manifest.json`
that names organ and split, and the challenge's own, `Tissue Images` beside `Annotations`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.data.dataset import Dataset
from core.data.dense import Picture, nuclei
from core.data.pictures import FORMATS, decoded
from core.errors import InputError, brief
from core.files import read_bounded, read_json

if TYPE_CHECKING:
    from PIL.Image import Image

ORGANS = ("breast", "liver", "kidney", "prostate")
SIZES = (256, 64)
#: bytes of the largest annotation file that is read; the official ones have up to 10 million
LARGEST = 2**26
OFFICIAL = ("Tissue Images", "Annotations")
#: the split of Kumar et al. 2017 that FedIOD's Table 3 follows: by organ, the training images first
IMAGES = {
    "breast": (("A7-A13E", "A7-A13F", "AR-A1AK", "AR-A1AS"), ("E2-A14V", "E2-A1B5")),
    "liver": (("18-5592", "38-6178", "49-4488", "50-5931"), ("21-5784", "21-5786")),
    "kidney": (("HE-7128", "HE-7129", "HE-7130", "B0-5711"), ("B0-5698", "B0-5710")),
    "prostate": (("G9-6336", "G9-6348", "G9-6356", "G9-6363"), ("CH-5767", "G9-6362")),
}
#: what names the images of the first layout, and how an image may be named there
MANIFEST, NAME = "monuseg/manifest.json", re.compile(r"[\w-]{1,100}")
HOW = (
    "download the training data from monuseg.grand-challenge.org and put its folders Tissue Images and "
    "Annotations into the folder monuseg of the data folder"
)


def read_picture(path: Path) -> np.ndarray:
    """An image file as an array, (H, W) or (H, W, 3). Raises InputError, naming it, where it cannot be
    read.
    """
    return _read(path, lambda image: image.convert("RGB") if image.mode == "P" else image)


def read_mask(path: Path) -> np.ndarray:
    """The same of a mask, whose numbers are kept as they are, also those of a palette."""
    return _read(path, lambda image: image)


def _read(path: Path, seen_as: Callable[[Image], Image]) -> np.ndarray:
    found = decoded(path, lambda image: np.array(seen_as(image)), (*FORMATS, "TIFF", "WEBP"))
    return found[..., :3] if found.ndim == 3 and found.shape[2] == 4 else found


def from_polygons(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The instance map (H, W) of an annotation file of the challenge: polygons in XML. Where nuclei
    overlap, the later one is on top. Raises InputError for a file that holds no polygon.
    """
    from xml.etree import ElementTree

    from skimage.draw import polygon

    try:
        text = read_bounded(path, LARGEST, "annotation file")
        regions = list(ElementTree.fromstring(text).iter("Region"))
        corners = [
            np.array([(float(v.get("Y", "")), float(v.get("X", ""))) for v in one.iter("Vertex")])
            for one in regions
        ]
        if not all(np.isfinite(one).all() for one in corners):
            raise ValueError
    except (ElementTree.ParseError, ValueError):
        raise InputError(f"{path} is not an annotation file of MoNuSeg") from None
    if not corners:
        raise InputError(f"{path} has no Region: it marks no nucleus")
    instances = np.zeros(shape[:2], np.int32)
    for number, one in enumerate(corners, 1):
        if len(one) > 2:
            instances[polygon(one[:, 0], one[:, 1], instances.shape)] = number
    return instances


def layouts(size: int) -> tuple[tuple[str, ...], ...]:
    """What must be in the data folder: one of these."""
    return (MANIFEST,), tuple(f"monuseg/{name}" for name in OFFICIAL)


def whole(root: Path, files: tuple[str, ...]) -> tuple[str, ...]:
    """The paths of a layout, and those of the images and masks that a manifest among them lists."""
    manifest = root / "monuseg" / "manifest.json"
    if MANIFEST not in files or not manifest.is_file():
        return files
    pictures = []
    for id_ in _listed(manifest):
        images = [one for one in manifest.parent.glob(f"{id_}.*") if ".instances." not in one.name]
        pictures += [
            f"monuseg/{images[0].name if images else f'{id_}.png'}",
            f"monuseg/{id_}.instances.png",
        ]
    return *files, *pictures


def _listed(manifest: Path) -> list[str]:
    """The names of the images that a manifest lists; what is wrong with it is for `load_monuseg` to say."""
    with contextlib.suppress(InputError):
        entries = read_json(manifest, 2**20, "list of images")
        if isinstance(entries, list):
            ids = [one.get("id") for one in entries if isinstance(one, dict)]
            return [id_ for id_ in ids if isinstance(id_, str) and NAME.fullmatch(id_)]
    return []


def load_monuseg(root: Path, size: int) -> Dataset:
    """Patches of `size` pixels for training; the test images are whole, 1000 by 1000 pixels."""
    found = load_pictures(root)
    name = "monuseg" if size == SIZES[0] else f"monuseg_{size}"
    return nuclei(name, found["train"], found["test"], ORGANS, size)


def load_pictures(root: Path) -> dict[str, list[Picture]]:
    """The images to train on and to test on. Raises InputError where they are not in the folder."""
    folder = root / "monuseg"
    if not any(all((root / path).exists() for path in paths) for paths in layouts(0)):
        raise InputError(f"MoNuSeg is not in {folder}; {HOW}")
    return _packed(folder) if (folder / "manifest.json").exists() else _official(folder)


def _packed(folder: Path) -> dict[str, list[Picture]]:
    """Images beside `<id>.instances.png`, as the manifest lists them."""
    entries, found = read_json(folder / "manifest.json", 2**20, "list of images"), _splits()
    if not isinstance(entries, list):
        raise InputError(f"{folder}/manifest.json must hold a list of images")
    for entry in entries:
        try:
            id_, organ, split = entry["id"], ORGANS.index(entry["organ"]), found[entry["split"]]
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{folder}/manifest.json: an entry needs id, organ ({', '.join(ORGANS)}) and split "
                "(train or test)"
            ) from None
        if not (isinstance(id_, str) and NAME.fullmatch(id_)):
            raise InputError(f"{folder}/manifest.json: {brief(id_)} is not the name of an image")
        images = [path for path in folder.glob(f"{id_}.*") if ".instances." not in path.name]
        mask = folder / f"{id_}.instances.png"
        if len(images) != 1 or not mask.exists():
            raise InputError(
                f"{folder} has {len(images)} images and {mask.exists():d} masks of {id_}"
            )
        split.append(
            Picture(read_picture(images[0]), _whole(read_mask(mask)), organ, images[0].name)
        )
    return found


def _official(folder: Path) -> dict[str, list[Picture]]:
    """The challenge's TIFF images and XML annotations of the 24 images."""
    found = _splits()
    for organ, parts in IMAGES.items():
        for split, ids in zip(found.values(), parts, strict=True):
            for id_ in ids:
                paths = [sorted((folder / kind).glob(f"TCGA-{id_}-*")) for kind in OFFICIAL]
                if not all(len(one) == 1 for one in paths):
                    counts = [len(one) for one in paths]
                    raise InputError(
                        f"{folder} has {counts[0]} images and {counts[1]} annotations of TCGA-{id_}"
                    )
                image = read_picture(paths[0][0])
                instances = from_polygons(paths[1][0], image.shape)
                split.append(Picture(image, instances, ORGANS.index(organ), paths[0][0].name))
    return found


def _splits() -> dict[str, list[Picture]]:
    return {"train": [], "test": []}


def _whole(instances: np.ndarray) -> np.ndarray:
    return instances.astype(np.int32) if instances.dtype == np.uint16 else instances
