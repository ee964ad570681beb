# %% [markdown]
# # FedVCK
#
# *Question:* how does a client of FedVCK {cite:p}`fedvck` find out what the global model does not know, and put that
# into a few made-up images?\
# *Time:* some seconds on two CPU cores. *Data:* scikit-learn's digits.
#
# In FedVCK clients send no models. Each condenses its images into a few made-up ones per class ([dataset
# condensation](10_dataset_condensation) shows how), and tries to put into them what the global model does not know
# yet. The server trains on what it received, with an extra loss that pushes apart the classes that are confused most.
#
# ```{figure} ../book/_static/fedvck.svg
# :alt: A server above, clients below. Down goes the global model. Up go condensed images with labels, and logit prototypes, the mean logits of every class. A client asks the model where it errs, draws those images more often, and moves noise until the model sees in it what it sees in the images drawn. Real images, their errors and the model of the round before stay. The server asks the prototypes which classes are confused, trains the model on the images and pushes confused classes apart.
# :name: fig-fedvck
# :width: 330px
#
# Who sends what to whom in a round of FedVCK. Grey goes down, green goes up, red stays.
# ```
#
# This page is about the client. It runs FedVCK on digits, takes the two models that the clients had in the last round,
# and computes errors and probabilities once more, in a few lines that are compared with `core`. [The next
# page](08_fedvck_server) does the same for the server. Which of the paper's numbers hold stands among the
# [results](17_fedvck_results).
#
# Two parameters help the short run: it goes on with the images of the last round (`warm_start`) and sends 32-bit
# numbers (`wire`), because noise that is still in the images would be cut off at black and white. Besides, images move
# at a rate of 1 with the gradient's norm bounded at 30, as in the released code, and the server has a rate of 0.02
# (`SMALL` in `lab.report.lesson`). `rounds` must be at
# least 2, because a client looks at the models of two rounds.

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
clients = 10
rounds = 4
iterations = 80
warm_start = True
wire = "float32"
seed = 0
profile = "quick"

# %% tags=["hide-input"]
from functools import partial

import pandas as pd
import torch
from torch.testing import assert_close

from core import condensation
from core.algorithms import find
from core.condensation import engine
from core.errors import InputError
from lab.report import condensed_images, show, source
from lab.report.lesson import SMALL, Lesson, pooled
from lab.report.texts import Markdown

if rounds < 2:
    raise InputError("rounds must be at least 2 on this page")
same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
lesson = Lesson(
    profile,
    "fedvck",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    settings={
        **SMALL["fedvck"],
        "iterations": iterations,
        "server_steps": 60,
        "warm_start": warm_start,
        "wire": wire,
    },
)
settings = lesson.experiment().new_algorithm().settings
task, members = lesson.task, lesson.members()
classes = task.dataset.classes
images, labels, owner = pooled(members)
show(lesson.partition_plot())

# %% tags=["hide-input"]
has = (torch.stack([member.class_counts for member in members]) > 0).all(1)
Markdown(
    f"Clients with all classes: {int(has.sum())} of {len(members)}. The run:"
)

# %%
vck = lesson.run(clients=members)
vck.per_round().round({"accuracy (%)": 1, "up (MB)": 3, "down (MB)": 3})

# %% [markdown]
# ## Errors of two models
#
# The client receives $M_t$ and remembers $M_{t-1}$. Its error on an image is the cross-entropy of their blended answer
# (Eq. 6 is the case $\lambda = 1$, Eq. 7 the general one; the paper writes $\alpha$). $M(x)$ has its softmax, so
# probabilities are blended. In its first round a client has no $M_{t-1}$. The paper does not say what then; here the
# error is that of Eq. 6.
#
# $$
# \mathrm{err}_t(x_i) = L_\text{ce}\bigl(y_i, \; \lambda M_t(x_i) + (1 - \lambda) M_{t-1}(x_i)\bigr) .
# $$ (eq:vck-error)

# %%
states = [lesson.start(), *vck.states]
at = {"now": states[-2], "before": states[-3]}
models = {name: task.model_from(state.tensors) for name, state in at.items()}
logits, previous = (
    task.outputs(models[name], images).double() for name in ("now", "before")
)

a = settings.alpha  # lambda, the paper's alpha; above, alpha is the split's
blended = a * logits.softmax(1) + (1 - a) * previous.softmax(1)
err = -blended.gather(1, labels[:, None])[:, 0].log()
same(err, condensation.smoothed_error(logits, previous, labels, a))

