# %% [markdown]
# # GDD-FL: the shift
#
# *Question:* what do the shifted images and features of GDD-FL {cite:p}`gddfl` look like, do the two readings and the
# two places make a difference, and do clients' condensed images come nearer to each other?\
# *Time:* about half a minute on one CPU core. *Data:* scikit-learn's digits for the runs; records for the table.
#
# The paper leaves two things open. The line after its Eq. 2 has mean and deviation the other way round than the method
# it follows {cite:p}`dsu`: {eq}`eq:gdd-shift` has both readings. And its Eq. 1 and 2 speak of *features*, while
# Algorithm 1 shifts the *images*. Two readings in two places make four methods. This page looks at each of them, then
# at the table that compares them, and ends with a gallery in the manner of the paper's Figure 2.
#
# All clients have the same mix of classes here, so that any difference comes from the shift. The numbers of the run are
# those of [the lesson](30_gddfl). `shown` is the profile that the table shows.

# %% tags=["parameters"]
dataset = "digits"
clients = 4
images_per_class = 1
iterations = 40
encoder_depth = 2
encoder_width = 32
real_batch = 16
seed = 0
profile = "quick"
shown = "best"

# %% tags=["hide-input"]
import attrs
import pandas as pd
import torch
from IPython.display import display

from core import condensation, models
from core.condensation import shift
from core.experiments import TableSpec
from core.report import (
    condensed_images,
    scatter,
    show,
    source,
    table,
)
from core.report.lesson import Lesson
from core.report.results import gains
from core.report.texts import Markdown
from core.rng import Rng

best = None if shown == "best" else shown
forms = {"dsu": "dsu", "as printed": "as_printed"}


# %% tags=["hide-input"]
lesson = Lesson(
    profile,
    "gddfl",
    dataset=dataset,
    partition={"name": "iid"},
    clients=clients,
    rounds=1,
    seed=seed,
    settings={
        "images_per_class": images_per_class,
        "iterations": iterations,
        "image_lr": 1.0,
        "real_batch": real_batch,
        "encoder_depth": encoder_depth,
        "encoder_width": encoder_width,
        "server_epochs": 150,
        "server_lr": 0.02,
    },
)
task, members = lesson.task, lesson.members()
data, classes = task.dataset, task.dataset.classes
train = data.train
label = int(torch.bincount(train.labels).argmax())
pictures = train.images[train.labels == label][:48]
batch = task.inputs(pictures)

# %% [markdown]
# ## Shifted images
#
# The batch is one class. Each image goes through $U_1$, in both readings of {eq}`eq:gdd-shift`. What is drawn is what
# the encoder sees, in shades from black to white.

# %% tags=["hide-input"]
moved = {
    name: shift.uncertain_shift(batch, 1.0, Rng(seed).at("shift"), form)
    for name, form in forms.items()
}
strips = {"as they are": batch, **moved}
number = min(8, len(batch))
show(
    condensed_images(
        torch.cat(
            [
                condensation.to_wire(x[:number], data.mean, data.std)
                for x in strips.values()
            ]
        ),
        torch.arange(len(strips)).repeat_interleave(number),
        list(strips),
        columns=number,
        title=f"Images of class {classes[label]} after the shift",
    )
)


# %% tags=["hide-input"]
def statistics(maps, name, channel=0):
    """Mean and deviation of one channel of every image, as a frame."""
    mean, deviation = (
        value[:, channel, 0, 0].float() for value in shift.moments(maps)
    )
    return pd.DataFrame({"mean": mean, "deviation": deviation, "label": name})


show(
    scatter(
        pd.concat([statistics(x, name) for name, x in strips.items()]),
        "mean",
        "deviation",
        xlabel="mean of the image",
        ylabel="deviation of the image",
        title="Image channels: each point is an image (first channel)",
    )
)

