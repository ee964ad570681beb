# %% [markdown]
# # FedVCK: the server
#
# *Question:* how does the server of FedVCK {cite:p}`fedvck` find out which classes its model confuses, and how does it
# push them apart?\
# *Time:* under half a minute on two CPU cores. *Data:* scikit-learn's digits.
#
# [A client of FedVCK](11_fedvck) sends a few condensed images, and for every class the mean logits that the global
# model gives its real ones. The server trains the model on the images with cross-entropy; the logits tell it which
# classes an extra loss has to push apart.
#
# This page runs FedVCK as the page before did, stops before the server trains for the last time, and computes each step
# once more in a few lines that are compared with `core`. At the end the method stands beside two others. `rounds` must
# be at least 2: before the first the server has no images to look at.

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
import seaborn as sns
import torch
from matplotlib.patches import Rectangle
from torch.testing import assert_close

from core import server
from core.errors import InputError
from core.rng import Rng
from lab.report import curves, show, source, table_frame
from lab.report.charts import canvas
from lab.report.lesson import SMALL, Lesson, pooled
from lab.report.texts import Markdown

if rounds < 2:
    raise InputError("rounds must be at least 2 on this page")
same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
condensing = {
    **SMALL["fedvck"],
    "iterations": iterations,
    "server_steps": 60,
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

# %% [markdown]
# The run:

# %%
vck = lesson.run(clients=members)
vck.per_round().round({"accuracy (%)": 1, "up (MB)": 3, "down (MB)": 3})

# %% [markdown]
# What the server has in the last round: its model and its images so far (`then`), and the images that it has just
# received (`sent`).

# %%
last, then = vck.state.tensors, vck.states[-2].tensors
new = last["knowledge/round"] == rounds - 1
sent, sent_labels = last["knowledge/images"][new], last["knowledge/labels"][new]
model = task.model_from(then)

# %% [markdown]
# ## Which classes are confused?
#
# ### Logit prototypes
#
# A client sends, for every class, the mean logits that the model it received, $M_t$, gives its $n_{k,c}$ images (Eq.
# 11). The server averages them, weighted by numbers of images, with $n_c = \sum_k n_{k,c}$ (Eq. 12):
#
# $$
# \mathbf{p}_c^{k,t} = \frac{1}{n_{k,c}} \sum_i f_{M_t}(x_{i,k,c}), \qquad
# \mathbf{p}_c^{t} = \frac{1}{n_c} \sum_k n_{k,c} \, \mathbf{p}_c^{k,t} .
# $$ (eq:vck-prototypes)
#
# (From Eq. 11 on the paper writes $M_{t-1}$ for the model that it calls $M_t$ in Eq. 5 to 8.)
#
# So the server has what it would have if all images lay in one place:

# %%
logits = task.outputs(model, images).double()
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
# ### Hard negatives
#
# The $K$ classes other than $c$ that get the largest logits on images of class $c$ are its *hard negatives* (Eq. 13).
# On this page $K$ is their number, as in the paper. Here we look at three (`k`); the run takes five (`negatives`). Where
# there are fewer other classes, it is all of them:
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
shown = pd.DataFrame(prototypes.numpy(), classes, classes)
with canvas(6.5, 5.5, f"Logit prototypes and {k} hard negatives") as axes:
    sns.heatmap(shown, annot=True, fmt=".1f", cmap="cividis", ax=axes)
    axes.set(xlabel="logit of", ylabel="images of")
    for row, chosen in enumerate(negatives):
        for column in chosen[chosen >= 0]:
            frame = Rectangle(
                (column, row), 1, 1, fill=False, ec="#D55E00", lw=2
            )
            axes.add_patch(frame)
show(
    axes.figure,
    alt=f"Logit prototypes of {len(classes)} classes as colours, from "
    f"{prototypes.min():.1f} to {prototypes.max():.1f}; "
    "frames mark hard negatives.",
)

# %% [markdown]
# Are these the confusions that really happen? We look where the model errs on test images. And do they change, as the
# paper says, when the model does?

# %% tags=["hide-input"]
test = task.dataset.test
guessed = task.outputs(model, test.images).argmax(1)
wrong = guessed != test.labels
among = (negatives[test.labels] == guessed[:, None]).any(1)[wrong]

before = task.model_from([lesson.start(), *vck.states][-3].tensors)
earlier = server.hard_negatives(
    is_class.T @ task.outputs(before, images).double(), k, present
)
kept = (negatives[:, :, None] == earlier[:, None]).any(2)[present]
Markdown(
    f"Of {int(wrong.sum())} test images that are taken for a wrong class, "
    f"{among.float().mean():.0%} are taken for one of the {k} hard negatives "
    f"of their own; by chance it would be {k / (len(classes) - 1):.0%}. Of the "
    f"hard negatives, {kept.float().mean():.0%} were hard negatives one round "
    "before."
    if wrong.any()
    else "No test image is taken for a wrong class."
)


# %% [markdown]
# ## Pushing them apart
#
# ### Feature prototypes and the relational contrastive loss
#
# Mean features of all condensed images of the rounds before, by the model as it is at the start of the round (Eq. 14):
#
# $$
# \mathbf{f}_c^t = \frac{1}{|\mathcal{S}_c^{0, \dots, t-1}|}
# \sum_{s_i \in \mathcal{S}_c^{0, \dots, t-1}} \psi_{M_t}(s_i) .
# $$ (eq:vck-features)
#
# Features by the model that is being trained, passed through a learnable projector $h$, shall be near the prototype of
# their class and far from those of its hard negatives (Eq. 15):
#
# $$
# L_{rc} = \sum_{(s_i, c_i) \in \mathcal{S}^t} -\log
# \frac{\exp\bigl(h(\psi_\theta(s_i)) \cdot \mathbf{f}_{c_i}^t / \tau\bigr)}
# {\sum_{c_j \in \mathrm{HN}(c_i)} \exp\bigl(h(\psi_\theta(s_i)) \cdot \mathbf{f}_{c_j}^t / \tau\bigr)} .
# $$ (eq:vck-contrast)
#
# $\tau$ is a temperature. The positive is not in the denominator, so the loss can be negative. With the dot product as
# printed it need not have a lower bound: once a feature's product with its own prototype is larger than those with its
# hard negatives', the loss falls without end as the feature grows. Our default takes the cosine, as SimSiam (Chen and
# He 2021) does, by which the paper is inspired. It also takes a mean in place of the sum, so that the weight against
# the cross-entropy does not depend on the number of images.


# %%
def network_inputs(pictures):
    return task.inputs(pictures) if pictures.dtype == torch.uint8 else pictures


with torch.no_grad():  # before the server trains in this round
    model.eval()
    old, z = (
        model.embed(network_inputs(pictures)).double()
        for pictures in (then["knowledge/images"], sent)
    )
    projector = server.Projector(z.shape[1], Rng(seed).at("h")).double().eval()
    z = projector(z)
f, here = server.feature_prototypes(old, then["knowledge/labels"], len(classes))

cosine = torch.cosine_similarity(z[:, None], f[None], dim=2)
cosine = cosine / settings.temperature
terms = []
for row, c in zip(cosine, sent_labels.tolist(), strict=True):
    others = [j for j in negatives[c].tolist() if j >= 0 and here[j]]
    if here[c] and others:
        terms.append(row[others].exp().sum().log() - row[c])
loss = torch.stack(terms).mean()

given = (z, sent_labels, f, negatives, settings.temperature)
core_loss = server.relational_contrastive_loss
same(loss, core_loss(*given, "printed", "cosine", here))

# %% tags=["hide-input"]
dot = core_loss(*given, "printed", "dot", here).item()
released = core_loss(*given, "released", "cosine", here).item()
Markdown(
    f"On the knowledge of this round the loss is {loss:.2f}; with the dot "
    f"product as printed it is {dot:.2f}. The released form has the positive "
    "below the line too, and weighs each class by its samples in the batch: "
    f"{released:.2f}."
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
# One copy of the paper's text writes $\mathcal{S}^t$ here, the other $\mathcal{S}^{:t}$. Below Eq. 14 both define
# $\mathcal{S}_c^{t-1}$ (or $\mathcal{S}_c^{:t-1}$) as the accumulated set. So Eq. 15 and 16 most likely run over all
# rounds so far, as in ten rounds of the released code (`keep_rounds=10`). The default here, the images of this round,
# is the narrower reading. All rows that are called *FedVCK* or *as printed* have it, so they do not test the likelier
# one. The rows *as released* do, and [one switch](13_fedvck_paper_vs_released) changes this alone.

# %% mystnb={"code_prompt_show": "Show the loop in core"} tags=["hide-cell"]
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
# This run is tiny: 8x8 images, a thin network, few rounds and few iterations. It shows how the method works and says
# nothing about how good it is. The order can be another one at the paper's own size:

# %% tags=["hide-input"]
wide = table_frame("fedvck", "ladder", "converged").set_index("row")
at_size = wide.loc[
    ["FedVCK as released, Adam", "FedDM from real images, Adam", "FedAvg"]
].set_axis(["FedVCK", "FedDM", "FedAvg"])
Markdown(
    "With the paper's network and share of images on CIFAR-10, ten rounds, "
    "records say (means over seeds ± standard deviation): "
    + ", ".join(
        f"{one.Index} {one.measured:.1f} ± {one.std:.1f}% ({one.seeds} seeds)"
        for one in at_size.sort_values("measured", ascending=False).itertuples()
    )
    + ". FedVCK is read as its released code, FedDM as a public program, which "
    "starts from real images; Adam moves the images of both, as often as the "
    "profile `converged` has it. FedAvg has all its local epochs."
)

# %% [markdown]
# Which work gives these numbers, the page on [budgets](04_fedvck_budgets) says; how good the method is, the
# [results](17_fedvck_results) ask.
#
# The equations on both pages are those in print, but for the cosine and the mean; rates and the bound on gradients are
# those of the page before. The authors' code differs in many
# places, and [a page of its own](13_fedvck_paper_vs_released) goes through them one by one. What is odd in the paper as
# printed stands among the [errata](../book/errata).
#
# ## Take away
#
# - The logit prototypes are small and tell which classes are confused {eq}`eq:vck-negatives`.
# - The contrastive loss pushes features away from the classes they are confused with {eq}`eq:vck-contrast`; with the
#   dot product as printed it can fall without end.
# - The server learns from images, not from models, so no models that drifted apart are averaged. How much unequal
#   clients still cost stands among the [results](17_fedvck_results).
#
# ## Exercises
#
# ```{exercise} A class that nobody holds
# :label: ex-vck-absent
#
# *Easy, 10 minutes.*
#
# What are $\mathbf{p}_c$, $\mathrm{HN}(c)$ and $\mathbf{f}_c$ of a class without any image? Try it with
# `server.hard_negatives(prototypes, k, present=...)`. (To be checked: `absent_row`, what this returns for the class, a
# list of `k` whole numbers: three, or fewer where the data set has fewer other classes.)
# ```
#
# ````{solution} ex-vck-absent
# :class: dropdown
#
# ```python
# held = torch.arange(len(classes)) != 0
# server.hard_negatives(prototypes, k, held)
# ```
#
# $\mathbf{p}_c$ is a row of zeros, which stands for "unknown". The class is chosen by nobody, and has no negatives
# itself: its row is all -1, which the loss leaves out. It has no feature prototype either.
# ````

# %% tags=["solution", "remove-cell"]
absent_row = [-1] * k  # three, or all other classes where those are fewer

# %% name="ex-vck-absent" tags=["check", "remove-cell"]
held = torch.arange(len(classes)) != 0
found = server.hard_negatives(prototypes, k, held)[0].tolist()
assert list(absent_row) == found, "look at row 0 of what the server returns"

# %% [markdown]
# ```{exercise} Without a bound
# :label: ex-vck-dot
#
# *Hard, 20 minutes.*
#
# Show that {eq}`eq:vck-contrast` with the dot product has no lower bound in the length of $z = h(\psi(s))$ if
# $\mathbf{f}_c$ is no convex combination of its hard negatives' prototypes. What if it is their mean?
# ```
#
# ```{solution} ex-vck-dot
# :class: dropdown
#
# If $\mathbf{f}_c$ is no convex combination, a plane separates it from the $\mathbf{f}_j$: there is a $u$ with $u \cdot
# \mathbf{f}_c > u \cdot \mathbf{f}_j$ for all hard negatives $j$. Let $z = a u$. Then $l = \log \sum_j \exp(a \, u \cdot
# (\mathbf{f}_j - \mathbf{f}_c) / \tau) \le \log K - a m / \tau$ with the margin $m > 0$. It falls without end as $a$
# grows, and nothing in the projector bounds $a$.
#
# If $\mathbf{f}_c$ is their mean, the exponents $z \cdot (\mathbf{f}_j - \mathbf{f}_c) / \tau$ have mean 0. The
# exponential is convex, so by Jensen's inequality the mean of the $K$ terms is at least 1, and $l \ge \log K$ for every
# $z$.
#
# With the cosine all lengths are 1. No exponent is below $-2 / \tau$, and $l \ge \log K - 2 / \tau$.
# ```
