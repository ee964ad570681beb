# %% [markdown]
# # Many teachers
#
# *Question:* why is the average of several networks a bad teacher when each has seen other classes, and what can a
# student learn from them?\
# *Time:* under a minute on one CPU core. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# Clients with different networks can teach one student by their answers ([knowledge
# distillation](06_knowledge_distillation)). But clients also have different data, and then their answers do not fit
# together. You will see
#
# - what a network answers about classes that it has never seen;
# - three ways to combine answers, and the weights that are right for perfect teachers;
# - what a student inherits, and why the inputs decide that. [FedIOD](28_fediod) is built on both.

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
alpha = 0.1
clients = 8
steps = 50
student_steps = 150
questions = 1000
seed = 0

# %%
import math

import numpy as np
import pandas as pd
import torch

from core import distillation
from core.data.auxiliary import PHOTOGRAPHS, auxiliary
from core.rng import Rng
from lab.report import dots, image_rows, lines, show
from lab.report.lesson import (
    answers,
    distilled,
    share_right,
    small_lesson,
    trained,
)

rng = Rng(seed)
fields = {"dataset": dataset, "clients": clients, "seed": seed}
lesson = small_lesson("quick", {"local_steps": steps}, alpha=alpha, **fields)
task = lesson.task
train_set, test = task.dataset.train, task.dataset.test

# %% [markdown]
# ## Clients that teach
#
# Each client trains a teacher on its own data, once.

# %%
counts, teachers = lesson.counts, lesson.teachers
show(lesson.partition_plot())

# %% [markdown]
# How does a teacher judge an image of a class that it has seen, and one that it has not?

# %%
z = answers(teachers, task.inputs(test.images))
q = z.softmax(-1)
truth = test.labels.expand(len(teachers), -1)
known = counts[:, test.labels] > 0
views = {
    "accuracy (%)": (z.argmax(-1) == truth).float(),
    "probability of the right class (%)": q.gather(2, truth[..., None])[..., 0],
    "largest probability (%)": q.max(-1).values,
}
sides = {"a class it has": known, "a class it has not": ~known}
pd.DataFrame(
    {
        side: {
            name: 100 * of[where].mean().item() for name, of in views.items()
        }
        for side, where in sides.items()
    }
).round(1)

# %% [markdown]
# A teacher cannot say "I do not know". Its probabilities must sum to one, and nearly all of it goes to the classes that
# it has, so it is often sure of a wrong one. And a class that it never saw gets a very low logit on *all* images:
# pushing it down cost nothing in training.
#
# ## Three ensembles
#
# With $\pi_k = n_k / N$, the ensemble can be the mean of probabilities or the mean of logits:
#
# $$
# \bar q(x) = \sum_{k=1}^{K} \pi_k \, q_k(x), \qquad \bar z(x) = \sum_{k=1}^{K} \pi_k \, z_k(x) .
# $$ (eq:kd-averages)
#
# The first lets sure teachers win, right or wrong. The second gives each teacher a *veto*: one very low logit pulls the
# sum down, and here it comes from those who know least. Class-wise weights (FedIOD, Eq. 8, first factor, and Eq. 9)
# ask, for class $c$, only those who have it, in proportion to how many images of it they have:
#
# $$
# A(x)^c = \sum_{k=1}^{K} \frac{n_{k,c}}{\sum_{j} n_{j,c}} \, z_k^c(x) .
# $$ (eq:kd-classwise)


# %%
def ensembles(z, counts):
    """Scores (N, C) of three ensembles of K teachers with logits (K, N, C)."""
    n = counts.to(z.dtype)
    pi = n.sum(1) / n.sum()
    by_class = n / n.sum(0).clamp_min(1)
    return {
        "mean of probabilities": torch.einsum(
            "k,knc->nc", pi, z.softmax(-1)
        ).log(),
        "mean of logits": torch.einsum("k,knc->nc", pi, z),
        "class-wise weights": torch.einsum("kc,knc->nc", by_class, z),
    }


