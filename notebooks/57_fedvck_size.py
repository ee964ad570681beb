# %% [markdown]
# # FedVCK: who leads at the paper's size?
#
# *Question:* with the paper's own network, clients and rounds, does FedVCK {cite:p}`fedvck` reach its printed accuracy,
# and is it ahead of the others by as much as in print?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the records that come with the book.
#
# The [results](17_fedvck_results) show all tables, most of them at a laptop's budget. This page has what is measured
# at the profile `converged`: a ConvNet of 128 channels, ten rounds, 2% condensed images of CIFAR-10 and 5% of STL10
# and of medical ones. Its name is a goal, not a finding: FedVCK by Adam still gains from twice its work. A run takes
# minutes of a GPU or hours of a core. The verdicts on this page are not counted among the book's where a row is a
# reading of ours.
#
# `size` is the profile; the tables of this page are meant for `converged` alone.

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
size = "converged"

# %% tags=["hide-input"]
import pandas as pd
from scipy.special import stdtrit

from lab import TableSpec
from lab.report import bars, show, table
from lab.report.frames import metrics_frame, table_runs
from lab.report.intervals import interval
from lab.report.results import gains, hours, readings_beside
from lab.report.texts import Markdown
from lab.report.tuning import settings_seen

columns = ["cifar10-0.05", "cifar10-0.02"]
in_print = {
    column: {
        cell.row: cell.published
        for cell in TableSpec.find("fedvck", 11).cells("paper")
        if cell.column == column and cell.published
    }
    for column in columns
}

# %% [markdown]
# ## Two columns of Table 11
#
# CIFAR-10 at a Dirichlet concentration of 0.05 and of 0.02: nearly all images of a client are of a few classes.
# Methods that send models train for ten local epochs, as in print, at their default settings. FedVCK has [the reading
# that comes nearest to print](04_fedvck_budgets): the switches of its code, images moved by Adam, twice the work of the
# profile. FedDM has as many moves and batches, and [starts from real images](04_fedvck_budgets), as in a public program
# that is not its authors'. Unlike there, batch normalisation takes the running statistics of the received model. Its
# server has a constant rate of 0.03, FedVCK's 0.005. `hours` are those that one core took for a run (none: a GPU ran
# them):

# %% tags=["hide-input"]
runs = table_runs("fedvck", "nearest", [size])
took = {at: hours(of) for at, of in runs.groupby(["column", "row"])}
beside = pd.concat(
    {
        column: readings_beside("fedvck", "nearest", size, said, column=column)
        for column, said in in_print.items()
    },
    names=["column", "row"],
)
beside.assign(hours=pd.Series(took)).round(1)

# %% tags=["hide-input"]
for column, of in beside.groupby("column", sort=False):
    drawn = {}
    for (_, row), one in of.iterrows():
        name = row.partition(" ")[0].strip(",")
        drawn |= {
            f"{name}, here": (one["measured"], one["std"]),
            f"{name}, print": (one["printed"], 0),
        }
    show(bars(drawn, "accuracy after ten rounds (%)", title=column))

# %% tags=["hide-input"]
vck = "FedVCK as released, Adam, twice"
dm = "FedDM from real images, Adam, evaluation mode, twice"
over = pd.concat(
    gains("fedvck", "nearest", "accuracy", row, size)
    .query("row == @vck")
    .assign(rival=row)
    for row in beside.index.unique("row").drop(vck)
)
over["in print"] = [
    in_print[one.column]["FedVCK"].value
    - beside["printed"][one.column, one.rival]
    for one in over.itertuples()
]
over = over.set_index(["column", "rival"]).sort_index(ascending=False)
ends = over[["low", "high"]].where(over["low"] > float("-inf"))
led = over.drop(columns="row").assign(**ends)
led.rename(columns={"gain": "lead", "in print": "lead in print"}).round(1)

# %% tags=["hide-input"]
told = {column: beside.loc[(column, vck)] for column in columns}


def far(one):
    """Whether print's lead is outside the 95% interval for one more run."""
    half, free = (one["high"] - one["low"]) / 2, one["seeds"] - 1
    wider = stdtrit(free, 0.975) / stdtrit(free, 0.95) * (free + 2) ** 0.5
    return abs(one["in print"] - one["gain"]) > half * wider


