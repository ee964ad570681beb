# %% [markdown]
# # FedIOD: what images give away
#
# *Question:* how good are the images of FedIOD's {cite:p}`fediod` generator, and do distances between images say anything
# about privacy?\
# *Time:* about a quarter of a minute on one CPU core. *Data:* scikit-learn's digits for the runs; records for Table 7.
#
# The paper scores the synthetic images (Table 7) and compares them with private ones (Figure 4). Neither was released as
# code. The generator of the small run has the adversarial loss only, as in the authors' script for skewed data, and the
# student takes `student_steps` for each of its steps. What a client's *answers* give away is another matter:
# [differential privacy](43_fediod_privacy).

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

# %% tags=["hide-input"]
import pandas as pd
import torch
from torch import nn

from core import distillation, models
from core.checks import check_whole
from core.metrics import image_quality
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
from lab import TableSpec
from lab.report import condensed_images, show, source, table, table_frame
from lab.report.lesson import ADVERSARIAL, answers, small_lesson, trained
from lab.report.results import filled
from lab.report.texts import Markdown

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
members, begin, final = run.clients, lesson.start(), run.state
Markdown(f"Accuracy of the student: {run.accuracy:.1f}%.")

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
# It lies between 1 and the number of classes $C$. The right side is the divergence {eq}`eq:iod-unique` once more: there
# between teachers, for one image; here between images, for one classifier.

# %% mystnb={"code_prompt_show": "Show exponential_score in core"} tags=["hide-cell"]
source(image_quality.exponential_score)

# %% [markdown]
# Usually the classifier is Inception, trained on ImageNet. The paper's *adapted* score takes the local teachers, and
# the mean of their scores (Table 7). Some sets of images; in place of Inception a network that has learned from all
# data:

# %% tags=["hide-input"]
judge = trained(
    task,
    task.inputs(train_set.images),
    train_set.labels,
    150,
    Rng(seed).at("judge"),
).eval()
classifiers = [judge, *lesson.teachers]


def says(images):
    """Probabilities (K + 1, N, C) of images in [0, 1]: the judge, then the
    teachers.
    """
    return answers(classifiers, task.dataset.standardise(images)).softmax(-1)


real = test.images[:300].float() / 255
noise = torch.rand(real.shape, generator=Rng(seed).at("uniform").generator())
sets = {
    "real test images": real,
    "one real image, repeated": real[:1].expand_as(real),
    "pairs of real images, averaged": (real + real.flip(0)) / 2,
    "uniform noise": noise,
    "generator, untrained": lesson.pictures(begin, 300),
    "generator, trained": lesson.pictures(final, 300),
}
pd.DataFrame(
    {
        name: {
            "one classifier": inception_score(said[0]),
            "adapted": adapted_inception_score(said[1:]),
        }
        for name, said in ((name, says(x)) for name, x in sets.items())
    }
).T.round(2)

# %% [markdown]
# A teacher that has seen few classes cannot score high, whatever the images: its score is at most about the number of
# classes it knows. So adapted scores can be compared within one partition only. *Effective classes* is the exponential
# of the entropy of a client's class shares: 1 where all its images are of one class.

# %% tags=["hide-input"]
held = distillation.entropy(lesson.counts / lesson.counts.sum(1, keepdim=True))
pd.DataFrame(
    {
        "its classes": (lesson.counts > 0).sum(1).tolist(),
        "effective classes": held.exp().tolist(),
        "score of real images": [inception_score(p) for p in says(real)[1:]],
    },
    index=[f"client {client.id}" for client in members],
).round(2)

# %% [markdown]
# ### Table 7
#
# The scores of the rows of an [ablation](42_fediod_ablations). The Inception score needs the weights of a network
# trained on ImageNet, which are not part of this book; without them its cells stay pending.

# %% tags=["hide-input"]
table("fediod", 7, best)

# %% tags=["hide-input"]
score = table_frame("fediod", 7, best)
score = score[score["printed"].notna()].pivot(
    index="row", columns="metric", values="printed"
)
score = score.reindex(line.name for line in TableSpec.find("fediod", "7").rows)
differences = score.diff().iloc[1:]
differences.columns = differences.columns.str.replace("_", " ")
Markdown(
    f"Differences from row to row in print: "
    f"{int((differences < 0).to_numpy().sum())} of {differences.size} are "
    "falls."
)

# %% tags=["hide-input"]
filled(differences, "{:+.2f}")

# %% [markdown]
# Most rows are those of Table 6, and then they are the same runs:

# %% tags=["hide-input"]
known = {
    run.id: cell.row
    for cell in TableSpec.find("fediod", "6").cells("paper")
    for run in cell.experiments
}
same = {
    cell.row: known.get(cell.experiments[0].id, "a run of its own")
    for cell in TableSpec.find("fediod", "7").cells("paper")
}
pd.Series(same).rename_axis("Table 7").to_frame("Table 6")

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
# distance is read as more privacy. The features are Inception's in print; here they come from a network with random
# weights, which needs no download. Numbers of two networks cannot be compared, and their order need not be the same:
# compare within a column.