def compared(alpha):
    other = lesson.changed(alpha=alpha)
    z = answers(other.teachers, task.inputs(test.images))
    scores = ensembles(z, other.counts)
    return {
        name: share_right(logits, test.labels)
        for name, logits in scores.items()
    }


rows = [
    {"alpha": value, "label": name, "accuracy (%)": accuracy}
    for value in (0.05, 0.1, 0.5, 10.0)
    for name, accuracy in compared(value).items()
]
title = f"Ensembles of {clients} networks on {dataset}"
show(lines(pd.DataFrame(rows), "alpha", "accuracy (%)", log="x", title=title))

# %% [markdown]
# Where clients are alike (large $\alpha$), all ensembles are alike. This is one split and one seed: read no more into
# small differences.
#
# ## Why: perfect teachers
#
# Is this the fault of small networks? Let us take teachers that cannot be better: each gives the exact probabilities for
# its own data. Even a perfect teacher errs where classes overlap, so the most that can be reached is the accuracy of one
# client with all data. Points in the plane come from $C$ classes with known densities $P(x \mid c)$, and client $k$
# differs from the others in its class frequencies
# $P_k(c)$ only. Its perfect answer is Bayes' rule,
#
# $$
# P_k(c \mid x) = \frac{P_k(c) \, P(x \mid c)}{P_k(x)}, \qquad P_k(x) = \sum_c P_k(c) \, P(x \mid c) .
# $$ (eq:kd-bayes)
#
# What should come out is the answer of one who has all data. It *is* a mean of the clients' answers, with weights that
# depend on the input:
#
# $$
# P(c \mid x) = \sum_{k=1}^{K} \pi_k \, \frac{P_k(x)}{P(x)} \, P_k(c \mid x) .
# $$ (eq:kd-mixture)
#
# So those should count who have seen inputs like $x$ (Mansour and others {cite:p}`multiplesources`). Leaving
# $P_k(x) / P(x)$ out is the error of the mean of probabilities. And the mean of the logarithms, with the logits
# normalised, is
#
# $$
# \sum_k \pi_k \log P_k(c \mid x) = \log P(x \mid c) + \sum_k \pi_k \log P_k(c) + \text{const}(x) :
# $$ (eq:kd-veto)
#
# Bayes' rule again, but with the *geometric* mean of the class frequencies, where the arithmetic mean is right. A
# client with $P_k(c) \to 0$ sends it to zero. That is the veto.
#
# Class-wise weights take this veto away, as a client without the class has no say on it. They leave another error
# behind. By {eq}`eq:kd-bayes` a logit contains the term $-\log P_k(x)$. In {eq}`eq:kd-veto` these terms add up to one
# number for all classes and change nothing. With class-wise weights every class gets another sum of them.
#
# FedIOD weights with $P_k(y \mid x) / P(y \mid x)$ (Eq. 7). By {eq}`eq:kd-bayes` this is
#
# $$
# \frac{P_k(y \mid x)}{P(y \mid x)} = \frac{P_k(y)}{P(y)} \cdot \frac{P(x)}{P_k(x)} ,
# $$ (eq:kd-ratio)
#
# a class ratio and an input ratio. The input ratio is the inverse of that in {eq}`eq:kd-mixture`: it
# is large for clients who have *not* seen such inputs. As here all densities are known, we can try both, each times the
# class-wise weights, which are counts: $\pi_k$ times the class ratio.


