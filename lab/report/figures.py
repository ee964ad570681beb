"""Figures of the book: an empty one, images in a grid, and how a notebook shows them.

Each function that draws returns a `matplotlib.figure.Figure` whose label is a description in words,
computed from what is drawn; `show` puts it into a notebook as its alternative text. Nothing here
touches pyplot's global state.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import InputError
from lab.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def blank(width: float, height: float) -> Figure:
    """An empty figure of so many inches. To be called and filled within
    `rc_context(style.rc())`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("figures need the package matplotlib: pip install matplotlib") from None
    return Figure(figsize=(width, height))


def _pixels(images: Any) -> np.ndarray:
    """(N, H, W, 3) floats in [0, 1]. Floats beyond [0, 1] are stretched from the least to the
    greatest value.
    """
    array = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or not len(array):
        raise InputError(
            f"images must have shape (N, 1 or 3, H, W) with N at least 1, not {array.shape}"
        )
    array = array / 255.0 if array.dtype == np.uint8 else array.astype(np.float64)
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        array = (array - low) / max(high - low, 1e-12)
    return np.repeat(array, 3 // array.shape[1], axis=1).transpose(0, 2, 3, 1)


def condensed_images(
    images: Any,
    labels: Any,
    classes: Sequence[str] | None = None,
    columns: int = 10,
    title: str = "",
    inches: float = 0.62,
) -> Figure:
    """A grid of images, one row per class, at most `columns` of a class.

    Args:
        images: (N, 1 or 3, H, W) uint8, or floats in [0, 1]; other floats are stretched to that
            range.
        labels: (N,) classes; a class without images has no row.
        classes: names of the classes; by default their numbers.
        inches: the side of an image.
    """
    pixels = _pixels(images)
    targets = np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels).astype(np.int64)
    if len(targets) != len(pixels):
        raise InputError(f"{len(pixels)} images need as many labels, not {len(targets)}")
    held = np.unique(targets)
    names = [str(cls if classes is None else classes[cls]) for cls in held]
    rows = [pixels[targets == cls][:columns] for cls in held]
    return _grid(names, rows, title, inches, f"one row for each of {len(held)} classes")


def image_rows(rows: Mapping[str, Any], title: str = "", inches: float = 0.62) -> Figure:
    """A row of images for every name.

    Args:
        rows: images of one size by name, each (N, 1 or 3, H, W) uint8, or floats in [0, 1]; other
            floats are stretched to that range, all together.
        inches: the side of an image.

    Raises InputError where the images have no common size, and where there is none.
    """
    import torch

    found = [torch.as_tensor(images).cpu() for images in rows.values()]
    found = [one / 255 if one.dtype == torch.uint8 else one for one in found]
    if len({images.shape[1:] for images in found}) != 1:
        raise InputError("rows of images need images, all of one size")
    pixels = _pixels(torch.cat(found))
    parts = np.split(pixels, np.cumsum([len(images) for images in found])[:-1])
    return _grid(list(rows), parts, title, inches, f"in rows: {', '.join(rows)}")


def _grid(
    names: Sequence[str], rows: Sequence[np.ndarray], title: str, inches: float, words: str
) -> Figure:
    """Named rows of images (N, H, W, 3) in [0, 1], and what to say of them."""
    height, width, gap = *rows[0].shape[1:3], 2
    canvas = np.zeros(
        (len(rows) * (height + gap) - gap, max(map(len, rows)) * (width + gap) - gap, 4)
    )
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            y, x = i * (height + gap), j * (width + gap)
            canvas[y : y + height, x : x + width] = np.concatenate(
                [image, np.ones((height, width, 1))], axis=-1
            )
    from matplotlib import rc_context

    with rc_context(style.rc() | {"axes.grid": False}):
        across = canvas.shape[1] / (width + gap) * inches
        figure = blank(1.6 + across, 0.4 + canvas.shape[0] / (height + gap) * inches)
        axes = figure.subplots()
        axes.imshow(canvas, interpolation="nearest")
        axes.set_yticks([i * (height + gap) + height / 2 for i in range(len(rows))], names)
        axes.set(xticks=[], title=title)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.set_label(
        f"{style.topic(title)}{sum(map(len, rows))} images of {height} by {width} pixels, {words}."
    )
    return figure


#: what matplotlib writes and a page does not need: the prolog, comments, who made it, names of groups
_SURPLUS = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>"
    r'|(?<=<g) id="[a-z]+_\d+"',
    re.DOTALL,
)


def _svg(figure: Figure) -> str:
    """The drawing, as it can stand in a page: without blank lines, its names its own, its paths in
    hundredths of a point, and its colours variables of the page's style.
    """
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context(style.rc()):
        figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.05)
    svg = " ".join(_SURPLUS.sub("", buffer.getvalue().decode()).split())
    svg = svg.replace("base64, ", "base64,")
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    name = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>f{name}-", svg)
    for colour in style.DARK:
        svg = svg.replace(f": {colour}", f": {style.variable(colour)}")
    return svg


def to_html(figure: Figure, alt: str | None = None) -> str:
    """A figure as an HTML fragment: one drawing, whose ink follows the page, light or dark.

    Args:
        alt: what a reader who cannot see the figure should know; by default the figure's own
            description.

    Raises InputError when there is no description.
    """
    text = " ".join((alt or str(figure.get_label())).split())
    if not text:
        raise InputError("a figure needs a description in words: show(figure, alt=...)")
    words = f'<svg role="img" aria-label="{escape(text, quote=True)}" '
    drawing = _svg(figure).replace("<svg ", words, 1)
    return f'<style>{style.FIGURE_CSS}</style><figure class="core-figure">{drawing}</figure>'


def show(figure: Figure, alt: str | None = None) -> None:
    """Put a figure and its description into the output of a notebook cell. Arguments and errors as
    in `to_html`.
    """
    from IPython.display import display

    html = to_html(figure, alt)
    display({"text/html": html, "text/plain": alt or str(figure.get_label())}, raw=True)
