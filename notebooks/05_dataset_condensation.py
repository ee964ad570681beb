# %% [markdown]
# # Condensing a data set
#
# *Question:* how can a few condensed images carry what a network needs to learn from a thousand real ones?\
# *Time:* under a minute on two CPU cores. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# FedVCK, FedDM and other methods of this book send *condensed* images in place of models. This page takes one client
# and condenses its images by **distribution matching** {cite:p}`dm`. The images start as noise. A network turns real
# and condensed images into features, and gradient descent changes the condensed ones until both have the same features
# on average. You will see
#
# - the loss, and the loop that minimises it, as equations and as code;
# - what the inner layers of the network add to it;
# - what changes when a pixel is sent as one byte, and when the network knows nothing.
#
# ```{figure} ../book/_static/condensation.svg
# :alt: Many real images of a class, which are never sent, and a few condensed ones, which start as noise, go through one encoder that does not change. The distance between their mean features is the loss, and its gradient updates the condensed images.
# :name: fig-condensation
# :width: 380px
#
# Distribution matching, for one class. Green is optimised, red stays.
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

# %%
from functools import partial

import pandas as pd
import torch
from torch.testing import assert_close

from core import data
from core.condensation import LatentEncoder, engine, mmd
from core.condensation.latent import GroupwiseNorm
from core.families.condensing import to_wire
from core.federation import Task
from core.rng import Rng
from lab.report import condensed_images, dots, lines, show, source
from lab.report.lesson import condensed, trained

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
rng = Rng(seed)
task = Task(data.load(dataset), "convnet", {"width": width})
train, classes = task.dataset.train, task.dataset.classes

# %% [markdown]
# ## The real images and the encoder
#
# One client has the whole training set. Sorted by class:

# %% tags=["slide"]
order = train.labels.argsort(stable=True)
images, labels = train.images[order], train.labels[order]
few = {"columns": 14, "inches": 0.34, "title": "The first 14 of each class"}
show(condensed_images(images, labels, classes, **few))

# %% [markdown]
# Features $\psi_\theta(x)$ are what enters the last layer of a network, the *encoder*. FedVCK takes the global model of
# the round. Here a network that was trained for a few steps takes its place.

# %%
inputs = task.inputs(images)
encoder = trained(task, inputs, labels, encoder_steps, rng.at("encoder"))
f"accuracy of the encoder: {task.evaluate(encoder)['accuracy']:.1%}"

# %% [markdown] tags=["slide"]
# ## What is matched
#
# For a class $c$ let $B_c$ be real images and $S_c$ condensed ones. The distance between their features is the
# squared *maximum mean discrepancy* (Eq. 3; such numbers are those of FedVCK's paper),
#
# $$
# \begin{aligned}
# L_\text{cond} &= \sum_{c} \bigl( \hat{\mathcal{K}}_{B_c, B_c} + \hat{\mathcal{K}}_{S_c, S_c}
# - 2 \hat{\mathcal{K}}_{B_c, S_c} \bigr), \\
# \hat{\mathcal{K}}_{X, Y} &= \frac{1}{|X| |Y|} \sum_{i, j} \mathcal{K}\bigl(\psi_\theta(x_i), \psi_\theta(y_j)\bigr).
# \end{aligned}
# $$ (eq:dc-mmd)

# %% [markdown] tags=["slide"]
# With the linear kernel $\mathcal{K}(a, b) = \langle a, b \rangle$ it is the squared distance of two mean features (Eq.
# 2),
#
# $$
# L_\text{cond} = \sum_{c} \Bigl\lVert \frac{1}{|B_c|} \sum_{x \in B_c} \psi_\theta(x)
# - \frac{1}{|S_c|} \sum_{s \in S_c} \psi_\theta(s) \Bigr\rVert^2 .
# $$ (eq:dc-means)

# %% [markdown]
# It is computed as such. Both forms give the same number:

# %%
x, y = (
    torch.randn(n, 4, generator=rng.at("check", n).generator()).double()
    for n in (6, 3)
)
pairs = (x @ x.T).mean() + (y @ y.T).mean() - 2 * (x @ y.T).mean()  # Eq. 3
means = (x.mean(0) - y.mean(0)).square().sum()  # Eq. 2
same(pairs, mmd(x, y))
same(means, mmd(x, y))

