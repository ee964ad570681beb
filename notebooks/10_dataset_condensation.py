# %% [markdown]
# # Condensing a data set
#
# *Question:* how can a few made-up images carry what a network needs to learn from a thousand real ones?\
# *Time:* under a minute on two CPU cores. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# FedVCK, FedDM and other methods of this book send *condensed* images in place of models. This chapter takes one
# client and shows how its images are condensed by **distribution matching** {cite:p}`dm`. The images start as noise.
# A network turns real and made-up images into features, and the made-up images move until both have the same
# features on average. No pixel is copied from a real image.
#
# ```{figure} ../book/_static/condensation.svg
# :alt: Many real images of a class, which are never sent, and a few made-up ones, which start as noise, go through one encoder that does not change. The distance between their mean features is the loss, and its gradient moves the made-up images.
# :name: fig-condensation
# :width: 380px
#
# Distribution matching, for one class. Green moves, red stays.
# ```

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
width = 32
encoder_steps = 60
images_per_class = 5
iterations = 150
image_lr = 0.3
seed = 0

# %% tags=["hide-input"]
from functools import partial

import pandas as pd
import torch
from torch.testing import assert_close

from core import data
from core.condensation import engine, mmd
from core.families.condensing import to_wire
from core.federation import Task
from core.rng import Rng
from lab.report import bars, condensed_images, lines, show, source
from lab.report.lesson import condensed, learned, matching, trained
from lab.report.texts import Markdown

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
rng = Rng(seed)
task = Task(data.load(dataset), "convnet", {"width": width})
train, classes = task.dataset.train, task.dataset.classes

# %% [markdown]
# ## The real images
#
# One client holds the whole training set. Its images, sorted by class:

# %% tags=["hide-input"]
order = train.labels.argsort(stable=True)
images, labels = train.images[order], train.labels[order]
show(
    condensed_images(
        images,
        labels,
        classes,
        columns=14,
        title=f"The first 14 of each class, of {len(labels):,} images",
        inches=0.34,
    )
)

# %% [markdown]
# ## The eye: an encoder
#
# Features $\psi_\theta(x)$ are what enters the last layer of a network. FedVCK takes the global model of the round as
# it was received. Here a network that was trained for a few steps stands in for it.

# %%
inputs = task.inputs(images)
encoder = trained(task, inputs, labels, encoder_steps, rng.at("encoder"))
Markdown(f"Accuracy of the encoder: {task.evaluate(encoder)['accuracy']:.1%}.")

# %% [markdown]
# ## What is matched
#
# For a class $c$ let $B_c$ be real images and $S_c$ condensed ones. The distance between their features is the
# squared *maximum mean discrepancy* (FedVCK, Eq. 3),
#
# $$
# \begin{aligned}
# L_\text{cond} &= \sum_{c} \bigl( \hat{\mathcal{K}}_{B_c, B_c} + \hat{\mathcal{K}}_{S_c, S_c}
# - 2 \hat{\mathcal{K}}_{B_c, S_c} \bigr), \\
# \hat{\mathcal{K}}_{X, Y} &= \frac{1}{|X| |Y|} \sum_{i, j} \mathcal{K}\bigl(\psi_\theta(x_i), \psi_\theta(y_j)\bigr).
# \end{aligned}
# $$ (eq:dc-mmd)
#
# With the linear kernel $\mathcal{K}(a, b) = \langle a, b \rangle$ it is the squared distance of two mean features (Eq.
# 2),
#
# $$
# L_\text{cond} = \sum_{c} \Bigl\lVert \frac{1}{|B_c|} \sum_{x \in B_c} \psi_\theta(x)
# - \frac{1}{|S_c|} \sum_{s \in S_c} \psi_\theta(s) \Bigr\rVert^2 ,
# $$ (eq:dc-means)
#
# and is computed as such. Both forms give the same number:

# %%
x, y = (
    torch.randn(n, 4, generator=rng.at("check", n).generator()).double()
    for n in (6, 3)
)
pairs = (x @ x.T).mean() + (y @ y.T).mean() - 2 * (x @ y.T).mean()  # Eq. 3
means = (x.mean(0) - y.mean(0)).square().sum()  # Eq. 2
same(pairs, mmd(x, y))
same(means, mmd(x, y))

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(mmd)

