"""Colours, type and style sheets that read on a light and on a dark page, and without colour."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import Any

#: Okabe and Ito's palette, in the order in which it keeps at least 3:1 of contrast on white and on
#: near-black; their yellow (unreadable on white) is left out and their black is the ink of the
#: page.
#: Four more follow, so that ten methods have ten colours; further ones repeat them with other markers.
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#8064D0", "#8A7A1F", "#C2456B", "#7C8798"),
)
#: a second mark for every colour, so that nothing is told by colour alone
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", "h")
DASHES: tuple[Any, ...] = ("", (4, 1.5), (1, 1), (3, 1.25, 1.5, 1.25), (5, 1, 1, 1), (2, 2, 4, 2))

#: drawn with these; on a dark page the same drawing has `DARK` in their place, see `variable`
INK, RULE = "#2b2b2b", "#c9c9c8"
DARK = {INK: "#dcdcdc", RULE: "#4a4a4b", "#0072b2": "#4aa8e0", "#009e73": "#2fc39a"}


#: the place in the palette of methods that stand in many figures, where it is free: the papers' own, of
#: which a table has one, and their usual rivals
PLACES = {
    **dict.fromkeys(("FedVCK", "FedMK", "GDD-FL", "FedIOD"), 0),
    "FedAvg": 1,
    **dict.fromkeys(("FedDM", "DM", "FedKD"), 2),
    "FedGen": 3,
    "FedProx": 4,
    "R.S.": 5,
}


def series(names: Sequence[Any]) -> tuple[list[str], list[str], list[Any]]:
    """Colours, markers and dashes of series with these names: ten colours and ten markers; from the
    eleventh on, colours repeat with another marker and dash. A method, told by how a name begins,
    has the same colour in all figures, the first of its name in each.
    """
    places: dict[Any, int] = {}
    for name in names:
        place = PLACES.get(re.split("[ ,(@]", str(name))[0])
        if place is not None and place not in places.values():
            places[name] = place
    free = (place for place in itertools.count() if place not in places.values())
    for name in names:
        if name not in places:
            places[name] = next(free)
    order = [places[name] for name in names]
    colours = [PALETTE[i % len(PALETTE)] for i in order]
    markers = [MARKERS[(i + i // len(PALETTE)) % len(MARKERS)] for i in order]
    dashes = [DASHES[(i + i // len(PALETTE)) % len(DASHES)] for i in order]
    return colours, markers, dashes


def log_axis(axes: Any, axis: str, values: Any) -> None:
    """Make the axis "x" or "y" logarithmic, with plain numbers at its ticks: at the values where they
    are few and far enough apart, else at 1, 2 and 5 of each power of ten within less than three.
    """
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, ScalarFormatter

    getattr(axes, f"set_{axis}scale")("log")
    distinct = sorted({float(one) for one in values if one > 0})
    if not distinct or distinct[-1] / distinct[0] >= 1000:
        return
    apart = all(b / a > 1.4 for a, b in itertools.pairwise(distinct))
    few = 1 < len(distinct) <= 6 and apart
    of = getattr(axes, f"{axis}axis")
    of.set_major_locator(FixedLocator(distinct) if few else LogLocator(subs=(1, 2, 5)))
    plain = ScalarFormatter()
    plain.set_scientific(False)
    of.set_major_formatter(plain)
    of.set_minor_formatter(NullFormatter())


def label_ends(axes: Any, ends: Sequence[tuple[str, str, str, float]]) -> None:
    """Write the name of each series, given as (name, colour, marker, last value), beside the axes
    at the height of its last value, moved apart where names would cover each other.

    To be called when limits and scales are final.
    """
    from matplotlib.lines import Line2D

    low, high = axes.get_ylim()
    place = axes.transData + axes.transAxes.inverted()
    heights = [float(place.transform((0, min(max(value, low), high)))[1]) for *_, value in ends]
    for (name, colour, marker, _), height, text in zip(
        ends, heights, spread(heights, 0.07), strict=True
    ):
        leader = Line2D([1.01, 1.045], [height, text], color=colour, linewidth=1)
        leader.set(transform=axes.transAxes, marker=marker, markevery=[1])
        axes.figure.add_artist(leader)
        axes.annotate(name, (1.06, text), xycoords="axes fraction", va="center", fontsize=10)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights that lie at least `gap` apart, in the same order, each near its own."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed: list[float] = []
    for i in order:
        placed.append(max(heights[i], placed[-1] + gap) if placed else heights[i])
    top = max(1.0, gap * (len(heights) - 1))
    for k in range(len(placed) - 1, -1, -1):
        placed[k] = min(placed[k], top)
        top = placed[k] - gap
    return [height for _, height in sorted(zip(order, placed, strict=True))]


def titled(axes: Any, title: str) -> None:
    """A title in lines that end before the names of series beside the axes."""
    axes.set_title(textwrap.fill(title, 58))


def topic(title: str | None) -> str:
    """A title as the first sentence of a description; nothing where there is none."""
    return f"{title.removesuffix('.')}. " if title else ""


def note(figure: Any, text: str) -> None:
    """A line in small type below the axes: what marks stand for that no legend names."""
    # a character of this size is about a fourteenth of an inch wide
    lines = textwrap.fill(text, int(14 * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=9, color=INK)


def rc() -> dict[str, Any]:
    """Matplotlib settings of every figure, for `matplotlib.rc_context`."""
    return {
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.facecolor": "none",
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.titlecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": RULE,
        "legend.edgecolor": "none",
        "legend.framealpha": 0,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.titlelocation": "left",
        "legend.fontsize": 10,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "figure.constrained_layout.use": True,
        # the same figure gives the same bytes, so that a page that did not change is not rebuilt
        "svg.hashsalt": "lab.report",
        "svg.fonttype": "path",
        "figure.dpi": 100,
        "savefig.dpi": 144,
    }


def variable(colour: str) -> str:
    """A colour of `DARK` in a drawing: itself, unless the page says otherwise."""
    return f"var({_name(colour)},{colour})"


def _name(colour: str) -> str:
    return f"--core-{colour[1:]}"


#: The book's theme puts a light plate behind HTML of a dark page; these lines take it away and give
#: drawings the inks of the page: in the book, JupyterLab, Visual Studio Code and Colab.
_DARK_PAGES = (
    "html[data-theme=dark]",
    "body[data-jp-theme-light=false]",
    "body.vscode-dark",
    "html[theme=dark]",
)
FIGURE_CSS = "".join(
    [
        ".core-figure{margin:0}",
        ".core-figure svg{max-width:100%;height:auto}",
        ".core-figure svg *{stroke-linejoin:round;stroke-linecap:butt}",
        ",".join(f"{page} .core-figure" for page in _DARK_PAGES),
        f"{{{';'.join(f'{_name(light)}:{dark}' for light, dark in DARK.items())}}}",
        "html[data-theme=dark] .bd-content div.cell_output .text_html:has(.core-figure)"
        "{background:none!important;color:inherit!important;padding:0!important}",
    ]
)

#: verdicts as they are shown: a sign, and a colour that only repeats what the sign and the words
#: say
SIGNS = {
    "equivalent": ("✓", "#009E73"),
    "consistent": ("≈", "#009E73"),
    "direction agrees": ("↗", "#56B4E9"),
    "direction disagrees": ("↘", "#E69F00"),
    "direction unsure": ("↔", "#999999"),
    "different": ("✗", "#D55E00"),
    "inconclusive": ("?", "#CC79A7"),
    "not compared": ("·", ""),
    "pending": ("…", ""),
    "not testable here": ("–", ""),
}
#: no background and no text colour of its own: both come from the page, light or dark
TABLE_CSS: list[Any] = [
    {
        "selector": "th, td",
        "props": "text-align:left; vertical-align:top; padding:.3em .55em; line-height:1.3;",
    },
    {"selector": "td", "props": "white-space:nowrap; font-variant-numeric:tabular-nums;"},
    {"selector": "th.col_heading", "props": "overflow-wrap:anywhere; font-weight:600;"},
    # names of measures, below that of the column they share
    {"selector": "th.col_heading.level1", "props": "white-space:normal; overflow-wrap:normal;"},
    {
        "selector": "caption",
        "props": "caption-side:top; text-align:left; white-space:normal; color:inherit; "
        "font-weight:600; padding:.3em 0 .6em;",
    },
    # a title stays in sight too, and is no wider than a narrow screen
    {
        "selector": "caption span",
        "props": "display:inline-block; position:sticky; left:0; max-width:calc(100vw - 2rem);",
    },
    # the methods stay in sight while a wide table is scrolled
    {
        "selector": "th.row_heading, th.blank",
        "props": "position:sticky; left:0; z-index:1; background:var(--pst-color-surface, Canvas);",
    },
    {"selector": ".printed", "props": "font-weight:600;"},
    {"selector": "small", "props": "font-size:.82em;"},
    {
        "selector": ".sr",
        "props": "position:absolute; width:1px; height:1px; overflow:hidden; clip-path:inset(50%);",
    },
]
#: for tables whose cells are sentences: these wrap, and the words of a heading stay whole
SENTENCES_CSS: list[Any] = [
    *TABLE_CSS,
    {"selector": "td", "props": "white-space:normal;"},
    {"selector": "th, td", "props": "font-size:.85em; padding:.25em .4em;"},
    {"selector": "th.col_heading", "props": "overflow-wrap:normal; font-size:.76em;"},
]


def sentences(frame: Any, name: str) -> Any:
    """A data frame whose cells hold sentences, as a page shows it: in small type, and wrapped, so that
    it is no wider than the page. Its index is not shown, and numbers have one digit behind the point.

    Args:
        name: names the table in the page's HTML.

    Returns a `pandas.io.formats.style.Styler`.
    """
    from pandas.io.formats.style import Styler

    made = Styler(
        frame,
        uuid=name,
        table_attributes='class="dataframe core-table"',
        escape="html",
        precision=1,
    )
    return made.set_table_styles(SENTENCES_CSS).hide(axis="index")


DETAILS_CSS = (
    ".core-details{margin:.5em 0 1.5em} .core-details summary{cursor:pointer} "
    ".core-details div{overflow-x:auto} .core-details table{font-size:.82em} "
    ".core-details td,.core-details th{text-align:left;vertical-align:top;padding:.2em .5em} "
    ".core-details code{white-space:nowrap}"
)

#: metrics whose names are no words, as tables and figures call them
_MEASURES = {
    "auc": "AUC",
    "f1": "F1",
    "dice": "Dice",
    "hd95": "HD95",
    "obj_dice": "object Dice",
    "aji": "AJI",
    "ssim": "SSIM",
    "psnr": "PSNR",
    "emd": "earth mover's distance",
    "upload_mb": "upload (MB)",
    "upload_mb_per_round": "upload a round (MB)",
    "condensation_ratio_percent": "condensation ratio (%)",
    "mia_auc_mean": "attack AUC, mean",
    "mia_auc_max": "attack AUC, largest",
    "mia_server_auc": "attack AUC on the server's model",
    "mia_tpr_0.01": "members found at 1% false alarms",
    "mia_tpr_0.001": "members found at 0.1% false alarms",
    "mia_defense_rate": "attacks warded off",
}


def digits(unit: str) -> int:
    """Decimals of a mean in a sentence, of which a margin is seen; a table shows one more."""
    return 3 if unit in ("auc", "score") else 1


def signed(value: float, unit: str) -> str:
    """A difference with its sign, in the decimals of `digits`; one that rounds to zero is +0."""
    decimals = digits(unit)
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def suffix(unit: str) -> str:
    """What stands behind a number of this unit; nothing behind an area or a score."""
    return {"percent": "%", "MB": " MB", "pixel": " pixels", "dB": " dB"}.get(unit, "")


def difference(unit: str) -> str:
    """What stands behind a difference of two numbers of this unit."""
    return " points" if unit == "percent" else suffix(unit)


def measure(metric: str) -> str:
    """The name of a metric in words."""
    return _MEASURES.get(metric, metric.replace("_", " "))
