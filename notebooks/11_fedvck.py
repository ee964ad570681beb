# %% [markdown]
# # FedVCK
#
# *Question:* how does FedVCK {cite:p}`fedvck` work, equation by equation?\
# *Time:* under half a minute on two CPU cores. *Data:* scikit-learn's digits.
#
# In FedVCK clients send no models. Each condenses its images into a few made-up ones per class ([dataset
# condensation](10_dataset_condensation) shows how), and tries to put into them what the global model does not know
# yet. The server trains on what it received, with an extra loss that pushes apart the classes that are confused most.
#
# ```{figure} ../book/_static/fedvck.svg
# :alt: A server above, clients below. Down goes the global model. Up go condensed images with labels, and logit prototypes, the mean logits of every class. A client asks the model where it errs, draws those images more often, and moves noise until the model sees in it what it sees in the images drawn. Real images, their errors and the model of the round before stay. The server asks the prototypes which classes are confused, trains the model on the images and pushes confused classes apart.
# :name: fig-fedvck
# :width: 330px
#
# Who sends what to whom in a round of FedVCK. Grey goes down, green goes up, red stays.
# ```
#
# This page runs FedVCK on digits, stops before the last round and computes each step once more, in a few lines that
# are compared with `core`. Which of the paper's numbers hold stands among the [results](17_fedvck_results).
#
# Two parameters help the short run: it goes on with the images of the last round (`warm_start`) and sends 32-bit
# numbers (`wire`), because noise that is still in the images would be cut off at black and white. `rounds` must be at
# least 2: before the first the server has no images to look at.

# %% tags=["parameters"]
dataset = "digits"
alpha = 0.5
clients = 10
rounds = 4
iterations = 80
warm_start = True
wire = "float32"
seed = 0
profile = "quick"

# %% tags=["hide-input"]
from functools import partial

import pandas as pd
import torch
from torch.testing import assert_close

from core import condensation, server
from core.algorithms import find
from core.condensation import engine
from core.errors import InputError
from core.report import condensed_images, curves, heat_map, show, source
from core.report.lesson import Lesson, pooled
from core.report.texts import Markdown
from core.rng import Rng

if rounds < 2:
    raise InputError("rounds must be at least 2 on this page")
same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
condensing = {
    "iterations": iterations,
    "image_lr": 1.0,
    "clip_norm": 30.0,
    "pool": 1,
    "server_steps": 60,
    "server_lr": 0.02,
}
lesson = Lesson(
    profile,
    "fedvck",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    own={
        "fedvck": {**condensing, "warm_start": warm_start, "wire": wire},
        "feddm": condensing,
    },
)
settings = lesson.experiment().new_algorithm().settings
task, members = lesson.task, lesson.members()
classes = task.dataset.classes
images, labels, owner = pooled(members)
show(lesson.partition_plot())

# %% [markdown]
# Who holds what: few clients have all classes. The run:

# %%
vck = lesson.run(clients=members)
vck.per_round().round(1)

# %% [markdown]
# ## What a client does
#
# ### Errors of two models
#
# The client receives $M_t$ and remembers $M_{t-1}$. Its error on an image is the cross-entropy of both, blended
# (Eq. 6 is the case $\lambda = 1$, Eq. 7 the general one; the paper writes $\alpha$). $M(x)$ has its softmax, so
# probabilities are blended:
#
# $$
# \mathrm{err}_t(x_i) = L_\text{ce}\bigl(y_i, \; \lambda M_t(x_i) + (1 - \lambda) M_{t-1}(x_i)\bigr) .
# $$ (eq:vck-error)

# %%
states = [lesson.start(), *vck.states]
at = {"now": states[-2], "before": states[-3]}
models = {name: task.model_from(state.tensors) for name, state in at.items()}
logits, previous = (
    task.outputs(models[name], images).double() for name in ("now", "before")
)

a = settings.alpha
blended = a * logits.softmax(1) + (1 - a) * previous.softmax(1)
err = -blended.gather(1, labels[:, None])[:, 0].log()
same(err, condensation.smoothed_error(logits, previous, labels, a))

