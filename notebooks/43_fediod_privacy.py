# %% [markdown]
# # FedIOD: differential privacy
#
# *Question:* what does a client of FedIOD {cite:p}`fediod` reveal, what does differential privacy promise, and how is it
# counted and audited?\
# *Time:* some seconds on one CPU core. *Data:* scikit-learn's digits for a run.
#
# FedIOD never sends a network. But in every step a client answers the server's images, and what it sends depends on its
# data. The paper adds differential privacy to it. None of this was released as code; where the paper is silent this page
# says what is assumed. [What it costs](37_fediod_budgets) comes next, with Table 5; what the images themselves give away
# [has a page](48_fediod_images) too.

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
budget = 3.5
games = 400
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import math

import pandas as pd
import torch

from core.algorithms import find
from core.checks import check_whole
from core.privacy.audit import audited_epsilon, gaussian_epsilon
from core.privacy.differential import (
    clip_and_noise,
    noise_multiplier,
    spent_epsilon,
)
from core.rng import Rng
from lab.report import lines, show, source
from lab.report.lesson import ADVERSARIAL, small_lesson

check_whole("games", games, 20)

Settings = find("fediod").Settings
delta = Settings().delta
lesson = small_lesson(
    profile,
    {**ADVERSARIAL, "distill_steps": steps, "student_steps": student_steps},
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
)

# %% [markdown]
# ## What leaves a client
#
# The uploads of one step, for one client, and what protects them in a private run. A private client does not say what
# its discriminator thinks, so the weights must be class ratios (`importance`).

# %% tags=["hide-input"]
guards = {
    "logits": "clipped to logit_norm and noised",
    "gradients/images": "clipped to clip_norm and noised",
    "discriminator/generated": "not sent",
    "discriminator/real": "not sent",
}
weighted = lesson.experiment(importance="class_and_input").new_algorithm()
run = lesson.run()
server, side = weighted.sides(run.state, run.clients, Rng(seed))
sent = [
    (name, str(tuple(value.shape)), guards[name])
    for exchange in weighted.step(server, side, run.state.meta["step"])
    if exchange.direction == "up"
    for name, value in exchange.of(0).tensors.items()
]
names = ["tensor", "shape", "in a private run"]
pd.DataFrame(sent, columns=names).groupby(names, sort=False).size().rename(
    "a step"
).reset_index().set_index("tensor")

# %% [markdown]
# Logits are sent for the generator's images and for the fresh ones of each step of the student's own.
# Once, before the first step, a client says how many images of each class it has. This stays unprotected; the paper
# says nothing of it. So the $\varepsilon$ below is that of what is sent with noise; the run as a whole has none.
#
# ## The promise
#
# A mechanism $M$ is $(\varepsilon, \delta)$-differentially private {cite:p}`dp` if for all neighbouring data sets $X$,
# $X'$ and all sets $Y$ of outputs
#
# $$
# P(M(X) \in Y) \le e^\varepsilon \, P(M(X') \in Y) + \delta .
# $$ (eq:iop-dp)
#
# So nobody can tell well from the output which of the two it was. All hangs on the word *neighbouring*. The paper does
# not define it. Here neighbours differ in *all data of one client*: a teacher has been trained on all its images, so a
# single one can change any answer.
#
# ### Clip, then add noise
#
# A row $g_i$ of an upload (the gradient for one image, or its logits) is cut to length $B$. Then all $N$ rows can move
# by at most $2 B$ each, and the whole upload by $\Delta = 2 B \sqrt{N}$. Noise of $\sigma$ times this is added:
#
# $$
# \tilde g_i = \frac{g_i}{\max(1, \lVert g_i \rVert / B)} + \mathcal{N}\bigl(0, (\sigma \Delta)^2 I\bigr), \qquad
# \Delta = 2 B \sqrt{N} .
# $$ (eq:iop-noise)

# %% mystnb={"code_prompt_show": "Show clip_and_noise in core"} tags=["hide-cell"]
source(clip_and_noise)