Markdown(
    "FedVCK ends at "
    + " and ".join(
        f"{one.measured:.1f}% for {column} (print {one.printed:.1f}, seeds: "
        f"{one.seeds}, *{one.verdict}*)"
        for column, one in told.items()
    )
    + ". The table above has "
    "by how many points it leads each rival, over the seeds that both have, "
    "with a 90% interval, beside print. "
    + " ".join(
        f"At {column} it is {'ahead of' if one['gain'] > 0 else 'behind'} "
        f"*{row}* by {abs(one['gain']):.1f} points, in print ahead by "
        f"{one['in print']:.1f}"
        + (", outside the 95% interval for one more run." if far(one) else ".")
        for (column, row), one in over.iterrows()
        if one["seeds"] > 2
    )
)

# %% [markdown]
# The best of many settings looks better than it is. How many of each method were run with the test images of the column
# at 0.05 in view, and how many of them with the paper's network and rounds; a lead over FedAvg there is one of a method
# with many tries over one with few:

# %%
settings_seen("cifar10", 0.05)

# %% [markdown]
# What the stronger heterogeneity costs: points lost from 0.05 to 0.02, seed by seed, with 90% intervals, beside print. The
# paper says that FedVCK loses little, and others much.

# %% tags=["hide-input"]
scores = pd.Series(
    {
        (run.row, run.record.experiment.seed, run.column): 100
        * run.record.metrics["accuracy"]
        for run in runs.itertuples()
    }
).unstack()
lost = (scores[columns[0]] - scores[columns[1]]).dropna()
lost = {row: of for row, of in lost.groupby(level=0) if len(of) > 1}
in_both = beside["printed"].unstack("column")
pd.DataFrame(
    {
        row: {
            **dict(zip(("lost", "low", "high"), interval(of), strict=True)),
            "in print": in_both.loc[row, columns[0]]
            - in_both.loc[row, columns[1]],
            "seeds": len(of),
        }
        for row, of in lost.items()
    }
).T.round(1).astype({"seeds": int})

# %% [markdown]
# At 0.05 FedDM's printed value fits neither start: from new noise in every round FedDM [stays far below
# it](04_fedvck_budgets), in single runs, and from real images it is far above. What the paper's FedDM started from is
# not said. If its row is FedVCK without any of its parts, as [equal numbers suggest](12_fedvck_ablations), it started
# from noise and, in the released code, went on with its own images. On STL10, below, that falls far short of FedDM's
# print, while real images come near it. So real images put FedDM ahead here, but this does not show that the printed
# lead is one of starts.

# %% mystnb={"code_prompt_show": "Show the table"} tags=["hide-cell"]
table("fedvck", "nearest", size)

# %% [markdown]
# ### A control
#
# What are condensed images worth at this size? About as many random *real* images as FedVCK sends in its ten rounds,
# 1,100 of a class, are sent once, and the server takes as many batches on them as FedVCK's does in all rounds with the
# profile's own work, without augmentation. No federation could do so, for clients keep their images:

# %% tags=["hide-input"]
rival = "FedVCK as released, Adam"
control = gains("fedvck", "ladder", "accuracy", rival, size)
control = control[control["row"] == "As many real images"]
Markdown(
    "".join(
        f"{at.column}: real images are {at.gain:.1f} points ahead of *{rival}* "
        f"({at.seeds} seed" + ("s)." if at.seeds > 1 else ").")
        for at in control.itertuples()
    )
    + " But these are there from the start."
    if len(control)
    else "Not measured at this profile."
)

# %% [markdown]
# ## A data set that chose nothing: STL10
#
# The first column above chose the reading, and the second has the same images. Table 11 has STL10, too: 5,000 training
# images, so less work. Here these, their order, the authors' split, the network, rounds and local epochs are the
# paper's. Only the labels of the test images are ours, as the note of the folded table says; if one in a hundred is
# wrong, an accuracy moves by at most a point. FedVCK and FedDM have the profile's work, half of that in the tables above.
# Print has no row *without its parts* for STL10. Here it stands beside FedDM's number, as the two are [one number
# wherever print has both](12_fedvck_ablations):

