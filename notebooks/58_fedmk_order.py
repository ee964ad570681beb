# %% [markdown]
# # FedMK: rivals whose images are not shuffled
#
# *Question:* does the order in which clients take their images explain the numbers that FedMK {cite:p}`fedmk` prints for
# its rivals?\
# *Time:* some seconds on one CPU core. *Data:* scikit-learn's digits for the runs; records for the tables.
#
# The rivals of FedMK fit the code of FedGen {cite:p}`fedgen` ([which round is the result?](28_fedmk_rules)). That code
# stores the images of a client class by class, and until January 2022 its loader did not shuffle them: a batch has
# hardly more than one class, and a pass goes on where the client's last round ended. Nothing warns of this; training
# runs and accuracy rises. FedMK was submitted in that year and does not say which version its rivals are. Here is
# what the order does to a client, and what it does to the numbers.

# %% tags=["parameters"]
dataset = "digits"
alpha = 0.5
clients = 6
active = 3
rounds = 10
batch_size = 16
local_steps = 10
lr = 0.05
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import pandas as pd

from core.experiments import TableSpec
from core.federation import LocalTraining, supervised
from core.report import curve_frame, lines, scatter, show, source, table_frame
from core.report.frames import table_runs
from core.report.lesson import Lesson
from core.report.results import (
    gains_by_rule,
    reporting_rules,
    verdicts_by_rule,
)
from core.report.texts import Markdown
from core.rng import Rng
from core.training import batches, in_order, sgd, take_step

lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    active=active,
    rounds=rounds,
    seed=seed,
    model="lenet",
    settings={
        "batch_size": batch_size,
        "local_steps": local_steps,
        "lr": lr,
        "momentum": 0.0,
    },
)
task = lesson.task

# %% [markdown]
# ## What a batch holds
#
# The client with the most images, its batches in a random order and class by class: how many classes they have.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the batches in core"}
source(in_order)