# %%
def toy(alpha, draw, points=4000, many=5):
    """Accuracy (%) of ensembles of perfect teachers, each of one Dirichlet draw
    of class shares.
    """
    stream = rng.at("toy", draw)
    angle = 2 * math.pi * torch.arange(many) / many
    centres = 1.5 * torch.stack([angle.cos(), angle.sin()], 1)
    generator = stream.generator()
    y = torch.randint(many, (points,), generator=generator)
    x = centres[y] + torch.randn(points, 2, generator=generator)
    # 10,000 images of each class, handed out
    counts = torch.from_numpy(
        stream.numpy().dirichlet(np.full(many, alpha), many).T * 10_000
    ).round()
    pi, own = (
        counts.sum(1) / counts.sum(),
        counts / counts.sum(1, keepdim=True).clamp_min(1),
    )
    log_x_given_c = -(x[:, None] - centres).square().sum(-1) / 2
    joint = (
        log_x_given_c + own.clamp_min(1e-12).log()[:, None]
    )  # log P_k(c) P(x | c)
    log_p_k = joint.logsumexp(-1)  # log P_k(x)
    z = joint - log_p_k[..., None]  # log P_k(c | x)
    ratio = (
        log_p_k - (log_x_given_c - math.log(many)).logsumexp(-1)
    ).exp()  # P_k(x) / P(x)

    def weighted(generated):
        ones = torch.ones(many)
        return distillation.ensemble_logits(
            z, distillation.class_input_importance(counts, generated, ones)
        )

    scores = ensembles(z, counts) | {
        "class-wise, P(x) / P_k(x)": weighted(1 / ratio),
        "class-wise, P_k(x) / P(x)": weighted(ratio),
        "mixture": torch.einsum("k,kn,knc->nc", pi, ratio, z.exp()),
    }
    return {name: share_right(logits, y) for name, logits in scores.items()}


toys = pd.DataFrame(
    [
        {"alpha": value, "label": name, "accuracy (%)": accuracy}
        for value in (0.05, 0.1, 0.3, 1.0, 3.0, 10.0)
        for draw in range(40 if value < 0.1 else 8)
        for name, accuracy in toy(value, draw).items()
    ]
)
title = "Ensembles of perfect teachers"
show(lines(toys, "alpha", "accuracy (%)", log="x", title=title))

# %% [markdown]
# The mixture is Bayes' rule of all data at any skew, so nothing could do better: perfect answers are enough if the right
# teachers count. Where clients differ much, no weight by class is as good. In the extreme case, where each client has a
# single class, every teacher answers "my class, surely" to any input, and has all the weight of its class. Compare also
# the two input ratios: that of Eq. 7 with its inverse.
#
# ## Which inputs?
#
# A student learns to give the mixed answers. It needs inputs to ask about, but no labels. Here the ensemble has
# class-wise weights, and the inputs are the clients' own images, which in truth nobody may collect; windows of two
# photographs, as public data of another kind; or noise.

# %%
order = torch.randperm(len(train_set.labels), generator=rng.generator())
asked = train_set.images[order[:questions]]
noise = torch.randint(
    256, asked.shape, generator=rng.at("noise").generator(), dtype=torch.uint8
)
photographs = auxiliary(PHOTOGRAPHS, task.dataset)[: len(asked)]
kinds = {
    "clients' images": asked,
    "photographs": photographs,
    "noise": noise,
}
some = {name: pictures[:12] for name, pictures in kinds.items()}
show(image_rows(some, "Query images", inches=0.5))


# %%
def of_ensemble(pictures):
    """The answers of the ensemble to images (N, C)."""
    z = answers(teachers, task.inputs(pictures))
    return ensembles(z, counts)["class-wise weights"]


def taught(pictures, target):
    """Accuracy (%) of a student of these answers."""
    loss, inputs = distillation.mimic_loss, task.inputs(pictures)
    net = distilled(task, inputs, target, loss, student_steps, rng.at("heir"))
    return share_right(task.outputs(net, test.images), test.labels)


inputs, labels = task.inputs(train_set.images), train_set.labels
alone = task.outputs(trained(task, inputs, labels, 3 * steps, rng), asked)
pupils = {
    "ensemble itself": share_right(of_ensemble(test.images), test.labels),
    **{
        f"student, {name}": taught(pictures, of_ensemble(pictures))
        for name, pictures in kinds.items()
    },
    "student of one teacher with all data": taught(asked, alone),
}
accuracy = pd.DataFrame(pupils.items(), columns=["name", "value"])
show(dots(accuracy, "test accuracy (%)", "Who has learned what (n = 1)"))

