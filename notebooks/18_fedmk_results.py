# %% [markdown]
# # FedMK: results
#
# *Question:* which of FedMK's {cite:p}`fedmk` numbers and claims hold when they are measured again?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the records that come with the book.\
# *Learn first:* [FedMK](17_fedmk).
#
# `shown` is the budget of the tables: "quick", "laptop", "paper", or "best" for the best that is measured.

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
shown = "best"

# %%
import pandas as pd

from lab.report import curve_frame, dots, progress, show, table
from lab.report.charts import heat_map
from lab.report.claims import claims_table
from lab.report.findings import conclusions
from lab.report.frames import evidence_frame, table_runs
from lab.report.results import column_curves, cost, leads
from lab.report.tuning import tuning_table

best = None if shown == "best" else shown

# %% [markdown]
# ## Summary
#
# > **Scope.** Tables 1, 3 and 4 without SVHN, which was not run, and Figure 2 on MNIST (one seed) of
# > [the paper](https://arxiv.org/abs/2209.14851), which has no public code. Data, clients and rounds are the paper's; steps,
# > rates and the network for CIFAR-10 are ours.
# >
# > **Results.** In Table 1 FedMK comes near the paper on MNIST, and on CIFAR-10 with the network of FedGen's code; on
# > CIFAR-100 it is below. FedGen comes out above the paper. So the leads are others: on MNIST FedGen is ahead of FedMK
# > after the last round, also with five classes a client, and FedAvg at a tuned rate is; on CIFAR-100 FedMK leads FedGen.
# > On CIFAR-10 training on as many real images leads FedMK. Which rounds are reported, and in which order a client takes
# > its images, [matters as much](19_fedmk_rules).
# >
# > **Easy.** A run takes minutes.
# >
# > **Difficult.** The paper states neither rates nor steps; its baselines follow another program's rules.
# >
# > **Compute.** [Last section](#sec-mk-cost).
#
# What these conclusions rest on: the first minus the second, in points, with the 90% interval (over paired seeds where
# both are ours), and the paper's difference where it reports both. The Dirichlet alpha is 0.5.

# %%
xlabel = "difference (points), 90% interval"
show(dots(conclusions("fedmk"), xlabel, "Conclusions on FedMK"))

# %% [markdown]
# Ours minus the paper's numbers, each at the best budget that was run:

# %%
evidence = evidence_frame("fedmk", "1").query("metric == 'accuracy'")
show(heat_map(evidence, "FedMK's Table 1: test accuracy, in points"))

# %% [markdown]
# ## Table 1: four data sets
#
# 20 clients, of which ten take part in each of ten rounds, on half of the training set. SVHN was not run.

# %%
table("fedmk", 1, best)

# %% [markdown]
# ## Table 3: five classes a client

# %%
table("fedmk", 3, best)

# %% [markdown]
# ## Table 4: stronger heterogeneity

# %%
table("fedmk", 4, best)

# %% [markdown]
# On CIFAR-10 at 0.25 all seeds are run: FedMK is consistent with the paper there with our network too, most baselines are
# above theirs. At 0.1 it is below so far.
#
# ## The other tables
#
# Tables 2 and 6 and Figures 3 to 5 are at [the parts](21_fedmk_ablations), Table 5 at [the weights](22_fedmk_weights),
# Table 7 at [knowledge](23_fedmk_knowledge). [Bytes](08_communication) has what is sent.
#
# ## Leads
#
# FedMK minus the best other method of each column, in points: first the baselines with the rate of FedGen's code, as in the
# tables, then with [a rate chosen on validation data](#sec-mk-rate).


# %%
def lead_figure(title, baselines):
    """Leads of FedMK in the columns of Tables 1, 3 and 4."""
    every = [leads("fedmk", n, "FedMK", baselines, best) for n in (1, 3, 4)]
    lead = pd.concat(every).dropna(subset="value")
    show(dots(lead, "lead (points), 90% interval", title=title))


# a comma in the name of a row: another schedule, or a tuned rate
lead_figure("Baselines at 0.01", lambda row: "," not in row)
lead_figure("Baselines, tuned", lambda row: row.endswith(", tuned"))

# %% [markdown]
# Where the interval contains 0 the order is unclear. [The protocol of the baselines](19_fedmk_rules) shows how far these
# leads hang on the round that is reported and on the order of a client's images.
#
# ## Figure 2: 200 rounds
#
# Curves at an alpha of 1, one seed. The paper reads from them that FedAvg needs about 200 rounds on MNIST for what FedMK has
# after ten. Rows *not shuffled* take a client's images sorted by class, as FedGen's code did until January 2022. In the
# row *no sharing* FedMK starts from noise in every round; nothing else differs.

# %%
runs = table_runs("fedmk", "figure2", ["paper"])
for figure in column_curves(runs):
    show(figure)

