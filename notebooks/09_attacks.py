# %% [markdown]
# # Attacks on what is sent
#
# *Question:* what can a curious server tell from a model, from condensed images and from a gradient?\
# *Time:* under a minute on two CPU cores. *Data:* scikit-learn's digits.
#
# No image leaves a client, and yet what is sent depends on it. The attacker here is a server that follows the protocol
# and is curious. You will see three attacks, and what each is compared with:
#
# - *membership*: was this image in the client's data (LiRA {cite:p}`lira`)? Compared with chance.
# - *copies*: do condensed images show private ones? Compared with images that played no part, and with noisy copies.
# - *deep leakage*: which image has this gradient {cite:p}`dlg`? Compared with the gradient on a condensed image.
#
# The papers' tables are compared in [FedVCK's results](12_fedvck_results) and [FedIOD's](31_fediod_privacy).

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
local_epochs = 15
iterations = 20
shadows = 8
attacked = 3
attack_iterations = 10
seed = 0
profile = "quick"

# %%
import copy

import numpy as np
import pandas as pd
import torch
from torch import nn

from core import models
from core.metrics.image_quality import RandomFeatures, fid
from core.privacy import leakage, membership
from core.privacy.membership import LikelihoodRatio
from core.rng import Rng
from lab import attack as attacks
from lab import make_clients
from lab.report import image_rows, lines, scatter, show, source
from lab.report.lesson import Lesson

