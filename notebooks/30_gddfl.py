# %% [markdown]
# # GDD-FL
#
# *Question:* how does GDD-FL {cite:p}`gddfl` train a model from a single upload of a few made-up images?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.
#
# In GDD-FL (*generalizable dataset distillation*) the clients speak once. Each condenses its images by distribution
# matching ([dataset condensation](10_dataset_condensation)) and sends the result. The server trains a brand-new
# network on what all have sent. No model ever crosses the network, so a hospital could send its images by post.
#
# One idea is new. A client cannot see the scanners of the others. So its condensed images must match the real ones not
# only as they are, but also with statistics that were shifted at random, as if they came from elsewhere. Take the shift
# away and DM {cite:p}`dm` is left, with steps twice as long (below).
#
# ```{figure} ../book/_static/gddfl.svg
# :alt: A server above, clients below. Nothing but settings goes down. Condensed images and labels go up once, one byte for each channel of a pixel. In every iteration a client draws a random network, shifts brightness and contrast of real images at random, and moves noise until the network sees in it what it sees in both. Real images and their statistics stay. The server merges all condensed images and trains a new network on them.
# :name: fig-gddfl
# :width: 300px
#
# Who sends what to whom in GDD-FL. Green goes up, red stays.
# ```
#
# This page goes through the equations in a few lines that are compared with `core`. [The next](29_gddfl_rivals) runs
# all methods of the paper's table. Which of its numbers hold stands among the [results](32_gddfl_results); what its
# precision and recall mean, on [another page](34_gddfl_averaging). [The shift](31_gddfl_shift) and [what it
# brings](33_gddfl_devices) have pages of their own.
#
# Digits have 8x8 pixels and the runs are short. So the encoder has two blocks in place of three.

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

# %% tags=["hide-input"]
from functools import partial

import torch
from torch.testing import assert_close

from core import condensation
from core.condensation import shift
from core.families import one_shot
from core.rng import Rng
from lab.report import condensed_images, image_rows, show, source
from lab.report.lesson import Lesson
from lab.report.texts import Markdown

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
lesson = Lesson(
    profile,
    "gddfl",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=1,
    seed=seed,
    settings={
        "images_per_class": images_per_class,
        "iterations": iterations,
        "image_lr": 1.0,
        "real_batch": real_batch,
        "encoder_depth": encoder_depth,
        "encoder_width": encoder_width,
        "server_epochs": 100,
        "server_lr": 0.02,
    },
)
settings = lesson.experiment().new_algorithm().settings
task, members = lesson.task, lesson.members()
classes = task.dataset.classes
show(lesson.partition_plot())

# %% [markdown]
# ## A shift of statistics
#
# Let $x_i$ be an image of a batch $x$: one class of one client. Each of its channels has a mean $\mu(x_i)$ and a
# standard deviation $\sigma(x_i)$ over the positions, its brightness and its contrast. How different can the same thing
# look elsewhere? GDD-FL reads this off the batch, with the formulas of DSU {cite:p}`dsu`, which it does not cite: the
# more the images of a batch differ in brightness, the more may a stranger's differ. This is the *uncertainty* of both
# statistics (Eq. 1), and new statistics are drawn around the old ones (Eq. 2):
#
# $$
# \begin{aligned}
# \Sigma_\mu^2(x) &= \frac{1}{|x|} \sum_{i=1}^{|x|} \bigl(\mu(x_i) - \mathbb{E}[\mu(x)]\bigr)^2, \\
# \Sigma_\sigma^2(x) &= \frac{1}{|x|} \sum_{i=1}^{|x|} \bigl(\sigma(x_i) - \mathbb{E}[\sigma(x)]\bigr)^2
# \end{aligned}
# $$ (eq:gdd-uncertainty)
#
# where $\mathbb{E}$ is the mean over the batch, and
#
# $$
# \begin{aligned}
# \hat\mu(x) &= \mu(x) + \epsilon_\mu \Sigma_\mu(x), &
# \hat\sigma(x) &= \sigma(x) + \epsilon_\sigma \Sigma_\sigma(x), \\
# \epsilon_\mu, \epsilon_\sigma &\sim \mathcal{N}(0, I) .
# \end{aligned}
# $$ (eq:gdd-statistics)
#
# Here $\epsilon_\mu$ and $\epsilon_\sigma$ are drawn for each image and channel, as in DSU; the paper does not say.
# These statistics take the place of the old ones. The paper prints the left form, DSU the right one:
#
# $$
# \hat x = \hat\mu(x) \, \frac{x - \mu(x)}{\sigma(x)} + \hat\sigma(x)
# \qquad \text{or} \qquad
# \hat x = \hat\sigma(x) \, \frac{x - \mu(x)}{\sigma(x)} + \hat\mu(x) .
# $$ (eq:gdd-shift)
#
# The right one has mean $\hat\mu$ and deviation $|\hat\sigma|$, as the paper's words say. The left one has them
# swapped. We take the right one (`shift="dsu"`) and offer the other by name (`"as_printed"`). On the class of a client
# that has the most images:

