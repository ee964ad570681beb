"""Unlabelled images for distillation, from another data set than the task's.

FedDF, FedMD and FedKD need public images beside the clients' own. Their papers take CIFAR-100 for
CIFAR-10 and ImageNet for CIFAR-100. Any data set that `load` knows can serve; its labels are thrown
away. Two more need no download:

- `photographs`: windows cut out of the two photographs that come with scikit-learn, each stretched
  to the full range of values, after Asano and Saeed (Extrapolating from a Single Image to a
  Thousand Classes using Distillation, ICLR 2023);
- `framed_digits`: scikit-learn's digits drawn as MNIST's are, on 20 of 28 pixels with a black
  frame, at twice the contrast, because enlarging 8x8 pixels blurs the strokes.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from core.data.dataset import Dataset
from core.data.loading import load
from core.data.pixels import resized, shaped
from core.errors import InputError
from core.rng import Rng

PHOTOGRAPHS = "photographs"
FRAMED_DIGITS = "framed_digits"
#: sets that are made from the images of another, beside those whose name says so
SOURCES = {
    FRAMED_DIGITS: "digits",
    "ham10000_melanoma": "ham10000",
    "dermamnist": "ham10000",
    "bloodmnist_pbc": "bloodmnist",
    # three views of the same bodies
    "organamnist": "organs",
    "organcmnist": "organs",
    "organsmnist": "organs",
    # both were drawn from ImageNet
    "stl10": "imagenet",
    "imagenette": "imagenet",
}
#: how many windows are kept
WINDOWS = 5_000
#: shorter side of a photograph, in windows, at each scale that windows are cut at
SCALES = (2, 3, 4, 6, 8, 12)


def auxiliary(name: str, task: Dataset, root: str | Path | None = None) -> torch.Tensor:
    """Return the training images of the data set `name` in the form of a task's images, uint8
    (N, C, S, S) on the CPU.

    Images are resized with antialiasing; colour becomes grey by luma, grey becomes colour by
    repetition. Equal data give equal images, in the order of the source. Do not change them in
    place.

    Args:
        name: `photographs`, `framed_digits`, or a name that `load` takes.
        task: the data set that is learned. None of its images may come back, so its own name and
            those of sets from the same source are refused.
        root: the data folder, as in `load`.

    Raises InputError when the set is unknown or missing, or is the task's own.
    """
    if name != PHOTOGRAPHS and _source(name) == _source(task.name):
        raise InputError(
            f"auxiliary data must be another data set than the task's, {task.name}, not {name!r}; "
            f"{PHOTOGRAPHS!r} is always at hand"
        )
    if name == PHOTOGRAPHS:
        return _windows(task.channels, task.size)
    if name == FRAMED_DIGITS:
        return _framed(load("digits").train.images, task.channels, task.size)
    # read anew in every call: another file may have taken its place
    return resized(load(name, root).train.images, task.channels, task.size)


def _source(name: str) -> str:
    """Name of the set that images come from: `pneumoniamnist_224` holds those of `pneumoniamnist`,
    and `dermamnist` those of `ham10000`, in another split.
    """
    plain = re.sub(r"_(\d+|coarse)$", "", name)
    return SOURCES.get(plain, plain)


def _framed(images: torch.Tensor, channels: int, size: int) -> torch.Tensor:
    """Images at 20/28 of the size in a black frame, at twice their contrast about middle grey."""
    side = max(1, round(size * 20 / 28))
    small = (
        (2 * resized(images, channels, side).float() - 127.5).round().clamp(0, 255).to(torch.uint8)
    )
    before = (size - side) // 2
    after = size - side - before
    return functional.pad(small, (before, after, before, after))


@functools.lru_cache(maxsize=2)
def _windows(channels: int, size: int) -> torch.Tensor:
    """`WINDOWS` random windows at quarter steps, of both photographs at all scales."""
    cuts = []
    for photograph in _photographs():
        height, width = photograph.shape[-2:]
        for scale in SCALES:
            factor = scale * size / min(height, width)
            small = shaped(photograph, channels, (round(factor * height), round(factor * width)))
            step = max(1, size // 4)
            cut = small.unfold(2, size, step).unfold(3, size, step)  # (1, C, rows, columns, S, S)
            cuts.append(cut.permute(0, 2, 3, 1, 4, 5).flatten(0, 2))
    windows = torch.cat(cuts)
    chosen = torch.randperm(len(windows), generator=Rng(0).at("photographs", size).generator())[
        :WINDOWS
    ]
    return _stretched(windows[chosen])


def _stretched(images: torch.Tensor) -> torch.Tensor:
    """Images stretched to the range 0 to 255: most windows are flat otherwise."""
    dark, bright = (
        edge(images.float(), (1, 2, 3), keepdim=True) for edge in (torch.amin, torch.amax)
    )
    return ((images - dark) * (255 / (bright - dark).clamp_min(1))).round().to(torch.uint8)


def _photographs() -> list[torch.Tensor]:
    """The two photographs, float (1, 3, 427, 640) with values from 0 to 255."""
    try:
        from sklearn.datasets import load_sample_images

        images = load_sample_images().images
    except ImportError:
        raise InputError(
            "the photographs of scikit-learn need the package pillow; install it with: pip install pillow"
        ) from None
    return [torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() for image in images]
