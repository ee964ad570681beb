# %% [markdown]
# # GDD-FL: the shift
#
# *Question:* what do the shifted images and features of GDD-FL {cite:p}`gddfl` look like, and what do encoder and
# condensation notice of the shift, in either of its two readings and two places?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* scikit-learn's digits.
#
# The paper leaves two things open. The line after its Eq. 2 has mean and deviation the other way round than the method
# it follows {cite:p}`dsu`: {eq}`eq:gdd-shift` has both readings. And its Eq. 1 and 2 speak of *features*, while
# Algorithm 1 shifts the *images*. Two readings in two places make four methods. This page looks at each of them; [the
# next one](33_gddfl_devices) runs them, and has the table that compares them.

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
encoder_depth = 2
encoder_width = 32
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import pandas as pd
import torch

from core import models
from core.condensation import shift
from core.rng import Rng
from lab.report import image_rows, scatter, show, source
from lab.report.lesson import Lesson

forms = {"dsu": "dsu", "as printed": "as_printed"}
places = ("image channels", "inner layer")
lesson = Lesson(profile, "gddfl", dataset=dataset, partition={"name": "iid"})
task = lesson.task
data, classes, train = task.dataset, task.dataset.classes, task.dataset.train
label = int(torch.bincount(train.labels).argmax())


def images_of(cls):
    return task.inputs(train.images[train.labels == cls][:48])


batch = images_of(label)

# %% [markdown]
# ## Shifted images
#
# The batch is one class. Each image goes through $U_1$, in both readings of {eq}`eq:gdd-shift`. What is drawn is what
# the encoder sees, in shades from black to white.

# %% tags=["hide-input"]
strips = {"as they are": batch}
strips |= {
    name: shift.uncertain_shift(batch, 1.0, Rng(seed).at("shift"), form)
    for name, form in forms.items()
}
rows = {name: lesson.as_images(x[:8]) for name, x in strips.items()}
title = f"Images of class {classes[label]} after the shift"
show(image_rows(rows, title))


# %% tags=["hide-input"]
def statistics(maps):
    """Mean and deviation of the first channel of every image, by name."""
    frames = {}
    for name, x in maps.items():
        mean, deviation = (one[:, 0, 0, 0].float() for one in shift.moments(x))
        frames[name] = pd.DataFrame({"mean": mean, "deviation": deviation})
    return pd.concat(frames, names=["label"]).reset_index("label")


show(
    scatter(
        statistics(strips),
        "mean",
        "deviation",
        xlabel="mean of the image",
        ylabel="deviation of the image",
        title="Image channels: each point is an image (first channel)",
    )
)

# %% [markdown]
# In DSU's reading the cloud stays where it is and becomes wider. In the printed reading the new mean is $\hat\sigma$
# and the new deviation $|\hat\mu|$: the cloud jumps to where mean and deviation have changed places. Where an image's
# $|\mu|$ is smaller than its $\sigma$, the printed form takes contrast away. And where $\hat\mu < 0$ the image is turned
# into its negative; pixels reach from $-1$ to $1$ here, so a dark image has a mean below zero:

# %% tags=["hide-input"]
mean, deviation = shift.moments(batch)
looks = {}
for name, x in strips.items():
    new_mean, new_deviation = shift.moments(x)
    along = ((x - new_mean) * (batch - mean)).mean((-2, -1))
    looks[name] = {
        "contrast left (%)": 100 * (new_deviation / deviation).mean().item(),
        "negatives (%)": 100 * (along < 0).float().mean().item(),
        "brighter (deviations)": ((new_mean - mean) / deviation).mean().item(),
    }
pd.DataFrame(looks).T.round(1)

# %% [markdown]
# ## Shifted features
#
# The other place is an inner layer: the maps after the first block of the encoder. The code puts the same shift there
# with a hook:

# %% mystnb={"code_prompt_show": "Show the hook in core"} tags=["hide-cell"]
source(shift.Shift.change)


# %% tags=["hide-input"]
def encoder(number, norm="instance", channels=data.channels):
    """One of the random networks."""
    return models.build(
        "convnet",
        channels,
        data.size,
        data.num_classes,
        Rng(seed).at("encoder", number),
        depth=encoder_depth,
        width=encoder_width,
        norm=norm,
    ).eval()


