"""Sets of several sites from what their makers give out, as the files that `core.data.sites` reads, and
one's own from folders of images (`core.data.folders`): `fedcon data convert NAME FOLDER`.

Nothing of it is in this package or its repository: a person brings the folder, and the file goes into
the data folder. From where: Cell17 and BraTS (www.med.upenn.edu/sbia) from their challenges, MoNuSeg from
monuseg.grand-challenge.org, TNBC from doi:10.5281/zenodo.1175282, fastMRI's brain data from
fastmri.med.nyu.edu, IXI from brain-development.org, and the stand-ins from repositories on GitHub: `git
clone` them, and `git checkout` the commit where one is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import numpy as np

from core.checks import is_whole
from core.data import brains, tissue
from core.data.dense import Picture
from core.data.folders import MOST, from_folders
from core.data.loading import is_own
from core.data.monuseg import load_pictures
from core.data.npz import write_arrays
from core.data.roots import data_root
from core.errors import InputError, unknown

Arrays = Mapping[str, np.ndarray]
Pictures = dict[str, list[Picture]]
#: patients of TNBC to train on and to test on (FedIOD is silent)
PATIENTS = (range(1, 9), range(9, 12))


def convert(
    name: str, folder: str | Path, root: str | Path | None = None, size: int | None = None
) -> Path:
    """Write `<name>.npz` into the data folder, made from `folder`, and return its path.

    Args:
        name: one of `CONVERSIONS`, or a name of one's own for images in folders by class.
        size: of one's own, pixels of a side (see `from_folders`).

    Raises InputError where the name is that of another known set, and for what is missing, damaged or
    does not fit together.
    """
    source, target = Path(folder), data_root(root) / f"{name}.npz"
    own = name not in CONVERSIONS
    if own and not is_own(name):
        known = unknown("set that is converted", name, CONVERSIONS)
        raise InputError(f"{known}; your own images get a name that no set here has")
    if size is not None and (not own or not is_whole(size, 1, MOST)):
        raise InputError(
            f"size is a whole number of pixels, at most {MOST:,}, for images of your own: not {size!r}"
        )
    if not source.is_dir():
        raise InputError(f"there is no folder {source}")
    if own and not (source / "train").is_dir():
        raise InputError(
            f"{source} has no folder train with a folder for each class; what others give out is converted "
            f"under its own name: {', '.join(CONVERSIONS)}"
        )
    made = from_folders(source, size) if own else CONVERSIONS[name](source, data_root(root))
    write_arrays(target, made)
    return target


def nuclei(folder: Path, root: Path) -> Arrays:
    """Cell17, MoNuSeg and TNBC, in `cell17/train` and `cell17/test`, `monuseg/MoNuSeg 2018 Training Data`
    and `monuseg/MoNuSegTestData`, and `tnbc`; each as `core.data.tissue` reads it.
    """
    cell17, monuseg = folder / "cell17", folder / "monuseg"
    return flat(
        {
            "train": [
                *tissue.challenge(cell17 / "train", 0),
                *tissue.monuseg(monuseg / "MoNuSeg 2018 Training Data", 1),
                *tissue.tnbc(folder / "tnbc", 2, PATIENTS[0]),
            ],
            "test": [
                *tissue.challenge(cell17 / "test", 0),
                *tissue.monuseg(monuseg / "MoNuSegTestData", 1),
                *tissue.tnbc(folder / "tnbc", 2, PATIENTS[1]),
            ],
        }
    )


def public_nuclei(folder: Path, root: Path) -> Arrays:
    """The stand-in: CPM-15 in `cell_seg_matlab`, MoNuSeg as it is in the data folder, and the Data Science
    Bowl 2018 in `kaggle-dsbowl-2018-dataset-fixes`; of the first and the last, every third image is tested
    on.
    """
    parts = {
        split: [attrs.evolve(one, site=1) for one in pictures]
        for split, pictures in load_pictures(root).items()
    }
    for found in (
        tissue.cpm15(folder / "cell_seg_matlab", 0),
        tissue.bowl(folder / "kaggle-dsbowl-2018-dataset-fixes", 2),
    ):
        for number, picture in enumerate(found):
            parts["test" if number % 3 == 2 else "train"].append(picture)
    return flat(parts)


def flat(parts: Pictures) -> Arrays:
    """Pictures of any sizes as arrays: the pixels of all, one after another, and their shapes."""
    found: dict[str, np.ndarray] = {}
    for split, pictures in parts.items():
        colours = [
            np.broadcast_to(_colour(one.image), (*one.instances.shape, 3)) for one in pictures
        ]
        labels = np.concatenate([one.instances.ravel() for one in pictures])
        found |= {
            f"{split}_images": np.concatenate([one.reshape(-1, 3) for one in colours]),
            f"{split}_instances": labels.astype(np.uint16 if labels.max() < 2**16 else np.int32),
            f"{split}_shape": np.array([one.instances.shape for one in pictures]),
            f"{split}_site": np.array([one.site for one in pictures]),
        }
    return found


def _colour(image: np.ndarray) -> np.ndarray:
    return image[..., None] if image.ndim == 2 else image


CONVERSIONS: dict[str, Callable[[Path, Path], Arrays]] = {
    "nuclei_cross_site": nuclei,
    "nuclei_stand_in": public_nuclei,
    "brats2018": lambda folder, root: brains.tumours(folder),
    "tumours_stand_in": lambda folder, root: brains.few_tumours(folder),
    "mri_cross_domain_t1": lambda folder, root: brains.heads(folder, "t1"),
    "mri_cross_domain_t2": lambda folder, root: brains.heads(folder, "t2"),
    "mri_stand_in": lambda folder, root: brains.few_heads(folder),
}
