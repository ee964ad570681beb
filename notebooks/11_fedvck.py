# %% [markdown]
# # FedVCK
#
# *Question:* how do clients of FedVCK {cite:p}`fedvck` condense what the global model does not know yet, and what does
# the server make of it?\
# *Time:* some seconds on two CPU cores. *Data:* scikit-learn's digits.\
# *Learn first:* [federated learning](04_federated_learning) and [dataset condensation](05_dataset_condensation).
#
# In FedVCK clients send no models. Each [condenses](05_dataset_condensation) its images into a few per class, and
# selects for that the images on which the global model errs. The server trains the global model on the condensed
# images, with a second loss that pushes apart the classes that the model confuses.
#
# ```{figure} ../book/_static/fedvck.svg
# :alt: A server above, clients below. Down goes the global model. Up go condensed images with labels, and logit prototypes, the mean logits of every class. A client asks the model where it errs, draws those images more often, and changes noise until the model sees in it what it sees in the images drawn. Real images, their errors and the model of the round before stay. The server asks the prototypes which classes are confused, trains the model on the images and pushes confused classes apart.
# :name: fig-fedvck
# :width: 330px
#
# A round of FedVCK. Grey goes down, green goes up, red stays.
# ```
#
# Each step of a round is computed here in a few lines and compared with `core`. "Eq. 7" is an equation of the paper,
# "(11.1)" one of this page. Whether the paper's numbers hold is the
# subject of the [results](12_fedvck_results). The run is small (`SMALL` in `lab.report.lesson`); condensed images go on
# from the last round (`warm_start`) and are sent as 32-bit numbers (`wire`). `rounds` must be at least 2, because a
# client compares the models of two rounds.

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

# %%
from functools import partial

import pandas as pd
import seaborn as sns
import torch
from matplotlib.patches import Rectangle
from torch.testing import assert_close

from core import condensation, server
from core.algorithms import find
from core.errors import InputError
from core.rng import Rng
from lab.report import condensed_images, show, source
from lab.report.charts import canvas
from lab.report.lesson import SMALL, Lesson, pooled

if rounds < 2:
    raise InputError("rounds must be at least 2 on this page")
same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits

# %% tags=["slide"]
lesson = Lesson(
    profile,
    "fedvck",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    settings={
        **SMALL["fedvck"],
        "iterations": iterations,
        "server_steps": 60,
        "warm_start": warm_start,
        "wire": wire,
    },
)
settings = lesson.experiment().new_algorithm().settings
task, members = lesson.task, lesson.members()
classes = task.dataset.classes
images, labels, owner = pooled(members)
show(lesson.partition_plot())

# %%
run = lesson.run(clients=members)
run.per_round().round({"accuracy (%)": 1, "up (MB)": 3, "down (MB)": 3})

# %% [markdown]
# We stop this run before its last round and compute that round again.
#
# ## The client: errors of two models

# %% [markdown] tags=["slide"]
# A client receives the model $M_t$ and remembers $M_{t-1}$. Its error on an image is the cross-entropy of their blended
# probabilities (Eq. 7; Eq. 6 is the case $\lambda = 1$; the paper writes $\alpha$ for $\lambda$):
#
# $$
# \mathrm{err}_t(x_i) = L_\text{ce}\bigl(y_i, \; \lambda M_t(x_i) + (1 - \lambda) M_{t-1}(x_i)\bigr) .
# $$ (eq:vck-error)

# %% [markdown]
# $M_t(x)$ are here the probabilities of $M_t$, and $\lambda$ is the share of the newer model; in its first round a client
# takes $M_t$ for both. A model that has learned from few images can be very wrong on some of them. Blending two models is
# meant to make such errors less extreme.

# %%
states = [lesson.start(), *run.states]
model, previous_model = (
    task.model_from(state.tensors) for state in (states[-2], states[-3])
)
logits = task.outputs(model, images).double()
previous = task.outputs(previous_model, images).double()

lam = settings.alpha  # lambda; the parameter alpha above is the split's
blended = lam * logits.softmax(1) + (1 - lam) * previous.softmax(1)
err = -blended.gather(1, labels[:, None])[:, 0].log()
same(err, condensation.smoothed_error(logits, previous, labels, lam))

# %% [markdown]
# ## From errors to a selection

# %% [markdown] tags=["slide"]
# An image weighs more when the model errs on it (Eq. 5). The weights of one class on one client, divided by their sum,
# are the probabilities to be drawn (Eq. 8):
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
total = torch.zeros(groups).double().index_add(0, group, w)
P = w / total[group]
same(w, condensation.importance(err, settings.b))
same(P, condensation.selection_probabilities(w, group, groups))

# %% [markdown]
# At $b = 0.3$ an image that the model knows perfectly still has 43% of the weight of one that it gets quite wrong, so
# the selection stays close to uniform. The larger the setting $b$, the less an image without error weighs. The first
# exercise asks for the limit. The authors' code takes a softmax of the weights in place of their share, which is closer
# still.

# %% [markdown]
# ## Condensation

