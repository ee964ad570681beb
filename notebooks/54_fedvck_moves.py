# %% [markdown]
# # FedVCK: the clients' work, or the server's?
#
# *Question:* with the work of the book's profile the nearest reading of FedVCK {cite:p}`fedvck` stays below print, and
# below the log of the authors' own run. Are its images worse, or does its server train too little?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the records that come with the book.
#
# A round of FedVCK has two parts: clients move their condensed images, and [the server](11_fedvck) trains on all
# that it has received. [The ladder of budgets](04_fedvck_budgets) says how far both together come on CIFAR-10 at a
# Dirichlet concentration of 0.05. Here one part is changed while the other stays as it is.
#
# `shown` is the profile of the first table; "best" is the one at which most is measured.

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

# %% tags=["hide-input"]
import pandas as pd

from lab.forms import TABLES
from lab.report import bars, curve_frame, lines, show, table
from lab.report.frames import table_runs
from lab.report.results import by_seed, gains_by_round, spreads
from lab.report.texts import Markdown

best = None if shown == "best" else shown

# %% [markdown]
# ## At a small size, on validation data
#
# The authors move the images in 10,000 clipped steps of SGD, each against a batch of real images under a new
# augmentation; *Adam* takes 160, against exact means. Are its images worse? And what do the server's 1,000 epochs give,
# and a larger rate of the server? With half of the width, a third of the images and two rounds, on validation data:

# %% tags=["hide-input"]
scores = by_seed(table_runs("fedvck", "moves", best and [best]))
if len(scores):
    show(
        bars(
            spreads(scores),
            "validation accuracy after two rounds (%)",
            "CIFAR-10, Dirichlet 0.05, ConvNet of width 64",
        )
    )

# %% tags=["hide-input"]
usual = "Adam at 0.1"
own = scores.reindex([usual]).loc[usual]
beyond = scores.sub(own).drop(usual, errors="ignore").dropna(how="all")
served = beyond.index.str.contains("epochs|server")


def changes(rows):
    """By how many points each row differs, and over how many seeds."""
    return "; ".join(
        f"*{row}* {of.mean():+.1f} ({of.count()})"
        for row, of in rows.iterrows()
    )


Markdown(
    f"Against *{usual}*, the rate of the ladder, over the seeds that both "
    f"have (in brackets how many): {changes(beyond[~served])}. The best of "
    "these ways to move the images changes it by "
    f"{beyond[~served].mean(axis=1).max():+.1f} points; one seed differs from "
    f"another by {own.std():.1f} (standard deviation). "
    + (
        "Images moved in the same way, and the server trained in another: "
        f"{changes(beyond[served])}."
        if served.any()
        else "Other trainings of the server are not measured yet."
    )
    if (~served).any()
    else "Not measured at this profile."
)

# %% [markdown]
# Why can few batches at a larger rate do what many epochs do? One reason may be how far a network walks: that depends
# on the rate times the number of batches. In round two of this small setting that is 1 for 200 batches at 0.005, 10
# for as many at 0.05, and 15 for 1,000 epochs of three batches at 0.005. (Half way each rate falls to a tenth, which
# takes the same share of all three.) But this sum alone does not explain the numbers: rows with the same sum differ,
# and the largest gains nothing.

# %% mystnb={"code_prompt_show": "Show the numbers"} tags=["hide-cell"]
table("fedvck", "moves", best)

# %% [markdown]
# ## At the paper's size: ten rounds
#
# There a round brings some 1,000 images by the authors' count, so an epoch of theirs has 4 batches in round one and 40
# in round ten (our images are a tenth more, as [no class is left out](14_fedvck_communication)). The authors' product
# of rate and batches is then 20 and 200, that of 400 batches 2 at 0.005 and 20 at 0.05. Does what was best after two
# rounds hold there, and after ten?

# %% tags=["hide-input"]
wide = table_runs("fedvck", "ladder", ["converged"])
start = "FedVCK as released, Adam"
fast = f"{start}, ten times the server's rate"
pairs = gains_by_round(wide, fast, start)
Markdown(
    "Ten times the server's rate against the code's, at the paper's own size, "
    f"in points after each round (means over {pairs.shape[1]} seeds): "
    + ", ".join(f"{gain:+.1f}" for gain in pairs.mean(axis=1))
    + "."
    if len(pairs)
    else "Not measured at this profile."
)

# %% [markdown]
# ## At the paper's size: the first two rounds
#
# A run with all of the server's 1,000 epochs would take a day of one core. Two rounds of it take more than an hour; [the
# log of the authors' own run](04_fedvck_budgets) has its first two rounds, too: 10,000 iterations of condensation, 1,000
# epochs of the server. Other rows leave the server alone and give the images more work. Accuracy on the test images, in
# percent, mean over seeds; the row *400 batches* is the beginning of the ladder's runs:

# %% tags=["hide-input"]
log = pd.read_csv(TABLES / "fedvck" / "authors_log.csv")
log = log[(log["dataset"] == "cifar10") & (log["round"] <= 2)]
theirs = log.pivot(index="epoch", columns="round", values="accuracy")
theirs = theirs.loc[[100, 1000]].set_axis(
    ["the authors, after 100 epochs", "the authors, after 1,000 epochs"]
)
few = "400 batches"
runs = pd.concat(
    [
        wide[wide["row"] == start].assign(row=few),
        table_runs("fedvck", "early", ["converged"]).query("row != @few"),
    ]
)
curves = [curve_frame(one).set_index("round")["value"] for one in runs.record]
begun = pd.DataFrame([curve.loc[[1, 2]] for curve in curves])
begun.index = pd.MultiIndex.from_frame(runs[["row", "seed"]])
means = begun.groupby("row", sort=False).mean().rename_axis(None)
early = pd.concat([means, theirs]).rename_axis(None, axis=1)
early.rename(columns="round {}".format).round(1).assign(
    seeds=begun.groupby("row").size().reindex(early.index, fill_value=1)
)

