# %% [markdown]
# # GDD-FL
#
# *Question:* how does GDD-FL {cite:p}`gddfl` train a model from a single upload of a few condensed images?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.\
# *Learn first:* [federated learning](04_federated_learning) and [dataset condensation](05_dataset_condensation).
#
# In GDD-FL (*generalizable dataset distillation*) the clients speak once. Each condenses its images by distribution
# matching, DM {cite:p}`dm`, and sends the result. The server trains a new network on what all have sent. No model ever
# crosses the network.
#
# One idea is new. A client cannot see the scanners of the others. So its condensed images must match the real ones not
# only as they are, but also with brightness and contrast shifted at random, as if they came from another scanner.
#
# ```{figure} ../book/_static/gddfl.svg
# :alt: A server above, clients below. Nothing but settings goes down. Condensed images and labels go up once, one byte for each channel of a pixel. In every iteration a client draws a random network, shifts brightness and contrast of real images at random, and changes noise until the network sees in it what it sees in both. Real images and their statistics stay. The server merges all condensed images and trains a new network on them.
# :name: fig-gddfl
# :width: 300px
#
# Who sends what to whom in GDD-FL. Green goes up, red stays.
# ```

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
alpha = 1.0
clients = 4
images_per_class = 1
iterations = 50
encoder_depth = 2
encoder_width = 32
real_batch = 16
seed = 0
profile = "quick"

# %% [markdown]
# Digits have 8x8 pixels and the runs are short, so the encoder has two blocks in place of three.

# %%
from functools import partial

import torch
from torch.testing import assert_close

from core.condensation import shift
from core.rng import Rng
from lab.report import condensed_images, image_rows, show, source
from lab.report.lesson import Lesson

condensed = {
    "images_per_class": images_per_class,
    "iterations": iterations,
    "image_lr": 1.0,
    "real_batch": real_batch,
    "encoder_depth": encoder_depth,
    "encoder_width": encoder_width,
    "server_epochs": 100,
    "server_lr": 0.02,
}
lesson = Lesson(
    profile,
    "gddfl",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=1,
    seed=seed,
    own={"gddfl": condensed, "dm": condensed},
)
settings = lesson.experiment().new_algorithm().settings
task, members = lesson.task, lesson.members()
classes = task.dataset.classes
same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
show(lesson.partition_plot())

# %% [markdown] tags=["slide"]
# ## A shift of statistics
#
# Let $x_i$ be an image of a batch $x$: one class of one client. A channel has a mean $\mu(x_i)$ and a deviation
# $\sigma(x_i)$ over the pixels: brightness and contrast. How different can they be elsewhere? As much as in the
# batch (DSU {cite:p}`dsu`). This is the *uncertainty* of both statistics (Eq. 1),
#
# $$
# \begin{aligned}
# \Sigma_\mu^2(x) &= \frac{1}{|x|} \sum_{i=1}^{|x|} \bigl(\mu(x_i) - \mathbb{E}[\mu(x)]\bigr)^2, \\
# \Sigma_\sigma^2(x) &= \frac{1}{|x|} \sum_{i=1}^{|x|} \bigl(\sigma(x_i) - \mathbb{E}[\sigma(x)]\bigr)^2 .
# \end{aligned}
# $$ (eq:gdd-uncertainty)

# %% [markdown] tags=["slide"]
# New statistics are drawn around the old ones (Eq. 2), for each image and channel:
#
# $$
# \begin{aligned}
# \hat\mu(x) &= \mu(x) + \epsilon_\mu \Sigma_\mu(x), &
# \hat\sigma(x) &= \sigma(x) + \epsilon_\sigma \Sigma_\sigma(x), \\
# \epsilon_\mu, \epsilon_\sigma &\sim \mathcal{N}(0, I) .
# \end{aligned}
# $$ (eq:gdd-statistics)

# %% [markdown] tags=["slide"]
# The new statistics take the place of the old ones. The paper writes the left form, DSU the right one:
#
# $$
# \hat x = \hat\mu(x) \, \frac{x - \mu(x)}{\sigma(x)} + \hat\sigma(x)
# \qquad \text{or} \qquad
# \hat x = \hat\sigma(x) \, \frac{x - \mu(x)}{\sigma(x)} + \hat\mu(x) .
# $$ (eq:gdd-shift)

