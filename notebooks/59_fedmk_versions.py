# %% [markdown]
# # FedMK: which version of the rivals?
#
# *Question:* do the order in which clients take their images, and values that nobody printed, explain the numbers that
# FedMK {cite:p}`fedmk` prints for its rivals?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the records that come with the book.
#
# The code of FedGen {cite:p}`fedgen`, which FedMK's rivals fit, [did not shuffle](58_fedmk_order) a client's images until
# January 2022. FedMK was submitted in that year and does not say which version its rivals are. Here are both, beside
# print. `rule` says by which rule the last table reads a run: `last`, `five best` or `before`.

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
rule = "last"

# %% tags=["hide-input"]
import pandas as pd

from lab import TableSpec
from lab.report import scatter, show, table
from lab.report.frames import table_runs
from lab.report.results import gains, gains_by_rule, verdicts_by_rule
from lab.report.texts import Markdown

# %% [markdown]
# ## What was run
#
# Ten rounds of 10 of 20 clients, 20 batches of 32; clients test, as in FedGen's code. Columns with a concentration, those
# of Tables 1 and 4, have at most 1,500 images of a class, as there; on the split of Table 3 each client has five classes
# and half of its images. *FedGen, its code* and *FedDistill, its code* have the losses and draws of those methods' code,
# but for what the table's note lists. The class-by-class order is the work of that code's script for Dirichlet splits of
# MNIST. It has none for CIFAR-10 or for the split of Table 3: somebody wrote one, and it may store images in another
# order. A loader that does not shuffle keeps that order; the columns *mixed* have it so.

# %% mystnb={"code_prompt_show": "Show all numbers"} tags=["hide-cell"]
table("fedmk", "protocol", "paper")

# %% [markdown]
# How far from print is that? Each rival as in FedGen's code, over the seeds that both orders have: the mean distance from
# print, the same without FedGen, and the mean difference (measured minus printed), in points; and how many printed
# numbers fit, *equivalent* or *consistent* by the rule of [the verdicts](50_verdicts). Read after the last round, by the
# mean of the five best rounds, and by that code's own rule (*before*: the five best, each tested before its round
# trains):

# %% tags=["hide-input"]
protocol = table_runs("fedmk", "protocol", ["paper"])
ENDS = {
    "shuffled": ", clients test",
    "by class": ", clients test, not shuffled",
    "mixed": ", clients test, not shuffled, mixed",
}
BOTH = ["shuffled", "by class"]
SHORT = {"five best, tested before training": "before"}
RULES = ["last", "five best", "before"]
PRINT = (1, 3, 4)
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def arm(end):
    """The runs whose column ends so, each rival as in its code; columns have
    short names.
    """
    of = protocol[protocol["column"].str.endswith(end)]
    of = of[~(of["row"] + ", its code").isin(of["row"])]
    return of.assign(
        row=of["row"].str.removesuffix(", its code"),
        column=of["column"].str.partition(",")[0],
    )


arms = pd.concat(
    {name: arm(end) for name, end in ENDS.items()}, names=["images"]
).reset_index("images")
paired = arms[arms["images"].isin(BOTH)].groupby(["column", "row", "seed"])
arms = arms.join(
    paired["images"].nunique().rename("orders"), on=["column", "row", "seed"]
)
arms = arms[(arms["orders"] == 2) | (arms["images"] == "mixed")]
cells = {
    cell: f"Table {n}, {NAMES.get(cell.column.partition('-')[0])}"
    for n in PRINT
    for cell in TableSpec.find("fedmk", n).cells("paper")
    if cell.published
}
asked = {(cell.column, cell.row): cell.published for cell in cells}
stands = {cell.column: name for cell, name in cells.items()}


def by_rule(runs, printed):
    """What print would be by the three rules, for each order of images."""
    found = pd.concat(
        {
            name: verdicts_by_rule(of, printed)
            for name, of in runs.groupby("images", sort=False)
        },
        names=["images"],
    ).reset_index("images")
    found["rule"] = found["rule"].replace(SHORT)
    return found[found["rule"].isin(RULES)]


judged = by_rule(arms, asked)
judged["print"] = judged["column"].map(stands)
judged["distance"] = judged["difference"].abs()
judged["fits"] = judged["verdict"].isin(["equivalent", "consistent"])


def summary(of, by):
    """Distances of measured from printed numbers, by some columns."""
    group = of.groupby(by, sort=False)
    four = of[of["row"] != "FedGen"].groupby(by, sort=False)
    return pd.DataFrame(
        {
            "distance": group["distance"].mean(),
            "without FedGen": four["distance"].mean(),
            "difference": group["difference"].mean(),
            "fit": group["fits"].sum(),
            "of": group.size(),
        }
    )


