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
import numpy as np
import pandas as pd

from core.data import available
from lab.report import (
    by_paper,
    directions,
    expected_verdicts,
    orders,
    progress,
    records_apart,
    records_summary,
    table_frame,
    versions,
)
from lab.report.intervals import OUTCOMES, Comparison
from lab.report.style import sentences
from lab.report.texts import Markdown
from lab.report.verdict import margin

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
# By simulation: both sides are normal with the same standard deviation, print over three runs. Each line is the share of
# experiments that get a verdict when the true means are so many points apart. With no gap *different* is false; with a
# gap beyond the margin of two points *equivalent* is.

# %% tags=["hide-output"]
shares = expected_verdicts(np.random.default_rng(0), draws=2000)
shares.set_index(["deviation", "true gap", "seeds"]).round(3)

# %%
none, edge, just = (
    100 * shares.loc[shares["true gap"] == gap, verdict]
    for gap, verdict in ((0, "different"), (2, "equivalent"), (2, "different"))
)
beyond = 100 * shares.loc[shares["true gap"] > 2, "equivalent"]
Markdown(
    f"Without a gap *different* comes in {none.min():.0f} to {none.max():.0f}% "
    "of these experiments; where the gap is exactly the margin, in up to "
    f"{just.max():.0f}%, most where seeds hardly spread. *Equivalent* comes "
    f"there in up to {edge.max():.0f}%, because its interval leaves out the "
    f"noise of print, and in up to {beyond.max():.1f}% where the gap is "
    "larger. A print without a deviation, as in FedMK's Tables 3 and 4, is "
    "judged by the spread of our seeds alone; that is not simulated here, and "
    "where print spreads more than our seeds do it is wrong more often."
)

# %% tags=["hide-input"]
own = table_frame("fedmk", 1, "paper").dropna(subset=["printed_std", "std"])
own = own[own["verdict"].isin(OUTCOMES)]
wider = [
    str(
        Comparison(
            one.measured,
            one.std,
            one.seeds,
            one.printed,
            one.printed_std * 1.5**0.5,
            margin(one.printed, "percent"),
        ).outcome
    )
    for one in own.itertuples()
]
moved = own[own["verdict"] != wider]
Markdown(
    "No paper says whether its deviations divide by the number of runs or by "
    "one less. If by the number, those of three runs are too small by "
    f"$\\sqrt{{1.5}}$, and {len(moved)} of the {len(own)} verdicts in FedMK's "
    f"Table 1 would be others ({(moved['verdict'] == 'different').sum()} of "
    "them now *different*)."
)

# %% [markdown]
# ## Records
#
# What was run so far: number of runs, and mean minutes and MB sent (up and down, all clients) of one run.

# %% tags=["hide-output"]
records_summary().round(2).set_index(["method", "dataset", "profile"])

# %% [markdown]
# A record that an error in the program spoiled is taken back; the history of the repository says why. All others stay.
# Those below are shown by no table, and no total counts them: tries of hyper-parameters that gave way to others, and
# runs from before a table or a profile was changed.

# %% tags=["hide-output"]
apart = records_apart()
records_summary(apart).round(2).set_index(["method", "dataset", "profile"])

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