# %% [markdown]
# In DSU's reading the cloud stays where it is and becomes wider. In the printed reading the new mean is $\hat\sigma$
# and the new deviation $|\hat\mu|$: the cloud jumps to where mean and deviation have changed places. A network's inputs
# are normalised, so that $\mu$ is near zero and $\sigma$ near one for an average image; then the printed form takes
# most of the contrast away. And where $\hat\mu < 0$ the image is turned into its negative:

# %% tags=["hide-input"]
mean, deviation = shift.moments(batch)
looks = {}
for name, x in strips.items():
    new_mean, new_deviation = shift.moments(x)
    along = ((x - new_mean) * (batch - mean)).mean((-2, -1))
    looks[name] = {
        "contrast left (%)": 100 * (new_deviation / deviation).mean().item(),
        "turned into the negative (%)": 100 * (along < 0).float().mean().item(),
        "brighter by (deviations)": ((new_mean - mean) / deviation)
        .mean()
        .item(),
    }
pd.DataFrame(looks).T.round(1)

# %% [markdown]
# ## Shifted features
#
# The other place is an inner layer: the maps after the first block of the encoder. The code puts the same shift there
# with a hook:

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the hook in core"}
source(shift.Change.at)


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
            maps = shift.uncertain_shift(
                maps, 1.0, Rng(seed).at("draw", draw), form
            )
    return maps if until else maps.flatten(1)