# %% [markdown]
# For every step a fresh batch $B_c$ may be drawn. Or, since the encoder does not change, the mean over *all* real
# images may be computed once (`estimator="expectation"`). With the linear kernel this is exact, and faster, so this
# page does it.
#
# ## From noise to knowledge
#
# The images start as noise, $S \sim \mathcal{N}(0, 1)$, so that no pixel comes from a real image. Then gradient descent
# moves their pixels:
#
# $$
# S \leftarrow S - \eta_S \nabla_S L_\text{cond} .
# $$ (eq:dc-step)
#
# `core` adds momentum to this (`image_momentum`): $v \leftarrow 0.5 \, v + \nabla_S L_\text{cond}$, then
# $S \leftarrow S - \eta_S v$, with $v = 0$ at the start.
#
# The loop in `core` serves many clients at once; a *group* is one class of one client.

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(engine.condense)

# %% [markdown]
# Three steps of it in a few lines, compared with `core`. `moved` is $v$.
# (`at.objective` normalises the images inside the encoder with the statistics of the real ones; [the next
# page](07_condensed_images) says why.)

# %%
client = (task, encoder, images, labels, images_per_class, rng.at("start"))
plan = {"iterations": iterations, "image_lr": image_lr}
at = matching(*client, **plan | {"iterations": 3})
target = engine.REAL_SIDES["expectation"](at.objective)(0)
wanted, statistics = target.features[:, 0], target.statistics

S, moved = at.start.clone(), torch.zeros_like(at.start)
for _ in range(3):
    S.requires_grad_()
    seen, _ = at.objective.embed(S, torch.zeros_like(at.group), statistics)
    means = [seen[at.group == c].mean(0) for c in range(len(wanted))]
    distance = (torch.stack(means) - wanted).square().sum()
    (slope,) = torch.autograd.grad(distance, S)
    moved = 0.5 * moved + slope
    S = (S - image_lr * moved).detach()

in_core, _ = engine.condense(at.objective, at.start, at.group)
gap = (S - in_core).abs().max().item()
Markdown(f"The pixels differ by {gap:.0e} at most.")

# %% [markdown]
# What happens to the images in more steps, one of each class, at moments that are dense at the start:


# %% tags=["hide-input"]
def film(frames):
    """Show what was kept: an image of each class for every step."""
    steps = ", ".join(str(step) for step in frames)
    data = task.dataset
    show(
        condensed_images(
            to_wire(torch.cat(list(frames.values())), data.mean, data.std),
            at.labels[first].repeat(len(frames)),
            classes,
            columns=len(frames),
            title=f"One image of each class after {steps} steps",
            inches=0.4,
        )
    )


first = torch.arange(0, len(at.labels), images_per_class)
moments = {0, 1, 2, 3, 5, 8, 12, 20, 50, 100, 300, 1000}
frames = {}


def watch(step, pictures):
    if step in moments:
        frames[step] = pictures[first].clone()


knowledge, knowledge_labels, loss = condensed(*client, watch=watch, **plan)
frames[iterations] = knowledge[first]
film(frames)


# %% tags=["hide-input"]
def curve(values, label):
    return pd.DataFrame(
        {"step": range(1, len(values) + 1), "loss": values, "label": label}
    )


show(
    lines(
        curve(loss, f"learning rate {image_lr:g}"),
        "step",
        "loss",
        log="y",
        ylabel="mean loss per class",
        title="Condensation loss",
    )
)

# %% [markdown]
# The result need not look like digits: it only has to look alike *to the encoder*. Strokes appear where the encoder
# cares. What it does not see stays noise, because nothing in {eq}`eq:dc-mmd` asks for its removal.
#
# ## Does a network learn from them?
#
# Fresh networks of the encoder's kind, with random weights of their own, learn from the condensed images only. Beside
# them: as many real images, and all of them. Every network takes the same number of steps; three networks each.

# %% tags=["hide-input"]
few = torch.cat(
    [(labels == c).nonzero()[:images_per_class, 0] for c in labels.unique()]
)
results = {
    name: learned(task, pictures, targets, 40, rng)
    for name, pictures, targets in (
        ("noise, as at the start", at.start, at.labels),
        ("condensed", knowledge, knowledge_labels),
        ("as many real images", inputs[few], labels[few]),
        ("all real images", inputs, labels),
    )
}
show(
    bars(
        {
            f"{name} ({row['images']})": (row["accuracy (%)"], row["std"])
            for name, row in results.items()
        },
        "test accuracy (%) of fresh networks, three each",
        title="What a network learns from so many images",
    )
)