# %% tags=["hide-input"]
reading, bare = "FedVCK as released, Adam", "FedVCK without its parts, Adam"
third = {
    cell.column: {} for cell in TableSpec.find("fedvck", "stl10").cells(size)
}
for cell in TableSpec.find("fedvck", 11).cells("paper"):
    if cell.column in third and cell.published:
        third[cell.column][cell.row] = cell.published
other = pd.concat(
    {
        column: readings_beside(
            "fedvck", "stl10", size, {**said, bare: said["FedDM"]}, None, column
        ).drop(columns="verdict")
        for column, said in third.items()
    },
    names=["column", "row"],
)
other = other.astype(dict.fromkeys(["measured", "std", "printed"], float))
other["difference"] = other["measured"] - other["printed"]
other.sort_values(["column", "measured"]).round(1)

# %% tags=["hide-input"]
led = gains("fedvck", "stl10", "accuracy", reading, size)
Markdown(
    f"By how many points *{reading}* leads, over the seeds that both have: "
    + "; ".join(
        f"at {one.column} *{one.row}* {-one.gain:+.1f}"
        + (f" ({-one.high:+.1f} to {-one.low:+.1f})" if one.seeds > 1 else "")
        + f", in print {in_print_lead:+.1f}"
        for one in led.itertuples()
        for in_print_lead in [
            other["printed"][one.column, reading]
            - other["printed"][one.column, one.row]
        ]
    )
    + "."
    if len(led)
    else "Not measured yet."
)

# %% mystnb={"code_prompt_show": "Show the table"} tags=["hide-cell"]
table("fedvck", "stl10", size)

# %% [markdown]
# ## Rivals with three local epochs
#
# To save time those that send models train here for three of the ten local epochs, at default rates that nobody tuned
# at this size; *FedVCK as released, Adam* has the profile's work. What is measured so far at 0.05, the hours of one core
# that a run took, and by how many points FedVCK leads, over the seeds that both have, with a 90% interval:

# %% tags=["hide-input"]
stated = in_print[columns[0]]
stated = stated | {bare: stated["FedDM"]}  # one number in Table 14
shown = readings_beside("fedvck", "rivals", size, stated)
behind = gains("fedvck", "rivals", "accuracy", reading, size)
behind = behind.set_index("row")
ends = behind[["low", "high"]].where(behind["low"] > float("-inf"))
shown = shown.drop(columns="verdict").sort_values("measured")
runs = table_runs("fedvck", "rivals", [size])
shown["hours"] = runs.groupby("row").apply(hours)
shown["lead in print"] = shown.loc[reading, "printed"] - shown["printed"]
own = shown.index.str.startswith("FedVCK") & (shown.index != bare)
shown["lead in print"] = shown["lead in print"].mask(own)
shown["lead"] = -behind["gain"]
shown["low"], shown["high"] = -ends["high"], -ends["low"]
shown.round(1)

# %% tags=["hide-input"]
drawn = {}
for one in shown.itertuples():
    method, _, how = one.Index.replace(", Adam", "").partition(" ")
    drawn[f"{method}, {how}" if how else method] = one.measured, one.std
    drawn[f"{method}, print"] = one.printed, 0
show(
    bars(
        drawn,
        "accuracy after ten rounds (%)",
        title="Who sends models trains 3 epochs here, 10 in print",
    )
)

# %% tags=["hide-input"]
others = shown.drop(reading)
ahead = others.index[others["low"] > 0]
behind = others.index[others["high"] < 0]
waiting = sorted(
    {cell.row for cell in TableSpec.find("fedvck", "rivals").cells(size)}
    - set(shown.index)
)
Markdown(
    "".join(
        f"{said}: {'; '.join(names)}. "
        for said, names in (
            ("The interval of its lead is above 0 over", ahead),
            ("It is below 0 against", behind),
            ("One seed only", others.index[others["seeds"] < 2]),
            ("Not measured yet", waiting),
        )
        if len(names)
    )
)

# %% mystnb={"code_prompt_show": "Show the table"} tags=["hide-cell"]
table("fedvck", "rivals", size)