apart = summary(judged, ["print", "images", "rule"])
apart.sort_index(level="print", sort_remaining=False).round(1)

# %% tags=["hide-input"]
two = judged[judged["images"].isin(BOTH)]
whole = summary(two, ["images", "rule"])
drawn = pd.concat(
    [
        two.query("images == @name and rule == @rule")
        for name in BOTH
        for rule in [whole.loc[name, "distance"].idxmin()]
    ]
)
drawn["label"] = drawn["images"] + ", " + drawn["rule"]
drawn["printed"] = drawn["column"].combine(
    drawn["row"], lambda column, row: asked[column, row].value
)
show(
    scatter(
        drawn,
        "printed",
        "difference",
        xlabel="printed accuracy (%)",
        ylabel="measured minus printed (points)",
        title="Rivals, each order by its nearest rule",
    )
)


# %% tags=["hide-input"]
def nearest(of, distance):
    """The order and the rule with the least distance, in words."""
    images, rule = of[distance].idxmin()
    return f"*{images}*, *{rule}* ({of[distance].min():.1f} points)"


own = whole.xs("before", level="rule")["difference"]
Markdown(
    f"Over all {whole['of'].max()} numbers that both orders have, nearest to "
    f"print is {nearest(whole, 'distance')}; without FedGen "
    f"{nearest(whole, 'without FedGen')}. By that code's own rule, *before*, "
    f"*shuffled* is {own['shuffled']:+.1f} points from print on average and "
    f"*by class* {own['by class']:+.1f}. On MNIST the four rivals beside "
    "FedGen come near print with either order, by one rule or another; on "
    "CIFAR-10 they do not class by class."
)

# %% [markdown]
# *One reading for all.* Say that the loader never shuffles: images lie by class where that code's script stored them, on
# Dirichlet splits of MNIST, and mixed elsewhere. Beside it, the same numbers with shuffled images:

# %% tags=["hide-input"]
script = judged["column"].str.fullmatch(r"mnist-[\d.]+")
never = judged[
    judged["images"] == script.map({True: "by class", False: "mixed"})
]
at = ["column", "row", "rule"]
always = judged[judged["images"] == "shuffled"].merge(never[at], on=at)
one = pd.concat(
    {
        "never shuffled": summary(never, ["rule"]),
        "shuffled": summary(always, ["rule"]),
    },
    names=["images"],
)
one.round(1)

# %% tags=["hide-input"]
Markdown(
    "; ".join(
        f"*{name}*: at best {of.min():.1f} points from print on average, by "
        f"*{of.idxmin()[1]}*"
        for name, of in one["distance"].groupby(level="images", sort=False)
    )
    + "."
)

# %% [markdown]
# And FedGen alone, measured minus printed in points:

# %% tags=["hide-input"]
gen = judged[judged["row"] == "FedGen"].pivot_table(
    index="column", columns=["images", "rule"], values="difference", sort=False
)
gen = gen[
    [(name, rule) for name in ENDS for rule in RULES if (name, rule) in gen]
]
gen.round(1).style.format("{:+.1f}", na_rep="").set_table_attributes(
    'class="dataframe"'
)

# %% [markdown]
# FedGen on CIFAR-10 is far from print with every order. But its code has values for MNIST, EMNIST and CelebA only, and for
# CIFAR-10 it lists a generator that makes 32 features and a network that has 64: whoever ran it there chose anew. Above are
# the values for MNIST. Here beside them are others that the code or its paper names; measured minus printed in points, the
# mean over concentrations with three seeds:

# %% tags=["hide-input"]
tried = table_runs("fedmk", "generator", ["paper"])
mixed = tried["column"].str.endswith("mixed")
tried["images"] = mixed.map({True: "mixed", False: "shuffled"})
tried["column"] = tried["column"].str.partition(",")[0]
PREFIX = r"^FedGen, (its code, )?"  # of the rows' names
tried["row"] = tried["row"].str.replace(PREFIX, "", regex=True)
rows = [row for row in tried["row"].unique() if row != "FedAvg"]
wanted = {
    (column, row): asked[column, "FedGen"]
    for column in tried["column"].unique()
    for row in rows
}
values = by_rule(tried, wanted)
values.pivot_table(
    index="row", columns=["images", "rule"], values="difference", sort=False
).round(1).style.format("{:+.1f}", na_rep="").set_table_attributes(
    'class="dataframe"'
)