# %% [markdown]
# The paper blends because the errors of a single model are skewed: a few are huge.

# %% tags=["hide-input"]
ways = {
    "M_t alone (Eq. 6)": (1.0, "probabilities"),
    "both, as printed (Eq. 7)": (a, "probabilities"),
    "both, logits blended (released)": (a, "logits"),
}
errors = {
    name: pd.Series(condensation.smoothed_error(logits, previous, labels, *way))
    for name, way in ways.items()
}
pd.DataFrame(
    {
        name: {
            "mean": e.mean(),
            "deviation": e.std(),
            "skewness": e.skew(),
            "largest": e.max(),
        }
        for name, e in errors.items()
    }
).T.round(2)

# %% tags=["hide-input"]
alone, both = (abs(errors[name].skew()) for name in list(ways)[:2])
Markdown(
    f"Here the skewness of a single model is {alone:.2f} in size, that of the "
    f"blend {both:.2f}: blending makes the errors "
    f"{'less' if both < alone else 'no less'} skewed in this run."
)

# %% [markdown]
# ### From errors to probabilities
#
# An image weighs more when the model errs on it (Eq. 5). The weights of a class on a client, divided by their sum, are
# the probabilities to be drawn (Eq. 8):
#
# $$
# w(x_i) = \frac{1}{1 + e^{-\mathrm{err}_t(x_i) + b}}
# $$ (eq:vck-importance)
#
# $$
# P_w(x_i) = \frac{w(x_i)}{\sum_j w(x_j)} .
# $$ (eq:vck-selection)

# %%
_, group = torch.unique(owner * len(classes) + labels, return_inverse=True)
groups = int(group.max()) + 1  # one for each class of each client

w = 1 / (1 + (settings.b - err).exp())
P = w / torch.zeros(groups).double().index_add(0, group, w)[group]
same(w, condensation.importance(err, settings.b))
same(P, condensation.selection_probabilities(w, group, groups))

# %% [markdown]
# With the authors' $b$ (0, 0.3 and 0.7) an image that is perfectly known still weighs a third to a half of one that is
# quite wrong. So the probabilities are not far from uniform. Here are the ratio of the largest to the smallest of a
# class, and the *effective* share of images, $1 / (n \sum_i P_i^2)$, which is 100% for uniform ones. The released code
# takes a softmax of the weights, whose ratio cannot exceed $e$:


# %% tags=["hide-input"]
def spread(p):
    high, low = (
        torch.zeros(groups)
        .double()
        .scatter_reduce(0, group, p, way, include_self=False)
        for way in ("amax", "amin")
    )
    squares = torch.zeros(groups).double().index_add(0, group, p.square())
    effective = 1 / squares / torch.bincount(group)
    return {
        "largest ratio": (high / low).max().item(),
        "least effective share (%)": 100 * effective.min().item(),
    }


softmax = condensation.selection_probabilities(w, group, groups, "softmax")
pd.DataFrame(
    {"printed (share)": spread(P), "released (softmax)": spread(softmax)}
).T.round(2)

# %% [markdown]
# What does the model not know? On the largest client, of every class: at the left the six images that are most likely
# to be drawn, at the right the six that are least likely.

# %% tags=["hide-input"]
largest = max(range(len(members)), key=lambda k: len(members[k]))
mine = (owner == largest).nonzero()[:, 0]
mine = mine[P[mine].argsort(descending=True)]
ends = [
    rows if len(rows) < 12 else torch.cat([rows[:6], rows[-6:]])
    for c in range(len(classes))
    for rows in [mine[labels[mine] == c]]
]
chosen = torch.cat(ends)
show(
    condensed_images(
        images[chosen],
        labels[chosen],
        classes,
        columns=12,
        title=f"Client {members[largest].id}, by P_w",
        inches=0.3,
    )
)

