"""Images in a grid, and how a notebook shows a figure: one drawing with words, whose ink follows the page."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from core.errors import InputError
from lab.report import style
from lab.report.charts import canvas, describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: what matplotlib writes and a page does not need: the prolog, comments, who made it, names of groups
_SURPLUS = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>"
    r'|(?<=<g) id="[a-z]+_\d+"',
    re.DOTALL,
)


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
        images: (N, 1 or 3, H, W) uint8, or floats in [0, 1]; other floats are stretched to that range.
        labels: (N,) classes; a class without images has no row.
        classes: names of the classes; by default their numbers.
        inches: the side of an image.

    Raises InputError for images of another shape, and where labels are not as many.
    """
    images, labels = torch.as_tensor(images), torch.as_tensor(labels).cpu()
    if len(labels) != len(images):
        raise InputError(f"{len(images)} images need as many labels, not {len(labels)}")
    return image_rows(
        {
            str(classes[cls] if classes is not None else cls): images[labels == cls][:columns]
            for cls in labels.unique().tolist()
        },
        title,
        inches,
    )


def image_rows(rows: Mapping[str, Any], title: str = "", inches: float = 0.62) -> Figure:
    """A row of images for every name.

    Args:
        rows: images of one size by name, each (N, 1 or 3, H, W) uint8, or floats in [0, 1]; other floats
            are stretched to that range, all together.
        inches: the side of an image.

    Raises InputError where the images have no common size, and where there is none.
    """
    parts = [torch.as_tensor(images).detach().cpu() for images in rows.values()]
    parts = [part / 255 if part.dtype == torch.uint8 else part.float() for part in parts]
    if len({part.shape[1:] for part in parts}) != 1:
        raise InputError("rows of images need images, all of one size")
    whole = torch.cat(parts)
    if whole.ndim != 4 or whole.shape[1] not in (1, 3) or not len(whole):
        raise InputError(f"images must have shape (N, 1 or 3, H, W), not {tuple(whole.shape)}")
    low, high = whole.min().item(), whole.max().item()
    if low < 0 or high > 1:
        parts = [(part - low) / max(high - low, 1e-12) for part in parts]
    (height, width), gap, most = whole.shape[2:], 2, max(map(len, parts))
    # images are opaque, the gap behind each and what a row lacks are transparent: a fourth channel
    parts = [F.pad(part.expand(-1, 3, -1, -1), (*[0] * 5, 1), value=1) for part in parts]
    parts = [F.pad(part, (0, gap, 0, gap, 0, 0, 0, most - len(part))) for part in parts]
    sheet = torch.stack(parts).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1).numpy()
    with canvas(1.6 + most * inches, 0.4 + len(parts) * inches, title) as axes:
        axes.imshow(sheet, interpolation="nearest")
        axes.set_yticks(np.arange(len(parts)) * (height + gap) + height / 2, list(rows))
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
    return describe(
        axes,
        title,
        f"{len(whole)} images of {height} by {width} pixels, in rows: {', '.join(rows)}.",
    )


def to_html(figure: Figure, alt: str | None = None) -> str:
    """A figure as HTML with `alt` or its own description. InputError where it has none."""
    from matplotlib import rc_context

    text = " ".join((alt or str(figure.get_label())).split())
    if not text:
        raise InputError("a figure needs a description in words: show(figure, alt=...)")
    buffer = io.BytesIO()
    with rc_context(style.RC):
        figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.05)
    svg = " ".join(_SURPLUS.sub("", buffer.getvalue().decode()).split())
    svg = svg.replace("base64, ", "base64,")
    # paths in hundredths of a point; names that no other drawing of a page has; inks of the page
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    name = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>f{name}-", svg)
    for colour in style.DARK:
        svg = svg.replace(f": {colour}", f": var(--core-{colour[1:]},{colour})")
    words = f'<svg role="img" aria-label="{escape(text, quote=True)}" '
    drawing = svg.replace("<svg ", words, 1)
    return f'<style>{style.CSS}</style><figure class="core-figure">{drawing}</figure>'


def show(figure: Figure, alt: str | None = None) -> None:
    """Put a figure and its description into the output of a notebook cell, as `to_html` does."""
    from IPython.display import display

    html = to_html(figure, alt)
    display({"text/html": html, "text/plain": alt or str(figure.get_label())}, raw=True)