# %% [markdown]
# The right one has mean $\hat\mu$ and deviation $|\hat\sigma|$, as the paper's words say; the left one has them
# swapped. We take the right one (`shift="dsu"`); [the shift](27_gddfl_shift) compares both. Here it is in a few lines,
# for the largest class of any client, beside the function of `core`:

# %% tags=["slide"]
owner, label = max(
    ((client, c) for client in members for c in range(len(classes))),
    key=lambda pair: int(pair[0].class_counts[pair[1]]),
)
x = task.inputs(owner.images[owner.labels == label]).double()
draws = Rng(seed).at("noise").generator()
e_mu, e_sigma = torch.randn(2, *x.shape[:2], generator=draws).double()

mu = x.mean((2, 3), keepdim=True)
sigma = (x.var((2, 3), correction=0, keepdim=True) + shift.EPS).sqrt()
mu_hat = mu + e_mu[..., None, None] * mu.std(0, correction=0)
sigma_hat = sigma + e_sigma[..., None, None] * sigma.std(0, correction=0)
shifted = sigma_hat * (x - mu) / sigma + mu_hat

same(shifted, shift.shifted(x, torch.stack([e_mu, e_sigma])))
rows = {
    name: lesson.as_images(images[:10])
    for name, images in {"real": x, "shifted": shifted}.items()
}
show(image_rows(rows, f"Images of class {classes[label]}", inches=0.5))

# %% [markdown]
# The shift $U_p$ does this to a batch with probability $p = 0.5$, else nothing.
#
# ## Algorithm 1

# %% [markdown] tags=["slide"]
# In every iteration a random network $\psi_\theta$ is drawn; it is not trained. For each class $c$ the client draws
# real images $B_c^\mathcal{T}$ and an augmentation $\mathcal{A}_c$, and computes three mean features (lines 6 to 8), of
# real, condensed and shifted images:
#
# $$
# \begin{aligned}
# O_c^\mathcal{T} &= \frac{1}{|B_c^\mathcal{T}|} \sum_x \psi_\theta(\mathcal{A}_c(x)), \qquad
# O_c^\mathcal{S} = \frac{1}{|B_c^\mathcal{S}|} \sum_s \psi_\theta(\mathcal{A}_c(s)), \\
# O_c^U &= \frac{1}{|B_c^\mathcal{T}|} \sum_x \psi_\theta(\mathcal{A}_c(U_p(x))) .
# \end{aligned}
# $$ (eq:gdd-means)

# %% [markdown] tags=["slide"]
# Two losses ask the condensed images, which start as noise, to be near both (lines 9 and 10), and the images go down the
# gradient of their sum (line 11):
#
# $$
# \mathcal{L}_{\mathcal{S}, \mathcal{T}} = \sum_{c} \lVert O_c^\mathcal{T} - O_c^\mathcal{S} \rVert^2, \qquad
# \mathcal{L}_U = \sum_{c} \lVert O_c^U - O_c^\mathcal{S} \rVert^2 .
# $$ (eq:gdd-losses)

# %%
source(shift.ShiftedMatching.losses)

# %% [markdown] tags=["slide"]
# What does the sum do? Two squared distances add up to one, to the point half way, and a rest that does not depend on
# $\mathcal{S}$:
#
# $$
# \lVert O^U - O^\mathcal{S} \rVert^2 + \lVert O^\mathcal{T} - O^\mathcal{S} \rVert^2
# = 2 \, \Bigl\lVert \frac{O^U + O^\mathcal{T}}{2} - O^\mathcal{S} \Bigr\rVert^2
# + \frac{1}{2} \lVert O^U - O^\mathcal{T} \rVert^2 .
# $$ (eq:gdd-midpoint)

# %% [markdown]
# For one class, without the augmentation:

# %%
psi = settings.encoder(task, Rng(seed).at("psi")).double().eval()
noise = torch.randn(images_per_class, *x.shape[1:], generator=draws)
S = noise.double().requires_grad_()

O_T, O_U, O_S = (psi.embed(images).mean(0) for images in (x, shifted, S))
loss = (O_T - O_S).square().sum() + (O_U - O_S).square().sum()
half_way, rest = (O_U + O_T) / 2, (O_U - O_T).square().sum() / 2
same(loss, 2 * (half_way - O_S).square().sum() + rest)