# %% [markdown]
# ### Condensation
#
# Batches drawn by $P_w$ take the place of uniform ones in the condensation loss {eq}`eq:dc-mmd` (Eq. 9), so that
# the real side is a weighted expectation (Eq. 10):
#
# $$
# \min_S \sup_{\lVert \psi_\theta \rVert_\mathcal{H} \le 1}
# \bigl(\mathbb{E}_{P_w}[\psi_\theta(\mathcal{T})] - \mathbb{E}[\psi_\theta(S)]\bigr) .
# $$ (eq:vck-expectation)
#
# Batches estimate this expectation. With a linear kernel it can also be computed exactly, once for a round, which is
# what short runs do. The condensed images are normalised with the statistics of the real ones: Eq. 4,
# {eq}`eq:dc-latent`.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the batches in core"}
source(engine.REAL_SIDES["minibatch"])

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the exact expectation in core"}
source(engine.REAL_SIDES["expectation"])

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show all that a client does, in core"}
source(find("fedvck").condense)

# %% [markdown]
# This is what the clients have sent in the last round, one row a class:

# %% tags=["hide-input"]
last = vck.state.tensors
new = last["knowledge/round"] == rounds - 1
sent, sent_labels = last["knowledge/images"][new], last["knowledge/labels"][new]
mean, std = task.dataset.mean, task.dataset.std
show(
    condensed_images(
        sent
        if sent.dtype == torch.uint8
        else condensation.to_wire(sent, mean, std),
        sent_labels,
        classes,
        columns=14,
        title="Condensed in the last round",
        inches=0.3,
    )
)

# %% [markdown]
# ### Logit prototypes
#
# Beside its images a client sends, for every class, the mean logits of the model that it received (Eq. 11). The
# server averages them, weighted by numbers of images (Eq. 12):
#
# $$
# \mathbf{p}_c^{k,t} = \frac{1}{N_{c,k}} \sum_i f_{M_{t-1}}(x_{i,c,k}), \qquad
# \mathbf{p}_c^{t} = \frac{1}{|\mathcal{T}_c|} \sum_k |\mathcal{T}_{c,k}| \, \mathbf{p}_c^{k,t} .
# $$ (eq:vck-prototypes)
#
# So the server has what it would have if all images lay in one place:

# %%
is_class = torch.nn.functional.one_hot(labels, len(classes)).double()
pooled_means = is_class.T @ logits / is_class.sum(0).clamp(min=1)[:, None]

each = [
    server.logit_prototypes(
        logits[owner == k], labels[owner == k], len(classes)
    )
    for k in range(len(members))
]
prototypes = server.aggregate_prototypes(
    *(torch.stack(values) for values in zip(*each, strict=True))
)
same(prototypes, pooled_means)

# %% [markdown]
# ## What the server does
#
# ### Hard negatives
#
# The classes other than $c$ that get the largest logits on images of class $c$ are those it is confused with (Eq. 13):
#
# $$
# \mathrm{HN}(c) = \operatorname*{arg\,topK}_{j \ne c} \; \mathbf{p}_c[j] .
# $$ (eq:vck-negatives)

# %%
k = min(3, len(classes) - 1)
ranked = prototypes.argsort(descending=True, stable=True).tolist()
mine = [[j for j in row if j != c][:k] for c, row in enumerate(ranked)]
same(torch.tensor(mine), server.hard_negatives(prototypes, k))

present = is_class.sum(0) > 0
negatives = server.hard_negatives(prototypes, k, present)

# %% tags=["hide-input"]
show(
    heat_map(
        prototypes,
        classes,
        negatives,
        title=f"Logit prototypes and {k} hard negatives",
        across="logit of",
        down="images of",
    )
)

# %% [markdown]
# Are these the confusions that really happen? For every class we take the $K$ other classes that test images of it are
# most often taken for.

# %% tags=["hide-input"]
test = task.dataset.test
guessed = task.outputs(models["now"], test.images).argmax(1)
confusion = torch.bincount(
    test.labels * len(classes) + guessed, minlength=len(classes) ** 2
)
confused = server.hard_negatives(confusion.view(len(classes), -1).float(), k)
hits = (
    (confused[:, :, None] == negatives[:, None, :]).any(2).float().mean().item()
)
Markdown(
    f"{hits:.0%} of them are among the {k} hard negatives; by chance it would "
    f"be {k / (len(classes) - 1):.0%}."
)