# %% tags=["hide-input"]
client = max(lesson.members(), key=len)
images, labels = client.images, client.labels
steps = 2 * -(-len(client) // batch_size)
orders = {
    "random": list(
        batches(len(client), batch_size, steps, Rng(seed), labels.device)
    ),
    "by class": list(in_order(labels.argsort(stable=True), batch_size, steps)),
}
held = pd.DataFrame(
    {
        order: [len(labels[batch].unique()) for batch in found]
        for order, found in orders.items()
    }
)
Markdown(
    f"This client has {len(client)} images of "
    f"{int((client.class_counts > 0).sum())} classes. A batch of {batch_size} "
    "has on average "
    + ", ".join(
        f"{value:.1f} classes ({order})" for order, value in held.mean().items()
    )
    + "."
)

# %% [markdown]
# ## What a model knows while it trains
#
# Two passes of this client over its images, from the same network. After every batch the network is tested on the
# client's own images. How many more of them does it take for the class that this batch has most of than are of it?


# %% tags=["hide-input"]
def watched(found):
    """Accuracy on the client's images after every batch, in percent, and
    how much larger the share of images that are taken for the batch's most
    common class is than the share of that class, in points.
    """
    plan = LocalTraining(lr=lr, batch_size=batch_size, momentum=0.0)
    model, objective = task.new_model(Rng(seed)), supervised(task)
    optimiser = sgd(model.parameters(), plan)
    rows = []
    for batch in found:
        model.train()
        take_step(objective(model, images[batch], labels[batch]), optimiser)
        said = task.outputs(model, images).argmax(1)
        now = labels[batch].mode().values
        taken, of_it = ((one == now).double().mean() for one in (said, labels))
        right = (said == labels).double().mean()
        rows.append((100 * right.item(), 100 * (taken - of_it).item()))
    found = pd.DataFrame(rows, columns=["accuracy", "too many"])
    return found.rename_axis("batch").reset_index()


seen = pd.concat(
    [watched(found).assign(label=order) for order, found in orders.items()]
)
show(
    lines(
        seen,
        "batch",
        "accuracy",
        ylabel="accuracy on own images (%)",
        title="Two passes of one client",
    )
)

# %% tags=["hide-input"]
second = seen[seen["batch"] >= steps // 2].groupby("label", sort=False)
means = second[["accuracy", "too many"]].mean()
Markdown(
    "In the second pass, on average: "
    + "; ".join(
        f"{order}: accuracy {of['accuracy']:.0f}%, and {of['too many']:.0f} "
        "points too many taken for the class of the batch"
        for order, of in means.iterrows()
    )
    + ". A batch of one class has a gradient that says *more of this class*, "
    "whatever the image; the next class takes it back. What a client sends to "
    "the server depends on where its pass has come to."
)

# %% [markdown]
# ## What the average of clients makes of it
#
# FedAvg on these digits both ways, all else equal. In `core` it is the setting `order`, of FedAvg and of all methods
# whose clients train as FedAvg's do.

# %% tags=["hide-input"]
curves = pd.concat(
    [
        curve_frame(lesson.run(order=name).record).assign(label=label)
        for label, name in (("random", "random"), ("by class", "by_class"))
    ]
)
show(
    lines(
        curves,
        "round",
        "value",
        ylabel="test accuracy (%)",
        title=f"FedAvg, {lesson.title}",
    )
)

# %% [markdown]
# ## On MNIST, at the paper's budget
#
# Ten rounds of 10 of 20 clients, 20 batches of 32; clients test, as in FedGen's code. Columns with a concentration, those of Tables 1
# and 4, have at most 1,500 images of a class, as there; on the split of Table 3 each client has five classes and half of
# its images. *FedGen, its code* and *FedDistill, its code* have those methods' code in all else, too. After the last round, by
# the mean of the five best rounds, and by that code's rule (*before*: the five best, each tested before its round
# trains):

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show all numbers"}
protocol = table_runs("fedmk", "protocol", ["paper"])
ENDS = {
    "shuffled": ", clients test",
    "not shuffled": ", clients test, not shuffled",
}
SHORT = {"five best, tested before training": "before"}
RULES = ["last", "five best", "before"]
PRINT = (1, 3, 4)
printed = pd.concat([table_frame("fedmk", n, "paper") for n in PRINT])
printed = printed.set_index(["column", "row"])["printed"].dropna()


def arm(end):
    """The runs whose column ends so; the column by its short name."""
    of = protocol[protocol["column"].str.endswith(end)]
    return of.assign(column=of["column"].str.partition(",")[0])


ruled = pd.concat(
    {name: reporting_rules(arm(end)) for name, end in ENDS.items()},
    names=["images"],
).rename(columns=SHORT)
wide = ruled[RULES].unstack("images").swaplevel(axis=1)
wide = wide[[(name, rule) for name in ENDS for rule in RULES]]
in_print = [
    printed.get((column, row.removesuffix(", its code")))
    for column, row in wide.index
]
wide.insert(0, ("print", ""), in_print)
wide[("not shuffled", "seeds")] = ruled["runs"].xs("not shuffled")
wide.dropna(subset=[("not shuffled", "last")]).round(1)

# %% [markdown]
# How far from print is that? Each rival as in FedGen's code, over the columns that both arms have: the mean distance,
# the mean difference (measured minus printed), in points, and how many printed numbers fit, *equivalent* or *consistent*
# by the rule of [the verdicts](50_verdicts):


# %% tags=["hide-input"]
def as_in_code(end):
    """The runs of an arm, each rival with all that its code does."""
    of = arm(end)
    coded = of["row"].str.endswith(", its code")
    rows = of["row"].str.removesuffix(", its code")
    return of.assign(row=rows)[coded | ~rows.isin(rows[coded])]


cells = {
    n: [
        cell
        for cell in TableSpec.find("fedmk", n).cells("paper")
        if cell.published and cell.row != "FedMK"
    ]
    for n in PRINT
}
asked = {
    (cell.column, cell.row): cell.published for n in PRINT for cell in cells[n]
}
names = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
stands = {
    cell.column: f"Table {n}, {names.get(cell.column.partition('-')[0])}"
    for n in PRINT
    for cell in cells[n]
}
judged = pd.concat(
    {
        name: verdicts_by_rule(as_in_code(end), asked)
        for name, end in ENDS.items()
    },
    names=["images"],
).reset_index(level=0)
judged["rule"] = judged["rule"].replace(SHORT)
judged = judged[judged["rule"].isin(RULES)]
judged["fits"] = judged["verdict"].isin(["equivalent", "consistent"])
both = judged.groupby(["column", "row"])["images"].transform("nunique") == 2
judged = judged[both]
judged["print"] = judged["column"].map(stands)
by = judged.groupby(["print", "images", "rule"], sort=False)
summary = pd.DataFrame(
    {
        "distance": by["difference"].apply(lambda of: of.abs().mean()),
        "difference": by["difference"].mean(),
        "fit": by["fits"].sum(),
        "of": by.size(),
    }
)
summary.round(1)

# %% tags=["hide-input"]
apart = judged.pivot_table(
    index=["print", "row"],
    columns=["images", "rule"],
    values="difference",
    sort=False,
)
apart[[(name, rule) for name in ENDS for rule in RULES]].round(1)

# %% tags=["hide-input"]
least = summary.groupby(["images", "rule"])["distance"].mean()
chosen = [least[name].idxmin() for name in ENDS]
drawn = pd.concat(
    [
        judged.query("images == @name and rule == @rule").assign(
            label=f"{name}, {rule}"
        )
        for name, rule in zip(ENDS, chosen, strict=True)
    ]
)
drawn = drawn.join(printed, on=["column", "row"], rsuffix="ed")
show(
    scatter(
        drawn,
        "printed",
        "difference",
        xlabel="printed accuracy (%)",
        ylabel="measured minus printed (points)",
        title="Rivals, by the rule nearest to print",
    )
)


# %% tags=["hide-input"]
def said(of):
    """Which arm and rule come nearest to a table's print, and where FedGen is
    then.
    """
    distance = summary.loc[of, "distance"]
    images, rule = distance.idxmin()
    (other,) = set(ENDS) - {images}
    gen = apart.loc[of, "FedGen"]
    return (
        f"{of}: *{images}*, *{rule}*, with a mean distance of "
        f"{distance.min():.1f} points over "
        f"{summary.loc[(of, images, rule), 'of']} numbers ({other}: at best "
        f"{distance[other].min():.1f}), FedGen {gen[images, rule]:+.1f} from "
        f"print ({other}: at best {min(gen[other], key=abs):+.1f})"
    )


tables = list(dict.fromkeys(judged["print"]))
nearest = {of: summary.loc[of, "distance"].idxmin()[0] for of in tables}
Markdown(
    "Nearest to print, "
    + "; ".join(said(of) for of in tables)
    + ". "
    + (
        "So no one order of images has all of these near print."
        if len(set(nearest.values())) > 1
        else f"So all are nearest to *{nearest[tables[0]]}*."
    )
    + " Which version the authors ran is not known, and no run of ours can "
    "tell; by what rule they report is not known either."
)

# %% [markdown]
# ## Who leads
#
# In print FedMK leads every rival. Our FedMK beside FedAvg and FedGen with that code's losses, seed by seed, in points
# with the ends of a 90% interval; clients test the rivals and the server tests FedMK:

# %% tags=["hide-input"]
ours = pd.concat([table_runs("fedmk", n, ["paper"]) for n in PRINT])
ours = ours[(ours["row"] == "FedMK") & ours["column"].str.startswith("mnist")]
found = []
for name, end in ENDS.items():
    beside = pd.concat([ours, arm(end)])
    for rival in ("FedAvg", "FedGen, its code"):
        led = gains_by_rule(beside, "FedMK", rival).query("rule == 'last'")
        found += [
            {
                "column": of.column,
                "rival": rival,
                "images": name,
                "FedMK ahead by": f"{of.gain:+.1f} ({of.low:+.1f} to "
                f"{of.high:+.1f}), {of.seeds} seeds",
            }
            for of in led.itertuples()
        ]
leads = pd.DataFrame(found).pivot(
    index=["column", "rival"], columns="images", values="FedMK ahead by"
)
own = printed.xs("FedMK", level="row")
leads["print"] = [
    f"{own[column] - printed[column, rival.removesuffix(', its code')]:+.1f}"
    for column, rival in leads.index
]
leads[["print", *ENDS]].fillna("")

# %% [markdown]
# ## Take away
#
# - A loader that does not shuffle raises no error. Compare a baseline with its own paper before you compare with it.
# - Methods do not suffer alike: what a method adds may repair what the order breaks, so that orders of merit change.
#
# ## Exercises
#
# ```{exercise} Larger batches
# :label: ex-mk-order
#
# *Easy, 10 minutes.*
#
# With a batch as large as a client's data the order cannot matter. How much of the gap between the two curves of FedAvg
# is left on this page with batches of 64, and with as many steps?
# ```
#
# ````{solution} ex-mk-order
# :class: dropdown
#
# ```sh
# python -m core notebook 58 -p batch_size 64
# ```
#
# Hardly any after the last round; in the first ones training by class is still behind. A batch then has two or three of
# the classes of the largest client, and nearly all images of the smallest.
# ````
