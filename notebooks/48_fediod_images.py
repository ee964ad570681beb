# %% [markdown]
# # FedIOD: what images give away
#
# *Question:* how good are the images of FedIOD's {cite:p}`fediod` generator, and do distances between images say anything
# about privacy?\
# *Time:* about a quarter of a minute on one CPU core. *Data:* scikit-learn's digits for the run; records for Table 7.\
# *Learn first:* [FedIOD](41_fediod).
#
# The paper scores the synthetic images (Table 7) and compares them with private ones (Figure 4). Neither was released as
# code. The generator of the small run has the adversarial loss only, as in the authors' script for skewed data. What a
# client's *answers* give away is another matter: [privacy](43_fediod_privacy).

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
rounds = 4
steps = 12
student_steps = 4
attacked = 4
attack_iterations = 12
seed = 0
profile = "quick"
shown = "best"

# %%
import pandas as pd
import torch
from torch import nn

from core import models
from core.checks import check_whole
from core.metrics.image_quality import (
    RandomFeatures,
    adapted_inception_score,
    fid,
    inception_score,
)
from core.privacy.leakage import (
    DeepLeakage,
    best_matches,
    deep_leakage,
    gradients,
)
from core.rng import Rng
from lab.report import condensed_images, show, table
from lab.report.lesson import ADVERSARIAL, answers, small_lesson, trained

check_whole("attacked", attacked, 2)
best = None if shown == "best" else shown
lesson = small_lesson(
    profile,
    {**ADVERSARIAL, "distill_steps": steps, "student_steps": student_steps},
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
)
task = lesson.task
train_set, test = task.dataset.train, task.dataset.test
run = lesson.run()
members = run.clients

# %% [markdown]
# ## How good are the images?
#
# Privacy by bad images is easy. So quality first. The *inception score* {cite:p}`inceptionscore` takes a classifier
# $p(y | x)$ and asks that each image be of one class, and all classes occur:
#
# $$
# \mathrm{IS} = \exp \mathbb{E}_x \bigl[ \mathrm{KL}\bigl(p(y | x) \,\Vert\, p(y)\bigr) \bigr]
# = \exp \bigl\{ H(\mathbb{E}_x \, p(y | x)) - \mathbb{E}_x H(p(y | x)) \bigr\} .
# $$ (eq:iop-inception)
#
# It is between 1 and the number of classes. Usually the classifier is Inception, trained on ImageNet; the paper's
# *adapted* score takes the local teachers, and the mean of their scores. Some sets of images, with a network that has
# learned from all data in place of Inception:

# %%
judge = trained(
    task,
    task.inputs(train_set.images),
    train_set.labels,
    150,
    Rng(seed).at("judge"),
).eval()
real = test.images[:300].float() / 255
noise = torch.rand(real.shape, generator=Rng(seed).at("uniform").generator())
sets = {
    "real test images": real,
    "one real image, repeated": real[:1].expand_as(real),
    "pairs of real images, averaged": (real + real.flip(0)) / 2,
    "uniform noise": noise,
    "generator, untrained": lesson.pictures(lesson.start(), 300),
    "generator, trained": lesson.pictures(run.state, 300),
}
scores = {}
for name, images in sets.items():
    inputs = task.dataset.standardise(images)
    p = answers([judge, *lesson.teachers], inputs).softmax(-1)
    scores[name] = {
        "one classifier": inception_score(p[0]),
        "adapted": adapted_inception_score(p[1:]),
    }
pd.DataFrame(scores).T.round(2)

# %% [markdown]
# A teacher that has seen few classes cannot score high, whatever the images. So adapted scores can be compared within
# one partition only. Table 7 has the scores of some rows of [Table 6](42_fediod_ablations); the weights of Inception are
# no part of this book, so its cells stay pending.

# %%
table("fediod", 7, best)