@torch.no_grad()
def features(network, images, form=None, layer=0, draw=0, until=None):
    """Features of images, shifted at a layer (0: the image) when there is a
    form; or the maps after a block.
    """
    maps = images
    for number in range((until or len(network.blocks)) + 1):
        maps = network.blocks[number - 1](maps) if number else maps
        if form and number == layer:
            draws = Rng(seed).at("draw", draw)
            maps = shift.uncertain_shift(maps, 1.0, draws, form)
    return maps if until else maps.flatten(1)


inner = {"as they are": features(encoder(0), batch, until=1)}
inner |= {
    name: features(encoder(0), batch, form, 1, until=1)
    for name, form in forms.items()
}
show(
    scatter(
        statistics(inner),
        "mean",
        "deviation",
        xlabel="mean of the map",
        ylabel="deviation of the map",
        title="Inner layer: each point is an image (first channel of block 1)",
    )
)

# %% [markdown]
# After the ReLU means are positive. Nothing is turned into its negative while $\hat\mu > 0$, and mean and deviation
# are of similar size, so the printed reading should do less harm here.
#
# ## What the encoder notices
#
# How far does the shift move an image's features? We compare with the distance between two different images of the
# class, in several random networks. The encoder of DC, DSA and DM normalises every map of every image by itself
# (*instance normalisation*); GDD-FL's paper names a ConvNet and no norm, so we take the same. Beside it: a network
# without normalisation, and the same images with every channel three times. In percent of that distance:


# %% tags=["hide-input"]
def noticed(form, layer, norm="instance", repeat=1, networks=4, draws=4):
    """Length of the shift in feature space, in percent of the distance between
    two images.
    """
    images, lengths, apart = batch.repeat(1, repeat, 1, 1), [], []
    for k in range(networks):
        network = encoder(k, norm, data.channels * repeat)
        plain = features(network, images)
        apart.append(torch.pdist(plain).mean())
        for draw in range(draws):
            moved = features(network, images, form, layer, draw)
            lengths.append((moved - plain).norm(dim=1).mean())
    share = torch.stack(lengths).mean() / torch.stack(apart).mean()
    return 100 * share.item()


cases = {
    "instance norm": {},
    "no normalisation": {"norm": "none"},
    "instance norm, channels x 3": {"repeat": 3},
}
methods = {
    f"{name}, {place}": {"form": form, "layer": layer}
    for layer, place in enumerate(places)
    for name, form in forms.items()
}
pd.DataFrame(
    {
        column: {name: noticed(**how, **case) for name, how in methods.items()}
        for column, case in cases.items()
    }
).round(0)

# %% [markdown]
# Compare DSU's reading on image channels, the first line, with and without normalisation. For a *grey* image the shift
# is $x \mapsto a x + b$ with two numbers. A convolution turns this into $a$ times the old map plus a constant, and
# instance normalisation takes both away. Only the border is left, where the convolution meets the zeros around the
# image (an exercise below removes it). Of three channels, even equal ones, each gets an $a$ and a $b$ of its own: this
# is not undone.
#
# So with this encoder the shift of a grey image works through the image's border, which is not what anybody had in
# mind. With three channels, as the colours of ISIC 2020, or at an inner layer more of it gets through; how much, the
# table says. The printed reading is noticed in any case: on images because an image and its negative differ after the
# ReLU, at the inner layer because it gives each channel another share in the next convolution.
#
# ## What condensation notices
#
# The losses see only mean features {eq}`eq:gdd-midpoint`. Shifts that cancel in the mean are noise in the gradient.
# What stays is the distance between $O^\mathcal{T}$ and the *average* of $O^U$. Both in percent of the distance between
# the mean features of two classes:


# %% tags=["hide-input"]
def lasting(networks=4, draws=12, **how):
    """What is left of a shift in the mean over draws, and the deviation of a
    single draw.
    """
    left, single = [], []
    for k in range(networks):
        network = encoder(k)
        plain = features(network, batch).mean(0)
        other = features(network, images_of((label + 1) % len(classes))).mean(0)
        drawn = torch.stack(
            [features(network, batch, draw=d, **how) for d in range(draws)]
        ).mean(1)
        apart = (plain - other).norm()
        left.append((drawn.mean(0) - plain).norm() / apart)
        single.append((drawn - plain).norm(dim=1).mean() / apart)
    return {
        "on average over draws": 100 * torch.stack(left).mean().item(),
        "in a single draw": 100 * torch.stack(single).mean().item(),
    }