# %% [markdown]
# A fresh batch $B_c$ may be drawn for every step. Or, since the encoder does not change, the mean over *all* real images
# may be computed once (`estimator="expectation"`). With the linear kernel this is exact, and faster, so this page does
# it.

# %% [markdown] tags=["slide"]
# ## Update steps
#
# The images start as noise, $S \sim \mathcal{N}(0, 1)$, so that no pixel comes from a real image. Gradient descent with
# momentum updates their pixels:
#
# $$
# v \leftarrow 0.5 \, v + \nabla_S L_\text{cond}, \qquad S \leftarrow S - \eta_S v .
# $$ (eq:dc-step)

# %% [markdown]
# The loop in `core` serves many clients at once; a *group* is one class of one client.

# %%
source(engine.condense)

# %% [markdown]
# How one image of each class changes:

# %%
client = (task, encoder, images, labels, images_per_class, rng.at("start"))
plan = {"iterations": iterations, "image_lr": image_lr}
moments = (0, 1, 2, 3, 5, 8, 12, 20, 50, 100)
frames = {}


def watch(step, pictures):
    if step in moments:
        frames[step] = pictures.clone()


knowledge, targets, loss = condensed(*client, watch=watch, **plan)
frames[iterations] = knowledge

# %% tags=["slide"]
mean, std = task.dataset.mean, task.dataset.std
first = [pictures[::images_per_class] for pictures in frames.values()]
show(
    condensed_images(
        to_wire(torch.cat(first), mean, std),
        targets[::images_per_class].repeat(len(frames)),
        classes,
        columns=len(frames),
        title=f"After {', '.join(map(str, frames))} steps",
        inches=0.4,
    )
)

# %% [markdown] tags=["slide"]
# The result need not look like digits: it only has to look alike *to the encoder*. Strokes appear where the encoder
# cares. What it does not see stays noise, because nothing in {eq}`eq:dc-mmd` asks for its removal.

# %% [markdown]
# ## Latent distribution constraints

# %% [markdown] tags=["slide"]
# The loss {eq}`eq:dc-means` looks at the last features only. FedVCK also asks that the earlier layers respond to
# condensed images as they do to real ones. It records mean and deviation $\mu_l, \sigma_l$ of every layer on the real
# batch and normalises the condensed images with *those*, not with their own (Eq. 4):
#
# $$
# s^{(l)} = \mathrm{Norm}\bigl(\psi_l(s^{(l-1)}), \{\mu_l, \sigma_l\}\bigr), \qquad l = 1, \dots, L .
# $$ (eq:dc-latent)

# %% [markdown]
# Here $s^{(0)} = s$, $\psi_l$ is the $l$-th of $L$ layers, and $\mathrm{Norm}(z, \{\mu, \sigma\}) = \gamma \, (z - \mu)
# / \sqrt{\sigma^2 + \epsilon} + \beta$ with the layer's own $\gamma$ and $\beta$. No term is added to the loss. A layer
# takes the statistics that it is given:

# %%
source(GroupwiseNorm.forward)

# %% [markdown]
# The images above have this constraint. Without it (`free`) the condensed images of a client are normalised with their
# own mean and deviation. How far apart are then the means of each layer, on condensed and on real images, in deviations
# of the real ones?


# %% tags=["slide"]
def layer_gaps(pictures):
    """Mean over channels of the distance between condensed and real layer
    means, in real deviations; each set is normalised by its own statistics.
    """
    eye = LatentEncoder(encoder)
    _, real = eye(inputs, torch.zeros_like(labels))
    _, ours = eye(pictures, torch.zeros_like(targets))
    return [
        float(((a[0] - b[0]).abs() / b[1].sqrt()).mean())  # means, variances
        for a, b in zip(ours.layers, real.layers, strict=True)
    ]


