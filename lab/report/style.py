"""Looks of figures and tables on a light and on a dark page, and names of measures and numbers."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

#: Okabe and Ito's palette in the order in which it keeps a contrast of 3:1 on white and on near-black,
#: without their yellow (unreadable on white) and black (the ink of the page), and four more colours
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#8064D0", "#8A7A1F", "#C2456B", "#7C8798"),
)
#: places in the palette of methods that are in many figures: the papers' own, and usual baselines
PLACES = {
    **dict.fromkeys(("FedVCK", "FedMK", "GDD-FL", "FedIOD"), 0),
    **dict.fromkeys(("FedDM", "DM", "FedKD"), 2),
    **dict.fromkeys(("R.S.", "FedDistill"), 5),
    **{"FedAvg": 1, "FedGen": 3, "FedProx": 4, "FedEnsemble": 6},
}
INK, RULE = "#2b2b2b", "#c9c9c8"
#: colours of a drawing that `page.css` replaces on a dark page
DARK = {INK: "#dcdcdc", RULE: "#4a4a4b"}
DARK |= {"#0072b2": "#3d8fe0", "#56b4e9": "#a5dcff", "#009e73": "#2fc39a"}
#: style sheet of tables and drawings, which each output of a notebook brings with it
CSS = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
#: matplotlib settings of every figure
RC: dict[str, Any] = {
    **dict.fromkeys(
        ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "none"
    ),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor"), INK),
    **{"xtick.color": INK, "ytick.color": INK, "grid.color": RULE, "legend.frameon": False},
    **{"axes.grid": True, "axes.axisbelow": True},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"},
    **{"font.size": 11, "axes.titlesize": 12, "legend.fontsize": 10, "legend.title_fontsize": 0},
    **{"grid.linewidth": 0.6, "lines.linewidth": 1.8, "lines.markersize": 5},
    # the same figure gives the same bytes, so that a page that did not change is not rebuilt
    **{"figure.constrained_layout.use": True, "svg.hashsalt": "lab.report"},
}
#: sign and colour of each verdict on a number; the colour repeats what sign and words say
SIGNS = {
    "equivalent": ("✓", "#009E73"),
    "consistent": ("≈", "#009E73"),
    "direction agrees": ("↗", "#56B4E9"),
    "direction disagrees": ("↘", "#E69F00"),
    "direction unsure": ("↔", "#999999"),
    "different": ("✗", "#D55E00"),
    "depends on our choice": ("≷", "#E69F00"),
    "not enough budget": ("<", "#999999"),
    "inconclusive": ("?", "#CC79A7"),
    "not compared": ("·", "transparent"),
    "pending": ("…", "transparent"),
    "not testable here": ("–", "transparent"),
}
#: metrics whose names are no words
_MEASURES = {
    **{"auc": "AUC", "f1": "F1", "dice": "Dice", "hd95": "HD95", "obj_dice": "object Dice"},
    **{"aji": "AJI", "ssim": "SSIM", "psnr": "PSNR", "emd": "earth mover's distance"},
    "upload_mb": "upload (MB)",
    "upload_mb_per_round": "upload a round (MB)",
    "condensation_ratio_percent": "condensation ratio (%)",
    "mia_auc_mean": "attack AUC, mean",
    "mia_auc_max": "attack AUC, largest",
    "mia_server_auc": "attack AUC on the server's model",
    "mia_tpr_0.01": "members found at 1% false alarms",
    "mia_tpr_0.001": "members found at 0.1% false alarms",
    "mia_defense_rate": "attacks warded off",
    "mia_nearest_pixels_auc_mean": "nearest upload in pixels: AUC, mean",
    "mia_nearest_pixels_tpr_0.01": "nearest upload in pixels: members found at 1% false alarms",
    "mia_nearest_features_auc_mean": "nearest upload in features: AUC, mean",
    "mia_nearest_features_tpr_0.01": "nearest upload in features: members found at 1% false alarms",
}


def palette(names: Iterable[Any]) -> dict[Any, str]:
    """Colours of series of these names. A method, the beginning of a name, has one colour in all figures."""
    names, places = list(names), dict[Any, int]()
    for name in names:
        place = PLACES.get(re.split("[ ,(@]", str(name))[0])
        if place is not None and place not in places.values():
            places[name] = place
    free = (place for place in itertools.count() if place not in places.values())
    for name in names:
        if name not in places:
            places[name] = next(free)
    return {name: PALETTE[place % len(PALETTE)] for name, place in places.items()}


def html_table(frame: pd.DataFrame, css_class: str = "", escape: bool = True, **how: Any) -> str:
    """A data frame as an HTML table of the book, without the style sheet; `how` goes to pandas."""
    kind = f"core-table {css_class}".split()
    return frame.to_html(classes=kind, border=0, escape=escape, justify="left", **how)


class Html:
    """A fragment of HTML with the book's style sheet, as the last value of a notebook's cell."""

    def __init__(self, body: str) -> None:
        self.body = body

    def _repr_html_(self) -> str:
        return f"<style>{CSS}</style>{self.body}"


def sentences(frame: pd.DataFrame, escape: bool = True) -> Html:
    """A data frame whose cells are sentences: in small type, wrapped, without its index."""
    return Html(html_table(frame, "sentences", escape, index=False, float_format="{:.1f}".format))


def folded(summary: str, body: str) -> str:
    """HTML that is seen after a click on its summary, which is text."""
    return (
        f'<details class="core-details"><summary>{html.escape(summary)}</summary>{body}</details>'
    )


def digits(unit: str) -> int:
    """Decimals of a mean in a sentence; a table has one more."""
    return 3 if unit in ("auc", "score") else 1


def signed(value: float, unit: str) -> str:
    """A difference with its sign, in the decimals of `digits`; one that rounds to zero is +0."""
    decimals = digits(unit)
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def suffix(unit: str) -> str:
    """Text behind a number of this unit; nothing behind an area or a score."""
    return {"percent": "%", "MB": " MB", "pixel": " pixels", "dB": " dB"}.get(unit, "")


def difference(unit: str) -> str:
    """Text behind a difference of two numbers of this unit."""
    return " points" if unit == "percent" else suffix(unit)


def measure(metric: str) -> str:
    """The name of a metric in words."""
    return _MEASURES.get(metric, metric.replace("_", " "))
