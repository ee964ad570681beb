# %% [markdown]
# # FedVCK: the baselines
#
# *Question:* what is the idea of each method in FedVCK's {cite:p}`fedvck` tables, and what does it send?\
# *Time:* under half a minute on two CPU cores. *Data:* scikit-learn's digits.\
# *Learn first:* [federated learning](04_federated_learning) and [dataset condensation](05_dataset_condensation).
#
# Every row of the paper's tables is a method of its own here, written from its own paper and with its own
# hyper-parameters; [judging a number](10_verdicts) says how these were chosen. Most are FedAvg with one more thing.
# [FedAvg and FedProx](04_federated_learning) have a page; the others follow.
#
# | method | what is new | where | what crosses the network beside the model |
# |---|---|---|---|
# | FedAvg {cite:p}`fedavg` | averaging | server | nothing |
# | FedProx {cite:p}`fedprox` | a tie to the model received | client's loss | nothing |
# | MOON {cite:p}`moon` | features stay near the global model's | client's loss | a projection head |
# | FedMix {cite:p}`fedmix` | mixing with averages of others | client's data | averaged images, once |
# | FedGen {cite:p}`fedgen` | a generator of features | both | generator (down), class counts (up) |
# | FedGAN {cite:p}`fedganrasouli,fedgan` | generated images | client's data | generator and discriminator |
# | DFRD {cite:p}`dfrd` | distilling without data | server | class counts (up) |
# | FedDM {cite:p}`feddm` | condensed images, not models, go up | both | condensed images (up) |
# | DESA {cite:p}`desa` | condensed images as common anchors | client's loss | anchors, once; logits on them (down) |
#
# ```{figure} ../book/_static/baselines.svg
# :alt: A server above, a client below, and where each method acts. On the server: FedAvg averages the models, DFRD distils them without data, FedGen trains a generator of features, FedDM trains on condensed images. On a client: FedProx adds to the loss of the weights, MOON and DESA to the loss of the features, FedMix and FedGAN change the images that are trained on.
# :name: fig-baselines
# :width: 380px
#
# Where each method acts.
# ```
#
# How well they do is among [FedVCK's results](12_fedvck_results).

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
clients = 5
rounds = 3
local_steps = 10
lr = 0.05
iterations = 40
seed = 0
profile = "quick"

# %% tags=["hide-input"]
from functools import partial

import pandas as pd
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from core import server
from core.baselines import desa, dfrd, feddm, fedgan, fedmix, moon
from core.federation import tensors
from core.rng import Rng
from lab.report import image_rows, method_name, show, source
from lab.report.lesson import SMALL, Lesson

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits

# %% [markdown]
# ## One run of each
#
# Same data, split and local work. The budgets of methods that generate or condense images are cut most, so this says
# nothing about their order.