# %% tags=["hide-input"]
steep = torch.randn(32, 100, generator=Rng(seed).at("steep").generator())
clipped = clip_and_noise(steep, 1.0, 0.0, Rng(seed).generator())
noised = clip_and_noise(steep, 1.0, 0.5, Rng(seed).at("drawn").generator())
pd.Series(
    {
        "longest row before": steep.norm(dim=1).max().item(),
        "longest row, clipped": clipped.norm(dim=1).max().item(),
        "deviation of the noise, measured": (noised - clipped).std().item(),
        "deviation of the noise, sigma * 2 B sqrt(N)": 0.5 * 2 * math.sqrt(32),
    }
).round(3).to_frame("value")

# %% [markdown]
# ## The accountant
#
# Each noisy upload is one release; in a step a client makes two, logits and gradients. Where the student takes several
# steps for one of the generator, each of them asks for logits of new images, which is one release more. What do $T$ of
# them give away together? In Rényi's divergence of order $a$ {cite:p}`renyidp` the Gaussian mechanism costs
# $a / (2 \sigma^2)$, and costs add up:
#
# $$
# \varepsilon \le \min_{a > 1} \Bigl[ \frac{T a}{2 \sigma^2} + \frac{\log (1 / \delta)}{a - 1} \Bigr]
# = \frac{T}{2 \sigma^2} + \frac{\sqrt{2 T \log (1 / \delta)}}{\sigma} .
# $$ (eq:iop-renyi)
#
# The book takes the accountant of the library Opacus, which turns the same divergence into $\varepsilon$ a little more
# tightly:

# %% mystnb={"code_prompt_show": "Show spent_epsilon in core"} tags=["hide-cell"]
source(spent_epsilon)

# %% [markdown]
# Without sampling the truth is known: $T$ releases with $\sigma$ are one release with $\sigma / \sqrt T$, for which
#
# $$
# \delta(\varepsilon) = \Phi\Bigl(\frac{\nu}{2} - \frac{\varepsilon}{\nu}\Bigr)
# - e^\varepsilon \, \Phi\Bigl(- \frac{\nu}{2} - \frac{\varepsilon}{\nu}\Bigr), \qquad \nu = \sqrt T / \sigma .
# $$ (eq:iop-exact)


# %% tags=["hide-input"]
def simple(sigma, count):
    return (
        count / (2 * sigma**2)
        + math.sqrt(2 * count * math.log(1 / delta)) / sigma
    )


def exact(sigma, count):
    return gaussian_epsilon(math.sqrt(count) / sigma, delta)


pd.DataFrame(
    {
        f"sigma = {sigma:g}, T = {count}": {
            "exact": exact(sigma, count),
            "Opacus": spent_epsilon(sigma, 1.0, count, delta),
            "closed form": simple(sigma, count),
        }
        for sigma, count in ((2.0, 1), (20.0, 100), (30.0, 1000), (150.0, 1000))
    }
).T.round(3)

# %% [markdown]
# ### An audit from below
#
# The accountant proves a bound about a mechanism. Is the program that mechanism? An audit {cite:p}`tightaudit` plays the
# game that the definition is about: two data sets whose answers differ as much as they may, and an attacker who sees the
# noisy answers and guesses whose they are. From the numbers of wrong guesses, with their exact binomial intervals, follows
# the least $\nu$, and by {eq}`eq:iop-exact` the least $\varepsilon$, with 95% confidence. It must not exceed what is
# claimed. Three faults show what it sees.

# %% mystnb={"code_prompt_show": "Show audited_epsilon in core"} tags=["hide-cell"]
source(audited_epsilon)

