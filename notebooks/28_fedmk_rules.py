# %% [markdown]
# # FedMK: which round is the result?
#
# *Question:* how much do FedMK's {cite:p}`fedmk` numbers, and those of the methods beside it, hang on the round at which
# they are read?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the records that come with the book.
#
# The [tables of FedMK](22_fedmk_results) hold the accuracy after the tenth round. Here are the ten rounds themselves,
# how steady they are, and what other rules of reporting make of the same runs. `shown` is the profile that is shown.

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
from IPython.display import display

from lab import TableSpec
from lab.report import curve_frame, show, table_frame
from lab.report.frames import table_runs
from lab.report.results import (
    column_curves,
    gains,
    gains_by_rule,
    reporting_rules,
    verdicts_by_rule,
)
from lab.report.texts import Markdown

best = None if shown == "best" else shown

# %% [markdown]
# ## The ten rounds
#
# The paper claims speed (Figure 2). Table 1 on MNIST at $\alpha = 1$, the paper's budget: FedMK, FedAvg and FedGen with
# the rate of FedGen's code, and FedAvg with the rate that was chosen on held-out images.

# %% tags=["hide-input"]
shown_rows = ("FedMK", "FedAvg", "FedGen", "FedAvg, tuned")
ten = table_runs("fedmk", 1, ["paper"]).query("column == 'mnist-1'")
ten = ten[ten["row"].isin(shown_rows)]
for figure in column_curves(ten):
    show(figure)

# %% tags=["hide-input"]
scores = pd.concat(
    [
        curve_frame(run.record).assign(row=run.row)[["row", "round", "value"]]
        for run in ten.itertuples()
    ]
)
means = scores.groupby(["row", "round"])["value"].mean().unstack("row")
means = means[[*shown_rows]]
means.round(1)


# %% tags=["hide-input"]
def passes(row):
    """The first round after which a method's mean stays above FedMK's."""
    behind = means.index[means[row] <= means["FedMK"]]
    rounds = means.index[means.index > behind.max()] if len(behind) else [1]
    return f"from round {rounds[0]} on" if len(rounds) else "in no round"


Markdown(
    f"After the first round FedMK has {means['FedMK'].iloc[0]:.1f}%, FedAvg "
    f"{means['FedAvg'].iloc[0]:.1f}% with FedGen's rate and "
    f"{means['FedAvg, tuned'].iloc[0]:.1f}% with its own. Ahead of FedMK: "
    + ", ".join(f"{row} {passes(row)}" for row in shown_rows[1:])
    + (
        ". So the speed of the figure is in part that of the others' rate."
        if means["FedAvg, tuned"].iloc[-1] > means["FedMK"].iloc[-1]
        else "."
    )
)

# %% [markdown]
# ## How steady the last round is
#
# The tables hold the accuracy after the last round. How much does it depend on stopping just there? The next table has
# means over the runs of Tables 1 and 3 whose column and seed all methods have, in percent and points; FedMix, which
# stands in one column only, is left out. Its columns: the last round, the mean of the last five, the best round, how far
# accuracy moves from one of the last five rounds to the next, and the largest fall between two rounds. The best round is
# known only to someone who looks at the test set; it is not a result. Why a round can lose so much at one rate is a question of [the ablations](21_fedmk_ablations).


# %% tags=["hide-input"]
def steady(record):
    scores = curve_frame(record)["value"]
    steps = scores.diff()
    return {
        "last": scores.iloc[-1],
        "last five": scores.tail(5).mean(),
        "best": scores.max(),
        "step": steps.tail(5).abs().mean(),
        "fall": max(0, -steps.min()),
    }


def steadiness(numbers, by="method"):
    """Means over the runs whose column and seed all methods have: others
    would not be comparable.
    """
    runs = pd.concat(table_runs("fedmk", n, ["paper"]) for n in numbers)
    runs = runs[runs["row"] != "FedMix"]
    together = runs.groupby(["column", "seed"])["row"].transform("nunique")
    rows = [
        {"method": run.row, "column": run.column, **steady(run.record)}
        for run in runs[together == together.max()].itertuples()
    ]
    grouped = pd.DataFrame(rows).groupby(by, sort=False)
    means = grouped[["last", "last five", "best", "step", "fall"]].mean()
    return means.round(1).assign(runs=grouped.size())


steadiness((1, 3))