# %% [markdown]
# ## Medical images
#
# Table 3's methods on medical images that are at hand, with the ConvNet that the paper has for small images (for its
# Pneumonia images of 224 pixels it has a ResNet-18) and its local epochs, at default rates; FedVCK and FedDM have the
# profile's iterations and batches of the server. Classes are uneven, so the balanced accuracy, the mean over classes,
# stands beside the accuracy. By it a model that always names one class has 50% on PneumoniaMNIST, which has two, and a
# seventh on HAM10000:

# %% tags=["hide-input"]
measures = ["accuracy", "balanced_accuracy"]
medical = metrics_frame("fedvck", "medical", size)
medical = 100 * medical.set_index(["column", "row", "seed"])[measures]
by_row = medical.groupby(["column", "row"])
scores = by_row.mean().assign(seeds=by_row.size())
scores.sort_values(
    ["column", "balanced_accuracy"], ascending=[False, False]
).round(1)

# %% tags=["hide-input"]
one_class = {"pneumoniamnist-0.05": 100 / 2, "ham10000_32-0.05": 100 / 7}
above = scores["balanced_accuracy"] - scores.index.get_level_values(0).map(
    one_class
)
Markdown(
    f"{(above < 5).sum()} of {len(scores)} have a balanced accuracy less than "
    "five points above that of one class: they know hardly more after the last "
    "round. With one seed a place in this list is that of one run."
)

# %% [markdown]
# A lead over FedAvg is one over some local training. In print, and in the row *FedAvg*, clients go ten times through
# their images, here at the default rate; *ten batches a round* takes ten batches of 64, at the rate of 0.003 that was
# chosen for them on validation data at a laptop's budget. FedVCK as printed minus FedAvg, in points, over the seeds
# that both have, with a 90% interval:

# %% tags=["hide-input"]
led = {}
for column, of in medical.unstack("row").groupby("column"):
    for measure, row in of.columns:
        gaps = (of[measure, "FedVCK"] - of[measure, row]).dropna()
        if row.startswith("FedAvg") and len(gaps) > 1:
            led[column, row, measure] = (*interval(gaps), len(gaps))
ends = ["lead", "low", "high", "seeds"]
led = pd.DataFrame.from_dict(led, orient="index", columns=ends).round(1)
led.set_index(pd.MultiIndex.from_tuples(led.index)) if len(led) else led

# %% mystnb={"code_prompt_show": "Show the table"} tags=["hide-cell"]
table("fedvck", "medical", size)

# %% [markdown]
# ## Take away
#
# - An accuracy can be near the paper's and the lead far from it: the lead also depends on how the baselines are run.
# - FedVCK's accuracy hardly falls from 0.05 to 0.02, as the paper says of it. Whether FedAvg's falls more, as it also
#   says, hangs on how far its seeds lie apart.
# - A reading that was chosen by one column is tested by another.
# - Where seeds differ by many points, as FedAvg's do here, three of them say little about a lead.
#
# ```{exercise} How many seeds?
# :label: ex-vckz-seeds
#
# *Easy, 10 minutes.*
#
# The differences between two methods have a standard deviation of eight points over seeds. How many seeds does it take
# until the 90% interval of their mean is at most three points to each side? (To be checked: `seeds_needed`.)
# ```
#
# ````{solution} ex-vckz-seeds
# :class: dropdown
#
# ```python
# from scipy.stats import t
#
# seeds_needed = next(
#     n for n in range(2, 100) if t.ppf(0.95, n - 1) * 8 / n**0.5 <= 3
# )
# ```
#
# 22, in place of the three that are usual. (With the quantile of a normal distribution it would be 20: with few seeds
# their spread is not known well either.)
# ````

# %% tags=["solution", "remove-cell"]
from scipy.stats import t

seeds_needed = next(
    n for n in range(2, 100) if t.ppf(0.95, n - 1) * 8 / n**0.5 <= 3
)

# %% name="ex-vckz-seeds" tags=["check", "remove-cell"]
from scipy.stats import t as student

wide, narrow = (
    student.ppf(0.95, n - 1) * 8 / n**0.5
    for n in (seeds_needed - 1, seeds_needed)
)
assert narrow <= 3 < wide, "the quantile of Student's t, times 8 over root n"