# %% [markdown]
# Why blend? A model that has learned from few images may be very wrong on some: the paper fears errors that are skewed.

# %% tags=["hide-input"]
ways = {
    "M_t alone (Eq. 6)": (1.0, "probabilities"),
    "both, as printed (Eq. 7)": (a, "probabilities"),
    "both, logits blended (released)": (a, "logits"),
}
errors = {
    name: pd.Series(condensation.smoothed_error(logits, previous, labels, *way))
    for name, way in ways.items()
}
pd.DataFrame(
    {
        name: {
            "mean": e.mean(),
            "deviation": e.std(),
            "skewness": e.skew(),
            "largest": e.max(),
        }
        for name, e in errors.items()
    }
).T.round(2)

# %% tags=["hide-input"]
alone, both = (errors[name] for name in list(ways)[:2])
tails = (
    (one.skew(), one.std(), one.max(), one.mean()) for one in (alone, both)
)
words = ("skewness", "deviation", "largest error", "mean")
Markdown(
    f"With λ = {a:g} blending moves "
    + ", ".join(
        f"the {word} from {before:.2f} to {after:.2f}"
        for word, before, after in zip(words, *tails, strict=True)
    )
    + ". A model that is very wrong on some images has a tail to the right, a "
    "large skewness and a large largest error."
)

# %% [markdown]
# ## From errors to probabilities
#
# An image weighs more when the model errs on it (Eq. 5). The weights of a class on a client, divided by their sum, are
# the probabilities to be drawn (Eq. 8):
#
# $$
# w(x_i) = \frac{1}{1 + e^{-\mathrm{err}_t(x_i) + b}}
# $$ (eq:vck-importance)
#
# $$
# P_w(x_i) = \frac{w(x_i)}{\sum_j w(x_j)} .
# $$ (eq:vck-selection)

# %%
_, group = torch.unique(owner * len(classes) + labels, return_inverse=True)
groups = int(group.max()) + 1  # one for each class of each client

w = 1 / (1 + (settings.b - err).exp())
P = w / torch.zeros(groups).double().index_add(0, group, w)[group]
same(w, condensation.importance(err, settings.b))
same(P, condensation.selection_probabilities(w, group, groups))

# %% [markdown]
# With the authors' $b$ (0, 0.3 and 0.7; here 0.3) an image that is perfectly known still weighs a third to a half of
# one that is quite wrong. So the probabilities are not far from uniform. Here are the ratio of the largest to the
# smallest of a class, and the *effective* share of images, $1 / (n \sum_i P_i^2)$, which is 100% for uniform ones. The
# released code takes a softmax of the weights, whose ratio cannot exceed $e$:


# %% tags=["hide-input"]
def spread(p):
    high, low = (
        torch.zeros(groups)
        .double()
        .scatter_reduce(0, group, p, way, include_self=False)
        for way in ("amax", "amin")
    )
    squares = torch.zeros(groups).double().index_add(0, group, p.square())
    effective = 1 / squares / torch.bincount(group)
    return {
        "largest ratio": (high / low).max().item(),
        "least effective share (%)": 100 * effective.min().item(),
    }


softmax = condensation.selection_probabilities(w, group, groups, "softmax")
pd.DataFrame(
    {"printed (share)": spread(P), "released (softmax)": spread(softmax)}
).T.round(2)

# %% [markdown]
# What does the model not know? On the largest client, of every class: at the left the six images that are most likely
# to be drawn, at the right the six that are least likely; of a class with fewer than twelve, all in this order.

# %% tags=["hide-input"]
largest = max(range(len(members)), key=lambda k: len(members[k]))
mine = (owner == largest).nonzero()[:, 0]
mine = mine[P[mine].argsort(descending=True)]
ends = [
    rows if len(rows) < 12 else torch.cat([rows[:6], rows[-6:]])
    for c in range(len(classes))
    for rows in [mine[labels[mine] == c]]
]
chosen = torch.cat(ends)
show(
    condensed_images(
        images[chosen],
        labels[chosen],
        classes,
        columns=12,
        title=f"Client {members[largest].id}, by P_w",
        inches=0.3,
    )
)