# %%
local = {"local_steps": local_steps, "lr": lr}
own = {
    "fedavg": {},
    "fedprox": {},
    "moon": {},
    "fedmix": {},
    "fedgen": {"generator_steps": 30},
    "fedgan": {},
    "dfrd": {"iterations": 4, "server_batch": 32},
    "desa": {"batch_size": 64, "ipc": 5, "iterations": iterations // 2},
}
own = {name: {**local, **settings} for name, settings in own.items()}
short = {"iterations": iterations, "server_steps": 60}
own["feddm"] = SMALL["fedvck"] | short
fields = {"dataset": dataset, "alpha": alpha, "clients": clients}
fields |= {"rounds": rounds, "seed": seed}
lesson = Lesson(profile, "fedavg", own=own, **fields)
task, members = lesson.task, lesson.members()
runs = {name: lesson.run(name) for name in own}
pd.DataFrame(
    {
        method_name(name): run.per_round()["accuracy (%)"]
        for name, run in runs.items()
    }
).T.round(1)

# %% [markdown]
# ## MOON: see as the others see
#
# MOON ties features, not weights. Of an image $x$ there are three: $z$ by the model in training, $z_{glob}$ by the
# global model, and $z_{prev}$ by the client's own model of the round before. With the cosine $s$ and a temperature
# $\tau$ the client minimises the cross-entropy and $\mu$ times
#
# $$
# \ell_{con} = -\log \frac{e^{s(z, z_{glob}) / \tau}}{e^{s(z, z_{glob}) / \tau} + e^{s(z, z_{prev}) / \tau}} .
# $$ (eq:base-moon)
#
# The global model has seen all classes, so its features are the better guide.


# %%
def moon_loss(z, z_glob, z_prev, tau):
    near = (F.cosine_similarity(z, z_glob) / tau).exp()
    past = (F.cosine_similarity(z, z_prev) / tau).exp()
    return -(near / (near + past)).log().mean()


draws = torch.randn(3, 8, 16, generator=Rng(seed).at("z").generator()).double()
same(moon_loss(*draws, 0.5), moon.contrast(*draws, 0.5))

# %% [markdown]
# In MOON's paper the features pass a projection head, which belongs to the model and is sent with it, as here by
# default. FedVCK reports for MOON the upload of FedAvg to the last digit, so no head was sent there (`projection: 0`).
#
# ## FedMix: mixing with averages
#
# Mixup trains on mixtures of two images. Of another client's images a client may only know an average $\bar x$, with
# the average $\bar y$ of their labels. So FedMix mixes a share $\lambda$ of $\bar x$ into $x$, to first order in
# $\lambda$:
#
# $$
# \begin{aligned}
# \ell_{mix} &= (1 - \lambda) \, \ell(\tilde x, y) + \lambda \, \ell(\tilde x, \bar y)
# + \lambda \, \frac{\partial}{\partial \tilde x} \bigl[(1 - \lambda) \, \ell(\tilde x, y)\bigr] \cdot \bar x , \\
# \tilde x &= (1 - \lambda) x .
# \end{aligned}
# $$ (eq:base-fedmix)
#
# Forward differentiation gives the slope along $\bar x$. Averages are sent once.

# %%
source(fedmix.mixup_loss)

# %% [markdown]
# ## FedGen: generated features
#
# The server cannot see data, but it has the last layers $g_k$ of all clients. It trains a generator $G(y, \xi)$ of
# *features* $z$ that they together take for class $y$, and sends it out. Clients train their last layer on features of
# all classes, also those that they lack.
#
# $$
# \min_G \; \mathbb{E}_{y, \xi} \; \ell\Bigl(\sigma\Bigl(\sum_k \omega_{k,y} \, g_k(z)\Bigr), y\Bigr) , \qquad
# z = G(y, \xi) .
# $$ (eq:base-fedgen)
#
# The paper weights all clients alike; its code means to weight them by their share of the class, which is the default
# here. In early rounds the clients know little, and so do the features that agree with them.

# %%
draws = Rng(seed).at("heads").generator()
logits = torch.randn(3, 8, 10, generator=draws).double()  # three clients
omega = torch.rand(3, 10, generator=draws).double().softmax(0)
y = torch.arange(8)

together = sum(omega[k, y][:, None] * logits[k] for k in range(3))
loss = F.cross_entropy(together, y)
same(loss, server.ensemble_cross_entropy(logits, y, "logits", omega))

# %% [markdown]
# ## FedGAN: generated images
#
# Every client trains a generator $G$ and a discriminator $D$ on its own images; the server averages both. From the
# second round on a client adds images of *all* classes from the averaged generator to its own.
#
# $$
# \begin{aligned}
# L_D &= -\,\mathbb{E} \log D(x \mid y) - \mathbb{E} \log\bigl(1 - D(G(\xi, y) \mid y)\bigr), \\
# L_G &= -\,\mathbb{E} \log D(G(\xi, y) \mid y).
# \end{aligned}
# $$ (eq:base-gan)

# %%
real, fake = torch.randn(2, 64, generator=draws).double()  # logits of D
D = torch.sigmoid
losses = (
    -D(real).log().mean() - (1 - D(fake)).log().mean(),
    -D(fake).log().mean(),
)
same(losses, fedgan.adversarial_losses(real, fake))

# %% [markdown]
# ## DFRD: distilling without data
#
# The server keeps all models of the round and trains a generator. Its images $s$ shall look like their class $y$ to the
# ensemble, lie where the ensemble is right and the global model $f$ is wrong, and differ. Then $f$ learns from the
# ensemble on them:
#
# $$
# \begin{aligned}
# L_{gen} &= \mathrm{CE}\Bigl(\sum_i \pi_i^y f_i(s), y\Bigr) + \beta_{tran} L_{tran} + \beta_{div} L_{div}, \\
# L_{md} &= \mathrm{KL}\Bigl(f(s), \sum_i \pi_i^y f_i(s)\Bigr)
# + \beta_{old} \, \mathrm{KL}\Bigl(f(\tilde s), \sum_i \pi_i^{\tilde y} f_i(\tilde s)\Bigr) .
# \end{aligned}
# $$ (eq:base-dfrd)
#
# $\pi_i^y$ is the share of client $i$ in the samples of class $y$; $\tilde s$ comes from a moving average of the
# generator, so that old lessons are not forgotten. Here $\mathrm{KL}(a, b) = \sum b \log(b / a)$.

# %% tags=["hide-output"]
source(dfrd.DFRD.generator_loss)

# %% [markdown]
# The paper's diversity loss is $\exp(-\frac{1}{Q^2} \sum_{i,j} \lVert s_i - s_j \rVert \, \lVert h_i - h_j \rVert)$,
# $h$ being what enters the generator. An exercise shows that it is zero at any usual size; the default takes means of
# squares, as a public copy of the authors' code does.
#
# ## FedDM: send images, not models
#
# FedDM is the nearest relative of FedVCK. A client condenses images of every class whose mean features and logits match
# those of its data {eq}`eq:dc-means`, not at the global model alone but at weights around it,
#
# $$
# w = w_t + \min\Bigl(1, \frac{\rho}{\lVert g \rVert}\Bigr) g, \qquad g \sim \mathcal{N}(0, I) ,
# $$ (eq:base-feddm)
#
# so that the images remain useful while the server trains on them. What it lacks beside FedVCK are [the three
# parts](14_fedvck_ablations); what its images start from decides [much of its accuracy](13_fedvck_budgets).

# %%
source(feddm.disturbance)

# %% [markdown]
# ## DESA: common anchors
#
# Before training every client condenses a few images per class, once, at random networks. Averaged over the clients
# they are anchors $D_{syn}$ that everybody has. A client then minimises
#
# $$
# \begin{aligned}
# L &= L_{CE}(D_i \cup D_{syn}) + \beta_{REG} L_{REG}(D_i, D_{syn}) \\
# &\quad + \beta_{KD} \, \tau^2 \, \mathrm{KL}\bigl(Z_i \,\Vert\, f_i(D_{syn})\bigr) .
# \end{aligned}
# $$ (eq:base-desa)
#
# $L_{REG}$ pulls features of a class towards those of its anchors; $Z_i$ is what the *other* clients' models say of the
# anchors. DESA has no server; FedVCK's comparison has a global model, so models are averaged here.

# %% tags=["hide-output"]
source(desa.DESA.objective)

# %% [markdown]
# ## What they make
#
# FedVCK's Table 8 says what each data-centric baseline makes: features (FedGen), images (FedGAN, DFRD, FedMix),
# condensed images (FedDM, DESA). That agrees. By its Table 1 FedDM matches final features only; it matches logits too.
# The first eight images of three of them:

# %%
method = lesson.experiment("fedgan").new_algorithm()
generator = method.generator(task, runs["fedgan"].state.tensors)
generated, _ = fedgan.draw(task, generator, 8, Rng(seed).at("draw"))
method, largest = (
    lesson.experiment("feddm").new_algorithm(),
    max(members, key=len),
)
sent = method.broadcast(runs["feddm"].state, largest.id)
condensed = method.client_update(largest, sent, Rng(seed)).tensors["images"]
anchors = desa.anchors(runs["desa"].state)["anchors/images"]
averages, _ = fedmix.remembered_averages(runs["fedmix"].state.tensors)
pictures = {
    "FedMix: averages": averages,
    "FedGAN: generated": generated,
    "FedDM: condensed": condensed,
    "DESA: anchors": anchors,
}
show(image_rows({name: images[:8] for name, images in pictures.items()}))

# %% [markdown]
# ## Each is FedAvg when its own term is off
#
# A strong test of a baseline: only its own term may make a difference, so the same seed must give the same weights up to
# rounding. FedDM has no FedAvg inside.

# %%
switched_off = {
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0, "projection": 0},
    "fedgen": {"alpha": 0.0, "beta": 0.0},
    "fedgan": {"share": 0.0},
    "fedmix": {"mixup": 0.0},
    "dfrd": {"iterations": 0},
    "desa": {"learn_anchors": False, "reg": 0.0, "kd": 0.0, "batch_size": 64},
}
short = lesson.changed(rounds=2)