# %% mystnb={"code_prompt_show": "Show frechet_distance in core"} tags=["hide-cell"]
source(image_quality.frechet_distance)

# %% tags=["hide-input"]
features = RandomFeatures(task.dataset.channels)
size = min(100, *(len(client) // 2 for client in members))
distances = {}
for k, client in enumerate(members):
    order = torch.randperm(
        len(client), generator=Rng(seed).at("own", client.id).generator()
    )
    own = client.images[order]
    distances[f"client {client.id}"] = {
        name: fid(own[:size], x[:size], features)
        for name, x in {
            "its own other images": own[size:],
            "another client's images": members[k - 1].images,
            "test images": test.images,
            "generator, trained": sets["generator, trained"],
            "generator, untrained": sets["generator, untrained"],
            "uniform noise": noise,
        }.items()
    }
distances = pd.DataFrame(distances)
distances.assign(mean=distances.mean(axis=1)).round(2)

# %% tags=["hide-input"]
middle = distances.mean(axis=1)
Markdown(
    f"{size} images on each side. The trained generator has "
    f"{middle['generator, trained']:.2f}, an untrained one "
    f"{middle['generator, untrained']:.2f} and noise "
    f"{middle['uniform noise']:.2f}."
    + (
        " Noise is nearer than the trained generator: so this distance ranks "
        "noise as less private, though noise knows nothing."
        if middle["uniform noise"] < middle["generator, trained"]
        else ""
    )
)

# %% [markdown]
# These are the controls that Figure 4 lacks. An untrained generator knows no client and cannot leak, and neither can
# noise; test images played no part. A distance says how *like* the data the images are, and for distillation they
# should be alike.
#
# ### The attack
#
# Deep leakage looks for an image whose gradient is the one that was seen. It needs a smooth network and the gradient of
# one small batch; FedAvg sends the sum of many steps. So this is the best case for the attacker: one image at a time.


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
made = lesson.pictures(final, attacked)
show(
    condensed_images(
        torch.cat([secret, restored, made]),
        torch.arange(3).repeat_interleave(attacked),
        ["private", "restored", "generated"],
        title="From a gradient, and from the generator",
    ),
    alt=f"{attacked} private images of client {client.id} in the first row, "
    "what deep leakage restored from their "
    "gradients in the second, generated images in the third.",
)

# %% [markdown]
# Distances of so few images, and a measure that asks the right question: how near does each image come to *some*
# private image of this client (peak signal-to-noise ratio, in decibels)? And does it come nearer to private images
# than to as many test images, which played no part?

# %% tags=["hide-input"]
reference, control = client.images.float() / 255, test.images.float() / 255
control, unseen = control[:-attacked], control[-attacked:]
many = min(len(reference), len(control))
nearness, each = {}, {}
for name, x in {
    "restored from gradients": restored,
    "generator, trained": made,
    "uniform noise": noise[:attacked],
    "test images": unseen,
}.items():
    near, far = (
        best_matches(x, images[:many]).psnr for images in (reference, control)
    )
    each[name] = near.sort(descending=True).values.tolist()
    mine, others = near.median().item(), far.median().item()
    nearness[name] = {
        "Fréchet distance": fid(secret, x, features),
        "to private (dB)": mine,
        "to test (dB)": others,
        "difference": mine - others,
    }
pd.DataFrame(nearness).T.round(2)

# %% tags=["hide-input"]
said = ", ".join(f"{one:.1f}" for one in each["restored from gradients"])
Markdown(
    f"Image by image the restored ones come this near to a private one: {said} "
    "dB. A median hides the one that failed, and the Fréchet distance of so "
    "few images hides the copies."
    if min(each["restored from gradients"]) < 20
    else f"Image by image the restored ones come this near: {said} dB."
)

# %% [markdown]
# The columns in decibels are medians. Only the last one is about privacy: images that give away this
# client are nearer to its data than to other data of the same kind. The last row looks for test images among others of
# the client and of the test set: it can give nothing away, so a difference of its size is chance. One client and a
# handful of images are an illustration. What a client's *answers* give away is not measured by images at all; that is
# what {eq}`eq:iop-dp` is about.
#
# ## Where paper and code differ
#
# The attack, the distances and the scores were never released. All on this page follows the text.
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
# (inception_score(says(stolen)[0]), fid(reference[:100], stolen, features),
#  best_matches(stolen[:5], reference).psnr.min().item())
# ```
#
# The score praises it, the distance is 0 and the nearness infinite. So a *small* distance is a warning, but only in
# comparison: test images have a small one, too. Nearness to private against nearness to test images tells them apart.
# ````