# %% [markdown]
# How many classes does the ensemble see in the inputs? The exponential of the entropy of its mean answer:

# %%
looks = {
    name: distillation.entropy(of_ensemble(pictures).softmax(1).mean(0))
    for name, pictures in kinds.items()
}
pd.Series({k: v.exp().item() for k, v in looks.items()}).round(1).to_frame(
    "classes"
)

# %% [markdown]
# Where all inputs look like few classes to the teachers, the student learns few. To look like many classes is needed,
# but not enough: compare the photographs. FedDF {cite:p}`feddf`, FedMD {cite:p}`fedmd` and FedKD {cite:p}`fedkdgong` ask
# about public images, and depend on how much these resemble the clients'. [FedIOD](28_fediod) *learns* its inputs: a
# generator makes images that look real to the clients, on which teachers are sure, yet differ.
#
# ## Take away
#
# - A teacher is sure even where it knows nothing. Under label skew an average listens to the wrong teachers: averaged
#   logits give everyone a veto {eq}`eq:kd-veto`.
# - Class-wise weights {eq}`eq:kd-classwise` remove the veto. What is right for a perfect teacher is a weight by input
#   {eq}`eq:kd-mixture`.
# - A student inherits what the ensemble knows, as far as its inputs look to the teachers like what they know.
#
# ## Exercises
#
# ```{exercise} One class each
# :label: ex-kd-single
#
# *Hard, 30 minutes.*
#
# Let each client of the toy have one class only. What do the three ensembles answer? What does {eq}`eq:kd-mixture`
# answer?
# ```
#
# ````{solution} ex-kd-single
# :class: dropdown
#
# $P_k(k \mid x) = 1$ for every $x$. The mean of probabilities is $\bar q^c = \pi_c$, the same for all inputs. All
# logarithms but one are $-\infty$, so is their mean. Class-wise weights give $A(x)^c = \log 1 = 0$ for each class: a
# tie. A ratio of inputs changes nothing, as after normalisation the only owner of a class has weight 1. Only the
# mixture is right: it is $\pi_c P_c(x) / P(x)$, Bayes' rule.
#
# ```python
# pd.Series(toy(1e-3, 0))
# ```
#
# comes close: there each class has one owner, who may have several.
# ````
#
# ```{exercise} Who counts how much
# :label: ex-kd-share
#
# *Medium, 15 minutes.*
#
# `class_input_importance(counts, class_ratio="share")` divides each client's counts by its size. How do the weights
# change for the smallest client, and which form has {eq}`eq:kd-classwise`?
# ```
#
# ````{solution} ex-kd-share
# :class: dropdown
#
# ```python
# smallest = counts.sum(1).argmin()
# importance = distillation.class_input_importance
# pd.DataFrame({
#     ratio: importance(counts, class_ratio=ratio)[smallest, 0]
#     for ratio in ("count", "share")
# })
# ```
#
# Counts are {eq}`eq:kd-classwise`. With shares a client with one image weighs as much on its class as a client with
# thousands of which all are of that class. FedIOD's Eq. 8 can be read both ways; its text
# speaks of the number of samples.
# ````
#
# ```{exercise} How many query images?
# :label: ex-kd-questions
#
# *Easy, 10 minutes.*
#
# Train the student on the first half of the clients' images, `asked`, then on a quarter, and so on, with the steps
# unchanged. When does it get worse than the student of all photographs?
# ```
#
# ````{solution} ex-kd-questions
# :class: dropdown
#
# ```python
# target = of_ensemble(asked)
# halved = [len(asked) >> k for k in range(8)]
# {n: taught(asked[:n], target[:n]) for n in halved}, pupils["student, photographs"]
# ```
#
# Only with very few. What a query image is worth depends on how near it is to what the teachers know, more than on how
# many there are.
# ````
