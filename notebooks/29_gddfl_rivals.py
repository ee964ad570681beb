# %% [markdown]
# # GDD-FL beside its rivals
#
# *Question:* what is the idea of each method in GDD-FL's {cite:p}`gddfl` table, and what does it send?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.
#
# The table compares [GDD-FL](30_gddfl) with training in one place, with random selection, with FedAvg {cite:p}`fedavg`,
# and with three methods of condensation: DC {cite:p}`dc`, DSA {cite:p}`dsa` and DM {cite:p}`dm`. Here all of them run
# once, on digits; the table stands among the [results](32_gddfl_results).

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
alpha = 1.0
clients = 4
images_per_class = 1
iterations = 50
encoder_depth = 2
encoder_width = 32
real_batch = 16
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import inspect
import textwrap

import pandas as pd

from core.algorithms import find
from core.baselines import random_selection
from core.condensation import gradient, matching, shift
from core.server import weighted_average
from lab.report.lesson import Lesson
from lab.report.texts import Markdown

trained = {"server_epochs": 100, "server_lr": 0.02}
condensed = {
    "images_per_class": images_per_class,
    "iterations": iterations,
    "image_lr": 1.0,
    "real_batch": real_batch,
    "encoder_depth": encoder_depth,
    "encoder_width": encoder_width,
    **trained,
}
lesson = Lesson(
    profile,
    "gddfl",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=1,
    seed=seed,
    own={"gddfl": condensed, "dm": condensed},
)

# %% [markdown]
# ## One idea, one line
#
# Each method rests on one idea, and the idea on one line of `core`.


# %% tags=["hide-input"]
def line(function, start, rows=1):
    """So many lines of a function's source, from the one that begins so."""
    text = inspect.getsource(function).splitlines()
    (first,) = (
        k for k, row in enumerate(text) if row.strip().startswith(start)
    )
    return textwrap.dedent("\n".join(text[first : first + rows]))


ideas = {
    "Upper bound": (
        "all images of all clients in one place",
        line(find("centralized").round, "images = torch.cat"),
    ),
    "R.S. (random selection)": (
        "real images, as many as are asked for of each class, drawn from all "
        "clients",
        line(random_selection.quotas, "drawn ="),
    ),
    "FedAvg": (
        "models travel, round after round, and are averaged by numbers of "
        "samples",
        line(weighted_average, "sum_.add_"),
    ),
    "DC": (
        "a network shall learn the same from them: gradients agree, by their "
        "cosines",
        line(gradient.gradient_distance, "layers.append"),
    ),
    "DSA": (
        "DC, with the same random transform for real and condensed images of a "
        "class",
        line(gradient.GradientProblem.gradients, "inputs = augment"),
    ),
    "DM": (
        "mean features agree, at a new random network in each iteration",
        line(matching.mmd, "return (x.mean"),
    ),
    "GDD-FL": (
        "DM, and the same towards images with shifted statistics",
        line(shift.ShiftedMatching.losses, "return"),
    ),
}
Markdown(
    "\n".join(
        f"- **{name}**: {idea}.\n\n"
        + textwrap.indent(f"```python\n{code}\n```", "  ")
        for name, (idea, code) in ideas.items()
    )
)

# %% [markdown]
# DC and DSA take the derivative of a derivative, with networks of their own for each client once these have learned
# something, so they cost the most. At the paper's own budget the table's columns have the step sizes of their own
# papers; the profile `laptop` gives DC and DSA that of DM, ten times theirs.
#
# ## One run of each
#
# Random selection gets as many images in all as the clients of GDD-FL send together. Gradient
# matching gets a tenth of the iterations, because each costs more, one match at each network, and the step size of the
# other methods.

# %% tags=["hide-input"]
few = condensed | {
    "iterations": max(1, iterations // 10),
    "matches": 1,
    "network_steps": 1,
}
total = {"images_per_class": clients * images_per_class, **trained}
local = {"local_steps": 10, "lr": 0.05}
runs = {
    "GDD-FL": lesson.run(),
    "GDD-FL, p = 0": lesson.run(shift_probability=0),
    "DM": lesson.run("dm"),
    "DSA": lesson.run("dsa", **few),
    "DC": lesson.run("dc", **few),
    f"R.S.@{total['images_per_class']}": lesson.run(
        "random_selection", **total
    ),
    "FedAvg, 1 round": lesson.run("fedavg", **local),
    "FedAvg, 10 rounds": lesson.but(rounds=10, evaluate_every=10).run(
        "fedavg", **local
    ),
    "Upper bound": lesson.run("centralized", lr=0.05, local_steps=50),
}
rows = {
    name: {
        "up (kB)": sum(r.up for r in run.results) / 1e3,
        "seconds": run.record.seconds,
        "accuracy (%)": run.accuracy,
        "AUC (%)": 100 * run.record.metrics["auc_macro"],
    }
    for name, run in runs.items()
}
pd.DataFrame(rows).T.round(1)

# %% [markdown]
# One seed on tiny images is no evidence on the order of the methods. Look at other things: at what an upload of images
# costs beside models; at how far FedAvg gets in a single round; at random selection, whose real images cost as much as
# the condensed ones (what it sends beside them are each client's numbers of images per class); and at GDD-FL without
# any shift ($p = 0$), which is not DM but DM with the longer step.
#
# ## Take away
#
# - GDD-FL without a shift is DM with the longer step. A comparison with DM needs this arm.
# - What is sent as images does not grow with the network; what FedAvg sends does, and in every round.
#
# ## Exercise
#
# ```{exercise} No shift
# :label: ex-gdd-zero
#
# *Medium, 20 minutes.*
#
# Show that GDD-FL with $p = 0$ is DM with twice the learning rate, and check it on digits.
# ```
#
# ````{solution} ex-gdd-zero
# :class: dropdown
#
# With $p = 0$, $O^U = O^\mathcal{T}$, and {eq}`eq:gdd-losses` adds up to
# $2 \mathcal{L}_{\mathcal{S}, \mathcal{T}}$. SGD (with momentum, too) on twice a loss is SGD with twice the rate.
#
# ```python
# double = lesson.run("dm", image_lr=2.0).state.tensors["uploaded/images"]
# zero = runs["GDD-FL, p = 0"].state.tensors["uploaded/images"]
# (double.int() - zero.int()).abs().max()
# ```
#
# They agree to rounding.
# ````
