# %% [markdown]
# # FedMK: images that are not shuffled
#
# *Question:* what does it do to a client, and to FedAvg, when images come class by class?\
# *Time:* some seconds on one CPU core. *Data:* scikit-learn's digits.
#
# The rivals of FedMK {cite:p}`fedmk` fit the code of FedGen {cite:p}`fedgen` ([which round is the
# result?](28_fedmk_rules)). That code stores the images of a client class by class, and until January 2022 its loader did
# not shuffle them: a batch has one class or two, and a pass goes on where the client's last round ended. Nothing warns of
# this; training runs and accuracy rises. Here is what it does; [the next page](59_fedmk_versions) asks whether it explains
# what FedMK prints for its rivals.

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

from core.federation import LocalTraining, supervised
from core.rng import Rng
from core.training import batches, in_order, sgd, take_step
from lab.report import (
    curve_frame,
    lines,
    show,
    source,
)
from lab.report.lesson import Lesson
from lab.report.texts import Markdown

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

# %% mystnb={"code_prompt_show": "Show the batches in core"} tags=["hide-cell"]
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
# client's own images. How many more of them does it take for the class that the batch has most of than before it?


# %% tags=["hide-input"]
def watched(found):
    """Accuracy on the client's images after every batch, in percent, and by
    how much the step made the share larger that is taken for the batch's most
    common class, in points.
    """
    plan = LocalTraining(lr=lr, batch_size=batch_size, momentum=0.0)
    model, objective = task.new_model(Rng(seed)), supervised(task)
    optimiser = sgd(model.parameters(), plan)
    rows, before = [], task.outputs(model, images).argmax(1)
    for batch in found:
        model.train()
        take_step(objective(model, images[batch], labels[batch]), optimiser)
        after = task.outputs(model, images).argmax(1)
        now = labels[batch].mode().values
        right, more = (after == labels).double(), (after == now).double()
        more -= (before == now).double()
        rows.append((100 * right.mean().item(), 100 * more.mean().item()))
        before = after
    found = pd.DataFrame(rows, columns=["accuracy", "more"])
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
means = second[["accuracy", "more"]].mean()
Markdown(
    "In the second pass, on average: "
    + "; ".join(
        f"{order}: accuracy {of['accuracy']:.0f}%, and {of['more']:+.1f} "
        "points of the images taken for the class of the batch by its step"
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
last = curves.groupby("label", sort=False)["value"].last()
show(
    lines(
        curves,
        "round",
        "value",
        ylabel="test accuracy (%)",
        title=f"FedAvg, {lesson.title}",
    )
)
Markdown(
    f"After the last round FedAvg has {last['random']:.1f}% with random "
    f"batches and {last['by class']:.1f}% class by class (one seed): the "
    f"order costs it {last['random'] - last['by class']:.0f} points, and no "
    "message says so."
)

# %% [markdown]
# ## Take away
#
# - A loader that does not shuffle raises no error. What it costs depends on the batch and on the order of the images,
#   which a script may have made that nobody looks at any more.
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
# fedcon notebook 58 -p batch_size 64
# ```
#
# Hardly any after the last round; in the first ones training by class is still behind. A batch then has two or three of
# the classes of the largest client, and nearly all images of the smallest.
# ````
