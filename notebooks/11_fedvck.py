# %% [markdown]
# # FedVCK
#
# *Question:* how does FedVCK {cite:p}`fedvck` work, equation by equation, and which of its numbers hold when they are
# measured again?\
# *Time:* about a minute on two CPU cores. *Data:* scikit-learn's digits for the run; records for the tables.
#
# In FedVCK clients send no models. Each condenses its images into a few made-up ones per class ([dataset
# condensation](10_dataset_condensation) shows how), and tries to put into them what the global model does not know
# yet: images on which it errs are drawn more often, and the condensed images must match the real ones under the
# statistics of every layer. The server trains on what it received, with an extra loss that pushes apart the classes
# that are confused most.
#
# This page runs FedVCK on digits, stops before the last round and looks inside. Then come the paper's Tables 2, 3, 7
# and 11. [Ablations](12_fedvck_ablations), [released code](13_fedvck_paper_vs_released) and
# [communication](14_fedvck_communication) have pages of their own.
#
# Two parameters help the short run: it goes on with the images of the last round (`warm_start`) and sends 32-bit
# numbers (`wire`), because noise that is still in the images would be cut off at black and white. `shown` is the
# profile that the tables show; "best" is the fullest that is measured. `rounds` must be at least 2: before the
# first the server has no images to look at.

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
shown = "best"

# %%
import pandas as pd
import torch

from core import condensation, server
from core.algorithms import find
from core.condensation import engine
from core.errors import InputError
from core.experiments import TableSpec
from core.report import (
    condensed_images,
    curves,
    heat_map,
    lines,
    metrics_frame,
    progress,
    show,
    source,
    table,
    table_frame,
)
from core.report.lesson import Lesson, pooled
from core.report.results import cost_in_words, lead
from core.report.texts import Markdown
from core.rng import Rng

# %%
if rounds < 2:
    raise InputError("rounds must be at least 2 on this page")
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

# %%
images, labels, owner = pooled(members)
show(lesson.partition_plot())

# %%
vck = lesson.run(clients=members)
vck.per_round().round(1)

# %% [markdown]
# ## What a client does
#
# All of it stands in one method. The rest of this section takes it apart, in the last round of the run above.

# %%
source(find("fedvck").condense)

# %% [markdown]
# ### Errors of two models
#
# The client receives $M_t$ and remembers $M_{t-1}$. Its error on an image is the cross-entropy of both, blended
# (Eq. 6 is the case $\alpha = 1$, Eq. 7 the general one):
#
# $$
# \mathrm{err}_t(x_i) = L_\text{ce}\bigl(y_i, \; \alpha M_t(x_i) + (1 - \alpha) M_{t-1}(x_i)\bigr) .
# $$ (eq:vck-error)
#
# $M(x)$ has its softmax: Eq. 11 calls the model without it $f$. So probabilities are blended.

# %%
source(condensation.smoothed_error)