plan = LikelihoodRatio(shadows=shadows)
lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=1,
    seed=seed,
    model_options={"width": 16},
    train_fraction=fraction,
    own={
        "fedavg": {"local_steps": None, "local_epochs": local_epochs},
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
# ## Membership: the likelihood ratio
#
# A model is surer of images that it was trained on. But some images are easy for every model, so confidence alone says
# little. LiRA asks how sure a model is *compared with models that saw this image and models that did not*. Confidence is
# measured as log odds of the probability $p$ that the model gives to the true class, a softmax of its logits,
#
# $$
# \phi(x) = \log \frac{p}{1 - p}, \qquad p = p(x)_y ,
# $$ (eq:pri-confidence)
#
# which is about normal where $p$ itself is crowded near 1.
#
# The attacker draws shadow data sets. Each holds what it knows of the client, and a random half of the targets; so each
# target is inside one half of the shadow models and outside the others. With the mean and the variance of $\phi$ on
# both sides, the attack scores a target by
#
# $$
# \begin{aligned}
# \Lambda_\text{online} &= \log \frac{\mathcal N(\phi(x);\ \mu_\text{in}, \sigma_\text{in}^2)}
# {\mathcal N(\phi(x);\ \mu_\text{out}, \sigma_\text{out}^2)}, \\
# \Lambda_\text{offline} &= \log \Pr\bigl[Z \le \phi(x)\bigr],\quad Z \sim \mathcal N(\mu_\text{out}, \sigma_\text{out}^2) ,
# \end{aligned}
# $$ (eq:pri-ratio)
#
# where $\phi(x)$ is the confidence of the model that is attacked. Offline needs no shadow model with the image. The two
# variances are each one number for all targets, as LiRA's authors advise for fewer than 64 shadow models.

# %%
source(membership.likelihood_ratios)

# %% [markdown]
# FedAvg uploads a model, FedVCK uploads images. What can an attacker make of one upload? *What the server of the method
# makes of it when it is the only one.* Of a model, that is the model itself; of condensed images, a model trained on
# them with the method's own recipe. So one program attacks both, and a shadow run is nothing new: a round of the method,
# with other data in the client's place.

# %%
outcomes = {}
for name in ("fedavg", "fedvck"):
    run = lesson.experiment(name)
    algorithm, people = run.new_algorithm(), make_clients(run, task)
    outcomes[name] = attacks.attack(algorithm, task, people, seed, plan)

# %% [markdown]
# Some targets of one client of FedAvg, from the one at which shadow models trained with it and without it differ most
# to the one at which they differ least. An attack asks in which of the two clouds the attacked model's mark lies. Few
# images have clouds of their own, and even there the mark can lie in the wrong one.

# %%
evidence = outcomes["fedavg"].clients[0].evidence
with_it = evidence.inside
apart = pd.DataFrame(evidence.shadows).where(with_it).mean()
apart -= pd.DataFrame(evidence.shadows).where(~with_it).mean()
ranked = apart.abs().sort_values(ascending=False).index
chosen = ranked[np.linspace(0, len(ranked) - 1, 6).astype(int)]
names = {True: "shadow with it", False: "shadow without it"}
marks = {True: "attacked: member", False: "attacked: no member"}
rows = []
for place, image in enumerate(chosen):
    for value, inside in zip(
        evidence.shadows[:, image], with_it[:, image], strict=True
    ):
        rows.append((place, value, names[bool(inside)]))
    member = bool(evidence.member[image])
    rows.append((place, evidence.target[image], marks[member]))
points = pd.DataFrame(rows, columns=["image", "log odds", "label"])
show(scatter(points, "image", "log odds", title="How sure models are"))

# %% [markdown]
# ### How much is found?
#
# The area under the ROC curve (AUC) is the chance that a member scores higher than another image; 0.5 is chance level.
# An average over all images hides what hurts: a few members that are found *for certain*. So both rates are drawn on
# logarithmic axes.

# %%
axes, rocs = ("false positive rate", "true positive rate", "label"), []
for name, outcome in outcomes.items():
    together = outcome.together()
    wrong, right = membership.roc(together.online, together.member)
    rocs.append(
        pd.DataFrame(dict(zip(axes, (wrong, right, name), strict=True)))
    )
least = 1 / (~together.member).sum()
ends = [[least] * 2 + ["chance"], [1, 1, "chance"]]
rocs = pd.concat([*rocs, pd.DataFrame(ends, columns=axes)])
rocs = rocs[(rocs[list(axes[:2])] > 0).all(axis=1)]
show(lines(rocs, *axes, log="xy", title="Uploads of all clients"))

# %% [markdown]
# ### What chance gives
#
# An attack that knows nothing is right about half of the time, and not exactly half. On a client with $n$ members and as
# many others its AUC has the variance of the statistic of Mann and Whitney,
#
# $$
# \mathrm{Var} = \frac{2 n + 1}{12 n^2} .
# $$ (eq:pri-chance)
#
# FedVCK's paper reports, over clients, the maximum of the AUC, its mean, and the *defence rate*, the share of clients
# with an AUC of at most 0.5, where lower values count as 0.5. That lifts the mean of an attack that knows nothing, and
# the maximum over clients is higher still. Its defence rate is one half, not one.

# %%
rows = {}
for name, outcome in outcomes.items():
    each = list(outcome.clients.values())
    sizes = [int(client.member.sum()) for client in each]
    rows[name] = membership.defence([client.auc for client in each])
    rows[f"{name}, by chance"] = membership.defence_by_chance(sizes)
names = ["largest AUC", "mean AUC", "defence rate"]
pd.DataFrame(rows).T.set_axis(names, axis=1).round(3)

# %% [markdown]
# So few images and clients decide nothing here; the point is the pair of rows. A statement on privacy needs the attack's
# chance level and an attack that succeeds where it should: let FedAvg's clients pass over their data more often (an
# exercise).
#
# ## Are condensed images copies?
#
# FedVCK starts from noise, so that its images hold no private pixel. Look: the condensed images of a client, and the
# private image that is nearest to each.


# %%
members = make_clients(lesson.experiment("fedvck"), task)
client = members[0]


def uploaded(name):
    """What the first client sends: images in [0, 1], labels."""
    algorithm = lesson.experiment(name).new_algorithm()
    state = algorithm.initialise(task, Rng(seed).at("initialise"))
    sent = {
        member.id: algorithm.broadcast(state, member.id) for member in members
    }
    rng = Rng(seed).at("round", 1, "client")
    uploads = algorithm.at_clients("client_update", members, sent, rng)
    tensors = uploads[client.id].tensors
    return tensors["images"].float() / 255, tensors["labels"].long()


images, labels = uploaded("fedvck")
own = client.images.float() / 255
near = leakage.best_matches(images, own)
rows = {"condensed": images[:10], "nearest private": own[near.row[:10]]}
show(image_rows(rows, "Condensed images of one client"))

# %% [markdown]
# Some image is always nearest. The question is whether private images are nearer than images of the same class that
# played no part. So the attacker scores a target $x$ with label $y$ by the nearest of the uploaded images $x'$ of its class
# {cite:p}`ganleaks`,
#
# $$
# s(x) = -\min_{x' :\, y' = y} \lVert x - x' \rVert^2 .
# $$ (eq:pri-nearest)
#
# Clients that send images as they are cannot pass it: what is sent has distance 0. The controls: private images with
# noise, and noise alone.

# %%
asked = attacks.targets(client, Rng(seed).at("nearest"))
targets = asked.images.float() / 255, asked.labels
private = targets[0][asked.member], asked.labels[asked.member]
draws = Rng(seed).at("noise").generator()
noise = torch.randn(private[0].shape, generator=draws)
compared = {
    "FedVCK's images": (images, labels),
    "GDD-FL's images": uploaded("gddfl"),
    "private images with noise": (private[0] + 0.1 * noise, private[1]),
    "noise alone": (0.5 + 0.5 * noise, private[1]),
}


def area(uploads):
    """Area under the ROC curve of the attack by the nearest upload."""
    scores = leakage.nearest_upload(targets, uploads)
    return membership.auc(scores.numpy(), asked.member.numpy())


def distance(uploads):
    """Fréchet distance to the private images."""
    network = RandomFeatures(task.dataset.channels)
    return fid(private[0], uploads[0].clamp(0, 1), network)


scores = {"AUC": area, "Fréchet distance": distance}
pd.DataFrame(
    {
        name: {score: of(uploads) for score, of in scores.items()}
        for name, uploads in compared.items()
    }
).T.round(3)

# %% [markdown]
# The last column is the Fréchet distance {cite:p}`frechetdistance` to the private images, by which FedIOD's paper judges
# privacy: a larger one is taken for more. It says how *like* the data the images are. Noise alone knows nothing, and
# its distance says nothing about privacy. Only a comparison with images that played no part does.
#
# This is one client: chance level is 0.5, with the spread of {eq}`eq:pri-chance`, as *noise alone* shows, and an image near
# the client's mean is near its images without being a copy. [FedVCK's results](12_fedvck_results) have this attack on all
# clients, also in features.
#
# ## What a gradient gives away
#
# Model-centric methods have another leak. Who knows the network $F$ and sees the gradient $\nabla W$ on one image can look
# for an image and a label with the same gradient,
#
# $$
# x'^*, y'^* = \operatorname*{arg\,min}_{x', y'}
# \Bigl\lVert \frac{\partial \ell(F(x', W), y')}{\partial W} - \nabla W \Bigr\rVert^2 .
# $$ (eq:pri-dlg)
#
# For one image the label need not be looked for {cite:p}`idlg`: the gradient with respect to the last layer's bias is
# $p - y$, below zero only at the label. FedAvg sends weights; of *one* local step they give the gradient, of many a
# mixture.

# %% [markdown]
# The network attacked here is small and smooth, with fresh weights that are drawn large: the best case for the attacker,
# whose search still often ends at a wrong image.

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


# %%
def after(x, y, steps, lr=0.1):
    """Weights before and after so many steps of SGD on one image."""
    before = {name: w.clone() for name, w in network.state_dict().items()}
    weights, moved = dict(before), copy.deepcopy(network)
    for _ in range(steps):
        moved.load_state_dict(weights)
        slopes = leakage.gradients(moved, x, y)
        weights = {name: w - lr * slopes[name] for name, w in weights.items()}
    return leakage.gradients_of_step(before, weights, lr * steps)


def restored(leak, y, i):
    """The image in [0, 1] that has this gradient, as far as it is found."""
    shape = (1, *own.shape[1:])
    how = leakage.DeepLeakage(iterations=attack_iterations)
    rng, classes = Rng(seed).at("restore", i), data.num_classes
    result = leakage.deep_leakage(network, leak, shape, classes, how, rng, y)
    return result.images.clamp(0, 1)


rows, pictures = [], {"private": own[:attacked]}
for i in range(attacked):
    x, y = own[i : i + 1], client.labels[i : i + 1]
    condensed = images[labels == y][:1]
    leaks = {
        "gradient": leakage.gradients(network, x, y),
        "weights, 1 step": after(x, y, 1),
        "weights, 5 steps": after(x, y, 5),
        "condensed image": leakage.gradients(network, condensed, y),
    }
    for name, leak in leaks.items():
        image = restored(leak, y, i)
        psnr = leakage.best_matches(image, x).psnr.item()
        rows.append({"attacked": name, "PSNR (dB)": psnr})
        pictures.setdefault(name, []).append(image)
pictures = {
    name: of if name == "private" else torch.cat(of)
    for name, of in pictures.items()
}
show(image_rows(pictures, "What is restored from ..."))

# %%
by = pd.DataFrame(rows).groupby("attacked", sort=False)["PSNR (dB)"]
counts = by.agg(["size", lambda of: (of > 20).sum()])
counts.set_axis(["images", "above 20 dB"], axis=1)

# %% [markdown]
# The gradient on condensed images leads back to the condensed images at best, which the attacker has already. FedMK's
# paper shows that what comes out does not resemble private images (Figure 6). That could hardly be otherwise, and does
# not show that condensed images are safe.
#
# ## Take away
#
# - Membership is judged by image: easy ones are easy for every model {eq}`eq:pri-ratio`. An attack that knows nothing
#   has a defence rate of one half, and a mean AUC above 0.5 {eq}`eq:pri-chance`.
# - Some private image is always the nearest. Only images that played no part say how near is too near.
# - A gradient on one image gives away its label and, in a small smooth network, sometimes the image.
# - That no attack of one kind succeeds is no proof. Only [differential privacy](31_fediod_privacy) bounds all of them.
#
# ## Exercises
#
# ```{exercise} More epochs
# :label: ex-pri-epochs
#
# *Medium, 20 minutes.*
#
# Does FedAvg give more away when clients pass over their data more often?
# ```
#
# ````{solution} ex-pri-epochs
# :class: dropdown
#
# ```python
# for epochs in (5, 20, 60):
#     run = lesson.experiment("fedavg", local_epochs=epochs)
#     outcome = attacks.attack(run.new_algorithm(), task, make_clients(run, task), seed, plan)
#     print(epochs, round(outcome.together().auc, 3))
# ```
#
# Yes, the area grows with the epochs: what is learnt by heart can be found. With so few images look at the trend.
# ````
#
# ```{exercise} Real images in the place of condensed ones
# :label: ex-pri-random
#
# *Medium, 20 minutes.*
#
# What do both attacks say of random images of one's own (`random_selection`, `images_per_class=5, server_epochs=20`)?
# ```
#
# ````{solution} ex-pri-random
# :class: dropdown
#
# ```python
# run = lesson.experiment("random_selection", images_per_class=5, server_epochs=20)
# outcome = attacks.attack(run.new_algorithm(), task, make_clients(run, task), seed, plan)
# found = outcome.metrics()
# found["mia_auc_mean"], found["mia_tpr_0.01"], found["mia_nearest_pixels_tpr_0.01"]
# ```
#
# Most members are not sent, so the area is near chance level. Those that are sent are found by the nearest upload, all of
# them without a false alarm.
# ````
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
#     print(deviation, round(area((private[0] + noise, private[1])), 2))
# ```
#
# With a deviation of 0.5, half of a pixel's range, copies are still found: the noise of 64 pixels averages out in the
# distance. With 1 they hardly do. To the eye such an image is noise much earlier, so the comparison is made with
# numbers.
# ````