free, _, free_loss = condensed(*client, constrained=False, **plan)
gaps = {"constrained": layer_gaps(knowledge), "free": layer_gaps(free)}
frame = pd.DataFrame(gaps).rename_axis("layer").reset_index()
frame = frame.melt("layer", var_name="label", value_name="gap")
frame["layer"] += 1
show(
    lines(
        frame,
        "layer",
        "gap",
        ylabel="gap (real deviations)",
        title="Layer means, condensed and real",
    )
)

# %% [markdown]
# Not every layer is nearer, and nearer means need not teach more. What the constraint is worth in a federation is
# measured in [the ablations](14_fedvck_ablations).
#
# ## One byte a pixel

# %% [markdown] tags=["slide"]
# FedVCK counts one byte a pixel. So what is sent is the nearest of 256 grey levels, from black to white.

# %%
source(to_wire)

# %% [markdown]
# A pixel within the range comes back within half a grey level. But noise from $\mathcal{N}(0, 1)$ reaches beyond black
# and white, and is cut off there:

# %%
received = task.dataset.normalise(to_wire(knowledge, mean, std))
m, d = (torch.tensor(v).view(1, -1, 1, 1) for v in (mean, std))
levels = 255 * (knowledge * d + m)
cut_off = ((levels < 0) | (levels > 255)).float().mean().item()
f"pixels beyond black and white: {cut_off:.0%}"

# %% [markdown]
# ## Does a network learn from them?
#
# Fresh networks with random weights of their own learn from the condensed images only. Beside them are their noise at
# the start, the images without the constraint, the images as 8-bit pixels, images from an encoder that was never trained
# (as in the first round of a federation), as many real images, and all of them. Every network takes the same number of
# steps.


# %%
def learned(pictures, targets):
    """How many images, and mean and deviation of the accuracy (%) of three
    fresh networks after 40 steps on them."""
    pupils = [
        trained(task, pictures, targets, 40, rng.at("pupil", k))
        for k in range(3)
    ]
    scores = pd.Series(
        [100 * task.evaluate(pupil)["accuracy"] for pupil in pupils]
    )
    return {
        "images": len(targets),
        "accuracy (%)": scores.mean(),
        "std": scores.std(),
    }


# %% tags=["slide"]
blind = (task, task.new_model(rng.at("blind")), *client[2:])
first = [(labels == c).nonzero()[:images_per_class, 0] for c in labels.unique()]
some = torch.cat(first)
taught = {
    "noise, as at the start": (frames[0], targets),
    "untrained encoder": (condensed(*blind, **plan)[0], targets),
    "condensed": (knowledge, targets),
    "condensed, free": (free, targets),
    "condensed, as 8-bit pixels": (received, targets),
    "as many real images": (inputs[some], labels[some]),
    "all real images": (inputs, labels),
}
rows = {name: learned(*pair) for name, pair in taught.items()}
frame = pd.DataFrame(rows).T.rename_axis("name").reset_index()
middle, spread = frame["accuracy (%)"], frame["std"]
show(
    dots(
        frame.assign(value=middle, low=middle - spread, high=middle + spread),
        "test accuracy (%), mean ± deviation of three fresh networks",
        title=f"What {images_per_class} images of each class teach",
    )
)

# %% [markdown]
# This is one client, one start of the images and one encoder: read the large differences only. Compare the condensed
# images with as many real ones. What condensation saves on this page is not images, but handing out real ones.

# %% [markdown] tags=["slide"]
# ## Take away
#
# - Condensation updates pixels until mean features agree {eq}`eq:dc-means`. What the encoder does not see stays noise.
# - Eq. 4 lets inner layers have a say, without another loss {eq}`eq:dc-latent`.
# - Noise beyond black and white is cut off when pixels are sent as bytes.
# - A better model is a better encoder: [FedVCK](11_fedvck) builds on that.

