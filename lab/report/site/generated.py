"""Pieces of pages that are computed while the book is built, so that no number is typed by hand."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from lab import TableSpec, datapack, records
from lab.report import notebooks

#: of each paper: what its clients send, the page with its results, and its text and code elsewhere
OVERVIEW = {
    "fedvck": (
        "condensed images, mean logits",
        "12_fedvck_results",
        "[paper](https://arxiv.org/abs/2412.18557) [code](https://github.com/Youth-49/FedVCK_2024)",
    ),
    "fedmk": (
        "condensed images, passed on",
        "18_fedmk_results",
        "[paper](https://arxiv.org/abs/2209.14851)",
    ),
    "gddfl": (
        "condensed images, once",
        "25_gddfl_results",
        "[paper](https://doi.org/10.1007/978-3-031-47401-9_2) [code](https://github.com/Yearsflow/GDD-FL)",
    ),
    "fediod": (
        "answers to generated images",
        "29_fediod_results",
        "[paper](https://arxiv.org/abs/2312.14478) [code](https://github.com/lsl001006/FedIOD)",
    ),
}
#: what the first page draws: the best evidence for a number of each paper, as PAPER/TABLE/ROW/COLUMN at a
#: profile, and the cell that the paper reports, where that is another
EVIDENCE = {
    "FedVCK, CIFAR-10, alpha 0.05*": (
        "fedvck/ladder/FedVCK-as-released-Adam-twice/cifar10-0.05 converged",
        "fedvck/11/FedVCK/cifar10-0.05",
    ),
    "FedVCK, CIFAR-10, alpha 0.02*": (
        "fedvck/nearest/FedVCK-as-released-Adam-twice/cifar10-0.02 converged",
        "fedvck/11/FedVCK/cifar10-0.02",
    ),
    "FedMK, MNIST": ("fedmk/1/FedMK/mnist-0.5 paper", ""),
    "FedMK, CIFAR-10": ("fedmk/1/FedMK/cifar10-0.5 paper", ""),
    "FedMK, CIFAR-100": ("fedmk/1/FedMK/cifar100-0.5 paper", ""),
    "GDD-FL, skin lesions (AUC)†": ("gddfl/1/GDD-FL@1/iid/auc laptop", ""),
    "FedIOD, CIFAR-10, alpha 0.1†": ("fediod/1/FedIOD/cifar10-0.1 laptop", ""),
}


def fragments() -> dict[str, str]:
    """Markdown by file name; a page includes it from `_generated/`."""
    from lab.report import charts, classroom, figures

    chapters = map(notebooks.find, notebooks.chapters())
    drawn = charts.dots(evidence(), "test accuracy or AUC (%)")
    return {
        "overview.md": markdown_table(overview()),
        "evidence.md": figures.to_html(drawn) + "\n",
        "exercises.md": markdown_table(classroom.exercise_table(chapters)),
        "datapack.md": f"{', '.join(datapack.shareable())}; {datapack.LIMIT / 2**20:.0f} MB at most.\n",
    }


def overview() -> pd.DataFrame:
    """A row for each paper: what its clients send, which of its main claims hold here, where to read on."""
    from lab.report.claims import PAPERS, claims_frame

    rows = []
    for paper, (sends, page, elsewhere) in OVERVIEW.items():
        claims = claims_frame(paper, main=True).query("not ours")
        holds, fails = (
            claims["verdict"].str.match(word).sum() for word in ("holds", "does not hold")
        )
        rows.append(
            {
                "results": f"[{PAPERS[paper]}](../notebooks/{page})",
                "clients send": sends,
                "hold, fail, open": f"{holds}, {fails}, {len(claims) - holds - fails}",
                "read": elsewhere,
            }
        )
    return pd.DataFrame(rows)


def evidence() -> pd.DataFrame:
    """`EVIDENCE` for `charts.dots`: mean, 90% interval and the paper's number, in the paper's unit."""
    from lab.report.intervals import interval
    from lab.report.verdict import values

    rows, known = [], records()
    for name, (place, reported) in EVIDENCE.items():
        address, profile = place.split()
        cell = TableSpec.find_cell(address, profile)
        paper = TableSpec.find_cell(reported, profile).published if reported else cell.published
        mean, low, high = interval(list(values(cell, known).values()))
        rows.append((name, mean, low, high, paper.value if paper else None))
    return pd.DataFrame(rows, columns=["name", "value", "low", "high", "paper"])


def markdown_table(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table, in which no letter of a text begins HTML."""
    rows: list[Any] = [frame.columns, ["---"] * len(frame.columns), *frame.itertuples(index=False)]
    cells = [[escape(str(value), quote=False).replace("|", "\\|") for value in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
