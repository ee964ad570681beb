# %% [markdown]
# # Claims and status
#
# *Question:* what do the four papers claim, what is left of it, how far is the reproduction, and what was it computed with?\
# *Time:* seconds: this page only reads records. *Data:* none.\
# *Learn first:* [judging a number](10_verdicts).

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

# %% tags=["hide-input"]
import json

import attrs
import numpy as np
import pandas as pd
import seaborn as sns

from core.data import available
from lab import PROFILES, TableSpec, records
from lab.profiles import budget_name
from lab.record import REPOSITORY
from lab.report import (
    by_paper,
    directions,
    dots,
    method_name,
    orders,
    progress,
    show,
    table,
)
from lab.report.charts import canvas
from lab.report.claims import PAPERS, VERDICTS, claims_frame, claims_table
from lab.report.intervals import OUTCOMES, interval
from lab.report.style import sentences
from lab.report.totals import identity
from lab.report.tuning import PROFILE, tuning_table
from lab.report.verdict import COMPARED, compare, judge, values

# %% [markdown]
# ## Claims
#
# The figure counts the papers' claims by verdict. The tables have those of this book as well; the brackets behind a claim
# say where the paper makes it, or that this book asks.

# %%
by_verdict = {
    name: claims_frame(paper).query("not ours")["verdict"].value_counts()
    for paper, name in PAPERS.items()
}
counts = pd.DataFrame(by_verdict).reindex(VERDICTS).dropna(how="all")
counts = counts.fillna(0).astype(int)
with canvas(7.2, 0.8 + 0.36 * len(counts), "Claims by verdict") as axes:
    sns.heatmap(counts, annot=True, fmt="d", cmap="crest", ax=axes)
    axes.set(xlabel="", ylabel="")
labels = counts.astype(str) + " " + counts.index.to_numpy()[:, None]
said = "; ".join(f"{paper}: {', '.join(labels[paper])}" for paper in labels)
show(axes.figure, alt=f"Claims by verdict. {said}.")

# %% [markdown]
# A table counts columns and measures, and shows the lead over the best baseline of each. *Behind* are those where the
# interval of some baseline is below zero. Rows and columns that the paper does not have count only for claims of ours.
#
# ### FedVCK
#
# These verdicts use the rows that the paper has, most of them at a laptop's budget. Runs [at the paper's
# size](12_fedvck_results), with settings of ours, say more.

# %% tags=["hide-output"]
claims_table("fedvck")

# %% [markdown]
# ### FedMK

# %% tags=["hide-output"]
claims_table("fedmk")

# %% [markdown]
# ### GDD-FL

# %% tags=["hide-output"]
claims_table("gddfl")

# %% [markdown]
# ### FedIOD

# %% tags=["hide-output"]
claims_table("fediod")

# %% [markdown]
# ## Numbers
#
# Every number that the papers report, by what came out for it: each column adds up to the last line. Costs follow from shapes
# and settings are read back, so they say nothing about accuracy. Methods that share a cell are one number, with the worst of
# their verdicts; a number that the same runs measured in another table is a repeat. Measures of one run (GDD-FL reports
# several) each count, and go together.

# %%
by_paper()

# %% [markdown]
# At a smaller budget, or on other data, only the order of two methods says something. Pairs that are ordered as in the
# paper (1), the other way round (-1), or neither by a 90% interval (0). If all methods were equal, one in twenty would be
# on each side.

# %%
pd.crosstab(directions()["ordered"], directions()["paper"])

# %% [markdown]
# How many verdicts on accuracies are false by chance? If no method differed from the paper, about one in twenty would be
# *different* all the same. The table has how many numbers have each verdict, before budgets and choices are weighed, and
# would have if a paper's number without a deviation were a single run, or exact:

# %%
known, rows, seen = records(), [], set()
for paper, profile in (("fedmk", "paper"), ("fedvck", "converged")):
    for spec in TableSpec.of_paper(paper):
        cells = spec.cells(profile) if spec.table.isdigit() else []
        for cell, judged in zip(cells, judge(cells, known), strict=True):
            new = judged.verdict in COMPARED and identity(cell) not in seen
            if new and cell.metric == "accuracy":
                seen.add(identity(cell))
                scores = [*values(cell, known).values()]
                reported, std = cell.published.value, cell.published.spread
                by = compare(reported, scores, "percent", std, looks=cell.looks)
                other = [by, by]
                if std is None:
                    other = [
                        attrs.evolve(by, printed_seeds=n) for n in (1, 10**9)
                    ]
                rows.append([str(rule.outcome) for rule in (by, *other)])
columns = ["three runs (as here)", "one run", "exact"]
verdicts = pd.DataFrame(rows, columns=columns)
counts = verdicts.apply(pd.Series.value_counts).reindex(OUTCOMES)
counts = counts.fillna(0).astype(float)
counts.loc["one in twenty of all"] = 0.05 * len(verdicts)
counts.round().astype(int)

# %% [markdown]
# ### Tables
#
# A cell is a method in a column, at the budget at which most of the column is measured.

# %% tags=["hide-output"]
progress()

# %% [markdown]
# ### Orders
#
# Is the paper's order of the methods the measured one? Kendall's tau is 1 for the same order and -1 for the opposite one:
# its mean over seeds with a 95% interval. Pairs within the margin of each other do not count. Noise lowers tau, so one
# below 1 is no proof of another order.

# %% tags=["hide-output"]
orders().set_index(["paper", "table", "column", "metric"]).round(2)