# %% [markdown]
# ### Feature prototypes and the relational contrastive loss
#
# Mean features of all condensed images of the rounds before, by the model as it is at the start of the round (Eq. 14):
#
# $$
# \mathbf{f}_c^t = \frac{1}{|\mathcal{S}_c^{0, \dots, t-1}|}
# \sum_{s_i \in \mathcal{S}_c^{0, \dots, t-1}} \psi_\theta^{t-1}(s_i) .
# $$ (eq:vck-features)
#
# Features, passed through a learnable projector $h$, shall be near the prototype of their class and far from those of
# its hard negatives (Eq. 15):
#
# $$
# L_{rc} = \sum_{(s_i, c_i) \in \mathcal{S}^t} -\log
# \frac{\exp\bigl(h(\psi_\theta^t(s_i)) \cdot \mathbf{f}_{c_i}^t / \tau\bigr)}
# {\sum_{c_j \in \mathrm{HN}(c_i)} \exp\bigl(h(\psi_\theta^t(s_i)) \cdot \mathbf{f}_{c_j}^t / \tau\bigr)} .
# $$ (eq:vck-contrast)
#
# The positive is not in the denominator, so the loss can be negative; with the dot product as printed it has no lower
# bound at all. Our default takes the cosine, as SimSiam (Chen and He 2021) does, which the paper follows, and a mean in
# place of the sum, so that the weight against the cross-entropy does not depend on the number of images.


# %%
def network_inputs(pictures):
    return task.inputs(pictures) if pictures.dtype == torch.uint8 else pictures


then, tau = at["now"].tensors, settings.temperature
with torch.no_grad():  # before the server trains in this round
    model = models["now"].eval()
    old, z = (
        model.embed(network_inputs(pictures)).double()
        for pictures in (then["knowledge/images"], sent)
    )
    projector = server.Projector(z.shape[1], Rng(seed).at("h")).double().eval()
    z = projector(z)
f, here = server.feature_prototypes(old, then["knowledge/labels"], len(classes))

cosine = torch.cosine_similarity(z[:, None], f[None], dim=2) / tau
terms = []
for row, c in zip(cosine, sent_labels.tolist(), strict=True):
    others = [j for j in negatives[c].tolist() if j >= 0 and here[j]]
    if here[c] and others:
        terms.append(row[others].exp().sum().log() - row[c])
loss = torch.stack(terms).mean()

given = (z, sent_labels, f, negatives, tau)
core_loss = server.relational_contrastive_loss
same(loss, core_loss(*given, "printed", "cosine", here))

# %% tags=["hide-input"]
dot = core_loss(*given, "printed", "dot", here).item()
released = core_loss(*given, "released", "cosine", here).item()
Markdown(
    f"On the knowledge of this round the loss is {loss:.2f}; with the dot "
    f"product as printed it is {dot:.2f}, in the released form {released:.2f}."
)

# %% [markdown]
# ### The update
#
# The global model minimises (Eq. 16)
#
# $$
# L_\text{update} = L_\text{ce}(\mathcal{S}^t) + L_{rc} .
# $$ (eq:vck-update)
#
# The two copies of the paper's text disagree on $\mathcal{S}^t$: one reads it as the images of this round, the other as
# all so far. Both can be had (`keep_rounds`); the default is this round.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the loop in core"}
source(server.update_model)

# %% [markdown]
# ## The run beside others
#
# FedDM {cite:p}`feddm` condenses without the three parts of FedVCK, FedAvg {cite:p}`fedavg` sends models.


# %% tags=["hide-input"]
runs = [
    vck.record,
    lesson.run("feddm").record,
    lesson.run("fedavg", local_steps=10, lr=0.05).record,
]
show(curves(runs, title=lesson.title))