# %% [markdown]
# FedGen minus FedAvg after the last round, in points, with a 90% interval:


# %% tags=["hide-input"]
def with_ends(one):
    """A gain with the ends of its interval."""
    return f"{one.gain:+.1f} ({one.low:+.1f} to {one.high:+.1f})"


lead = gains("fedmk", "generator", "accuracy", "FedAvg", "paper")
lead = lead[lead["seeds"] > 2]
lead["row"] = lead["row"].str.replace(PREFIX, "", regex=True)
lead["ahead"] = [with_ends(one) for one in lead.itertuples()]
mixed = lead["column"].str.endswith("mixed")
lead["images"] = mixed.map({True: "mixed", False: "shuffled"})
lead["column"] = lead["column"].str.partition(",")[0]
over = lead.pivot_table(
    index=["column", "row"],
    columns="images",
    values="ahead",
    aggfunc="first",
    sort=False,
)
over.insert(
    0,
    "print",
    [
        f"{asked[name, 'FedGen'].value - asked[name, 'FedAvg'].value:+.1f}"
        for name, _ in over.index
    ],
)
over.fillna("")

# %% tags=["hide-input"]
mean = lead.groupby("row")["gain"].mean()
far = values[values["rule"] == "before"].groupby("row")["difference"].mean()
least = far.abs().idxmin()
Markdown(
    f"By *before* nearest to print is *{least}*: {far[least]:+.1f} points on "
    f"average, the values for MNIST {far['its code']:+.1f}. FedGen's lead over "
    f"FedAvg is {mean[least]:.1f} points on average with it, in place of "
    f"{mean['its code']:.1f}."
)

# %% [markdown]
# So on CIFAR-10 the number of such a baseline hangs on values that somebody chose and did not print.

# %% mystnb={"code_prompt_show": "Show all numbers"} tags=["hide-cell"]
table("fedmk", "generator", "paper")

# %% [markdown]
# Which version the authors ran, how their images lay and by what rule they report is not known, and no run of ours can
# tell. The rule is chosen afterwards here, from three.
#
# ## Who leads
#
# In print FedMK leads every rival. Our FedMK beside FedAvg and FedGen as in that code, by the rule `rule`, seed by
# seed, in points with the ends of a 90% interval. FedMK has half of the training set, so in Dirichlet columns a split of its
# own, and the server tests it:

# %% tags=["hide-input"]
ours = pd.concat([table_runs("fedmk", n, ["paper"]) for n in PRINT])
ours = ours[(ours["row"] == "FedMK") & ours["column"].isin(arms["column"])]
found = [
    (
        of.column,
        rival,
        name,
        with_ends(of),
    )
    for name in BOTH
    for rival in ("FedAvg", "FedGen")
    for of in gains_by_rule(
        pd.concat([ours, arms[arms["images"] == name]]), "FedMK", rival
    )
    .replace({"rule": SHORT})
    .query("rule == @rule and seeds > 2")
    .itertuples()
]
leads = pd.DataFrame(found, columns=["column", "rival", "images", "ahead by"])
leads = leads.pivot(
    index=["column", "rival"], columns="images", values="ahead by"
).reindex(columns=BOTH)
leads.insert(
    0,
    "print",
    [
        f"{asked[column, 'FedMK'].value - asked[column, rival].value:+.1f}"
        for column, rival in leads.index
    ],
)
leads.fillna("")

# %% [markdown]
# ## Take away
#
# - Which version? Part of an answer: on Dirichlet splits of MNIST images class by class bring FedGen near its print, on
#   CIFAR-10 values that its code does not have take away most of its lead. No one order and rule fits all tables.
# - Compare a baseline with its own paper before you compare with it: FedGen level with FedAvg was a sign.
# - Methods do not suffer alike from a mistake that all share, so that leads change: here FedGen loses most.
# - State a baseline's values for every data set: those for MNIST and those of its paper's equation are points apart on
#   CIFAR-10.
#
# ```{exercise} Another rule
# :label: ex-mk-version
#
# *Easy, 10 minutes.*
#
# Read this page with `rule` as `before`, that of FedGen's code. Why does FedMK gain on all rivals, and why is it no
# evidence for FedMK?
# ```
#
# ````{solution} ex-mk-version
# :class: dropdown
#
# ```sh
# fedcon notebook 59 -p rule before
# ```
#
# The rule never sees the last round and reads the mean of five earlier ones, in which accuracy still rises. Who is far up
# after few rounds loses less by it than who is still rising, so it prefers fast starters, FedMK among them. It says how
# fast a method starts, not what it reaches.
# ````