# %% [markdown] tags=["slide"]
# In the condensation loss {eq}`eq:dc-mmd` batches drawn by $P_w$ take the place of uniform ones (Eq. 9), so the real
# side is an expectation weighted by $P_w$ (Eq. 10). Condensed images are normalised with the statistics of the real
# ones: these are the latent constraints {eq}`eq:dc-latent`.

# %% [markdown]
# All that a client does:

# %%
source(find("fedvck").condense)

# %% [markdown]
# Some of what the clients have sent in the last round, one row a class:

# %% tags=["slide"]
last, before = run.state.tensors, run.states[-2].tensors
new = last["knowledge/round"] == rounds - 1
sent, sent_labels = last["knowledge/images"][new], last["knowledge/labels"][new]
show(
    condensed_images(
        sent if sent.dtype == torch.uint8 else lesson.as_images(sent),
        sent_labels,
        classes,
        columns=14,
        title="Condensed in the last round: the first 14 of each class",
        inches=0.3,
    )
)

# %% [markdown]
# ## The server: which classes are confused?

# %% [markdown] tags=["slide"]
# Beside the images a client sends, for each class, the mean logits $f_{M_t}$ of its $n_{k,c}$ real images (Eq. 11;
# the paper writes $M_{t-1}$ for the received model from here on).
# The server averages these *logit prototypes* by numbers of images, $n_c = \sum_k n_{k,c}$ (Eq. 12):
#
# $$
# \mathbf{p}_c^{k,t} = \frac{1}{n_{k,c}} \sum_i f_{M_t}(x_{i,k,c}), \qquad
# \mathbf{p}_c^{t} = \frac{1}{n_c} \sum_k n_{k,c} \, \mathbf{p}_c^{k,t} .
# $$ (eq:vck-prototypes)

# %% [markdown]
# The result is that of all images in one place:

# %%
sums = [
    server.logit_prototypes(
        logits[owner == k], labels[owner == k], len(classes)
    )
    for k in range(len(members))
]
prototypes = server.aggregate_prototypes(
    *map(torch.stack, zip(*sums, strict=True))
)

is_class = torch.nn.functional.one_hot(labels, len(classes)).double()
held = is_class.sum(0)
same(prototypes, is_class.T @ logits / held.clamp(min=1)[:, None])

# %% [markdown] tags=["slide"]
# The classes other than $c$ with the largest logits on images of class $c$ are its *hard negatives* (Eq. 13; there $K$ is
# their number, not that of clients). We look at three (`k`); a run takes as many as its setting `negatives` says.
#
# $$
# \mathrm{HN}(c) = \operatorname*{arg\,topK}_{j \ne c} \; \mathbf{p}_c[j] .
# $$ (eq:vck-negatives)

# %%
k = min(3, len(classes) - 1)
ranked = prototypes.argsort(descending=True, stable=True).tolist()
hardest = [[j for j in row if j != c][:k] for c, row in enumerate(ranked)]
same(torch.tensor(hardest), server.hard_negatives(prototypes, k))

present = held > 0
negatives = server.hard_negatives(prototypes, k, present)

# %% tags=["slide"]
shown = pd.DataFrame(prototypes.numpy(), classes, classes)
with canvas(6.5, 5.5, f"Logit prototypes and {k} hard negatives") as axes:
    sns.heatmap(shown, annot=True, fmt=".1f", cmap="cividis", ax=axes)
    axes.set(xlabel="logit of", ylabel="images of")
    for row, of_class in enumerate(negatives):
        for column in of_class[of_class >= 0]:
            axes.add_patch(
                Rectangle((column, row), 1, 1, fill=False, ec="#D55E00", lw=2)
            )
show(
    axes.figure,
    alt=f"Logit prototypes of {len(classes)} classes as colours, from "
    f"{prototypes.min():.1f} to {prototypes.max():.1f}; "
    "frames mark hard negatives.",
)

# %% [markdown]
# Are these the confusions that happen? Take the test images that the model gets wrong: how many of them are taken for
# a hard negative of their class, beside the chance level? And how many of the hard negatives were hard negatives one
# round before?

# %%
test = task.dataset.test
predicted = task.outputs(model, test.images).argmax(1)
wrong = predicted != test.labels
confused = (negatives[test.labels] == predicted[:, None]).any(1)[wrong]

means = is_class.T @ task.outputs(previous_model, images).double()
earlier = server.hard_negatives(means, k, present)
again = (negatives[:, :, None] == earlier[:, None]).any(2)[present]
chance = k / (len(classes) - 1)
pd.DataFrame(
    {
        "errors that are hard negatives": [confused.double().mean(), chance],
        "hard negatives of the last round": [again.double().mean(), chance],
    },
    ["share (%)", "chance level (%)"],
).T.mul(100).astype(float).round(0)

# %% [markdown]
# ## The server: pushing them apart

