"""MoNuSeg: nuclei in stained tissue of four organs, each of which is a client (Kumar et al. 2017,
2020). Two layouts are read, in the folder `monuseg`: images with instance maps and a `manifest.json`
that names organ and split, and the challenge's own, `Tissue Images` beside `Annotations`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from core.data.dataset import Dataset
from core.data.dense import Picture, nuclei
from core.data.images import read_image, read_mask
from core.errors import InputError, brief
from core.files import parsing, read_bounded, read_json

ORGANS = ("breast", "liver", "kidney", "prostate")
#: pixels of a patch, by default
PATCH = 256
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


def from_polygons(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The instance map (H, W) of an annotation file of the challenge: polygons in XML. Where nuclei
    overlap, the later one is on top. Raises InputError for a file that holds no polygon.
    """
    content = read_bounded(path, LARGEST, "annotation file")
    instances = np.zeros(shape[:2], np.int32)
    with parsing(path, "an annotation file of MoNuSeg"):
        from xml.etree import ElementTree

        from skimage.draw import polygon

        regions = list(ElementTree.fromstring(content).iter("Region"))
        if not regions:
            raise ValueError("it marks no nucleus")
        for number, region in enumerate(regions, 1):
            corners = [
                (float(v.get("Y", "")), float(v.get("X", ""))) for v in region.iter("Vertex")
            ]
            rows, columns = np.array(corners).reshape(-1, 2).T
            if not np.isfinite([rows, columns]).all():
                raise ValueError("a corner is at no place")
            if len(rows) > 2:
                instances[polygon(rows, columns, instances.shape)] = number
    return instances


def load_monuseg(folder: Path, size: int) -> Dataset:
    """Patches of `size` pixels for training; the test images are whole, 1000 by 1000 pixels."""
    parts = load_pictures(folder)
    name = "monuseg" if size == PATCH else f"monuseg_{size}"
    return nuclei(name, parts["train"], parts["test"], ORGANS, size)


def load_pictures(folder: Path) -> dict[str, list[Picture]]:
    """The images to train on and to test on. Raises InputError where they are not in the folder."""
    manifest = folder / "manifest.json"
    parts: dict[str, list[Picture]] = {"train": [], "test": []}
    if not manifest.exists():
        if not all((folder / name).is_dir() for name in OFFICIAL):
            raise InputError(f"MoNuSeg is not in {folder}: `fedcon data` says how it is had")
        return _official(folder, parts)
    entries = read_json(manifest, 2**20, "list of images")
    if not isinstance(entries, list):
        raise InputError(f"{manifest} must hold a list of images")
    for entry in entries:
        try:
            name, organ, part = entry["id"], ORGANS.index(entry["organ"]), parts[entry["split"]]
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{manifest}: an entry needs id, organ ({', '.join(ORGANS)}) and split (train or test)"
            ) from None
        if not (isinstance(name, str) and re.fullmatch(r"[\w-]{1,100}", name)):
            raise InputError(f"{manifest}: {brief(name)} is not the name of an image")
        images = [path for path in folder.glob(f"{name}.*") if ".instances." not in path.name]
        if len(images) != 1:
            raise InputError(f"{folder} has {len(images)} images of {name}")
        instances = read_mask(folder / f"{name}.instances.png")
        part.append(Picture(read_image(images[0]), instances, organ, images[0].name))
    return parts


def _official(folder: Path, parts: dict[str, list[Picture]]) -> dict[str, list[Picture]]:
    """The challenge's TIFF images and XML annotations of the 24 images."""
    for organ, names_of_parts in IMAGES.items():
        for part, names in zip(parts.values(), names_of_parts, strict=True):
            for name in names:
                paths = [sorted((folder / kind).glob(f"TCGA-{name}-*")) for kind in OFFICIAL]
                counts = [len(files) for files in paths]
                if counts != [1, 1]:
                    raise InputError(
                        f"{folder} has {counts[0]} images and {counts[1]} annotations of TCGA-{name}"
                    )
                image, (notes,) = read_image(paths[0][0]), paths[1]
                instances = from_polygons(notes, image.shape)
                part.append(Picture(image, instances, ORGANS.index(organ), paths[0][0].name))
    return parts
