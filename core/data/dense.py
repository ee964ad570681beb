"""Data sets in which every pixel has an answer: whole images with instance maps, cut into patches for
training and left whole for testing.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from core.checks import LARGEST
from core.data.dataset import Dataset, Split, dataset_of
from core.errors import InputError

#: classes of a pixel where objects are told apart, and their weights in the loss: the foreground and
#: the rim count more (FedIOD, appendix; it gives no numbers)
NUCLEI, WEIGHTS = ("background", "nucleus", "rim"), (1.0, 1.5, 3.0)
#: pixels of the rim
RIM = 2


@attrs.frozen(eq=False)
class Picture:
    """One image with the objects in it. Raises InputError, naming it, where image and mask differ in
    size, or the mask holds other numbers than whole ones from 0 to 2^31 - 1.
    """

    #: (H, W) or (H, W, 3), uint8
    image: np.ndarray
    #: (H, W), whole numbers; 0 is background
    instances: np.ndarray
    #: the number of the site that it comes from
    site: int
    #: how messages name it
    name: str = "an image"

    def __attrs_post_init__(self) -> None:
        image, instances = self.image, self.instances
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)):
            raise InputError(
                f"{self.name}: an image must be uint8 of shape (H, W) or (H, W, 3), not {image.dtype} "
                f"of {image.shape}"
            )
        if instances.ndim != 2 or instances.dtype.kind not in "iu":
            raise InputError(
                f"{self.name}: a mask must hold whole numbers of shape (H, W), not {instances.dtype} "
                f"of shape {instances.shape}"
            )
        if image.shape[:2] != instances.shape:
            raise InputError(
                f"{self.name}: the image has {by(image)} pixels and its mask {by(instances)}"
            )
        low, high = (int(edge(instances, initial=0)) for edge in (np.min, np.max))
        if low < 0 or high > LARGEST:
            raise InputError(
                f"{self.name}: the mask holds the number {low if low < 0 else high}; 0 is background "
                f"and objects have numbers from 1 to {LARGEST}"
            )


def by(array: np.ndarray) -> str:
    """Height and width of an image in words."""
    return f"{array.shape[0]} by {array.shape[1]}"


def outlined(instances: np.ndarray, border: int) -> np.ndarray:
    """Classes (H, W) uint8 of an instance map: 0 background, 1 inside, 2 `border` pixels of rim."""
    from scipy.ndimage import maximum_filter, minimum_filter

    if not border:
        return (instances > 0).astype(np.uint8)
    size = 2 * border + 1
    alone = minimum_filter(instances, size) == maximum_filter(instances, size)
    return np.where(instances == 0, 0, np.where(alone, 1, 2)).astype(np.uint8)


def starts(length: int, size: int) -> list[int]:
    """Starts of patches along a side: as few as cover it, evenly spaced."""
    return np.linspace(0, length - size, -(-length // size)).round().astype(int).tolist()


def patches(pictures: Sequence[Picture], size: int, border: int) -> Split:
    """Patches (N, C, size, size) of all pictures, and classes. InputError for smaller pictures."""
    images, masks, sites = [], [], []
    for picture in pictures:
        if min(picture.instances.shape) < size:
            raise InputError(
                f"{picture.name} has {by(picture.instances)} pixels, a patch {size} by {size}"
            )
        classes = outlined(picture.instances, border)
        for top in starts(picture.image.shape[0], size):
            for left in starts(picture.image.shape[1], size):
                place = np.s_[top : top + size, left : left + size]
                images.append(picture.image[place])
                masks.append(classes[place])
                sites.append(picture.site)
    centre = torch.tensor(sites, dtype=torch.int64)
    return Split(planes(np.stack(images)), centre, centre, torch.from_numpy(np.stack(masks)))


def whole(pictures: Sequence[Picture], border: int) -> Split:
    """All pictures as they are, padded to the largest square among them; the padding belongs to no
    object and to no background: its instances are -1.
    """
    side = max(max(picture.instances.shape) for picture in pictures)
    images, masks, instances = [], [], []
    for picture in pictures:
        pad = [(0, side - length) for length in picture.instances.shape]
        images.append(
            np.pad(picture.image, [*pad, *[(0, 0)] * (picture.image.ndim - 2)], mode="edge")
        )
        instances.append(np.pad(picture.instances.astype(np.int32), pad, constant_values=-1))
        masks.append(np.pad(outlined(picture.instances, border), pad))
    centre = torch.tensor([picture.site for picture in pictures])
    answers = (torch.from_numpy(np.stack(each)) for each in (masks, instances))
    return Split(planes(np.stack(images)), centre, centre, *answers)


def planes(images: np.ndarray) -> torch.Tensor:
    """Images (N, H, W) or (N, H, W, C) as (N, C, H, W), a copy."""
    own = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.array(own, order="C"))


def nuclei(
    name: str, train: Sequence[Picture], test: Sequence[Picture], sites: tuple[str, ...], size: int
) -> Dataset:
    """A data set of nuclei whose clients are sites: training images cut into patches, test images
    whole. Raises InputError where a site has no image to train on, or none to test on.
    """
    for number, site in enumerate(sites):
        counts = [sum(picture.site == number for picture in part) for part in (train, test)]
        if not all(counts):
            total = "one image" if sum(counts) == 1 else f"{sum(counts)} images"
            raise InputError(
                f"{name}: {site} has {total}; it needs at least one to train on and one to test on"
            )
    splits = {"train": patches(train, size, RIM), "test": whole(test, RIM)}
    return dataset_of(name, splits, NUCLEI, name, sites=sites, weights=WEIGHTS, border=RIM)
