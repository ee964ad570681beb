"""Claims and their verdicts as a page shows them: a table for each paper, and a figure for all."""

from __future__ import annotations

import re
from html import escape
from typing import Any

import pandas as pd

from lab.report import style
from lab.report.charts import canvas, describe
from lab.report.claims import PAPERS, VERDICTS, claims_count, claims_frame

#: a sign and a colour for each verdict
SIGNS = {
    "holds": ("✓", "#009E73"),
    "does not hold": ("✗", "#D55E00"),
    "unclear": ("~", "#E69F00"),
    "not measured": ("…", "#A6A6A6"),
    "holds in a test": ("✓", "#56B4E9"),
    "agrees with its own numbers": ("=", "#0072B2"),
    "contradicts its own numbers": ("≠", "#CC79A7"),
    "examined on its page": ("→", "#8C8C8C"),
    "open": ("…", "#C9C9C8"),
    "not testable here": ("–", "#E4E4E3"),
}


def claims_table(paper: str, main: bool = False) -> Any:
    """`claims_frame` as a page shows it, each claim with a link to its evidence."""
    frame = claims_frame(paper, main=main)
    shown = pd.DataFrame(
        {
            "claim": [
                f"{escape(text)} <small>({escape(where)})</small>"
                for text, where in zip(frame["claim"], frame["where"], strict=True)
            ],
            "verdict": [_verdict_html(word) for word in frame["verdict"]],
            # the name of a test may break where it has a sign
            "what it rests on": [
                re.sub("(::|[/_])", r"\1<wbr>", escape(text)) for text in frame["effect"]
            ],
            "budget": frame["budget"],
            "page": [
                f'<a href="{page}.html">{page.partition("_")[2].replace("_", " ")}</a>'
                if page
                else ""
                for page in frame["page"]
            ],
        }
    )
    return style.sentences(shown, escape=False)


def _verdict_html(word: str) -> str:
    sign, colour = SIGNS[word]
    edge = f"border-left:3px solid {colour};padding-left:.4em"
    return f'<span style="{edge}"><span aria-hidden="true">{sign}</span> {word}</span>'


def claims_figure(counts: pd.DataFrame | None = None) -> Any:
    """`claims_count` as one bar for each paper. Returns a `matplotlib.figure.Figure` whose label
    describes it.
    """
    counts = (claims_count() if counts is None else counts).rename(index=PAPERS)
    shown = [name for name in VERDICTS if counts[name].any()]
    colours: Any = [SIGNS[name][1] for name in shown]
    with canvas(7.2, 3.4) as axes:
        counts[shown].plot.barh(stacked=True, color=colours, width=0.8, ax=axes, legend=False)
        for bars in axes.containers:
            axes.bar_label(bars, [n or "" for n in bars.datavalues], label_type="center")
        axes.invert_yaxis()
        axes.set(xlabel="claims")
        axes.grid(visible=False)
        axes.figure.legend(loc="outside lower center", ncols=3)
    said = [
        f"{paper}: " + ", ".join(f"{row[name]} {name}" for name in shown if row[name])
        for paper, row in counts.iterrows()
    ]
    return describe(axes, "Claims by paper and verdict", "; ".join(said) + ".")
