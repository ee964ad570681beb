# %% [markdown]
# # FedMK: the weights of samples
#
# *Question:* what do the dynamic weights of FedMK {cite:p}`fedmk` do to a batch, and what do they gain?\
# *Time:* some seconds on one CPU core. *Data:* scikit-learn's digits for one run; records for the tables.
#
# A sample on which the received model errs weighs more {eq}`eq:mk-weights`. How much more? Here are the weights, what
# they do to a batch, and the paper's comparisons: with another slope (Table 5) and with weights by class (Table 6). What
# is left without any weights is among [the parts](21_fedmk_ablations).

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
clients = 6
active = 4
rounds = 3
seed = 0
profile = "quick"
shown = "best"

# %%
import pandas as pd
import torch

from core import condensation
from lab.report import dots, lines, show, source, table, table_frame
from lab.report.lesson import SMALL, Lesson
from lab.report.results import gains

best = None if shown == "best" else shown

# %% [markdown]
# ## The shape
#
# $\phi = 1 / (1 + e^{-\kappa \ell})$. A loss is never negative, so $\phi$ lies between one half and one: the hardest
# sample counts at most *twice* as much as one that is perfectly known. $\kappa$ ($\tau$ in the paper) says how fast it
# rises:

# %%
source(condensation.dynamic_weights)

# %% [markdown]
# ## What they do to a batch
#
# A factor that all samples share changes only the size of the step. What tells samples apart is the weight divided by
# its mean. Here are 64 images of the largest client, sorted by the loss of the model, at the start of a run and at its
# end.

# %%
small = SMALL["fedmk"] | {"images_per_class": 5, "iterations": 12}
split = {"alpha": 0.5, "clients": clients, "active": active}
fields = {"dataset": dataset, "model": "lenet", "rounds": rounds, "seed": seed}
lesson = Lesson(profile, "fedmk", settings=small, **split, **fields)
task, client = lesson.task, max(lesson.members(), key=len)
states = {"start": lesson.start(), f"round {rounds}": lesson.run().state}
slopes, losses, ranked = (1.0, 5.0, 10.0), {}, []
for name, state in states.items():
    logits = task.outputs(task.model_from(state.tensors), client.images)
    losses[name] = torch.nn.functional.cross_entropy(
        logits, client.labels, reduction="none"
    )
    batch = losses[name][:64].sort().values
    for k in slopes:
        phi = condensation.dynamic_weights(batch, k).cpu()
        label = f"{name}, kappa = {k:g}"
        frame = pd.DataFrame({"weight": phi / phi.mean(), "label": label})
        ranked.append(frame.rename_axis("rank").reset_index())
show(
    lines(
        pd.concat(ranked),
        "rank",
        "weight",
        xlabel="images of a batch, from easy to hard",
        ylabel="weight / mean weight",
        title="What the weights do to a batch",
    )
)

# %% [markdown]
# At the start every loss is near the logarithm of the number of classes, and with $\kappa = 5$ every $\phi$ is near 1.
# Later, samples that are well known fall towards one half. So the weights are a gentle tilt, never a selection, and the
# extremes ($\kappa \to 0$ and $\kappa \to \infty$) are the same plain mean.
#
# ## Table 5: the slope
#
# The row tau=5 is FedMK of [Table 1](18_fedmk_results). The rows *one rate in all rounds* have no schedule of the
# server's rate.

# %%
table("fedmk", 5, best)

# %% [markdown]
# The paper takes $\kappa = 5$ for all experiments because of this table. Its numbers are test accuracies, so $\kappa$ was
# chosen on the test set. Other slopes against it (mean over paired seeds, 90% interval), beside the paper's differences:


# %%
def differences(number, rows, against):
    """Points of some rows over another, beside the paper's difference."""
    printed = table_frame("fedmk", number, best)
    printed = printed.pivot(index="row", columns="column", values="printed")
    gain = gains("fedmk", number, "accuracy", against, best)
    gain = gain[gain["row"].isin(rows)].rename(columns={"gain": "value"})
    paper = printed - printed.loc[against]
    return gain.assign(
        name=gain["column"] + ": " + gain["row"],
        paper=[
            paper.loc[row, column]
            for row, column in zip(gain["row"], gain["column"], strict=True)
        ],
    )


others = table_frame("fedmk", 5, best).dropna(subset="printed")["row"].unique()
show(dots(differences(5, others, "tau=5"), "points over tau=5", "Table 5"))

# %% [markdown]
# ## Table 6: dynamic or class-balanced
#
# The paper compares with weights by "the occurrence rate of the corresponding class" and states no formula. We take the
# usual one, $\phi_i^c = N^c / (m^c n_{y_i})$, with $m^c$ classes on the client and $n_y$ samples of class $y$: every
# class weighs the same.

# %%
table("fedmk", 6, best)

# %%
balanced = "Class-balanced weights"
gain = differences(6, ["Dynamic weights"], balanced)
show(dots(gain, "points over class-balanced weights", "Table 6"))

# %% [markdown]
# ## Take away
#
# - Dynamic weights lie within a factor of two. They tilt a batch and never select from it.
# - The dot plots show what they gain, beside what the paper reports. [Claims and status](34_status) has the verdicts.
# - The slope was chosen on the test set. The one that tells samples apart most changes with the loss, from round to
#   round.
#
# ## Exercise
#
# ```{exercise} Both ends of kappa
# :label: ex-mka-tau
#
# *Medium, 20 minutes.*
#
# The *effective* share of images is $(\sum_i \phi_i)^2 / (n \sum_i \phi_i^2)$, 100% for equal weights. What is it for
# $\kappa \to 0$ and $\kappa \to \infty$? Which $\kappa$ tells the samples of the largest client apart most at the end of
# the run?
# ```
#
# ````{solution} ex-mka-tau
# :class: dropdown
#
# 100% at both ends: all weights are one half, or one. The first is the plain mean with half the image learning rate,
# the second the plain mean itself.
#
# ```python
# last = losses[f"round {rounds}"]
# def effective(phi):
#     return 100 * (phi.sum() ** 2 / (len(phi) * phi.square().sum())).item()
#
# {k: effective(condensation.dynamic_weights(last, k)) for k in (0.01, 0.3, 1.0, 3.0, 10.0, 30.0, 1000.0)}
# ```
#
# The least of these is where $\kappa$ times a usual loss is near one. So it changes with the loss, and a constant
# $\kappa$ is the best one in few rounds only.
# ````