# %% [markdown]
# This run is tiny: 8x8 images, a thin network, few rounds and few iterations. It shows how the
# method works and says nothing about how good it is. That is what the [results](17_fedvck_results) are for.
#
# The equations above are those in print, but for the cosine. The authors' code differs in many places, and [a page of
# its own](13_fedvck_paper_vs_released) goes through them one by one. What is odd in the paper as printed stands among
# the [errata](../book/errata).
#
# ## Take away
#
# - A client asks the global model what it does not know ({eq}`eq:vck-importance`) and condenses that.
# - The server learns from images, not from models, so the clients' different classes cannot pull it apart.
# - The logit prototypes are small and tell which classes are confused ({eq}`eq:vck-negatives`).
#
# ## Exercises
#
# ```{exercise} How uneven can it get?
# :label: ex-vck-ratio
#
# *Medium, 15 minutes.*
#
# What is the largest possible ratio of two probabilities in {eq}`eq:vck-selection` for $b = 0.3$? And with the softmax
# of the released code?
# ```
#
# ````{solution} ex-vck-ratio
# :class: dropdown
#
# The error is at least 0, so $w \ge 1 / (1 + e^{b})$, and $w < 1$. The ratio is below $1 + e^{b}$. With the softmax it
# is below $e^{1 - 1/(1 + e^b)}$.
#
# ```python
# import math
#
# b = 0.3
# 1 + math.exp(b), math.exp(1 - 1 / (1 + math.exp(b)))
# ```
#
# No image can take over the batch, however wrong the model is about it.
# ````

# %% tags=["solution", "remove-cell"]
import math

largest_printed = 1 + math.exp(0.3)
largest_released = math.exp(1 - 1 / (1 + math.exp(0.3)))

# %% tags=["check", "remove-cell"] name="ex-vck-ratio"
errors = torch.linspace(0, 60, 1001, dtype=torch.float64)
weight = condensation.importance(errors, 0.3)
for answer, chance in [
    (largest_printed, weight),
    (largest_released, weight.exp()),
]:
    reached = (chance.max() / chance.min()).item()
    assert answer > 0.999 * reached, "some errors have a larger ratio"
    assert answer < 1.001 * reached, "no errors have a ratio as large as this"

# %% [markdown]
# ```{exercise} A class that nobody holds
# :label: ex-vck-absent
#
# *Easy, 10 minutes.*
#
# What are $\mathbf{p}_c$, $\mathrm{HN}(c)$ and $\mathbf{f}_c$ of a class without any image? Try it with
# `server.hard_negatives(prototypes, 3, present=...)`.
# ```
#
# ````{solution} ex-vck-absent
# :class: dropdown
#
# ```python
# held = torch.arange(len(classes)) != 0
# server.hard_negatives(prototypes, 3, held)
# ```
#
# $\mathbf{p}_c$ is a row of zeros, which stands for "unknown". The class is chosen by nobody, and has no negatives
# itself: its row is all -1, which the loss leaves out. It has no feature prototype either.
# ````

# %% tags=["solution", "remove-cell"]
absent_row = [-1, -1, -1]

# %% tags=["check", "remove-cell"] name="ex-vck-absent"
held = torch.arange(len(classes)) != 0
found = server.hard_negatives(prototypes, 3, held)[0].tolist()
assert list(absent_row) == found, "look at row 0 of what the server returns"

# %% [markdown]
# ```{exercise} Without a bound
# :label: ex-vck-dot
#
# *Hard, 20 minutes.*
#
# Show that {eq}`eq:vck-contrast` with the dot product has no lower bound in the length of $h$.
# ```
#
# ```{solution} ex-vck-dot
# :class: dropdown
#
# Let $z = a u$ with $u$ such that $u \cdot \mathbf{f}_c > u \cdot \mathbf{f}_j$ for all hard negatives $j$. Then $l =
# \log \sum_j \exp(a \, u \cdot (\mathbf{f}_j - \mathbf{f}_c) / \tau) \le \log K - a m / \tau$ with the margin $m > 0$.
# It falls without end as $a$ grows, and the projector can make $a$ as large as it likes. The cosine fixes $a = 1$.
# ```