inner = {"as they are": features(encoder(0), batch, until=1)}
inner |= {
    name: features(encoder(0), batch, form, 1, until=1)
    for name, form in forms.items()
}
show(
    scatter(
        pd.concat([statistics(x, name) for name, x in inner.items()]),
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
# class, in several random networks. The encoder of DC, DSA, DM and GDD-FL normalises every map of every image by itself
# (*instance normalisation*). Beside it: a network without normalisation, and the same images with every channel three
# times.


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
        lengths += [
            (features(network, images, form, layer, draw) - plain)
            .norm(dim=1)
            .mean()
            for draw in range(draws)
        ]
    return (
        100 * torch.stack(lengths).mean() / torch.stack(apart).mean()
    ).item()


cases = {
    "instance norm": {},
    "no normalisation": {"norm": "none"},
    "instance norm, every channel three times": {"repeat": 3},
}
pd.DataFrame(
    {
        column: {
            f"{name}, {place}": noticed(form, layer, **case)
            for layer, place in enumerate(("image channels", "inner layer"))
            for name, form in forms.items()
        }
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
# mind. The colours of ISIC 2020 are another matter, and so is an inner layer. The printed reading is noticed in any
# case, because an image and its negative differ after the ReLU.
#
# ## What condensation notices
#
# The losses see only mean features ({eq}`eq:gdd-midpoint`). Shifts that cancel in the mean are noise in the gradient.
# What stays is the distance between $O^\mathcal{T}$ and the *average* of $O^U$. Both in percent of the distance between
# the mean features of two classes:


# %% tags=["hide-input"]
def mean_feature(network, cls, **how):
    return features(
        network, task.inputs(train.images[train.labels == cls][:48]), **how
    ).mean(0)


def lasting(form, layer, networks=4, draws=12):
    """What is left of a shift in the mean over draws, and the deviation of a
    single draw.
    """
    parts = {"on average over draws": [], "in a single draw": []}
    for k in range(networks):
        network = encoder(k)
        plain, other = (
            mean_feature(network, cls)
            for cls in (label, (label + 1) % len(classes))
        )
        drawn = torch.stack(
            [
                mean_feature(network, label, form=form, layer=layer, draw=d)
                for d in range(draws)
            ]
        )
        apart = (plain - other).norm()
        parts["on average over draws"].append(
            (drawn.mean(0) - plain).norm() / apart
        )
        parts["in a single draw"].append(
            (drawn - plain).norm(dim=1).mean() / apart
        )
    return {
        name: 100 * torch.stack(values).mean().item()
        for name, values in parts.items()
    }


pd.DataFrame(
    {
        f"{name}, {place}": lasting(form, layer)
        for layer, place in enumerate(("image channels", "inner layer"))
        for name, form in forms.items()
    }
).T.round(0)

# %% [markdown]
# The batch averages over its images, each with an $\epsilon$ of its own, so even a single draw moves the mean feature
# less than an image. The first column says by how much the target of condensation differs from DM's. Where it is near
# zero, GDD-FL is little more than DM with the longer step. A loss that compares more than means, such as one with the
# Gaussian kernel, would notice the width of the cloud as well.
#
# ## Clients with different devices
#
# The shift is made for clients whose images come from different devices. Here we make such clients: each has a contrast
# and a brightness of its own. Then all variants condense, and we ask two things. Do the condensed images of different
# clients lie nearer to each other, as the paper's introduction says? And does the server's model work on test images
# from a device that no client has?


# %% tags=["hide-input"]
def device(images, number):
    """8-bit images as a device shows them: number 0 to clients - 1; any other
    lies beyond.
    """
    position = number / max(clients - 1, 1)
    return (
        ((images.float() - 128) * (0.7 + 0.3 * position) + 113 + 30 * position)
        .clamp(0, 255)
        .to(torch.uint8)
    )


def gallery(rows, title):
    """A row of images (N, C, H, W) for every name."""
    counts = torch.tensor([len(images) for images in rows.values()])
    show(
        condensed_images(
            torch.cat(list(rows.values())),
            torch.arange(len(rows)).repeat_interleave(counts),
            list(rows),
            columns=int(counts.max()),
            title=title,
        )
    )


equipped = [
    attrs.evolve(client, images=device(client.images, client.id))
    for client in members
]
tests = {
    "the clients' devices": torch.cat(
        [device(data.test.images, client.id) for client in members]
    ),
    "a new device": device(data.test.images, -0.5),
}
gallery(
    {
        f"client {client.id}": client.images[client.labels == label][:8]
        for client in equipped
    }
    | {"a new device": tests["a new device"][data.test.labels == label][:8]},
    title="Devices",
)


# %% tags=["hide-input"]
def clients_apart(state, networks=5):
    """Mean distance between clients' mean features of a class, in percent of
    that between classes.
    """
    images, labels, owner = (
        state.tensors[f"uploaded/{name}"]
        for name in ("images", "labels", "client")
    )
    ratios = []
    for k in range(networks):
        found = features(encoder(100 + k), task.inputs(images))
        groups = {
            (int(i), int(c)): found[(owner == i) & (labels == c)].mean(0)
            for i in owner.unique()
            for c in labels.unique()
            if ((owner == i) & (labels == c)).any()
        }
        same = [
            (groups[a] - groups[b]).norm()
            for a in groups
            for b in groups
            if a[0] < b[0] and a[1] == b[1]
        ]
        other = [
            (groups[a] - groups[b]).norm()
            for a in groups
            for b in groups
            if a[0] == b[0] and a[1] < b[1]
        ]
        ratios.append(torch.stack(same).mean() / torch.stack(other).mean())
    return 100 * torch.stack(ratios).mean().item()


# %% tags=["hide-input"]
arms = {
    "no shift (DM)": ("dm", {}),
    "no shift, twice the step": ("gddfl", {"shift_probability": 0}),
    "dsu, image channels": ("gddfl", {}),
    "as printed, image channels": ("gddfl", {"shift": "as_printed"}),
    "dsu, inner layer": ("gddfl", {"shift_layer": 1}),
    "as printed, inner layer": (
        "gddfl",
        {"shift": "as_printed", "shift_layer": 1},
    ),
}
states, measures = {}, {}
for name, (algorithm, changes) in arms.items():
    run = lesson.run(algorithm, clients=equipped, **changes)
    states[name] = run.state
    model = run.experiment.new_algorithm().model(run.state)
    right = {
        where: (
            task.outputs(model, images).argmax(1)
            == data.test.labels.repeat(len(images) // len(data.test))
        )
        for where, images in tests.items()
    }
    measures[name] = {"clients apart (%)": clients_apart(run.state)} | {
        f"accuracy (%), {where}": 100 * hits.float().mean().item()
        for where, hits in right.items()
    }
found = pd.DataFrame(measures).T
found.round(1)

# %% tags=["hide-input"]
less = (
    found["clients apart (%)"].drop("no shift (DM)")
    - found.loc["no shift (DM)", "clients apart (%)"]
)
Markdown(
    f"{int((less < 0).sum())} of {len(less)} variants bring the clients nearer "
    "to each other than DM does; "
    f"the change lies between {less.min():+.1f} and {less.max():+.1f}."
)

# %% [markdown]
# One seed and very small images: this shows how to ask, and settles nothing. The second row tells what of a difference
# to DM is due to the longer step alone.
#
# ## The table
#
# Not in the paper: the readings and places on HAM10000 (*a stand-in for ISIC 2020*), ten images per class. The images
# are in colour, and in the natural partition each client is one of four centres. So if the shift helps, it should help
# in the last column.

# %% tags=["hide-input"]
table("gddfl", "shift", best)

# %% [markdown]
# Points of AUC against DM, over the seeds that both have (in brackets how many):

# %% tags=["hide-input"]
gain = gains("gddfl", "shift", "auc", "no shift (DM)", best)
shown_gain = gain.assign(
    text=[
        f"{value:+.1f} ({seeds})"
        for value, seeds in zip(gain["gain"], gain["seeds"], strict=True)
    ]
).pivot(index="row", columns="column", values="text")
shown_gain.reindex(
    index=[row for row in arms if row in set(gain["row"])],
    columns=gain["column"].unique(),
).fillna("pending")

# %% tags=["hide-input"]
longest = "no shift, twice the step"
beyond = gains("gddfl", "shift", "auc", longest, best).set_index("column")
for column, of in gain.set_index("row").groupby("column", sort=False):
    longer = of["gain"].get(longest)
    shifts = beyond.loc[[column]] if column in beyond.index else beyond[:0]
    shifts = shifts[shifts["row"] != "no shift (DM)"]
    display(
        Markdown(
            f"{column}: the longer step alone "
            + ("is pending" if longer is None else f"has {longer:+.1f}")
            + "".join(
                f"; {one.row} {one.gain:+.1f} beyond it ({one.seeds})"
                for one in shifts.itertuples()
            )
            + "."
        )
    )

# %% [markdown]
# ## What the released code does
#
# A program by the authors came out after the paper. It puts $U_p$ behind the convolutions of a second network, where
# an instance norm follows. Such a norm takes from every map its mean and its deviation, and these are all that $U_p$
# changes:
#
# $$
# \mathrm{IN}\!\left(\hat\sigma \, \frac{x - \mu}{\sigma} + \hat\mu\right) =
# \operatorname{sign}(\hat\sigma) \, \frac{x - \mu}{\sigma} .
# $$ (eq:gdd-undone)
#
# So what the program calls a shift does nothing, but for the sign where a negative deviation is drawn. How far apart
# are the maps of some images and their shifted selves, before and after the norm? Relative to the deviation of the maps:

# %% tags=["hide-input"]
filters = torch.randn(
    8, data.channels, 3, 3, generator=Rng(seed).at("filters").generator()
)
maps = torch.nn.functional.conv2d(batch, filters, padding=1)
shifted_maps = shift.uncertain_shift(maps, 1.0, Rng(seed).at("undone"))
norm = torch.nn.GroupNorm(8, 8, affine=False)
before, after = shifted_maps - maps, norm(shifted_maps) - norm(maps)
pd.Series(
    {
        "before the norm": (before.std() / maps.std()).item(),
        "after it": (after.std() / norm(maps).std()).item(),
    }
).round(4).to_frame("change")

# %% [markdown]
# What is left is DM on the logits of two random networks that never change, under one augmentation, and a server that
# does not train on the last client's images. Each difference alone, and together:

# %% tags=["hide-input"]
Markdown("> " + TableSpec.find("gddfl", "released").note)

# %% tags=["hide-input"]
table("gddfl", "released", best)

# %% tags=["hide-input"]
gap = gains("gddfl", "released", "auc", "as printed", best)
Markdown(
    "AUC against the form as printed, in points, over the seeds that both "
    "have: "
    + "; ".join(
        f"{one.row} {one.gain:+.1f} ({one.seeds})" for one in gap.itertuples()
    )
    + ". Random selection loses in print."
)

# %% [markdown]
# ## Gallery
#
# Every row is a client, with its own device: real and condensed images in turn, class by class. First without a shift,
# then with it.


# %% tags=["hide-input"]
def side_by_side(state, most=5):
    """For every client pairs of a real and a condensed image, one pair a
    class.
    """
    images, labels, owner = (
        state.tensors[f"uploaded/{name}"]
        for name in ("images", "labels", "client")
    )
    rows = {}
    for client in equipped:
        held = client.class_counts.nonzero()[:most, 0]
        pairs = [
            images_of[labels_of == c][:1]
            for c in held
            for images_of, labels_of in (
                (client.images, client.labels),
                (images[owner == client.id], labels[owner == client.id]),
            )
        ]
        rows[f"client {client.id}"] = torch.cat(pairs)
    return rows


for name in ("no shift (DM)", "dsu, image channels", "dsu, inner layer"):
    gallery(
        side_by_side(states[name]), title=f"Real and condensed in turn: {name}"
    )

# %% [markdown]
# The paper says of its Figure 2 that the images keep texture and style and cannot be read by a person. With few steps
# much of the noise of the start is left. The whole page with a larger encoder on a lesion data set, in some minutes:
#
# ```bash
# python -m core notebook notebooks/31_gddfl_shift.py -p dataset ham10000_melanoma_64 -p encoder_depth 3
# ```
#
# ## Take away
#
# - As printed, mean and deviation change places ({eq}`eq:gdd-shift`): images lose contrast, and some become negatives.
# - An encoder with instance normalisation notices the shift of a grey image at the border only; colours and inner
#   layers are another matter. "Where" is as important as "how".
# - Condensation sees the mean over the shift only. Most of the noise cancels.
# - A comparison with DM needs an arm with the longer step and no shift.
#
# ## Exercises
#
# ```{exercise} Mean and deviation
# :label: ex-shift-moments
#
# *Medium, 15 minutes.*
#
# Which mean and which deviation has $\hat x$ in both readings of {eq}`eq:gdd-shift`? Check it with `shift.shifted`.
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
#         side = block.conv.padding[0]
#         block.conv._reversed_padding_repeated_twice = [side] * 4
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

# %% tags=["check", "remove-cell"] name="ex-shift-one"
alone = shift.uncertain_shift(batch[:1], 1.0, Rng(0)) - batch[:1]
assert abs(largest_change - alone.abs().max().item()) < 1e-5, (
    "what is the spread of the statistics of one image?"
)

# %% [markdown]
# ```{exercise} Always
# :label: ex-shift-always
#
# *Easy, 15 minutes.*
#
# The paper takes $p = 0.5$ "to avoid introducing excessive noise". Try $p = 1$ in the inner layer.
# ```
#
# ````{solution} ex-shift-always
# :class: dropdown
#
# ```python
# for p in (0.0, 0.5, 1.0):
#     last = lesson.run(clients=equipped, shift_layer=1, shift_probability=p)
#     print(p, clients_apart(last.state), last.accuracy)
# ```
#
# Algorithm 1 keeps the unshifted loss in any case, so that even at $p = 1$ half of the pull is towards the real images.
# ````