found = {name: lasting(**how) for name, how in methods.items()}
pd.DataFrame(found).T.round(0)

# %% [markdown]
# The batch averages over its images, each with an $\epsilon$ of its own, so even a single draw moves the mean feature
# less than an image. The first column is for $p = 1$, and a little too large: an average over twelve draws keeps
# $1/\sqrt{12}$ of the noise. The target of condensation lies half way to $O^U$ {eq}`eq:gdd-midpoint`, and with
# $p = 1/2$ only half of the batches are shifted. So on average it moves by a quarter of this column. Where that is near
# zero, GDD-FL is little more than DM with the longer step. A loss that compares more than means, such as one with the
# Gaussian kernel, would notice the width of the cloud as well.
#
# ## Take away
#
# - As printed, mean and deviation change places {eq}`eq:gdd-shift`: images lose contrast, and dark ones become
#   negatives.
# - An encoder with instance normalisation notices the shift of a grey image at the border only, of three channels or of
#   an inner layer somewhat more. What this brings is measured on [the next page](33_gddfl_devices).
# - Condensation sees the mean over the shift only: noise of mean zero cancels, a change of the mean stays.
#
# ## Exercises
#
# ```{exercise} Mean and deviation
# :label: ex-shift-moments
#
# *Medium, 15 minutes.*
#
# Show which mean and which deviation $\hat x$ has in both readings of {eq}`eq:gdd-shift`, and check it with
# `shift.shifted`.
# ```
#
# ````{solution} ex-shift-moments
# :class: dropdown
#
# $(x - \mu) / \sigma$ has mean 0 and deviation 1. So DSU's form has mean $\hat\mu$ and deviation $|\hat\sigma|$, the
# printed one $\hat\sigma$ and $|\hat\mu|$.
#
# ```python
# noise = torch.zeros(2, *batch.shape[:2])  # then mu-hat = mu and sigma-hat = sigma
# mu, sigma = shift.moments(batch)
# new_mu, new_sigma = shift.moments(shift.shifted(batch, noise, "as_printed"))
# (new_mu - sigma).abs().max(), (new_sigma - mu.abs()).abs().max()
# ```
#
# Even without noise the printed form changes the image; DSU's form gives it back.
# ````
#
# ```{exercise} Only the border
# :label: ex-shift-border
#
# *Hard, 30 minutes.*
#
# Show that a brighter grey image $a x + b$ ($a > 0$) has the same features under instance normalisation, but for the
# border.
# ```
#
# ````{solution} ex-shift-border
# :class: dropdown
#
# Away from the border the convolution with weights $w$ gives $a (w * x) + b \sum w + \text{bias}$. Subtracting the mean
# of the map and dividing by its deviation removes all but $w * x$. With zeros around the image, which stay zero, the
# sum over $w$ is another one at the border. Padding with the image's own edge brings the difference down:
#
# ```python
# network = encoder(0)
# grey = batch[:, :1].repeat(1, data.channels, 1, 1)
# for mode in ("zeros", "replicate", "circular"):
#     for block in network.blocks:
#         block.conv.padding_mode = mode
#     print(mode, (features(network, 0.7 * grey + 0.5) - features(network, grey)).abs().max().item())
# ```
#
# What is left is the small number that normalisation adds to the variance.
# ````
#
# ```{exercise} A lonely image
# :label: ex-shift-one
#
# *Easy, 10 minutes.*
#
# A client has a single image of a class. What does the shift do to it?
# (To be checked: `largest_change`, of any value of the image.)
# ```
#
# ````{solution} ex-shift-one
# :class: dropdown
#
# ```python
# (shift.uncertain_shift(batch[:1], 1.0, Rng(0)) - batch[:1]).abs().max()
# ```
#
# Nothing: a batch of copies of one image has $\Sigma_\mu = \Sigma_\sigma = 0$. The less a client knows of the world's
# variety, the less it shifts. For such a client GDD-FL is DM with the longer step.
# ````

# %% tags=["solution", "remove-cell"]
largest_change = 0.0

# %% name="ex-shift-one" tags=["check", "remove-cell"]
alone = shift.uncertain_shift(batch[:1], 1.0, Rng(0)) - batch[:1]
assert abs(largest_change - alone.abs().max().item()) < 1e-5, (
    "what is the spread of the statistics of one image?"
)