# %% tags=["hide-input"]
found = {name: row["accuracy (%)"] for name, row in results.items()}
part = found["condensed"] / found["all real images"]
behind = found["as many real images"] - found["condensed"]
noise = found["noise, as at the start"]
gained = found["condensed"] > noise
if not gained:
    ending = "That is not more: nothing was learned at these settings."
elif f"{abs(behind):.1f}" == "0.0":
    ending = "As many real images teach as much."
elif behind > 0:
    ending = (
        f"But as many real images teach {behind:.1f} points more: what "
        "condensation saves on this page is not images, but handing out real "
        "ones."
    )
else:
    ending = f"As many real images teach {-behind:.1f} points less."
Markdown(
    ("This answers the question above: " if gained else "")
    + f"{len(knowledge)} made-up images "
    f"teach {found['condensed']:.1f}%, {part:.0%} of what {len(labels):,} real "
    f"ones teach, and their noise at the start taught {noise:.1f}% "
    f"(a guess has {100 / len(classes):.0f}%). {ending}"
)

# %% [markdown]
# ## Take away
#
# - Condensation moves pixels until the mean features of condensed and real images agree {eq}`eq:dc-means`.
# - The images carry what the encoder can see. What it does not see stays noise.
# - Where they teach more than their noise did, a network learns from them although its weights have never met the
#   encoder's; a network of another kind is not tried here.
#
# [The next page](07_condensed_images) asks what else decides: the inner layers of the encoder, the bytes that are sent,
# and how much the encoder knows.
#
# ## Exercises
#
# ```{exercise} Other kernels
# :label: ex-dc-kernel
#
# *Medium, 15 minutes.*
#
# Condense with the Gaussian kernel, `kernel="gaussian"`. It needs single features in place of their mean, so take
# `estimator="feature_bank"` and `real_batch=64`. Does a network learn more?
# ```
#
# ````{solution} ex-dc-kernel
# :class: dropdown
#
# ```python
# how = plan | {"kernel": "gaussian", "estimator": "feature_bank", "real_batch": 64}
# pictures, targets, _ = condensed(*client, **how)
# learned(task, pictures, targets, 40, rng)
# ```
#
# The Gaussian kernel also compares the spread of the features, not only their mean. That need not help: at the rate of
# this page it teaches less. But its loss has another scale. Try a rate of 1: two kernels are compared only when each
# has a rate of its own.
# ````
#
# ```{exercise} A better start
# :label: ex-dc-start
#
# *Easy, 15 minutes.*
#
# Start from real images, and from means of five (`kind="real"` and `kind="real_average"`). Why does FedVCK do
# neither?
# ```
#
# ````{solution} ex-dc-start
# :class: dropdown
#
# ```python
# for kind in ("noise", "real", "real_average"):
#     pictures, targets, _ = condensed(*client, kind=kind, **plan)
#     print(kind, learned(task, pictures, targets, 40, rng))
# ```
#
# Both starts already look like the classes, so they teach more after few steps. But they *are* private images, or
# means of a few, and would be sent to the server.
# ````
#
# ```{exercise} The printed learning rate
# :label: ex-dc-rate
#
# *Easy, 10 minutes.*
#
# The paper prints learning rates from 0.001 to 0.01. How far does the loss come with them in the steps of this page?
# ```
#
# ````{solution} ex-dc-rate
# :class: dropdown
#
# ```python
# rates = (0.001, 0.01, 0.1, 0.3)
# losses = [condensed(*client, **plan | {"image_lr": rate})[2] for rate in rates]
# frames = [curve(loss, f"{rate:g}") for rate, loss in zip(rates, losses)]
# show(lines(pd.concat(frames), "step", "loss", log="y"))
# ```
#
# The smaller the rate, the more of the loss is left after so few steps; with 0.001 it is more than half. The paper does
# not print how many steps it takes. The released code takes thousands, at rates from 0.1 to 1.0, and bounds the norm of
# the gradient. Without the bound 1.0 is too much here: the loss grows beyond all bounds, and the images may become
# infinite. Algorithms refuse to send such images.
# ````