def weights(name, **settings):
    """The global model after two short rounds."""
    state = short.run(name, local_steps=2, **settings).state
    return tensors.weights(state.tensors)


plain, rows = weights("fedavg"), {}
for name, off in switched_off.items():
    other = weights(name, **off)
    gap = max((other[key] - plain[key]).abs().max().item() for key in plain)
    assert gap < 1e-4, name
    rows[method_name(name)] = {"switched off": str(off), "difference": gap}
pd.DataFrame(rows).T

# %% [markdown]
# ## Take away
#
# - Seven of the nine methods are FedAvg and something of their own, and become FedAvg when it is off.
# - The terms act on weights (FedProx), features (MOON, FedGen, DESA), data (FedGAN, FedMix) or on the server (DFRD).
#   FedDM and FedVCK replace the upload.
# - A generator has only the steps that the rounds give it, and an ensemble teaches what it knows: where a class has few
#   owners, it knows little.
#
# ## Exercises
#
# ```{exercise} What an average reveals
# :label: ex-base-average
#
# *Easy, 15 minutes.*
#
# FedMix sends averages of at least five images (`mean_batch`). Look at them, then at averages of two. Which averages
# show single images, whatever `mean_batch` is?
# ```
#
# ````{solution} ex-base-average
# :class: dropdown
#
# ```python
# for size in (5, 2):
#     run = lesson.changed(rounds=1).run("fedmix", mean_batch=size)
#     means, _ = fedmix.remembered_averages(run.state.tensors)
#     show(image_rows({f"averages of {size}": means[:8]}))
# ```
#
# With two images both can often be seen. Where nearly all of a client's images are of one class of little variety, an
# average looks like each of them. And a client with fewer images than `mean_batch` sends the average of what it has.
# ````
#
# ```{exercise} Why the diversity loss is zero
# :label: ex-base-norm
#
# *Medium, 20 minutes.*
#
# Let the pixels of $s$ be uniform in $[0, 1]$, $d$ in number, and let the 64 numbers of $h$ have variance 1. How large
# is the exponent of DFRD's diversity loss, as its paper writes it, for $28 \times 28$ pixels?
# ```
#
# ```{solution} ex-base-norm
# :class: dropdown
#
# The difference of two uniform numbers has mean square $1/6$, that of two numbers of variance 1 has $2$. So
# $\lVert s_i - s_j \rVert \approx \sqrt{d / 6} \approx 11$ and $\lVert h_i - h_j \rVert \approx \sqrt{128} \approx 11$.
# Their product is near 129, and $e^{-129}$ is smaller than any float32. With means of squares the exponent is
# $-\frac{1}{6} \cdot 2$, whatever the size.
# ```