# %%
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
moved = sigma_hat * (x - mu) / sigma + mu_hat
printed = mu_hat * (x - mu) / sigma + sigma_hat

noise = torch.stack([e_mu, e_sigma])
same(moved, shift.shifted(x, noise))
same(printed, shift.shifted(x, noise, "as_printed"))

# %% tags=["hide-input"]
strips = {"as they are": x, "shifted": moved, "as printed": printed}
rows = {name: lesson.as_images(one[:10]) for name, one in strips.items()}
show(image_rows(rows, f"Images of class {classes[label]}", inches=0.5))

# %% [markdown]
# $U_p$ does this to a batch with probability $p = 0.5$, else nothing. A check in many draws with $p = 1$: the mean of
# $\hat\mu$ stays. Its variance over images and draws is $\Sigma_\mu^2$ from the images plus $\Sigma_\mu^2$ from
# $\epsilon_\mu$, so its deviation is $\sqrt 2$ times that of $\mu$. The same holds for $\hat\sigma$.

# %% tags=["hide-input"]
many = torch.cat(
    [shift.uncertain_shift(x, 1.0, Rng(seed).at("look", k)) for k in range(50)]
)
Markdown(
    "; ".join(
        f"{name}: {old.mean():.3f} on average, {new.mean():.3f} shifted; its "
        f"deviation grows {new.std() / old.std():.3f} times"
        for name, old, new in zip(
            ("Brightness", "contrast"),
            shift.moments(x),
            shift.moments(many),
            strict=True,
        )
    )
    + "."
)

# %% [markdown]
# ## Algorithm 1
#
# In every iteration a random network $\psi_\theta$ is drawn, $\theta \sim P_\theta$; nothing is trained. In `core` all
# clients draw the same networks, from a seed that the server sends; in Algorithm 1 each client draws its own. For every
# class $c$ the client draws real images $B_c^\mathcal{T}$ and an augmentation $\mathcal{A}_c$, and computes three mean
# features (lines 6 to 8):
#
# $$
# \begin{aligned}
# O_c^\mathcal{T} &= \frac{1}{|B_c^\mathcal{T}|} \sum_x \psi_\theta(\mathcal{A}_c(x)), \qquad
# O_c^\mathcal{S} = \frac{1}{|B_c^\mathcal{S}|} \sum_s \psi_\theta(\mathcal{A}_c(s)), \\
# O_c^U &= \frac{1}{|B_c^\mathcal{T}|} \sum_x \psi_\theta(\mathcal{A}_c(U_p(x))) .
# \end{aligned}
# $$ (eq:gdd-means)
#
# Two losses ask the condensed images to be near both (lines 9 and 10), and the images, which start as noise, follow the
# gradient of the sum (line 11):
#
# $$
# \mathcal{L}_{\mathcal{S}, \mathcal{T}} = \sum_{c} \lVert O_c^\mathcal{T} - O_c^\mathcal{S} \rVert^2, \qquad
# \mathcal{L}_U = \sum_{c} \lVert O_c^U - O_c^\mathcal{S} \rVert^2
# $$ (eq:gdd-losses)
#
# $$
# \mathcal{S} \leftarrow \mathcal{S}
# - \eta_S \nabla_\mathcal{S} (\mathcal{L}_U + \mathcal{L}_{\mathcal{S}, \mathcal{T}}) .
# $$ (eq:gdd-step)
#
# (The paper writes $\eta$ for the rate $\eta_S$.)
#
# Section 2.2 of the paper prints one loss, with $U_p$ only; Algorithm 1 has the sum, and we follow it.
#
# What does the sum do? Two squared distances add up to one, to the point half way, and a rest that does not depend
# on $\mathcal{S}$:
#
# $$
# \lVert O^U - O^\mathcal{S} \rVert^2 + \lVert O^\mathcal{T} - O^\mathcal{S} \rVert^2
# = 2 \, \Bigl\lVert \frac{O^U + O^\mathcal{T}}{2} - O^\mathcal{S} \Bigr\rVert^2
# + \frac{1}{2} \lVert O^U - O^\mathcal{T} \rVert^2 .
# $$ (eq:gdd-midpoint)
#
# All of it for one class, without the augmentation:

# %%
psi = settings.encoder(task, Rng(seed).at("psi")).double().eval()
noise = torch.randn(images_per_class, *x.shape[1:], generator=draws)
made = noise.double().requires_grad_()

O_T, O_U, O_S = (psi.embed(images).mean(0) for images in (x, moved, made))
loss = (O_T - O_S).square().sum() + (O_U - O_S).square().sum()

half_way = (O_U + O_T) / 2
rest = (O_U - O_T).square().sum() / 2
same(loss, 2 * (half_way - O_S).square().sum() + rest)
real, shifted = psi.embed(x), psi.embed(moved)
mmd = condensation.mmd
same(loss, mmd(real, psi.embed(made)) + mmd(shifted, psi.embed(made)))

(slope,) = torch.autograd.grad(loss, made)
after = made - 0.01 * slope  # a step, and the loss falls
better = psi.embed(after).mean(0)
assert (O_T - better).square().sum() + (O_U - better).square().sum() < loss

# %% mystnb={"code_prompt_show": "Show both losses of all classes and clients in core"} tags=["hide-cell"]
source(shift.ShiftedMatching.losses)

# %% mystnb={"code_prompt_show": "Show the features of a batch as it is and shifted, in core"} tags=["hide-cell"]
source(shift.ShiftedMatching.block)

# %% [markdown]
# Two things follow. First, only the *mean* feature counts. A shift that moved features up and down by equal amounts
# would leave it where it is on average; the shift has an effect because $\psi_\theta$ is not linear. Second, there is
# a factor of 2 in front: at the same learning rate GDD-FL takes steps twice as long as DM. A comparison of the two
# measures both. With $p = 0$ only the longer step is left, so [the next page](29_gddfl_rivals) has that arm as well.
#
# ## What is sent, and what the server does
#
# One byte for each channel of a pixel, and one a label. With $m$ images of each class ($m$ is the number of clients in
# the paper), $C$ classes and images of $C_x$ channels and $H$ by $H$ pixels, $K$ clients upload at most
#
# $$
# \text{bytes} = K \, C \, m \, (C_x H^2 + 1) ,
# $$ (eq:gdd-bytes)
#
# and less where a client lacks a class. The server merges all and trains its network from the random weights that it
# began with (Section 2.3).

# %%
run = lesson.run()
sent = run.state.tensors

held = sum(int((client.class_counts > 0).sum()) for client in members)
one = task.dataset.channels * task.dataset.size**2 + 1
most = clients * len(classes) * images_per_class * one
assert run.results[-1].up == held * images_per_class * one <= most
Markdown(f"The network that is trained on this reaches {run.accuracy:.1f}%.")

# %% mystnb={"code_prompt_show": "Show what the server does, in core"} tags=["hide-cell"]
source(one_shot.OneShot.server_update)

# %% [markdown]
# The uploads in the manner of the paper's Figure 2: a row for a class, a column for each client that holds it.

# %% tags=["hide-input"]
show(
    condensed_images(
        sent["uploaded/images"],
        sent["uploaded/labels"].long(),
        classes,
        columns=clients * images_per_class,
        title="What all clients upload in GDD-FL",
        inches=0.36,
    )
)

# %% [markdown]
# ## Take away
#
# - One upload, one training: GDD-FL is DM with a second loss towards shifted images {eq}`eq:gdd-losses`.
# - The sum of both losses pulls to the point half way, with a step twice as long {eq}`eq:gdd-midpoint`. A fair
#   comparison with DM needs an arm with the longer step alone.
# - What is sent depends on the images, not on the network {eq}`eq:gdd-bytes`.
#
# ## Exercise
#
# ```{exercise} By post
# :label: ex-gdd-post
#
# *Easy, 5 minutes.*
#
# Ten clients hold both classes of a set of colour images with 224x224 pixels, and send ten images of each class. How
# many bytes are uploaded in all? (To be checked: `bytes_by_post`.)
# ```
#
# ````{solution} ex-gdd-post
# :class: dropdown
#
# ```python
# 10 * 2 * 10 * (3 * 224**2 + 1)
# ```
#
# 30.1 million, or 28.7 MB of $2^{20}$ bytes, nearly the 28.81 MB in print: a few photographs from a phone.
# ````

# %% tags=["solution", "remove-cell"]
bytes_by_post = 10 * 2 * 10 * (3 * 224**2 + 1)

# %% name="ex-gdd-post" tags=["check", "remove-cell"]
assert abs(bytes_by_post / 200 / 150_529 - 1) < 0.01, (
    "200 images, of each a byte a value, and one for the label"
)