# %% [markdown]
# ## Condensation
#
# Batches drawn by $P_w$ take the place of uniform ones in the condensation loss {eq}`eq:dc-mmd` (Eq. 9), so that
# the real side is a weighted expectation (Eq. 10):
#
# $$
# \min_S \sup_{\lVert \psi_\theta \rVert_\mathcal{H} \le 1}
# \bigl(\mathbb{E}_{P_w}[\psi_\theta(\mathcal{T})] - \mathbb{E}[\psi_\theta(S)]\bigr) .
# $$ (eq:vck-expectation)
#
# As printed the supremum runs over $\psi_\theta$. It is meant over functions $f$ in the unit ball of $\mathcal{H}$; for
# the linear kernel on fixed features it is $\lVert \mathbb{E}_{P_w}[\psi_\theta(\mathcal{T})] -
# \mathbb{E}[\psi_\theta(S)] \rVert$, whose square is the loss. Here $\mathcal{T}$ are the client's real images, $S$ the
# condensed ones, $\psi_\theta$ the network's features and $\mathcal{H}$ the space of functions that belongs to the
# kernel. Batches estimate this expectation. With a linear kernel it can also be computed exactly, once for a round,
# which is what short runs do; the statistics of batch normalisation are then those of one batch. The condensed images
# are normalised with the statistics of the real ones: Eq. 4, {eq}`eq:dc-latent`.

# %% mystnb={"code_prompt_show": "Show the batches in core"} tags=["hide-cell"]
source(engine.REAL_SIDES["minibatch"])

# %% mystnb={"code_prompt_show": "Show the exact expectation in core"} tags=["hide-cell"]
source(engine.REAL_SIDES["expectation"])

# %% mystnb={"code_prompt_show": "Show all that a client does, in core"} tags=["hide-cell"]
source(find("fedvck").condense)

# %% [markdown]
# Some of what the clients have sent in the last round, one row a class:

# %% tags=["hide-input"]
last = vck.state.tensors
new = last["knowledge/round"] == rounds - 1
sent, sent_labels = last["knowledge/images"][new], last["knowledge/labels"][new]
show(
    condensed_images(
        sent if sent.dtype == torch.uint8 else lesson.as_images(sent),
        sent_labels,
        classes,
        columns=14,
        title="Condensed in the last round: the first 14 of each class",
        inches=0.3,
    )
)

# %% [markdown]
# Beside the images a client sends the mean logits of every class. What these are for, and what the server makes of all
# that it receives, stands on [the next page](08_fedvck_server).
#
# ## Take away
#
# - A client asks the global model what it does not know {eq}`eq:vck-importance` and condenses that.
# - It blends the answers of two models in a row before it takes the error {eq}`eq:vck-error`. That is meant to make the
#   whims of one count less.
# - The probabilities stay close to uniform, however wrong the model is; an exercise asks how far from it they can be.
#
# ## Exercises
#
# ```{exercise} How uneven can it get?
# :label: ex-vck-ratio
#
# *Medium, 15 minutes.*
#
# What is the largest possible ratio of two probabilities in {eq}`eq:vck-selection` for $b = 0.3$? And with the softmax
# of the released code? (To be checked: `largest_printed` and `largest_released`.)
# ```
#
# ````{solution} ex-vck-ratio
# :class: dropdown
#
# The error is at least 0, so $w \ge 1 / (1 + e^{b})$, and $w < 1$. The ratio is below $1 + e^{b}$. With the softmax it
# is below $e^{1 - 1/(1 + e^b)}$.
#
# ```python
# import math
#
# b = 0.3
# 1 + math.exp(b), math.exp(1 - 1 / (1 + math.exp(b)))
# ```
#
# That is 2.35 and 1.78. No image can take over the batch, however wrong the model is about it.
# ````

# %% tags=["solution", "remove-cell"]
import math

largest_printed = 1 + math.exp(0.3)
largest_released = math.exp(1 - 1 / (1 + math.exp(0.3)))

# %% name="ex-vck-ratio" tags=["check", "remove-cell"]
errors = torch.linspace(0, 60, 1001, dtype=torch.float64)
weight = condensation.importance(errors, 0.3)
for answer, chance in [
    (largest_printed, weight),
    (largest_released, weight.exp()),
]:
    reached = (chance.max() / chance.min()).item()
    assert answer > 0.99 * reached, "some errors have a larger ratio"
    assert answer < 1.01 * reached, "no errors have a ratio as large as this"
