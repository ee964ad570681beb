# %% [markdown]
# # Copies and gradients
#
# *Question:* are condensed images copies of private ones, and what can be read back from a gradient, from weights and
# from condensed images?\
# *Time:* some seconds on one CPU core. *Data:* scikit-learn's digits.
#
# [The page before this](16_fedvck_privacy) asks who took part. Here an attacker wants to see the images themselves, in
# what FedVCK {cite:p}`fedvck`, GDD-FL {cite:p}`gddfl` and FedAvg upload.

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
clients = 3
fraction = 0.2
iterations = 20
attacked = 2
attack_iterations = 10
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import copy

import pandas as pd
import torch
from torch import nn

from core import models
from core.privacy import leakage
from core.rng import Rng
from lab import attack as attacks
from lab import make_clients
from lab.report import condensed_images, show, source
from lab.report.lesson import Lesson
from lab.report.texts import Markdown

# %%
lesson = Lesson(
    profile,
    "fedvck",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=1,
    seed=seed,
    model_options={"width": 16},
    train_fraction=fraction,
    own={
        "fedvck": {
            "iterations": iterations,
            "image_lr": 1.0,
            "clip_norm": 30.0,
            "server_steps": 20,
        },
        "gddfl": {"images_per_class": 2},
    },
)
task = lesson.task

# %% [markdown]
# ## Are they copies?
#
# FedVCK starts from noise, so its images hold "no individual and privacy information in pixel space"; those of GDD-FL
# should hold no precise personal information either. Look: the condensed images of a client of FedVCK, and the private
# image that is nearest to each.

# %% tags=["hide-input"]
members = make_clients(lesson.experiment(), task)
client = members[0]


def uploaded(name):
    """What each client sends in the first round: images in [0, 1], labels."""
    algorithm = lesson.experiment(name).new_algorithm()
    state = algorithm.initialise(task, Rng(seed).at("initialise"))
    uploads = algorithm.at_clients(
        "client_update",
        members,
        {one.id: algorithm.broadcast(state, one.id) for one in members},
        Rng(seed).at("round", 1, "client"),
    )
    sent = {id_: upload.tensors for id_, upload in uploads.items()}
    return {
        id_: (one["images"].float() / 255, one["labels"].long())
        for id_, one in sent.items()
    }