# %% [markdown]
# FedMK's curve rises, then falls; its schedule was chosen for ten rounds. In this one seed it falls later and further without
# sharing; more seeds would have to show whether something else is a cause. The first round in which each other method has
# what FedMK has after ten rounds of Table 1 with the same seed:


# %% tags=["hide-input"]
def reached_in(record, goal):
    """The first round with such an accuracy in percent."""
    scores = curve_frame(record).set_index("round")["value"]
    reached = scores.index[scores >= goal]
    return str(reached.min()) if len(reached) else f"not in {scores.index[-1]}"


goals = table_runs("fedmk", 1, ["paper"]).query("row == 'FedMK'")
goals = {
    (run.column, run.seed): 100 * run.record.metrics["accuracy"]
    for run in goals.itertuples()
}
passed = {
    (run.row, run.column): reached_in(run.record, goals[run.column, run.seed])
    for run in runs.itertuples()
    if (run.column, run.seed) in goals and not run.row.startswith("FedMK")
}
pd.Series(passed).unstack().fillna("")

# %% tags=["hide-output"]
table("fedmk", "figure2", best)

# %% [markdown]
# ## What we chose
#
# There is no released code. Numbers and sentences of the paper that do not agree are among the [errata](../book/errata).
#
# ```{admonition} Where the paper is silent
# :class: dropdown
#
# Our choices, and the setting of each:
#
# | the paper leaves open | here | setting |
# |---|---|---|
# | the loss of Eq. 8 at $\mathbf{w}^c$ or $\mathbf{w}^*$ | at $\mathbf{w}^*$ (Eq. 6) | - |
# | when the weights are computed | once a round, at the received model | - |
# | when the inner steps start again | after 50 inner steps | `horizon` |
# | a client's iterations and batches | 200, with 64 images of the knowledge and 64 real ones | `iterations`, `inner_batch`, `real_batch` |
# | inner steps of an iteration | one; on CIFAR [ten of 100 images, in 50 iterations](20_fedmk_cifar) | `inner_steps` |
# | a client's rates | chosen on held-out images of MNIST; on CIFAR the same for an image | `inner_lr`, `image_lr` |
# | the server | 50 steps of 256 images; the generator 50 of 128 features | `server_steps`, `generator_steps` |
# | the server's rate over the rounds | halved each round from 0.05 to 0.01, the best of four schedules below | `round_decay`, `last_lr` |
# | the rate of the baselines | 0.01 as in FedGen's code; *tuned*: the best of four below | `lr` |
# | knowledge of earlier rounds | dropped | - |
# | which of SVHN's images are trained on | its 73,257 training images | - |
# | what $U[-1, 1]$ is a range of | normalised inputs | - |
# | batch normalisation in the outer loss | by the statistics of the knowledge | `statistics` |
# | sharing only at $t = 1$, or later too | in every round from the second on | `sharing` |
# | classes that a client lacks | no knowledge of them | `classes` |
# | $p(y)$ of Eq. 10 | the shares of the classes among the uploaded images | - |
# | how many pseudo samples | as many as uploaded, so $\beta = 1$ | `pseudo` |
# ```
#
# (sec-mk-rate)=
# ### Tries
#
# Each baseline had four tries on a held-out tenth of MNIST, with one seed; ✓ is the best. On CIFAR-10 [tries of its
# own](20_fedmk_cifar) chose the same rates.

# %% tags=["hide-output"]
tuning_table(None, ("fedmk", "tuning"), "paper").drop(columns="mean")

# %% [markdown]
# Images are condensed for small steps from the received model, so a server that keeps its rate may overshoot in later rounds.
# Four schedules with a quarter of the iterations, by the mean of the last five rounds on held-out images, three seeds:

# %%
tried = table_runs("fedmk", "schedule", ["laptop"])
tried = tried.assign(
    accuracy=[
        curve_frame(record)["value"].tail(5).mean() for record in tried.record
    ]
)
tried.groupby("row")["accuracy"].agg(["mean", "std"]).sort_values(
    "mean", ascending=False
).round(1)

# %% [markdown]
# ## The main claims
#
# Judged by paired differences over seeds; [claims and status](34_status) has all claims.

# %%
claims_table("fedmk", main=True)

# %% [markdown]
# (sec-mk-cost)=
# ## What is measured, and what it took

# %%
cost("fedmk").round(1)

# %% tags=["hide-output"]
progress("fedmk")

# %% [markdown]
# ## Take away
#
# - An accuracy can be near the paper's and the lead far from it: the lead also depends on how the baselines are run.
# - On MNIST and CIFAR-10 the paper's lead is gone once the baselines' learning rate is tuned, with the same 20 local batches.
#   On CIFAR-100 the baselines were not tuned.
