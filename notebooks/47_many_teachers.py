# %% [markdown]
# # Many teachers
#
# *Question:* why is the average of several networks a bad teacher when each has seen other classes?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# Clients with different networks can teach one student by their answers ([knowledge
# distillation](40_knowledge_distillation)). But clients also have different data, and then their answers do not fit
# together. This chapter shows what goes wrong and what can be done. [The next](36_ensemble_student) lets a student
# learn from such teachers, and [FedIOD](41_fediod) is built on both.

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
width = 16
alpha = 0.1
clients = 8
steps = 50
seed = 0

# %% tags=["hide-input"]
import math

import numpy as np
import pandas as pd
import torch
from torch.testing import assert_close

from core import data, distillation
from core.federation import Task
from core.rng import Rng
from lab.report import lines, partition_plot, show, source
from lab.report.lesson import answers, ensembles, panel, share_right
from lab.report.texts import Markdown

rng = Rng(seed)
task = Task(data.load(dataset), "convnet", {"depth": 2, "width": width})
labels, test = task.dataset.train.labels, task.dataset.test

# %% [markdown]
# ## Clients that teach
#
# Each client trains a teacher on its own data, once.

# %% tags=["hide-input"]
some = panel(task, clients, alpha, steps, seed)
counts, teachers = some.counts, some.networks
names = task.dataset.classes
show(partition_plot(labels, some.parts, names, title=f"alpha = {alpha:g}"))

# %% [markdown]
# How does a teacher judge an image of a class that it has seen, and one that it has not?

# %% tags=["hide-input"]
z = answers(teachers, task.inputs(test.images))
q = z.softmax(-1)
truth = test.labels.expand(len(teachers), -1)
known = counts[:, test.labels] > 0
found = {
    "accuracy": z.argmax(-1) == truth,
    "its probability of the right class": q.gather(2, truth[..., None])[..., 0],
    "its largest probability": q.max(-1).values,
}
view = pd.DataFrame(
    {
        name: {
            what: 100 * values[of].float().mean().item()
            for what, values in found.items()
        }
        for name, of in (
            ("a class it has", known),
            ("a class it has not", ~known),
        )
        if of.any()
    }
)
view.T.round(1)

# %% [markdown]
# A teacher cannot say "I do not know". Its probabilities must sum to one, and nearly all of it goes to the classes that
# it has, so it is often sure of a wrong one. And a class that it never saw gets a very low logit on *all* images:
# pushing it down cost nothing in training.
#
# ## Two averages
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
n = counts.float()
pi = n.sum(1) / n.sum()
q_bar = torch.einsum("k,knc->nc", pi, q)
z_bar = torch.einsum("k,knc->nc", pi, z)
A = torch.einsum("kc,knc->nc", n / n.sum(0).clamp_min(1), z)

mixed = ensembles(z, counts)
for by_hand, in_core in zip(
    (q_bar.log(), z_bar, A), mixed.values(), strict=True
):
    assert_close(by_hand, in_core, rtol=0, atol=1e-4)

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(ensembles)


# %% tags=["hide-input"]
def right(scores, labels=test.labels):
    """Accuracy (%) of scores (N, C)."""
    return share_right(scores, labels)


scores = {"best single teacher": max(right(one) for one in z)}
scores |= {name: right(one) for name, one in mixed.items()}
pd.Series(scores).round(1).to_frame("accuracy (%)")

# %% [markdown]
# ## Why: perfect teachers
#
# Is this the fault of small networks? Let us take teachers that cannot be better: each gives the exact probabilities for
# its own data. Such a perfect teacher still errs, for the classes overlap: of an input that two classes share nobody can
# know the class. So the ceiling is below 100%: it is the accuracy of one client with all data. Points in the plane come
# from $C$ classes with known densities $P(x \mid c)$, and client $k$ differs from the others in its class frequencies
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
# So those should be heard who have seen inputs like $x$ (Mansour and others {cite:p}`multiplesources`). Leaving
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
# a class ratio and an input ratio. Note that the input ratio stands the other way up than in {eq}`eq:kd-mixture`: it
# is large for clients who have *not* seen such inputs. As here all densities are known, we can try both, each times the
# class-wise weights, which are counts: $\pi_k$ times the class ratio.