# %%
states = [lesson.start(), *vck.states]
at = {"now": states[-2], "before": states[-3]}
models = {name: task.model_from(state.tensors) for name, state in at.items()}
logits, previous = (
    task.outputs(models[name], images) for name in ("now", "before")
)
ways = {
    "M_t alone (Eq. 6)": (1.0, "probabilities"),
    "both, as printed (Eq. 7)": (0.5, "probabilities"),
    "both, logits blended (released)": (0.5, "logits"),
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

# %% [markdown]
# The paper blends because the errors of a single model are skewed: a few are huge. The table says whether they are
# less so here.
#
# ### From errors to probabilities
#
# An image weighs more when the model errs on it (Eq. 5):
#
# $$
# w(x_i) = \frac{1}{1 + e^{-\mathrm{err}_t(x_i) + b}} .
# $$ (eq:vck-importance)

# %%
source(condensation.importance)

# %%
err = torch.linspace(0, 6, 25)
shapes = [
    pd.DataFrame(
        {
            "err": err,
            "w": condensation.importance(err, b),
            "label": f"b = {b:g}",
        }
    )
    for b in (0.0, 0.3, 0.7, 3.0)
]
show(
    lines(
        pd.concat(shapes),
        "err",
        "w",
        title="Importance of an image",
        xlabel="prediction error",
    )
)

# %% [markdown]
# With the authors' $b$ (0, 0.3 and 0.7) an image that is perfectly known still weighs a third to a half of one that is
# quite wrong. The weights of a class on a client, divided by their sum, are the probabilities to be drawn (Eq. 8):
#
# $$
# P_w(x_i) = \frac{w(x_i)}{\sum_j w(x_j)} .
# $$ (eq:vck-selection)

# %%
source(condensation.selection_probabilities)

# %% [markdown]
# How far are they from uniform? The ratio of the largest to the smallest probability of a class, and the *effective*
# share of images, $1 / (n \sum_i P_i^2)$, which is 100% for uniform ones. The released code takes a softmax of the
# weights, whose ratio cannot exceed $e$.

# %%
_, group = torch.unique(owner * len(classes) + labels, return_inverse=True)
groups = int(group.max()) + 1
error = condensation.smoothed_error(
    logits, previous, labels, settings.alpha, settings.blend
)
weight = condensation.importance(error, settings.b)


def spread(p):
    sizes = torch.bincount(group)
    high, low = (
        torch.zeros(groups).scatter_reduce(0, group, p, way, include_self=False)
        for way in ("amax", "amin")
    )
    effective = 1 / torch.zeros(groups).index_add(0, group, p.square()) / sizes
    return {
        "largest ratio": (high / low).max().item(),
        "least effective share (%)": 100 * effective.min().item(),
    }


rules = {
    rule: condensation.selection_probabilities(weight, group, groups, rule)
    for rule in ("share", "softmax")
}
pd.DataFrame(
    {
        "printed (share)": spread(rules["share"]),
        "released (softmax)": spread(rules["softmax"]),
    }
).T.round(2)

# %% [markdown]
# What does the model not know? On the largest client, of every class: at the left the four images that are most
# likely to be drawn, at the right the four that are least likely.

# %%
largest = max(range(len(members)), key=lambda k: len(members[k]))
mine = (owner == largest).nonzero()[:, 0]
mine = mine[rules["share"][mine].argsort(descending=True)]
ends = [
    rows if len(rows) < 8 else torch.cat([rows[:4], rows[-4:]])
    for c in range(len(classes))
    for rows in [mine[labels[mine] == c]]
]
chosen = torch.cat(ends)
show(
    condensed_images(
        images[chosen],
        labels[chosen],
        classes,
        columns=8,
        title=f"Client {members[largest].id}, by P_w",
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
# what short runs do:

# %%
source(engine.REAL_SIDES["minibatch"])

# %%
source(engine.REAL_SIDES["expectation"])

# %% [markdown]
# The condensed images are normalised with the statistics of the real ones: Eq. 4, {eq}`eq:dc-latent`. This is what
# the clients have sent in the last round, one row a class:

# %%
last = vck.state.tensors
new = last["knowledge/round"] == rounds - 1
sent, sent_labels = last["knowledge/images"][new], last["knowledge/labels"][new]
grey = (
    sent
    if sent.dtype == torch.uint8
    else condensation.to_wire(sent, task.dataset.mean, task.dataset.std)
)
show(
    condensed_images(
        grey,
        sent_labels,
        classes,
        columns=12,
        title="Condensed in the last round",
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

# %%
source(server.aggregate_prototypes)

# %%
each = [
    server.logit_prototypes(
        logits[owner == k], labels[owner == k], len(classes)
    )
    for k in range(len(members))
]
prototypes = server.aggregate_prototypes(
    *(torch.stack(values) for values in zip(*each, strict=True))
)
pooled, present = server.logit_prototypes(logits, labels, len(classes))
gap = (prototypes - pooled).abs().max()
f"largest difference to the mean over all images in one place: {gap:.1e}"

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
source(server.hard_negatives)

# %%
k = 3
negatives = server.hard_negatives(prototypes, k, present > 0)
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
# most often taken for, and count how many of them are hard negatives.

# %%
test = task.dataset.test
guessed = task.outputs(models["now"], test.images).argmax(1)
confusion = torch.bincount(
    test.labels * len(classes) + guessed, minlength=len(classes) ** 2
)
confused = server.hard_negatives(confusion.view(len(classes), -1).float(), k)
hits = (
    (confused[:, :, None] == negatives[:, None, :]).any(2).float().mean().item()
)
pd.Series(
    {"measured": 100 * hits, "by chance": 100 * k / (len(classes) - 1)}
).round(1).to_frame("hits (%)")

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

# %%
source(server.relational_contrastive_loss)

# %% [markdown]
# The positive is not in the denominator, so the loss can be negative; with the dot product as printed it has no lower
# bound at all. Our default takes the cosine, as SimSiam (Chen and He 2021) does, which the paper follows. The sum is
# taken as a mean, so that the weight against the cross-entropy does not depend on the number of images. The three
# forms on the knowledge of this round, before the server trains:

# %%
then = at["now"].tensors
old, old_labels = then["knowledge/images"], then["knowledge/labels"]


def network_inputs(pictures):
    return task.inputs(pictures) if pictures.dtype == torch.uint8 else pictures


with torch.no_grad():
    model = models["now"].eval()
    features, here = server.feature_prototypes(
        model.embed(network_inputs(old)), old_labels, len(classes)
    )
    projector = server.Projector(
        features.shape[1], Rng(seed).at("projector")
    ).eval()
    z = projector(model.embed(network_inputs(sent)))
    forms = {
        "printed, cosine (default)": ("printed", "cosine"),
        "printed, dot product": ("printed", "dot"),
        "released": ("released", "cosine"),
    }
    losses = {
        name: server.relational_contrastive_loss(
            z,
            sent_labels,
            features,
            negatives,
            settings.temperature,
            *form,
            here,
        ).item()
        for name, form in forms.items()
    }
pd.Series(losses, name="L_rc").round(2).to_frame()

# %% [markdown]
# ### The update
#
# The global model minimises (Eq. 16)
#
# $$
# L_\text{update} = L_\text{ce}(\mathcal{S}^t) + L_{rc} .
# $$ (eq:vck-update)

# %%
source(server.update_model)

# %% [markdown]
# The two copies of the paper's text disagree on $\mathcal{S}^t$: one reads it as the images of this round, the other as
# all so far. Both can be had (`keep_rounds`); the default is this round.
#
# ## The run beside others
#
# FedDM {cite:p}`feddm` condenses without the three parts of FedVCK, FedAvg {cite:p}`fedavg` sends models.


# %%
runs = [
    vck.record,
    lesson.run("feddm").record,
    lesson.run("fedavg", local_steps=10, lr=0.05).record,
]
show(curves(runs, title=lesson.title))

# %%
show(curves(runs, x="megabytes", title="the same against what was sent"))

# %% [markdown]
# This run is tiny: 8x8 images, a thin network, few rounds and few iterations. It shows how the
# method works and says nothing about how good it is. That is what the tables are for.
#
# ## The paper's tables

# %%
best = None if shown == "best" else shown
progress("fedvck")

# %% [markdown]
# ### Medical data
#
# Table 2 gives the methods 100 rounds, Table 3 ten. $\beta$ in the columns is the Dirichlet concentration ($\alpha$
# elsewhere in this book). The question behind both: does FedVCK lead in every column, and does it lose less than the
# others when rounds are few?

# %%
table("fedvck", 2, best)

# %%
table("fedvck", 3, best)

# %% [markdown]
# ### Natural images
#
# Table 7 has 100 rounds, Table 11 ten.

# %%
table("fedvck", 7, best)

# %%
table("fedvck", 11, best)

# %% [markdown]
# ### Privacy
#
# Tables 6 and 12: how well an attack (LiRA) tells members of the training set from others; a
# [page of its own](16_fedvck_privacy) runs it.

# %%
table("fedvck", 6, best)

# %%
table("fedvck", 12, best)

# %% [markdown]
# ### Verdict
#
# The claim is that FedVCK leads. Its accuracy minus that of the best other method of the column, in points, as printed
# and as measured; a measured lead counts for little as long as rivals are missing.


# %%
leads = {}
for number in (2, 3, 7, 11):
    frame = table_frame("fedvck", number, best)
    leads[f"Table {number}"] = (
        lead(frame, "FedVCK", "printed")
        .add_suffix(" printed")
        .join(lead(frame, "FedVCK").add_suffix(" measured"), how="outer")
        .rename(columns=lambda name: name.removeprefix("lead "))
        .loc[lambda found: found[["printed", "measured"]].notna().any(axis=1)]
    )
leads = pd.concat(leads, names=["table", "column"])
leads[["rivals printed", "rivals measured"]] = (
    leads[["rivals printed", "rivals measured"]].fillna(0).astype(int)
)
leads.round(2).astype(object).where(leads.notna(), "")

# %%
pair = leads.dropna(subset=["printed", "measured"])
Markdown(
    f"FedVCK leads in {(leads['printed'] > 0).sum()} of "
    f"{leads['printed'].notna().sum()} columns as printed. Of "
    f"{len(pair)} columns measured so far it leads in "
    f"{(pair['measured'] > 0).sum()}, by "
    f"{pair['measured'].mean():+.1f} points on average where print has "
    f"{pair['printed'].mean():+.1f}."
    if len(pair)
    else "Nothing is measured yet."
)

# %%
Markdown(cost_in_words("fedvck"))

# %% [markdown]
# At most ten rounds of the laptop profile serve Tables 2 and 3 alike, and Tables 7 and 11.
#
# The paper prints accuracy. Where classes are uneven, a model that always names the most frequent one has a high
# accuracy. *Balanced* accuracy, the mean over the classes of the share that is recognised, gives such a model one over
# the number of classes. Both, from the same runs:

# %%
both = pd.concat(metrics_frame("fedvck", number, best) for number in (3, 11))
measures = {"accuracy": "accuracy (%)", "balanced_accuracy": "balanced (%)"}
means = 100 * both.groupby(["column", "row"], sort=False)[
    list(measures)
].mean().rename(columns=measures)
means.unstack("column").swaplevel(axis=1).sort_index(axis=1).round(1).astype(
    object
).fillna("")

# %% [markdown]
# What was cut when the table shows the laptop profile? For CIFAR-10 at 0.05, in a round and for a client of mean size:

# %%
cells = {
    (level, cell.row): cell.experiments[0]
    for level in ("laptop", "paper")
    for cell in TableSpec.find("fedvck", 11).cells(level)
    if cell.column == "cifar10-0.05" and cell.row in ("FedVCK", "FedAvg")
}
size = (
    50_000 // cells["paper", "FedAvg"].clients
)  # CIFAR-10 has 50,000 training images
work = {}
for level in ("laptop", "paper"):
    vck_settings, avg_settings = (
        cells[level, row].new_algorithm().settings
        for row in ("FedVCK", "FedAvg")
    )
    made = round(vck_settings.share * size * cells[level, "FedVCK"].clients)
    work[level] = {
        "FedVCK: iterations of condensation": vck_settings.iterations,
        "FedVCK: batches of the server": vck_settings.training.total(made),
        "FedAvg: local batches": avg_settings.steps(size),
    }
work = pd.DataFrame(work)
work.assign(**{"paper / laptop": (work["paper"] / work["laptop"]).round(1)})

# %% [markdown]
# So the laptop profile says who learns most from little work: a question that the paper does not ask. FedAvg takes few
# steps then, and has little time to drift away; condensed images have little time to become good. Where FedVCK does not
# lead at this budget, nothing follows for the paper's own.

# %% [markdown]
# ## Where paper and code differ
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
# - Every printed number has a cell, every cell a command: unfold the list below a table. `pending` means that nobody
#   has run it yet.
#
# ```bash
# python -m core run --pending --profile paper --minutes 60 --out DIR
# ```
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
# Let $z = r u$ with $u$ such that $u \cdot \mathbf{f}_c > u \cdot \mathbf{f}_j$ for all hard negatives $j$. Then $l =
# \log \sum_j \exp(r \, u \cdot (\mathbf{f}_j - \mathbf{f}_c) / \tau) \le \log K - r m / \tau$ with the margin $m > 0$.
# It falls without end as $r$ grows, and the projector can make $r$ as large as it likes. The cosine fixes $r = 1$.
# ```