# %% [markdown]
# ## Tries of hyper-parameters
#
# The tries of the laptop's budget by [the rule](10_verdicts): accuracy on validation data in percent, ✓ for the one that is
# chosen. Budgets and widths are set by the time they take (`book/tables/profiles.yaml`). At the reduced budget only the
# rows of FedVCK and FedDM as the paper describes them, and FedAvg's *chosen rate*, keep these rates; settings of the rows by
# Adam were chosen on test images of CIFAR-10 at 0.05. The others have those of their papers or code, so no lead over them
# there is one over tuned baselines.

# %% tags=["hide-output"]
tried = tuning_table().rename(columns={"mean": "geometric mean"})
tried

# %% [markdown]
# How much does the seed alone change a result? The standard deviation between seeds on the test set, in points, the
# median over settings and splits that have several:

# %%
sets = [name for name in tried if name not in ("geometric mean", "chosen")]
runs = pd.DataFrame(
    {
        "data": record.experiment.dataset,
        "method": method_name(record.experiment.algorithm),
        "plan": str(record.experiment.to_dict() | {"seed": None}),
        "accuracy": 100 * record.metrics["accuracy"],
    }
    for record in known.values()
    if record.experiment.profile == PROFILE
    and record.experiment.dataset in sets
    and record.experiment.evaluate_on == "test"
)
spread = runs.groupby(["data", "method", "plan"])["accuracy"].std().dropna()
spread.groupby(["method", "data"]).median().unstack("data").round(2)

# %% [markdown]
# The code of several methods crops and flips CIFAR's images in local training; no paper here says so, and no other table
# of this book does it:

# %% tags=["hide-output"]
table("reference", "crops", PROFILE)

# %% [markdown]
# ## The program
#
# ### Speed
#
# Whole runs beside a loop written the way released code is, or beside other people's code, in pairs in one process
# (`benchmarks/`): below 1 the other was faster. Names say the processor's vectors and the precision.

# %%
bench = {
    path.stem: json.loads(path.read_text())
    for path in sorted((REPOSITORY / "book" / "bench").glob("*.json"))
}
rates = pd.DataFrame(
    {"name": f"{run} beside {contestant['beside']}, {name.partition('-')[2]}"}
    | {
        "rate": f"{contestant['rate']:,.0f} {file['unit']}",
        **contestant["ratio"],
    }
    for name, file in bench.items()
    for run, contestant in file["contestants"].items()
    if "ratio" in contestant
)
ends = {"median": "value", "lowest": "low", "highest": "high"}
rates = rates.rename(columns=ends)
show(dots(rates, "times as fast, median and range", "Whole runs in pairs"))

# %% [markdown]
# ### Precision
#
# Some records were computed in float32, others in bfloat16; each says which. Every method twice on the same clients and
# seeds: bfloat16 minus float32, in points, with its 90% interval. The runs have two rounds, and a method near the chance
# level of 10% says nothing.

# %%
rows = []
for name, runs in bench["precision-avx512-bfloat16"]["contestants"].items():
    gaps = np.subtract(runs["accuracy"]["ours"], runs["accuracy"]["theirs"])
    rows.append((method_name(name), *interval(gaps), len(gaps)))
names = ["name", "value", "low", "high", "seeds"]
precision = pd.DataFrame(rows, columns=names)
show(dots(precision, "bfloat16 minus float32 (points)", "Two rounds"))

# %% [markdown]
# ### Records of older versions
#
# Would the program write its records again? Of each method, data set and budget the run that took least, once more by a
# later version (as `fedcon check` does); where it is more than two points from its record, up to three seeds. All
# differences, and those of more than two points beside the deviation over seeds:

# %%
held = pd.DataFrame(
    {
        "run": name,
        "seeds": len(runs["accuracy"]["ours"]),
        "record": np.mean(runs["accuracy"]["theirs"]),
        "again": np.mean(runs["accuracy"]["ours"]),
        "std": runs["std"],
        "same bytes": runs["same_bytes"],
    }
    for name, runs in bench["records-avx512-bfloat16"]["contestants"].items()
).set_index("run")
held.insert(3, "difference", held["again"] - held["record"])
with canvas(7.2, 2.4, "Records of older versions, run again") as axes:
    sns.histplot(held["difference"], binwidth=0.5, ax=axes)
    axes.set(xlabel="again minus record (points)", ylabel="runs")
close = (held["difference"].abs() < 0.5).sum()
show(axes.figure, alt=f"Of {len(held)} runs {close} are within half a point.")
held[held["difference"].abs() > 2].round(2)

# %% [markdown]
# ## Records
#
# Number of runs so far, with mean minutes and MB sent of one run. A record that an error in the program spoiled is taken
# back; all others stay. Those *in a table* are False for tries that gave way to others and runs from before a table was
# changed.

# %% tags=["hide-output"]
in_tables = {
    run.id
    for spec in TableSpec.all()
    for budget in PROFILES
    for cell in spec.cells(budget)
    for run in cell.experiments
}
runs = pd.DataFrame(
    {
        "in a table": name in in_tables,
        "method": method_name(record.experiment.algorithm),
        "dataset": record.experiment.dataset,
        "budget": budget_name(record.experiment.profile),
        "minutes": record.seconds / 60,
        "MB sent": record.sent() / 2**20,
    }
    for name, record in known.items()
)
by = runs.groupby(["in a table", "method", "dataset", "budget"])
by[["minutes", "MB sent"]].mean().round(2).assign(runs=by.size())

# %% [markdown]
# ## Data sets
#
# What the loaders know, how to get each set, and under which licence it comes.

# %% tags=["hide-output"]
sets = pd.DataFrame(
    {
        "name": info.name,
        "sizes": ", ".join(map(str, info.sizes)),
        "source": info.source,
        "licence": info.licence,
        "how to get it": info.how_to_get,
    }
    for info in available()
)
sentences(sets)