of_all = uploaded("fedvck")
knowledge = of_all[client.id]
own = client.images.float() / 255
near = leakage.best_matches(knowledge[0], own)
few = torch.arange(0, len(knowledge[1]), max(1, len(knowledge[1]) // 8))[:8]
show(
    condensed_images(
        torch.cat([knowledge[0][few], own[near.row[few]]]),
        torch.arange(2).repeat_interleave(len(few)),
        ["condensed", "nearest"],
        title="Condensed images and their nearest private ones",
    ),
    alt=f"{len(few)} condensed images of client 0 in the first row, and the "
    "most similar of its private images "
    "below each.",
)

# %% [markdown]
# Some image is always nearest. The question is whether private images are nearer than images of the same class that
# played no part. The targets of the membership attack on [another page](16_fedvck_privacy) are just that: half of them
# are private, half played no part, balanced class by class.


# %% tags=["hide-input"]
def sides(one):
    """A client's private targets and the others: images in [0, 1], labels."""
    asked = attacks.targets(one, Rng(seed).at("nearest"))
    pixels = asked.images.float() / 255
    return [
        (pixels[which], asked.labels[which])
        for which in (asked.member, ~asked.member)
    ]


private, others = sides(client)
compared = {
    "FedVCK's images": leakage.nearness(knowledge, private, others),
    "GDD-FL's images": leakage.nearness(
        uploaded("gddfl")[client.id], private, others
    ),
    "private images with noise": leakage.nearness(
        (
            (
                private[0]
                + 0.1
                * torch.randn(
                    private[0].shape,
                    generator=Rng(seed).at("noise").generator(),
                )
            ).clamp(0, 1),
            private[1],
        ),
        private,
        others,
    ),
}
pd.DataFrame({name: one.summary() for name, one in compared.items()}).T.round(3)

# %% [markdown]
# The last row is the control: this is what copies look like. Nearness is the peak signal-to-noise ratio (PSNR) in
# decibels, larger where images are more alike. *Probability by chance*: if private and other images changed places at
# random, how often would at least this share be nearer to a "private" one?

# %% tags=["hide-input"]
found = {True: [], False: []}
for name, one in compared.items():
    odds = f"{one.chance:.2f}" if one.chance >= 0.01 else "below 0.01"
    found[one.chance < 0.05].append(f"{name} ({odds})")
Markdown(
    "Nearer to private images than chance allows, with 0.05 as the limit: "
    f"{', '.join(found[True]) or 'none'}. Not so: "
    f"{', '.join(found[False]) or 'none'}."
)

# %% [markdown]
# That is one client. The same probability for FedVCK's images of each:

# %% tags=["hide-input"]
chances = {
    f"client {one.id}": leakage.nearness(of_all[one.id], *sides(one)).chance
    for one in members
}
pd.Series(chances).round(3).to_frame("by chance")

# %% [markdown]
# Clients differ, and so do seeds; and these are images after few moves from noise (try `iterations = 200`). Images that
# carry the mean of a client's class can be nearer to its images without being copies. So this test neither shows copies
# nor rules them out.

# %% [markdown]
# ## What a gradient gives away
#
# Model-centric methods have another leak. Deep leakage {cite:p}`dlg` restores an image from its gradient, and for one
# image the label need not be looked for {cite:p}`idlg`: the gradient with respect to the last layer's bias is $p - y$,
# below zero only at the label. FedAvg sends weights; of *one* local step they give the gradient, of many a mixture. The
# network attacked here is a small, smooth one, with fresh weights that are drawn large, so that the attack works well.

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(leakage.revealed_labels)

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(leakage.gradients_of_step)


# %%
data, half = task.dataset, -(-task.dataset.size // 2)
network = models.fresh(
    lambda: nn.Sequential(
        nn.Conv2d(data.channels, 4, 3, stride=2, padding=1),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(4 * half**2, data.num_classes),
    ),
    rng=Rng(seed).at("victim"),
)
with torch.no_grad():
    for weight in network.parameters():
        weight.mul_(3)  # far enough from linear to tell images apart

# %% tags=["hide-input"]


def after(x, y, steps, lr=0.1):
    """Weights before and after so many steps of SGD on one image."""
    before = {name: w.clone() for name, w in network.state_dict().items()}
    weights, moved = dict(before), copy.deepcopy(network)
    for _ in range(steps):
        moved.load_state_dict(weights)
        slopes = leakage.gradients(moved, x, y)
        weights = {name: w - lr * slopes[name] for name, w in weights.items()}
    return leakage.gradients_of_step(before, weights, lr * steps)


rows = []
for i in range(attacked):
    x, y = own[i : i + 1], client.labels[i : i + 1]
    seen = {
        "gradient": leakage.gradients(network, x, y),
        "weights, 1 step": after(x, y, 1),
        "weights, 5 steps": after(x, y, 5),
    }
    of_class = knowledge[0][knowledge[1] == y][:1]
    seen["knowledge"] = leakage.gradients(network, of_class, y)
    for name, leak in seen.items():
        labels = leakage.revealed_labels(leak["3.bias"])
        restored = leakage.deep_leakage(
            network,
            leak,
            tuple(x.shape),
            task.dataset.num_classes,
            leakage.DeepLeakage(iterations=attack_iterations),
            Rng(seed).at("restore", i),
            labels[:1],
        ).images.clamp(0, 1)
        rows.append(
            {
                "attacked": name,
                "label found": labels.tolist() == y.tolist(),
                "PSNR (dB)": leakage.best_matches(restored, x).psnr.item(),
                "SSIM": leakage.similarity(restored, x).item(),
            }
        )
pd.DataFrame(rows).groupby("attacked", sort=False).mean().round(3)

# %% [markdown]
# SSIM, structural similarity, is 1 for equal images and near 0 for unrelated ones.
#
# The gradient on condensed images leads back to the condensed images at best, which the attacker has already. That says
# nothing about the private ones ([a page on FedMK](24_fedmk_knowledge) has the details); membership does.
#
# ## Take away
#
# - Some private image is always the nearest. Only images that played no part say how near is too near.
# - A gradient on one image gives away its label and, in a small smooth network like this page's, the image; the weights
#   after one step are a gradient, and after more a mixture of them.
# - An attack on the gradient of condensed images finds at best the condensed images, which were sent anyway.
#
# ## Exercises
#
# ```{exercise} How much noise hides a copy?
# :label: ex-leak-noise
#
# *Easy, 15 minutes.*
#
# The control above has noise with a deviation of 0.1. From which deviation on does the comparison no longer tell copies
# from other images of the class?
# ```
#
# ````{solution} ex-leak-noise
# :class: dropdown
#
# ```python
# for deviation in (0.1, 0.5, 1.0, 2.0, 4.0):
#     draws = Rng(seed).at("exercise", str(deviation)).generator()
#     noise = deviation * torch.randn(private[0].shape, generator=draws)
#     found = leakage.nearness((private[0] + noise, private[1]), private, others)
#     print(deviation, round(found.share, 2), found.chance)
# ```
#
# With a deviation of 0.5, half of a pixel's range, copies still stand out: the noise of 64 pixels averages out in the
# distance. With 1 they hardly do. To the eye such an image is noise much earlier, so the comparison is made with
# numbers.
# ````
