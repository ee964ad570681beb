# %% [markdown]
# # Status
#
# *Question:* how far is the reproduction, and what was it computed with?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# All numbers on this page are computed when the book is built. How fast and how exact the program is has [a page of its
# own](92_program).

# %% tags=["setup", "remove-cell"]
# Where `core` is missing, as on Colab: fetch the book and what it needs.
import importlib.util
import sys

if importlib.util.find_spec("core") is None:
    address = "https://github.com/OWNER/REPOSITORY"
    assert "OWNER/" not in address, "this copy has no public address yet"
    get_ipython().system(f"git clone -q --depth 1 {address} fedcon-book")
    get_ipython().run_line_magic("pip", "install -q -e ./fedcon-book[pages]")
    sys.path.insert(0, "fedcon-book")

# %%
import attrs
import numpy as np
import pandas as pd

from core.data import available
from lab import TableSpec, records
from lab.report import (
    by_paper,
    directions,
    expected_verdicts,
    method_name,
    orders,
    progress,
    versions,
)
from lab.report.intervals import OUTCOMES
from lab.report.style import sentences
from lab.report.verdict import compare, judge, values

# %% [markdown]
# Every number that the papers print, by what came out for it: each column adds up to the last line. Costs follow from
# shapes and settings are read back, so they say nothing about a method's accuracy. Methods that share a printed cell are
# one number, with the worst of their verdicts; a number that the same runs measured in another table is a repeat.

# %%
by_paper()

# %% [markdown]
# With less than the paper's budget, or on other data, only the order of two rows says something. Pairs that are ordered
# as printed (1), the other way round (-1), or neither for sure by a 90% interval (0); if all methods were equal one in
# twenty would be expected on each side.

# %%
pd.crosstab(directions()["ordered"], directions()["paper"])

# %% [markdown]
# ## Coverage
#
# A cell is a method in a column of a table, at the profile at which most of the column is measured. [How a verdict is reached](../book/intro) is written on the first page.

# %%
progress()

# %% [markdown]
# ## Orders
#
# Is the printed order of the methods the measured one? Kendall's tau is 1 for the same order and -1 for the opposite
# one. It is the mean over seeds, with its 95% interval; pairs that are printed within the margin of each other (two
# points, 0.02 of an area, 2% of other values) do not count. With one seed, or the same tau in all, nothing is known of
# its spread, and the interval is all from -1 to 1. Noise lowers tau: methods that lie close together change places from
# seed to seed though their true order is the printed one. So a tau below 1 is no proof of another order.

# %% tags=["hide-output"]
orders().set_index(["paper", "table", "column", "metric"]).round(2)

# %% [markdown]
# ## How often the verdicts are wrong
#
# By simulation: both sides are normal with the same standard deviation, print over three runs, with its deviation or
# without. Each line is the share of experiments that get a verdict when the true means are so many points apart. With no
# gap *different* is false; with a gap of the margin of two points or more *equivalent* is.

# %% tags=["hide-output"]
shares = expected_verdicts(np.random.default_rng(0), draws=2000)
shares.set_index(list(shares)[:4]).round(3)

# %%
error = pd.DataFrame(
    {
        "different, no gap": shares[shares["true gap"] == 0]
        .groupby("with its deviation")["different"]
        .max(),
        "equivalent, gap of a margin or more": shares[shares["true gap"] >= 2]
        .groupby("with its deviation")["equivalent"]
        .max(),
    }
)
(100 * error).round(1).rename_axis("largest share of false verdicts (%): print")

# %% [markdown]
# Many verdicts are passed, so some are false by chance: if no method differed from print, about one in twenty would be
# *different* all the same, and if all were a margin away, as many *equivalent*. So a single verdict is no proof. The
# table has how many cells have each verdict, and would have if a print without a deviation were a single run, or exact:

# %%
known, rows = records(), []
for paper, profile in (("fedmk", "paper"), ("fedvck", "converged")):
    for spec in TableSpec.of_paper(paper):
        cells = spec.cells(profile) if spec.table.isdigit() else []
        for cell, judged in zip(cells, judge(cells, known), strict=True):
            if judged.verdict in OUTCOMES and cell.metric == "accuracy":
                found = [*values(cell, known).values()]
                printed, std = cell.published.value, cell.published.spread
                by = compare(printed, found, "percent", std, looks=cell.looks)
                other = [
                    by if std is not None else attrs.evolve(by, printed_seeds=n)
                    for n in (1, 10**9)
                ]
                rows.append(
                    [judged.verdict, *(str(one.outcome) for one in other)]
                )
said = pd.DataFrame(rows, columns=["three runs, as here", "one run", "exact"])
counts = said.apply(pd.Series.value_counts).reindex(OUTCOMES).fillna(0)
counts.loc["one in twenty of all"] = 0.05 * len(said)
counts.round().astype(int)

# %% [markdown]
# No paper says whether its deviations divide by the number of runs or by one less. If by the number, those of three runs
# are too small by $\sqrt{1.5}$.
#
# ## Records
#
# What was run so far: number of runs, and mean minutes and MB sent (up and down, all clients) of one run. A record that an
# error in the program spoiled is taken back; the history of the repository says why. All others stay. No table shows, and
# no total counts, tries of hyper-parameters that gave way to others, and runs from before a table was changed.

# %% tags=["hide-output"]
shown = TableSpec.ids()
runs = pd.DataFrame(
    {
        "in a table": name in shown,
        "method": method_name(record.experiment.algorithm),
        "dataset": record.experiment.dataset,
        "profile": record.experiment.profile,
        "minutes": record.seconds / 60,
        "MB sent": record.sent() / 2**20,
    }
    for name, record in records().items()
)
by = runs.groupby(["in a table", "method", "dataset", "profile"])
by[["minutes", "MB sent"]].mean().round(2).assign(runs=by.size())

# %% [markdown]
# ## Data sets
#
# What the loaders know, how to get each set, and under which licence it comes.

# %%
sets = pd.DataFrame(
    [
        {
            "name": info.name,
            "sizes": ", ".join(map(str, info.sizes)),
            "source": info.source,
            "licence": info.licence,
            "how to get it": info.how_to_get,
        }
        for info in available()
    ]
)
sentences(sets)

# %% [markdown]
# ## Versions

# %%
versions().set_index("package")