# %% tags=["hide-input"]
row = torch.randn(4, 6, generator=Rng(seed).at("canary").generator())
canaries = 50 * row, -50 * row  # far beyond the bound on both sides
claim, releases, bound = budget, 3, 1.0
sigma = noise_multiplier(claim, delta, 1.0, releases)
mechanisms = {
    "as it is": lambda x, g: clip_and_noise(x, bound, sigma, g),
    "half of the noise": lambda x, g: clip_and_noise(x, bound, sigma / 2, g),
    "noise for one row only": lambda x, g: torch.cat(
        [clip_and_noise(each[None], bound, sigma, g) for each in x]
    ),
    "no clipping": lambda x, g: x + clip_and_noise(0 * x, bound, sigma, g),
}
pd.DataFrame(
    {
        name: {
            "claimed": claim,
            "at least": audited_epsilon(
                release, canaries, releases, games, delta, Rng(seed).at("audit")
            ),
        }
        for name, release in mechanisms.items()
    }
).T.assign(refuted=lambda one: one["at least"] > one["claimed"]).round(2)

# %% [markdown]
# ### Noise and releases
#
# More noise buys a smaller $\varepsilon$; more releases cost. Only $T / \sigma^2$ counts: twice the noise lets four times
# as many releases pass.


# %% tags=["hide-input"]
def epsilons(sigmas, counts):
    """Epsilon of all pairs of a noise and a number of releases."""
    return pd.DataFrame(
        [
            {"sigma": s, "T": t, "epsilon": spent_epsilon(s, 1.0, t, delta)}
            for t in counts
            for s in sigmas
        ]
    )


by_noise = epsilons([2.0**power for power in range(-1, 10)], [1, 100, 10_000])
by_noise["label"] = by_noise["T"].map("T = {:,}".format)
show(
    lines(
        by_noise,
        "sigma",
        "epsilon",
        log="xy",
        xlabel="noise multiplier sigma",
        title=f"Epsilon against noise (delta = {delta:g})",
    )
)

# %% tags=["hide-input"]
by_steps = epsilons([5.0, 20.0, 100.0], [4**power for power in range(9)])
by_steps["label"] = by_steps["sigma"].map("sigma = {:g}".format)
show(
    lines(
        by_steps,
        "T",
        "epsilon",
        log="xy",
        xlabel="releases T",
        title=f"Epsilon against releases (delta = {delta:g})",
    )
)

# %% [markdown]
# Where each client is drawn by a coin of its own, whoever sees only the sum does not know whose data were used, and each
# release costs less (neighbours are then data sets of which one lacks the client). Here clients send one by one: the
# server sees who takes part, so the draw protects nobody against it. Against somebody who sees only sums it would give:

# %% tags=["hide-input"]
pd.Series(
    {
        f"rate {rate:g}": spent_epsilon(5.0, rate, 100, delta)
        for rate in (1.0, 0.3, 0.1, 0.03)
    }
).round(3).to_frame("epsilon of 100 releases, sigma = 5")

# %% [markdown]
# In FedIOD all clients answer in every step, so the rate is 1.
#
# ## Take away
#
# - A budget means nothing without its neighbours: here, all data of one client.
# - Releases and noise are exchanged as $T / \sigma^2$ {eq}`eq:iop-renyi`.
# - An accountant bounds a mechanism from above, an audit the program from below.
#
# ## Exercise
#
# ```{exercise} One more digit of epsilon
# :label: ex-iop-exact
#
# *Medium, 15 minutes.*
#
# How many more releases would the exact $\varepsilon$ of {eq}`eq:iop-exact` allow than the accountant, at $\sigma = 100$
# and $\varepsilon = 10$?
# ```
#
# ````{solution} ex-iop-exact
# :class: dropdown
#
# ```python
# from core.privacy.differential import affordable_steps
#
# ours = affordable_steps(10.0, delta, 100.0, 1.0, 100_000)
# more = ours
# while exact(100.0, more) <= 10.0:
#     more += 100
# ours, more, more / ours
# ```
#
# About an eighth more. Rényi's divergence of Gaussian noise is exact; what is lost is lost where a single order of it is
# turned into $\varepsilon$ and $\delta$.
# ````
