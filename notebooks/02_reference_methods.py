# %% [markdown]
# # Reference methods on real data
#
# *Question:* how far are the classic methods from the ceiling when clients differ much?\
# *Time:* under half a minute on two CPU cores; what the runs shown took stands below them. *Data:* records of
# PneumoniaMNIST, MNIST and CIFAR-10 that come with the book; digits for the quick run.
#
# Six methods frame everything that follows. **Centralized** has all data in one place: the ceiling. **Standalone** lets
# every client train alone and sends nothing: what a method gains above it, it owes to the others. **FedAvg**,
# **FedProx**, **FedAvgM** and **SCAFFOLD** exchange models ([federated learning](01_federated_learning) explains them).

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

# %% tags=["parameters"]
dataset = "digits"
alpha = 0.05
clients = 10
rounds = 3
seed = 0
profile = "quick"
shown = "laptop"

# %% tags=["hide-input"]
import pandas as pd

from lab.report import curves, records_summary, show, table
from lab.report.frames import table_runs
from lab.report.lesson import Lesson
from lab.report.texts import Markdown

# %% [markdown]
# ## Measured
#
# Ten clients, a Dirichlet split with $\alpha = 0.05$ (for CIFAR-10 the split that the authors of FedVCK published),
# three seeds. The seed draws the initial network, the batches and, where it is not a file, the split. This is the
# book's own table: no paper has these six methods side by side. FedVCK's Table 11 prints FedAvg and FedProx on CIFAR-10;
# [its page](17_fedvck_results) sets the same runs beside that. On a laptop FedAvg, FedProx and SCAFFOLD have learning
# rates [chosen on validation data](91_tuning). Centralized, Standalone and FedAvgM were not tuned, so the table does not
# rank FedAvgM against the others.

# %%
table("reference", 1, shown)

# %% tags=["hide-input"]
runs_shown = table_runs("reference", 1, [shown])
reached = runs_shown.assign(
    percent=[100 * one.metrics["accuracy"] for one in runs_shown["record"]]
).pivot_table("percent", "row", "column", sort=False)
ceiling = reached.reindex(["Centralized"]).iloc[0].dropna()
ends = ["Centralized", "Standalone"]
below = ceiling - reached.drop(index=ends, errors="ignore")[ceiling.index]
Markdown(
    "How far from the ceiling? By so many points the means of the methods that "
    "exchange models are below Centralized: "
    + "; ".join(
        f"{of.min():.0f} to {of.max():.0f} on {column}"
        for column, of in below.items()
    )
    + "."
    if len(ceiling)
    else "Centralized is not measured at this profile."
)

# %% [markdown]
# ## Curves
#
# First against rounds, then against what was sent. Centralized sends all images once, so it is a point there;
# Standalone sends nothing and is a line. It is tested at the end only.

# %%
columns = {
    column: list(of["record"])
    for column, of in runs_shown.groupby("column", sort=False)
}

# %%
for name, found in columns.items():
    show(curves(found, title=name))

# %%
for name, found in columns.items():
    show(curves(found, x="megabytes", title=name))

# %% [markdown]
# What the runs cost, `minutes` and `MB sent` for one run, as a mean over the seeds. Several versions of the program made
# them, some of them faster: compare MB between rows, not minutes.

# %%
records_summary(runs_shown.set_index("id")["record"].to_dict()).round(2)

# %% [markdown]
# ## A quick run of your own
#
# The same methods, small. Change the parameters in the cell that begins with `dataset =`. One seed and few rounds say
# nothing about the order of the methods; and SCAFFOLD's local steps are plain SGD here, while those of the others have
# momentum.


# %%
lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    settings={"local_steps": 8, "lr": 0.1},
)

# %% tags=["hide-input"]
methods = (
    "centralized",
    "standalone",
    "fedavg",
    "fedprox",
    "fedavgm",
    "scaffold",
)
runs = {name: lesson.run(name) for name in methods}
accuracy = {name: run.accuracy for name, run in runs.items()}
pd.Series(accuracy, name="accuracy (%)").round(1).to_frame()

# %%
show(curves([run.record for run in runs.values()], title=lesson.title))

# %% [markdown]
# What one hostile client does to such an average [has a page](56_poisoner); whether crops and flips help local training
# stands with [the tuning](91_tuning).
#
# ## Run them at full budget
#
# ```bash
# fedcon run --cell reference/1/FedAvg/cifar10-0.05 --profile paper
# ```
#
# ## Take away
#
# - Centralized and Standalone say how much there is to win before any federated method is judged.
# - A table needs the number of seeds, the budget and the split beside each number; here they stand in the note above
#   it and in the list below it.
#
# ```{exercise} The worth of a federation
# :label: ex-reference-worth
#
# *Easy, 10 minutes.*
#
# When would a client rather stay alone? Think of a client with many images of two classes, tested on these two only.
# ```
#
# ```{solution} ex-reference-worth
# :class: dropdown
#
# Standalone is tested on all classes here, so a client that has seen two of them cannot do well. Tested on its own
# two classes it may beat the federated model, which spends its capacity on all. The comparison depends on what the
# client needs; personalised federated learning starts from there.
# ```