# %% [markdown] tags=["slide"]
# *Feature prototypes* are the mean features $\psi$, before the last layer, of all condensed images of a class from the
# rounds before, $\mathcal{S}_c^{0, \dots, t-1}$ (Eq. 14; in the first round there are none):
#
# $$
# \mathbf{f}_c^t = \frac{1}{|\mathcal{S}_c^{0, \dots, t-1}|}
# \sum_{s_i \in \mathcal{S}_c^{0, \dots, t-1}} \psi_{M_t}(s_i) .
# $$ (eq:vck-features)

# %% [markdown] tags=["slide"]
# Features of the model in training, passed through a learnable projector $h$, shall be near the prototype of their
# class and far from those of its hard negatives (Eq. 15, with a temperature $\tau$):
#
# $$
# L_{rc} = \sum_{(s_i, c_i) \in \mathcal{S}^t} -\log
# \frac{\exp\bigl(h(\psi_\theta(s_i)) \cdot \mathbf{f}_{c_i}^t / \tau\bigr)}
# {\sum_{c_j \in \mathrm{HN}(c_i)} \exp\bigl(h(\psi_\theta(s_i)) \cdot \mathbf{f}_{c_j}^t / \tau\bigr)} .
# $$ (eq:vck-contrast)

# %% [markdown]
# The positive is not in the denominator, so with the dot product the loss can fall without end as features grow. Our
# default takes the cosine, as SimSiam (Chen and He 2021) does, which inspired the paper; and the mean in place of the
# sum, so that the weight does not depend on the number of images.


# %%
def features(pictures):
    x = task.inputs(pictures) if pictures.dtype == torch.uint8 else pictures
    return model.embed(x).double()


with torch.no_grad():  # before the server trains in this round
    model.eval()
    old, z = features(before["knowledge/images"]), features(sent)
    projector = server.Projector(z.shape[1], Rng(seed).at("h")).double().eval()
    z = projector(z)
f, known = server.feature_prototypes(
    old, before["knowledge/labels"], len(classes)
)

cosine = torch.cosine_similarity(z[:, None], f[None], dim=2)
cosine = cosine / settings.temperature
terms = []
for row, c in zip(cosine, sent_labels.tolist(), strict=True):
    others = [j for j in negatives[c].tolist() if j >= 0 and known[j]]
    if known[c] and others:
        terms.append(row[others].exp().sum().log() - row[c])
loss = torch.stack(terms).mean()

given = (z, sent_labels, f, negatives, settings.temperature)
same(
    loss,
    server.relational_contrastive_loss(*given, "printed", "cosine", known),
)

# %% [markdown]
# The global model minimises $L_\text{ce} + L_{rc}$ (Eq. 16). The two copies of the paper's text differ in whether the
# images are those of this round or of all rounds so far. Our default is this round; the authors' code keeps ten rounds.
# [Paper and code](15_fedvck_paper_vs_released) measures this and each other difference.

# %% [markdown] tags=["slide"]
# ## Take away
#
# - A client asks the global model what it does not know {eq}`eq:vck-importance` and condenses that. The selection stays
#   close to uniform.
# - Logit prototypes tell which classes are confused {eq}`eq:vck-negatives`; the contrastive loss pushes features away
#   from these {eq}`eq:vck-contrast`.
# - The server learns from images, not from models, so it averages no models that drifted apart.

# %% [markdown]
# Where to go on: [what each part adds](14_fedvck_ablations), [what the images start from and how long they are
# optimised](13_fedvck_budgets), [the baselines](16_baselines), [the results](12_fedvck_results).
#
# ## Exercises
#
# ```{exercise} How uneven can it get?
# :label: ex-vck-ratio
#
# *Medium, 15 minutes.*
#
# What is the largest possible ratio of two probabilities in {eq}`eq:vck-selection` for $b = 0.3$? And with the softmax
# of the released code? (To be checked: `largest_printed` and `largest_released`.)
# ```
#
# ````{solution} ex-vck-ratio
# :class: dropdown
#
# The error is at least 0, so $w \ge 1 / (1 + e^{b})$, and $w < 1$. The ratio is below $1 + e^{b}$. With the softmax it
# is below $e^{1 - 1/(1 + e^b)}$.
#
# That is 2.35 and 1.78. No image can take over the batch, however wrong the model is about it.
# ````

# %% tags=["solution", "remove-cell"]
import math

largest_printed = 1 + math.exp(0.3)
largest_released = math.exp(1 - 1 / (1 + math.exp(0.3)))

# %% name="ex-vck-ratio" tags=["check", "remove-cell"]
errors = torch.linspace(0, 60, 1001, dtype=torch.float64)
weight = condensation.importance(errors, 0.3)
for answer, chance in [
    (largest_printed, weight),
    (largest_released, weight.exp()),
]:
    reached = (chance.max() / chance.min()).item()
    assert answer > 0.99 * reached, "some errors have a larger ratio"
    assert answer < 1.01 * reached, "no errors have a ratio as large as this"

# %% [markdown]
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
row_of_absent = server.hard_negatives(prototypes, k, held)[0].tolist()
assert list(absent_row) == row_of_absent, "look at row 0 of what it returns"