# %% [markdown]
# ## Exercises
#
# ```{exercise} A better start
# :label: ex-dc-start
#
# *Easy, 15 minutes.*
#
# Give `condensed(*client, kind=..., **plan)` the kinds `"real"` and `"real_average"`, means of five real images, and
# score what it returns by `learned(pictures, targets)`. Why does FedVCK take neither start?
# ```
#
# ````{solution} ex-dc-start
# :class: dropdown
#
# ```python
# for kind in ("noise", "real", "real_average"):
#     pictures, targets, _ = condensed(*client, kind=kind, **plan)
#     print(kind, learned(pictures, targets))
# ```
#
# Both starts already look like the classes, so they teach more after few steps. But they *are* private images, or
# means of a few, and would be sent to the server.
# ````
#
# ```{exercise} A loss of your own
# :label: ex-dc-energy
#
# *Medium, 10 minutes.*
#
# The energy distance of two samples is $2 E|x - s| - E|x - x'| - E|s - s'|$. Write it as `energy(real, condensed,
# weights)`: real features (n, D) and condensed ones (m, D) of one class, and weights (m,), 1 for an image and 0 for a row
# that only fills the array. Then condense by it: `condensed(*client, **plan | {"kernel": energy, "estimator":
# "feature_bank"})`, which stores the features of the real images. Why does `estimator="expectation"` not do? (To be
# checked: `energy`.)
# ```
#
# ````{solution} ex-dc-energy
# :class: dropdown
#
# ```python
# def energy(real, condensed, weights):
#     apart, w = torch.cdist, weights / weights.sum()
#     between = (apart(real, condensed) @ w).mean()
#     within = w @ apart(condensed, condensed) @ w
#     return 2 * between - within - apart(real, real).mean()
#
#
# given = plan | {"kernel": energy, "estimator": "feature_bank"}
# pictures, targets, _ = condensed(*client, **given)
# learned(pictures, targets)
# ```
#
# It looks at distances of pairs, which the mean of the real features does not give: `estimator="expectation"` is refused,
# and stored features take its place. No code of the package changes; FedVCK, FedDM, DM and GDD-FL take the function in
# the same way.
# ````


# %% tags=["solution", "remove-cell"]
def energy(real, condensed, weights):
    apart, w = torch.cdist, weights / weights.sum()
    between = (apart(real, condensed) @ w).mean()
    within = w @ apart(condensed, condensed) @ w
    return 2 * between - within - apart(real, real).mean()


# %% name="ex-dc-energy" tags=["check", "remove-cell"]
x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [4.0], [9.0]])
some = energy(x, y, torch.tensor([1.0, 1.0, 0.0]))  # the third is no image
assert some is not None, "energy has no body yet"
assert abs(float(some) - 1.5) < 1e-5, "of 0 and 2 with 1 and 4 it is 1.5"
condensed(
    *client,
    **plan | {"kernel": energy, "estimator": "feature_bank", "iterations": 2},
)

# %% [markdown]
# ```{exercise} Noise that cannot be sent
# :label: ex-dc-noise
#
# *Medium, 15 minutes.*
#
# The images start as $\mathcal{N}(0, 1)$ in the form of network inputs, $x = (v - \mu) / \sigma$ with $v$ from 0
# (black) to 1 (white). Which share of the pixels, in percent, is beyond black or white at the start? Take the data
# set's $\mu$ and $\sigma$, `task.dataset.mean[0]` and `task.dataset.std[0]`. (To be checked: `beyond`, in percent.)
# ```
#
# ```{solution} ex-dc-noise
# :class: dropdown
#
# A pixel is beyond black where $x < -\mu / \sigma$, and beyond white where $x > (1 - \mu) / \sigma$. With the
# distribution function $\Phi$ of the normal distribution the share is
# $\Phi(-\mu / \sigma) + \Phi(-(1 - \mu) / \sigma)$. On digits $\mu$ and $\sigma$ are both one half, so it is
# $2 \Phi(-1)$, or 32%. Compare it with the share after the steps of this page, `cut_off`.
# ```

# %% tags=["solution", "remove-cell"]
m, d = task.dataset.mean[0], task.dataset.std[0]
beyond = 100 * torch.special.ndtr(torch.tensor([-m / d, -(1 - m) / d])).sum()

# %% name="ex-dc-noise" tags=["check", "remove-cell"]
noise = torch.randn(200_000, generator=rng.at("noise").generator())
value = noise * task.dataset.std[0] + task.dataset.mean[0]
counted = 100 * ((value < 0) | (value > 1)).float().mean()
assert abs(float(beyond) - counted) < 1, "count them in noise that you draw"