# %% [markdown]
# ## Figure 4: distances
#
# The paper measures the Fréchet distance {cite:p}`frechetdistance` between synthetic and private images, of Gaussians
# fitted to the features of both, with means $m, m'$ and covariances $\Sigma, \Sigma'$,
#
# $$
# d^2 = \lVert m - m' \rVert^2 + \mathrm{Tr}\bigl(\Sigma + \Sigma' - 2 (\Sigma \Sigma')^{1/2}\bigr),
# $$ (eq:iop-frechet)
#
# and compares it with that of images which an attacker restores from FedAvg's updates (DLG, {cite:p}`dlg`). A larger
# distance is read as more privacy. Here are the controls that Figure 4 lacks, with features of a network with random
# weights:

# %%
features = RandomFeatures(task.dataset.channels)
size = min(100, *(len(client) // 2 for client in members))
distances = {}
for k, client in enumerate(members):
    order = torch.randperm(
        len(client), generator=Rng(seed).at("own", client.id).generator()
    )
    own = client.images[order]
    others = {
        "its own other images": own[size:],
        "another client's images": members[k - 1].images,
        "test images": test.images,
        "generator, trained": sets["generator, trained"],
        "generator, untrained": sets["generator, untrained"],
        "uniform noise": noise,
    }
    distances[f"client {client.id}"] = {
        name: fid(own[:size], x[:size], features) for name, x in others.items()
    }
pd.DataFrame(distances).round(2)

# %% [markdown]
# An untrained generator knows no client and cannot leak, and neither can noise; test images played no part. A distance
# says how *like* the data the images are, and for distillation they should be alike.
#
# ### The attack
#
# Deep leakage looks for an image whose gradient is the one that was seen. This is the best case for the attacker: a
# smooth network, one image at a time.

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

client = members[0]
secret, marks = client.images[:attacked].float() / 255, client.labels[:attacked]
restored = torch.cat(
    [
        deep_leakage(
            network,
            gradients(network, x[None], y[None]),
            (1, *x.shape),
            task.dataset.num_classes,
            DeepLeakage(iterations=attack_iterations),
            Rng(seed).at("attack", i),
        ).images
        for i, (x, y) in enumerate(zip(secret, marks, strict=True))
    ]
).clamp(0, 1)
made = lesson.pictures(run.state, attacked)
show(
    condensed_images(
        torch.cat([secret, restored, made]),
        torch.arange(3).repeat_interleave(attacked),
        ["private", "restored", "generated"],
        title="From a gradient, and from the generator",
    )
)

# %% [markdown]
# A measure that asks the right question: how near does each image come to *some* private image of this client (peak
# signal-to-noise ratio, medians in decibels), and does it come nearer to them than to as many test images, which played
# no part?

# %%
reference, control = client.images.float() / 255, test.images.float() / 255
control, unseen = control[:-attacked], control[-attacked:]
many = min(len(reference), len(control))
nearness = {}
for name, x in {
    "restored from gradients": restored,
    "generator, trained": made,
    "uniform noise": noise[:attacked],
    "test images": unseen,
}.items():
    private, others = (
        best_matches(x, images[:many]).psnr.median().item()
        for images in (reference, control)
    )
    nearness[name] = {
        "to private (dB)": private,
        "to test (dB)": others,
        "difference": private - others,
    }
pd.DataFrame(nearness).T.round(2)

# %% [markdown]
# Only the last column is about privacy: images that give away this client are nearer to its data than to other data of
# the same kind. The last row can give nothing away, so a difference of its size is chance.
#
# ## Take away
#
# - An adapted score is bounded by the classes that a teacher knows: compare within one partition only.
# - A large Fréchet distance follows from bad images as well. Compare with controls: noise, test images.
# - Images give away a client where they are nearer to its data than to other data of the same kind.
#
# ## Exercise
#
# ```{exercise} A thief
# :label: ex-iop-thief
#
# *Easy, 15 minutes.*
#
# A generator hands out private images. What do its inception score, its Fréchet distance and its nearness say?
# ```
#
# ````{solution} ex-iop-thief
# :class: dropdown
#
# ```python
# stolen = reference[:100]
# p = answers([judge], task.dataset.standardise(stolen))[0].softmax(-1)
# inception_score(p), fid(stolen, stolen, features), best_matches(stolen[:5], reference).psnr.min().item()
# ```
#
# The score praises it, the distance is 0 and the nearness infinite. So a *small* distance is a warning, but only in
# comparison: test images have a small one, too. Nearness to private against nearness to test images tells them apart.
# ````