# %% tags=["hide-input"]
changed = {
    row: begun.loc[row].sub(begun.loc[few]).dropna()
    for row in means.index.drop(few)
}
missing, spread = theirs.iloc[1] - means.loc[few], begun.loc[few].std()
Markdown(
    "Against 400 batches, seed by seed, the accuracy changes after the first "
    "and the second round by "
    + "; ".join(
        f"{by[1].mean():+.1f} and {by[2].mean():+.1f} (*{row}*, seeds: "
        f"{len(by)})"
        for row, by in changed.items()
    )
    + ". The mean of the row *400 batches* is "
    + " and ".join(f"{missing[r]:.1f}" for r in (1, 2))
    + " points below the authors' run; its seeds have a deviation of "
    + " and ".join(f"{spread[r]:.1f}" for r in (1, 2))
    + ". None of these changes helps in the first round. In the second both "
    "the images' and the server's work are ahead, by little beside what seeds "
    "do and with one seed each."
    if all((by[1].mean() < 1) & (by[2].mean() > 0) for by in changed.values())
    and {len(by) for by in changed.values()} == {1}
    else "The rows do not agree on what helps."
)

# %% mystnb={"code_prompt_show": "Show the rows as a table"} tags=["hide-cell"]
table("fedvck", "early", "converged")

# %% [markdown]
# ## Both at once
#
# The ladder's upper rungs have twice and four times the work of clients and server. How all rungs grow, beside the
# authors' run:

# %% tags=["hide-input"]
rungs = {
    f"{start}, a quarter": "a quarter of the work",
    f"{start}, a half": "a half",
    start: "the profile's work",
    f"{start}, twice": "twice",
    f"{start}, four times": "four times",
}
rows = wide[wide["row"].isin(rungs)]
named = dict(zip(rows["id"], rows["row"].map(rungs), strict=True))
grown = curve_frame(
    list(rows["record"]), by=lambda record: named[record.experiment.id]
)
log = pd.read_csv(TABLES / "fedvck" / "authors_log.csv")
own = log[(log["dataset"] == "cifar10") & (log["epoch"] == 1000)]
own = own.rename(columns={"accuracy": "value"}).assign(label="the authors")
show(
    lines(
        pd.concat([grown, own]),
        "round",
        "value",
        xlabel="communication round",
        ylabel="accuracy (%)",
        title="FedVCK as released, Adam: CIFAR-10, 0.05, width 128",
    )
)

# %% tags=["hide-input"]
goal = own.set_index("round")["value"]
away = {
    label: of.groupby("round")["value"].mean().sub(goal).dropna()
    for label, of in grown.groupby("label", sort=False)
}
held = {rungs[row]: of["seed"].nunique() for row, of in rows.groupby("row")}
enough, less = away["twice"], away["the profile's work"]
Markdown(
    "Points above the authors' run after the second and the tenth round, with "
    "the number of seeds in brackets: "
    + "; ".join(
        f"{label} {gap[2]:+.1f} and {gap[10]:+.1f} ({held[label]})"
        for label, gap in away.items()
    )
    + ". With twice the profile's work the nearest reading ends "
    + ("" if abs(enough[10]) < abs(less[10]) / 2 else "not ")
    + "as this one run of theirs does, and a second doubling shows "
    + ("no" if away["four times"][10] < enough[10] + 1 else "a")
    + f" further gain at the end ({held['four times']} seeds)."
)

# %% [markdown]
# ## Take away
#
# - Which of the two it is stays open. After two rounds each alone has one seed and changes little beside what seeds do;
#   more work on the images alone was not run for ten rounds. With twice of both the tenth round is about where the
#   authors' is; theirs is a single run.
# - Change one part and keep the other, or you will not know which of them did it.
# - What is best after two rounds need not be best after ten: a larger rate of the server helps at first, and after ten
#   rounds two seeds show no gain.
#
# ```{exercise} The same walk
# :label: ex-vckm-walk
#
# *Easy, 10 minutes.*
#
# A server takes 400 batches in a round, the first half at 0.05 and the second at a tenth of it. Another one takes 1,000
# epochs of 4 batches, and its rate falls to a tenth half way, too. With which first rate is the sum of its rates over
# all batches the same? (To be checked: `same_rate`.)
# ```
#
# ````{solution} ex-vckm-walk
# :class: dropdown
#
# Both fall in the same way, so the rate goes with the inverse of the number of batches:
#
# ```python
# same_rate = 0.05 * 400 / (1_000 * 4)
# ```
#
# 0.005, the authors' own rate. The sum says how far a network can walk, not where to: with small steps it
# follows the slope of the loss, with large ones it jumps across.
# ````

# %% tags=["solution", "remove-cell"]
same_rate = 0.05 * 400 / (1_000 * 4)

# %% name="ex-vckm-walk" tags=["check", "remove-cell"]
fast_server = [0.05] * 200 + [0.005] * 200
slow_server = [same_rate] * 2_000 + [same_rate / 10] * 2_000
assert abs(sum(slow_server) / sum(fast_server) - 1) < 0.01, "add up all rates"