# %% [markdown]
# At the stronger heterogeneity of Table 4, where no rival is tuned, all methods move more on MNIST than above; on CIFAR
# they move less than on MNIST at the same concentration:

# %% tags=["hide-input"]
strong = steadiness((4,), ["column", "method"])
strong[["last", "step", "fall"]].unstack("method").T.round(1)

# %% tags=["hide-input"]
Markdown(f"Runs of each: {strong['runs'].min()} to {strong['runs'].max()}.")

# %% [markdown]
# ## Which round is reported
#
# FedMK's setting, 20 clients of which 10 are active, half of the data and a network of that size, is also that of
# FedGen's code {cite:p}`fedgen`, so it was probably taken from there. That code hands out at most 1,500 images of a
# class, tests the model with which a round begins, and the script that draws its figures reports the mean of the five
# best tests. There clients test, too, each on images of its own classes with normalisation statistics of its own. What
# is printed, and what runs give by each rule, with half of the training set, with so few images, and where clients
# test (*before* is that code's rule: the five best, each tested before its round trains):

# %% tags=["hide-input"]
first, protocol = (table_runs("fedmk", n, ["paper"]) for n in (1, "protocol"))
own = first[(first["row"] == "FedMK") & (first["column"] == "mnist-0.5")]
other = {
    "mnist-0.5, 1,500 images a class": "1,500 a class",
    "mnist-0.5, 1,500 images a class, clients test": "1,500, clients test",
}
shuffled = ["mnist-0.5", *other]
ruled = reporting_rules(
    pd.concat([protocol[protocol["column"].isin(shuffled)], own])
)
printed = table_frame("fedmk", 1, best).query("column == 'mnist-0.5'")
ruled.insert(
    0,
    "printed",
    ruled.index.get_level_values("row")
    .str.removesuffix(", its code")
    .map(printed.set_index("row")["printed"]),
)
short = {
    "mean of last five": "last five",
    "five best, tested before training": "before",
}
ruled.rename(columns=short, index=other).round(1)

# %% tags=["hide-input"]
theirs = ruled.drop(
    index=["FedMK", "FedGen, its code", "FedDistill, its code"],
    level="row",
    errors="ignore",
)
away = theirs.drop(columns=["printed", "runs"]).sub(theirs["printed"], axis=0)
away = away.abs().groupby("column", sort=False).mean()
others = ", 1,500 images a class, clients test"
tested = f"mnist-0.5{others}"
last = ruled.xs(tested, level="column")
nearest = away.loc[tested].idxmin()
sums = gains("fedmk", 4, "accuracy", "FedDistill", "paper")
sums = sums[sums["row"] == "FedDistill, its code"]
display(
    Markdown(
        "*FedDistill, its code* adds up logits over all rounds, and a client "
        "without a class counts as zeros. Where clients differ most (Table 4) "
        "this changes it, with the 90% interval over seeds, by: "
        + "; ".join(
            f"{of.column} {of.gain:+.1f} points ({of.low:+.1f} to "
            f"{of.high:+.1f})"
            for of in sums.itertuples()
            if of.seeds > 2
        )
        + "."
    )
)
Markdown(
    "Mean distance from print over the printed rivals, in points: "
    + "; ".join(
        f"{column}: "
        + ", ".join(f"{rule} {value:.1f}" for rule, value in row.items())
        for column, row in away.iterrows()
    )
    + f". In the column *{tested}* the rule *{nearest}* comes nearest: "
    + ", ".join(
        f"{row} {value:+.1f}"
        for row, value in (last[nearest] - last["printed"]).items()
    )
    + " points from print."
)

# %% tags=["hide-input"]
Markdown("> " + TableSpec.find("fedmk", "protocol").note)

# %% [markdown]
# That code did not shuffle a client's images until January 2022. [Which version](59_fedmk_versions) fits print has a page
# of its own; here they are shuffled.
#
# ### In all columns
#
# Is it the same in the other columns of Table 1? The verdicts on the rivals' printed numbers by each rule, as if it were
# the one that print has; and their mean difference from print, measured minus printed, with FedGen and without it. Where
# clients test, fewer columns are measured, so the two halves of the table are not about the same numbers:

# %% tags=["hide-input"]
in_print = {
    (cell.column, cell.row): cell.published
    for cell in TableSpec.find("fedmk", 1).cells("paper")
    if cell.published and cell.row != "FedMK"
}
clients_test = protocol[protocol["column"].str.endswith(others)]
arms = {
    "half of the training set": first,
    "1,500, clients test": clients_test.assign(
        column=clients_test["column"].str.partition(",")[0]
    ),
}
judged = pd.concat(
    {arm: verdicts_by_rule(runs, in_print) for arm, runs in arms.items()},
    names=["images"],
).reset_index(level=0)
judged["rule"] = judged["rule"].replace(short)
by = judged.groupby(["images", "rule"], sort=False)
counts = by["verdict"].value_counts().unstack(fill_value=0)
without = judged[judged["row"] != "FedGen"].groupby(["images", "rule"])
counts["difference"] = by["difference"].mean().round(1)
counts["without FedGen"] = without["difference"].mean().round(1)
counts

# %% tags=["hide-input"]
fit = counts[counts.columns.intersection(["equivalent", "consistent"])].sum(
    axis=1
)
whole = judged.groupby("images", sort=False).size() // judged["rule"].nunique()
Markdown(
    "Printed numbers of rivals that fit, *equivalent* or *consistent*: "
    + "; ".join(
        f"{arm}: {fit[arm, 'last']} of {whole[arm]} after the last round, "
        f"{fit[arm, 'before']} by *before*"
        for arm in whole.index
    )
    + ". One of five rules always fits best; but this one is that of FedGen's "
    "code. How far each method is from print by both, in points:"
)

# %% tags=["hide-input"]
apart = judged[judged["rule"].isin(["last", "before"])]
apart.pivot_table(
    index="row", columns=["images", "rule"], values="difference", sort=False
).round(1)

# %% [markdown]
# The rule also decides who leads. By how many points rivals are ahead of FedMK on MNIST, seed by seed, ± to the ends of
# a 90% interval; *FedGen, its code* has that code's losses for the generator, and *tuned* a rate that was chosen on
# validation data:

# %% tags=["hide-input"]
mnist = pd.concat(
    [table_runs("fedmk", n, ["paper"]) for n in (1, 3, 4, "protocol")]
)
mnist = mnist[mnist["column"].str.fullmatch(r"mnist-[\d.]+")]
mnist = mnist.drop_duplicates(["column", "row", "id"])
led = pd.concat(
    {
        row: gains_by_rule(mnist, row, "FedMK")
        for row in ("FedGen", "FedGen, its code", "FedAvg, tuned")
    },
    names=["rival"],
).query("seeds > 1")
led["rule"] = led["rule"].replace(short)
led["lead"] = [
    f"{of.gain:+.1f} ± {of.high - of.gain:.1f}" for of in led.itertuples()
]
spread = led.reset_index().pivot(
    index=["rival", "column", "seeds"], columns="rule", values="lead"
)
spread[["last", "last five", "five best", "before"]]

# %% tags=["hide-input"]
code = led[led.index.get_level_values("rival") == "FedGen, its code"]
after, by_code = (
    led.loc["FedGen"].query("rule == @rule") for rule in ("last", "before")
)
Markdown(
    f"FedGen's interval is above 0 in {(after['low'] > 0).sum()} of "
    f"{len(after)} columns after the last round, and below 0 in "
    f"{(by_code['high'] < 0).sum()} of {len(by_code)} by the rule of its own "
    "code. So with its paper's losses whether FedGen or FedMK leads is a "
    "question of the rule. "
    + (
        f"With the losses of its code FedGen is ahead by each of {len(code)} "
        "rules (the fifth is the best round), by "
        f"{code['gain'].min():.1f} to {code['gain'].max():.1f} "
        f"points ({code['seeds'].min()} seeds), and each interval is above 0."
        if len(code) and (code["low"] > 0).all()
        else "With the losses of its code it is not ahead by every rule."
    )
)

# %% [markdown]
# ## Take away
#
# - A number after the last round, the mean of some rounds and the best round are three results, and may have three
#   winners. Say which.
# - "Faster" needs a rate for each method. With a rate chosen for another method a curve is slow for no reason of its own.
#
# ```{exercise} Which rule?
# :label: ex-mk-rule
#
# *Easy, 10 minutes.*
#
# Accuracy still rises in the last rounds. Which of the five rules above gives the smallest number then, and which the
# largest? Which of them are equal when it rises in every round?
# ```
#
# ```{solution} ex-mk-rule
# :class: dropdown
#
# *Five best, tested before training* gives the smallest: it never sees the last round, and takes a mean of five lower
# ones. *Last* and *best* are equal and the largest. *Mean of last five* and *five best* are equal too.
# ```