# %% tags=["hide-input"]
def toy(alpha, draw, points=4000, many=5):
    """Accuracy (%) of ensembles of perfect teachers, each of one Dirichlet draw
    of class shares.
    """
    here = rng.at("toy", draw)
    angle = 2 * math.pi * torch.arange(many) / many
    centres = 1.5 * torch.stack([angle.cos(), angle.sin()], 1)
    generator = here.generator()
    y = torch.randint(many, (points,), generator=generator)
    x = centres[y] + torch.randn(points, 2, generator=generator)
    # 10,000 images of each class, handed out
    counts = torch.from_numpy(
        here.numpy().dirichlet(np.full(many, alpha), many).T * 10_000
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
        "ceiling": log_x_given_c + counts.sum(0).log(),  # all data, Bayes' rule
    }
    return {name: right(one, y) for name, one in scores.items()}


toys = pd.DataFrame(
    [
        {"alpha": a, "label": name, "accuracy": value}
        for a in (0.05, 0.1, 0.3, 1.0, 3.0, 10.0)
        for draw in range(40 if a < 0.1 else 8)
        for name, value in toy(a, draw).items()
    ]
)
shown = toys[~toys["label"].str.contains(",")]
show(
    lines(
        shown,
        "alpha",
        "accuracy",
        log="x",
        ylabel="accuracy (%)",
        xlabel="alpha (small: unequal clients)",
        title="Ensembles of perfect teachers (band: over splits)",
    )
)

# %% mystnb={"code_prompt_show": "Show all numbers"} tags=["hide-cell"]
pivot = toys.pivot_table(
    index="label", columns="alpha", values="accuracy", sort=False
)
pivot.rename_axis(index=None).round(1)

# %% tags=["hide-input"]
kept_order = [
    "class-wise, P(x) / P_k(x)",
    "class-wise weights",
    "class-wise, P_k(x) / P(x)",
]
hardest = pivot[pivot.columns.min()]
ratio, alone, inverse = hardest[kept_order]


def beside(value):
    """A row beside class-wise weights alone, in words."""
    return f"{'better' if value > alone else 'worse'} ({value:.1f}%)"


Markdown(
    f"At alpha = {pivot.columns.min():g} class-wise weights alone have "
    f"{alone:.1f}%. The input ratio of Eq. 7, the row *P(x) / P_k(x)*, makes "
    f"them {beside(ratio)}, its inverse, the row *P_k(x) / P(x)*, "
    f"{beside(inverse)}. One client with all data, the ceiling, has "
    f"{hardest['ceiling']:.1f}%, and the mixture {hardest['mixture']:.1f}%."
)

# %% [markdown]
# The mixture reaches the ceiling at any skew, and nothing could do better: perfect answers are enough if the right
# teachers are heard.
#
# Where clients differ much, no weight by class is as good. In the extreme case, where each client has a single class,
# every teacher answers "my class, surely" to any input, and has all the weight of its class.
#
# ## Back to networks
#
# Networks are no perfect teachers: their logits are not normalised, and far from their data they can say anything. The
# same comparison, over the skew of the clients:


# %% tags=["hide-input"]
def compared(alpha):
    some = panel(task, clients, alpha, steps, seed)
    z = answers(some.networks, task.inputs(test.images))
    return {name: right(one) for name, one in ensembles(z, some.counts).items()}


swept = {a: compared(a) for a in sorted({0.05, 0.5, 10.0} - {alpha})} | {
    alpha: {name: scores[name] for name in mixed}
}
frame = pd.DataFrame(
    [
        {"alpha": a, "label": name, "accuracy": value}
        for a in sorted(swept)
        for name, value in swept[a].items()
    ]
)
show(
    lines(
        frame,
        "alpha",
        "accuracy",
        log="x",
        ylabel="accuracy (%)",
        xlabel="alpha (small: unequal clients)",
        title=f"Ensembles of {clients} networks on {dataset}",
    )
)

# %% mystnb={"code_prompt_show": "Show the numbers"} tags=["hide-cell"]
pd.DataFrame(swept).sort_index(axis=1).rename_axis(columns="alpha").round(1)

# %% [markdown]
# Where clients are alike, all ensembles are alike. One split and one seed: do not read more into small differences.
#
# ## Take away
#
# - A teacher is sure even where it knows nothing. Under label skew an average listens to the wrong teachers: averaged
#   logits give everyone a veto {eq}`eq:kd-veto`.
# - Class-wise weights {eq}`eq:kd-classwise` remove the veto, which need not make them better than a mean of
#   probabilities: with perfect teachers at the strongest skew above they are not. What is right for a perfect teacher is
#   a weight by input {eq}`eq:kd-mixture`.
#
# [The next chapter](36_ensemble_student) asks what a student can learn from an ensemble, and from which inputs.
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
# thousands of which all are of that class. FedIOD's Eq. 8 can be read both ways; its text speaks of the number of
# samples.
# ````