(slope,) = torch.autograd.grad(loss, S)
after = psi.embed(S - 0.01 * slope).mean(0)  # a step, and the loss falls
assert (O_T - after).square().sum() + (O_U - after).square().sum() < loss

# %% [markdown]
# Two things follow. Only the *mean* feature counts: a shift that changed features up and down by equal amounts would leave
# it where it is, and the shift has an effect because $\psi_\theta$ is not linear. And there is a factor of 2 in front:
# at the same learning rate GDD-FL takes steps twice as long as DM. With $p = 0$ only the longer step is left. A fair
# comparison with DM has that variant as well.
#
# ## What is sent, and what the server does

# %% [markdown] tags=["slide"]
# A condensed image costs one byte for each channel of a pixel, and one for its label. With $m$ images of each of $C$
# classes, of $C_x$ channels and $H$ by $H$ pixels, $K$ clients upload at most
#
# $$
# \text{bytes} = K \, C \, m \, (C_x H^2 + 1) .
# $$ (eq:gdd-bytes)

# %% [markdown]
# It is less where a client lacks a class, and does not depend on the network. (Ten clients with ten colour images of 224 by 224
# pixels of each of two classes: 28.7 MB.) The server merges all uploads and trains its network from the random weights that it
# began with.

# %% tags=["slide"]
run = lesson.run()
sent = run.state.tensors
pairs = sum(int((client.class_counts > 0).sum()) for client in members)
one_image = task.dataset.channels * task.dataset.size**2 + 1
assert run.results[-1].up == pairs * images_per_class * one_image
show(
    condensed_images(
        sent["uploaded/images"],
        sent["uploaded/labels"].long(),
        classes,
        columns=clients * images_per_class,
        title="What all clients upload, a column for each client",
        inches=0.36,
    )
)

# %% [markdown]
# ## The baselines of the paper
#
# | method | its idea | what a client sends |
# |---|---|---|
# | upper bound | all images in one place | its real images |
# | R.S. | real images, drawn at random from all clients | real images |
# | FedAvg {cite:p}`fedavg` | models are trained locally and averaged | a model in every round |
# | DC {cite:p}`dc` | a network gets the same gradients from real and condensed images | condensed images |
# | DSA {cite:p}`dsa` | DC, both sides under one random augmentation | condensed images |
# | DM | mean features agree in random networks | condensed images |
# | GDD-FL | DM, and the same towards shifted images | condensed images |
#
# FedAvg's bytes grow with the network and with every round, those of images do not. [Results](25_gddfl_results) has the
# paper's table with all of them.

# %% [markdown] tags=["slide"]
# ## Take away
#
# - One upload, one training: GDD-FL is DM with a second loss towards shifted images {eq}`eq:gdd-losses`.
# - The sum of both losses pulls to the point half way, with a step twice as long {eq}`eq:gdd-midpoint`.
# - What is sent depends on the images, not on the network {eq}`eq:gdd-bytes`.

# %% [markdown]
# It goes on with [the shift](27_gddfl_shift) and with [update steps and initialisation](26_gddfl_images).
#
# ## Exercise
#
# ```{exercise} No shift
# :label: ex-gdd-zero
#
# *Medium, 20 minutes.*
#
# With which learning rate of the images does DM upload what GDD-FL does with $p = 0$ and a rate of 1? (To be checked:
# `rate`.)
# ```
#
# ````{solution} ex-gdd-zero
# :class: dropdown
#
# With $p = 0$, $O^U = O^\mathcal{T}$, and {eq}`eq:gdd-losses` adds up to
# $2 \mathcal{L}_{\mathcal{S}, \mathcal{T}}$. SGD, with momentum too, on twice a loss is SGD with twice the rate:
#
# ```python
# rate = 2.0
# ```
#
# Uploads agree to rounding.
# ````

# %% tags=["solution", "remove-cell"]
rate = 2.0

# %% name="ex-gdd-zero" tags=["check", "remove-cell"]
double = lesson.run("dm", image_lr=rate).state.tensors["uploaded/images"]
zero = lesson.run(shift_probability=0).state.tensors["uploaded/images"]
assert (double.int() - zero.int()).abs().max() <= 1, (
    "with p = 0 both losses are the same: what is their sum?"
)
