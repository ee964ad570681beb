# %% [markdown]
# # FedIOD: privacy and cost
#
# *Question:* what does a client of FedIOD {cite:p}`fediod` reveal, what does differential privacy promise and cost, do
# distances between images say anything about privacy, and how many bytes does an accuracy take?\
# *Time:* about half a minute on one CPU core. *Data:* scikit-learn's digits for the runs; records for the tables.
#
# FedIOD never sends a network. But in every step a client answers the server's images, and what it sends depends on its
# data. The paper adds differential privacy to it (Table 5), compares synthetic with private images (Figure 4), and
# counts bytes (Figure 8). None of the three was released as code. Where the paper is silent this page says what is
# assumed. The generator of the small runs has the adversarial loss only, as in the authors' script for skewed data, and
# the student takes `student_steps` for each of its steps.

# %% tags=["parameters"]
dataset = "digits"
alpha = 0.5
clients = 3
rounds = 4
steps = 12
student_steps = 4
budgets = [3.5, 6.0, 10.0]
voters = 20
largest = 8000
attacked = 4
attack_iterations = 12
games = 400
seed = 0
profile = "quick"
shown = "best"

# %% tags=["hide-input"]
import math

import pandas as pd
import torch
from torch import nn

from core import distillation, models
from core.algorithms import find
from core.data import partition
from core.federation import LocalTraining, supervised, train
from core.metrics import image_quality
from core.metrics.image_quality import (
    RandomFeatures,
    adapted_inception_score,
    fid,
    inception_score,
)
from core.privacy.audit import audited_epsilon, gaussian_epsilon
from core.privacy.differential import (
    affordable_steps,
    clip_and_noise,
    noise_multiplier,
    noisy_votes,
    spent_epsilon,
)
from core.privacy.leakage import (
    DeepLeakage,
    best_matches,
    deep_leakage,
    gradients,
)
from core.report import (
    condensed_images,
    curve_frame,
    curves,
    lines,
    show,
    source,
    table,
    table_frame,
)
from core.report.lesson import SMALL, victim
from core.report.results import filled, table_runs
from core.report.taught import TaughtLesson
from core.report.texts import Markdown
from core.rng import Rng

best = None if shown == "best" else shown
Settings = find("fediod").Settings
delta = Settings().delta


# %% tags=["hide-input"]
lesson = TaughtLesson(
    profile,
    "fediod",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    model_options={"depth": 2, "width": 16},
    settings={"lr": 0.05, "batch_size": 32},
    own={
        "fediod": {
            **SMALL["fediod"],
            "distill_steps": steps,
            "student_steps": student_steps,
            "mimic": 0,
            "confidence": 0,
            "uniqueness": 0,
            "importance": "class_ratio",
            "scored_images": 0,
        }
    },
)
task = lesson.task
train_set, test, classes = (
    task.dataset.train,
    task.dataset.test,
    task.dataset.classes,
)
first = lesson.run()
algorithm, members = lesson.method, first.clients
record, final = first.record, first.state
f"accuracy of the student: {first.accuracy:.1f}%"

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
printed = lesson.experiment(importance="class_and_input").new_algorithm()
sides = printed.sides(final, members, Rng(seed))
sent = [
    message
    for exchange in printed.step(*sides, final.meta["step"])
    if exchange.direction == "up"
    for message in [exchange.of(0)]
]
rows = [
    {
        "tensor": name,
        "shape": str(tuple(value.shape)),
        "in a private run": guards[name],
    }
    for message in sent
    for name, value in message.tensors.items()
]
pd.DataFrame(rows).groupby(list(rows[0]), sort=False).size().rename(
    "a step"
).reset_index().set_index("tensor")

# %% [markdown]
# Logits are sent for the generator's images and for those of each further step of the student. Once, before the first
# step, a client says how many images of each class it has. This stays unprotected; the paper says nothing of it.
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

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show clip_and_noise in core"}
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
# Each noisy upload is one release; in a step a client makes two, logits and gradients, and one more for each further
# step of the student. What do $T$ of them give away together? In Rényi's divergence of order $a$ {cite:p}`renyidp` the
# Gaussian mechanism costs $a / (2 \sigma^2)$, and costs add up:
#
# $$
# \varepsilon \le \min_{a > 1} \Bigl[ \frac{T a}{2 \sigma^2} + \frac{\log (1 / \delta)}{a - 1} \Bigr]
# = \frac{T}{2 \sigma^2} + \frac{\sqrt{2 T \log (1 / \delta)}}{\sigma} .
# $$ (eq:iop-renyi)
#
# The book takes the accountant of the library Opacus, which turns the same divergence into $\varepsilon$ a little more
# tightly:

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show spent_epsilon in core"}
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

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show audited_epsilon in core"}
source(audited_epsilon)

# %% tags=["hide-input"]
row = torch.randn(4, 6, generator=Rng(seed).at("canary").generator())
canaries = 50 * row, -50 * row  # far beyond the bound on both sides
claim, releases, bound = budgets[0], 3, 1.0
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
# More noise buys a smaller $\varepsilon$; more steps cost.

# %% tags=["hide-input"]
sigmas = [2.0**power for power in range(-1, 10)]
by_noise = pd.DataFrame(
    [
        {
            "sigma": sigma,
            "epsilon": spent_epsilon(sigma, 1.0, count, delta),
            "label": f"T = {count:,}",
        }
        for count in (1, 100, 10_000)
        for sigma in sigmas
    ]
)
show(
    lines(
        by_noise,
        "sigma",
        "epsilon",
        log="xy",
        xlabel="noise multiplier sigma",
        ylabel="epsilon",
        title=f"Epsilon against noise (delta = {delta:g})",
    )
)

# %% tags=["hide-input"]
counts_of = [4**power for power in range(9)]
by_steps = pd.DataFrame(
    [
        {
            "T": count,
            "epsilon": spent_epsilon(sigma, 1.0, count, delta),
            "label": f"sigma = {sigma:g}",
        }
        for sigma in (5.0, 20.0, 100.0)
        for count in counts_of
    ]
)
show(
    lines(
        by_steps,
        "T",
        "epsilon",
        log="xy",
        xlabel="releases T",
        ylabel="epsilon",
        title=f"Epsilon against releases (delta = {delta:g})",
    )
)

# %% [markdown]
# Only $T / \sigma^2$ counts: twice the noise lets four times as many steps pass. Where clients take part at random, an
# observer does not know whose data were used, and each release costs less:

# %%
pd.Series(
    {
        f"rate {rate:g}": spent_epsilon(5.0, rate, 100, delta)
        for rate in (1.0, 0.3, 0.1, 0.03)
    }
).round(3).to_frame("epsilon of 100 releases, sigma = 5")

# %% [markdown]
# In FedIOD all clients answer in every step, so the rate is 1.
#
# ## What a budget buys
#
# The paper's setting: batches of 64, 300 epochs, `largest` images at the largest client, $\varepsilon = 10$ for all of
# it. How much noise is that, and which part of the training does a smaller budget pay?

# %% tags=["hide-input"]
whole = Settings(private=True, importance="class_ratio")
all_steps = whole.all_steps([largest])
releases = whole.releases(all_steps)
sigma = noise_multiplier(whole.full_epsilon, delta, 1.0, releases)
parts_paid = {
    f"epsilon = {e:g}": 100
    * affordable_steps(e, delta, sigma, 1.0, releases)
    / releases
    for e in (3.5, 6.0, 7.7, 10.0)
}
pd.Series(parts_paid).round(1).to_frame(f"steps paid, of {all_steps:,} (%)")

# %% tags=["hide-input"]
deviation = sigma * 2 * whole.clip_norm * math.sqrt(whole.distill_batch)
pixels = 3 * 32 * 32
pd.Series(
    {
        "releases": releases,
        "noise multiplier": sigma,
        "longest gradient of one image": whole.clip_norm,
        "expected length of its noise": deviation * math.sqrt(pixels),
    }
).map("{:,.0f}".format).to_frame("value")

# %% [markdown]
# Under this reading the noise is longer than what it hides by orders of magnitude. It is hard to see how the printed
# accuracies could be reached so. The paper may mean something weaker: neighbours that differ in one image, as in the
# works on private generators that it cites, or noise on the sum over clients. The text does not say, nor whether the
# budgets of logits and gradients are added. Keep this in mind with Table 5.
#
# The same in small, with far fewer steps. Teachers and draws are the same in all runs.

# %% tags=["hide-input"]
pairs = {}
for epsilon in budgets:
    for private in (True, False):
        got = lesson.run(
            private=private, epsilon=epsilon, full_epsilon=max(budgets)
        )
        pairs[f"epsilon = {epsilon:g}", "with" if private else "without"] = {
            "accuracy (%)": got.accuracy,
            "steps": got.state.meta["step"],
            "epsilon in the record": got.record.metrics.get("spent_epsilon"),
        }
small = pd.DataFrame(pairs).T.rename_axis(["budget", "privacy"])
small.round(2)

# %% [markdown]
# Look at the accuracy *without* privacy down the rows. We read the paper's columns so: the budget decides how long
# the training goes on. Then one expects it to rise with the budget even without noise, as it does in print.
#
# ## Votes in place of logits
#
# For the logits the paper names PATE {cite:p}`pate`: each teacher votes for one class, noise is added to the votes, and
# only the winner is told (GNMax):
#
# $$
# \hat y(x) = \arg\max_c \Bigl\{ \sum_{k=1}^K \mathbb{1}\bigl[\arg\max_j z_k^j(x) = c\bigr]
# + \mathcal{N}(0, \sigma_v^2) \Bigr\} .
# $$ (eq:iop-votes)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show noisy_votes in core"}
source(noisy_votes)

# %% [markdown]
# FedIOD cannot use it as it stands: its equations 3 and 4 need every single answer, and Eq. 9 needs logits. So here
# FedIOD noises the logits by {eq}`eq:iop-noise`, and votes are used in FedKD, which asks about public images once. An
# answer is paid for, so the number of questions decides. `voters` teachers answer the test images, and the noise is
# that which lets $n$ questions pass for $\varepsilon = 10$:

# %% tags=["hide-input"]
groups = [
    torch.as_tensor(part)
    for part in partition.dirichlet(train_set.labels, voters, 1.0, seed)
    if len(part)
]
network = []
for k, part in enumerate(groups):
    one = task.new_model(Rng(seed).at("voter", k))
    train(
        one,
        train_set.images[part],
        train_set.labels[part],
        LocalTraining(lr=0.05, batch_size=32),
        20,
        supervised(task),
        Rng(seed).at("vote", k),
    )
    network.append(one)
with torch.no_grad():
    said = torch.stack(
        [task.outputs(one, test.images).argmax(1) for one in network]
    )
votes = nn.functional.one_hot(said, len(classes)).float().sum(0)
rows = {}
for asked in (10, 100, 1_000, 10_000):
    multiplier = noise_multiplier(10.0, delta, 1.0, asked)
    winner = noisy_votes(
        votes,
        multiplier / math.sqrt(len(votes)),
        Rng(seed).at("noisy", asked).generator(),
    ).argmax(1)
    rows[f"{asked:,}"] = {
        "noise, in votes": multiplier * math.sqrt(2),
        "winner kept (%)": 100
        * (winner == votes.argmax(1)).float().mean().item(),
        "right (%)": 100 * (winner == test.labels).float().mean().item(),
    }
rows["no noise"] = {
    "noise, in votes": 0.0,
    "winner kept (%)": 100.0,
    "right (%)": 100 * (votes.argmax(1) == test.labels).float().mean().item(),
}
pd.DataFrame(rows).T.rename_axis("questions").round(1)

# %% [markdown]
# Compare the noise with the number of voters. PATE was made for hundreds of teachers; with few voters, few questions
# can be answered. Its bound that depends on the data, which gains from agreement, is not used here.
#
# ## Table 5
#
# Both methods under four budgets, on CIFAR-10. Ours: the whole training spends $\varepsilon = 10$, and a smaller
# budget stops it earlier.

# %% tags=["hide-input"]
table("fediod", 5, best)

# %% tags=["hide-input"]
frame = table_frame("fediod", 5, best)
wide = {
    kind: frame.pivot(index="column", columns="row", values=kind).reindex(
        frame["column"].unique()
    )
    for kind in ("printed", "measured")
}
answers = {}
for kind, of in wide.items():
    answers |= {
        f"FedIOD over FedKD, with DP, {kind}": of["FedIOD with DP"]
        - of["FedKD with DP"],
        f"price for FedIOD, {kind}": of["FedIOD without DP"]
        - of["FedIOD with DP"],
        f"price for FedKD, {kind}": of["FedKD without DP"]
        - of["FedKD with DP"],
    }
filled(pd.DataFrame(answers).T, "{:+.2f}")

# %% tags=["hide-input"]
lead = (
    wide["printed"]["FedIOD with DP"] - wide["printed"]["FedKD with DP"]
).dropna()
Markdown(
    'Under equal budgets the paper calls FedIOD "superior or equivalent". In '
    f"print it is ahead in {(lead > 0).sum()} of {len(lead)} columns, by "
    f"{lead.min():+.2f} to {lead.max():+.2f} points."
)

# %% [markdown]
# ## How good are the images?
#
# Privacy by bad images is easy. So quality first. The *inception score* {cite:p}`inceptionscore` takes a classifier
# $p(y | x)$ and asks that each image be of one class, and all classes occur:
#
# $$
# \mathrm{IS} = \exp \mathbb{E}_x \bigl[ \mathrm{KL}\bigl(p(y | x) \,\Vert\, p(y)\bigr) \bigr]
# = \exp \bigl\{ H(\mathbb{E}_x \, p(y | x)) - \mathbb{E}_x H(p(y | x)) \bigr\} .
# $$ (eq:iop-inception)
#
# It lies between 1 and $C$. The right side is the divergence {eq}`eq:iod-unique` once more: there between teachers, for
# one image; here between images, for one classifier.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show exponential_score in core"}
source(image_quality.exponential_score)

# %% [markdown]
# Usually the classifier is Inception, trained on ImageNet. The paper's *adapted* score takes the local teachers, and
# the mean of their scores (Table 7). Some sets of images; in place of Inception a network that has learned from all
# data:

# %% tags=["hide-input"]
teachers = lesson.teachers
judge = task.new_model(Rng(seed).at("judge"))
train(
    judge,
    train_set.images,
    train_set.labels,
    LocalTraining(lr=0.05, batch_size=32),
    150,
    supervised(task),
    Rng(seed).at("judge", "train"),
)
judge.eval()


@torch.no_grad()
def probabilities(network, x):
    """(N, C) for images in [0, 1]."""
    return network(task.dataset.standardise(x)).float().softmax(1)


begin = lesson.start()
real = test.images[:300].float() / 255
noise = torch.rand(real.shape, generator=Rng(seed).at("uniform").generator())
sets = {
    "real test images": real,
    "one real image, repeated": real[:1].expand_as(real),
    "pairs of real images, averaged": (real + real.flip(0)) / 2,
    "uniform noise": noise,
    "generator, untrained": lesson.pictures(begin, 300),
    "generator, trained": lesson.pictures(final, 300),
}
pd.DataFrame(
    {
        name: {
            "one classifier": inception_score(probabilities(judge, x)),
            "adapted": adapted_inception_score(
                torch.stack([probabilities(t, x) for t in teachers])
            ),
        }
        for name, x in sets.items()
    }
).T.round(2)

# %% [markdown]
# A teacher that has seen few classes cannot score high, whatever the images: its score is at most about the number of
# classes it knows. So adapted scores can be compared within one partition only.

# %% tags=["hide-input"]
pd.DataFrame(
    {
        f"client {client.id}": {
            "its classes": int((client.class_counts > 0).sum()),
            "classes by size": distillation.entropy(
                client.class_counts / len(client)
            )
            .exp()
            .item(),
            "score of real images": inception_score(
                probabilities(teacher, real)
            ),
        }
        for client, teacher in zip(members, teachers, strict=True)
    }
).T.round(2)

# %% [markdown]
# ## Figure 4: distances
#
# The paper measures the Fréchet distance {cite:p}`frechetdistance` between synthetic and private images, of Gaussians
# fitted to the features of both,
#
# $$
# d^2 = \lVert m - m' \rVert^2 + \mathrm{Tr}\bigl(C + C' - 2 (C C')^{1/2}\bigr),
# $$ (eq:iop-frechet)
#
# and compares it with that of images which an attacker restores from FedAvg's updates (DLG, {cite:p}`dlg`). A larger
# distance is read as more privacy. The features are Inception's in print; here they come from a network with random
# weights, which needs no download. Numbers of two networks cannot be compared, their order can.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show frechet_distance in core"}
source(image_quality.frechet_distance)

# %% tags=["hide-input"]
features = RandomFeatures(task.dataset.channels)
size = min(100, *(len(client) // 2 for client in members))
distances = {}
for client in members:
    own = client.images[
        torch.randperm(
            len(client), generator=Rng(seed).at("own", client.id).generator()
        )
    ]
    private, rest = own[:size], own[size : 2 * size]
    neighbour = members[(members.index(client) + 1) % len(members)].images[
        :size
    ]
    distances[f"client {client.id}"] = {
        name: fid(private, x, features)
        for name, x in {
            "its own other images": rest,
            "another client's images": neighbour,
            "test images": test.images[:size],
            "generator, trained": lesson.pictures(final, size),
            "generator, untrained": lesson.pictures(begin, size),
            "uniform noise": noise[:size],
        }.items()
    }
distances = pd.DataFrame(distances)
distances.assign(mean=distances.mean(axis=1)).round(2)

# %%
middle = distances.mean(axis=1)
Markdown(
    f"{size} images on each side. The trained generator has "
    f"{middle['generator, trained']:.2f}, an untrained one "
    f"{middle['generator, untrained']:.2f} and noise "
    f"{middle['uniform noise']:.2f}."
)

# %% [markdown]
# These are the controls that Figure 4 lacks. An untrained generator knows no client and cannot leak, and neither can
# noise; test images played no part. Compare their distances with that of the trained generator: a distance says how
# *like* the data the images are, and for distillation they should be alike.
#
# ### The attack
#
# Deep leakage looks for an image whose gradient is the one that was seen. It needs a smooth network and the gradient of
# one small batch; FedAvg sends the sum of many steps. So this is the best case for the attacker: one image at a time.


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show victim in core"}
source(victim)

# %% tags=["hide-input"]
network = victim(task, Rng(seed).at("victim"))
client = members[0]
secret, marks = client.images[:attacked].float() / 255, client.labels[:attacked]
plan_of_attack = DeepLeakage(iterations=attack_iterations)
restored = torch.cat(
    [
        deep_leakage(
            network,
            gradients(network, x[None], y[None]),
            (1, *x.shape),
            len(classes),
            plan_of_attack,
            Rng(seed).at("attack", i),
        ).images
        for i, (x, y) in enumerate(zip(secret, marks, strict=True))
    ]
).clamp(0, 1)
show(
    condensed_images(
        torch.cat([secret, restored, lesson.pictures(final, attacked)]),
        torch.arange(3).repeat_interleave(attacked),
        ["private", "restored", "generated"],
        title="From a gradient, and from the generator",
    ),
    alt=f"{attacked} private images of client {client.id} in the first row, "
    "what deep leakage restored from their "
    "gradients in the second, generated images in the third.",
)

# %% [markdown]
# Distances of so few images, and a measure that asks the right question: how near does each image come to *some*
# private image of this client (peak signal-to-noise ratio, in decibels)? And does it come nearer to private images
# than to as many test images, which played no part?

# %% tags=["hide-input"]
reference, control = client.images.float() / 255, test.images.float() / 255
control, unseen = control[:-attacked], control[-attacked:]
many = min(len(reference), len(control))
nearness = {}
for name, x in {
    "restored from gradients": restored,
    "generator, trained": lesson.pictures(final, attacked),
    "uniform noise": noise[:attacked],
    "test images": unseen,
}.items():
    mine, others = (
        best_matches(x, images[:many]).psnr.median().item()
        for images in (reference, control)
    )
    nearness[name] = {
        "Fréchet distance": fid(secret, x, features),
        "to private (dB)": mine,
        "to test (dB)": others,
        "difference": mine - others,
    }
pd.DataFrame(nearness).T.round(2)

# %% [markdown]
# Only the last column is about privacy: images that give away this client are nearer to its data than to other data of
# the same kind. (The last row looks for test images among others of the client and of the test set.) One client and a
# handful of images are an illustration. What a client's *answers* give away is not measured by images at all; that is
# what {eq}`eq:iop-dp` is about.
#
# ## Figure 8: bytes for an accuracy
#
# The figure says that FedIOD needs no more bytes than FedAvg to reach an accuracy; it prints no numbers. First, does
# the ledger count every exchange? For $T$ steps, $K$ clients, batches of $N$ images of $P$ numbers, $C$ classes and
# weights by class only, let the student take $s$ steps on fresh images after each of the generator ($s = 0$ where it
# learns on the generator's own, as printed). $u$ is 1 where the generator's loss has a term in the logits, and else 0:
#
# $$
# \text{bytes} = 4 K T N \bigl[ \underbrace{(P + u C)}_\text{down: images, gradients of logits}
# + \underbrace{(C + P)}_\text{up: logits, gradients of images}
# + s \underbrace{(P + C)}_\text{images down, logits up} \bigr] + \text{once: counts, } \pi_k .
# $$ (eq:iop-bytes)

# %% tags=["hide-input"]
batch, numbers = (
    algorithm.settings.distill_batch,
    task.dataset.channels * task.dataset.size**2,
)
more = (
    0
    if algorithm.settings.student_steps == 1
    else algorithm.settings.student_steps
)
in_logits = any(
    (
        algorithm.settings.mimic,
        algorithm.settings.confidence,
        algorithm.settings.uniqueness,
    )
)
values = (2 + more) * (numbers + len(classes)) - (not in_logits) * len(classes)
formula = 4 * len(members) * steps * batch * values
ledger = {way: sum(kinds.values()) for way, kinds in record.bytes.items()}
once = {
    kind: size
    for way in ("up", "down")
    for kind, size in record.bytes[way].items()
    if kind in ("counts", "meta")
}
pd.Series(
    {
        "formula, all steps": formula,
        "ledger, all steps": sum(ledger.values()) - sum(once.values()),
        "ledger, once": sum(once.values()),
    }
).to_frame("bytes")

# %%
averaged = lesson.run("fedavg", local_steps=10).record
show(
    curves(
        [record, averaged], x="megabytes", title=f"{dataset}, alpha = {alpha:g}"
    )
)

# %% [markdown]
# The same question to the records of Table 1: how many MB until a test accuracy is reached for the first time? The
# target is the best test accuracy of the weaker method. A record that was tested rarely says it coarsely.


# %% tags=["hide-input"]
def megabytes_to(one, target):
    """MB sent, both ways, until the first test at which the accuracy (%) is
    reached; missing if never.
    """
    tested = curve_frame(one)
    reached = tested[tested["value"] >= target]
    return reached["megabytes"].iat[0] if len(reached) else None


runs = table_runs("fediod", 1, ["paper", "laptop"])
runs = runs[runs["row"].isin(["FedAvg", "FedIOD"])]
found = {
    key: dict(zip(of["row"], of["record"], strict=True))
    for key, of in runs.groupby(["column", "profile", "seed"], sort=False)
}
found[f"{dataset}, this page", profile, seed] = {
    "FedAvg": averaged,
    "FedIOD": record,
}
rows = []
for (column, level, number), both in found.items():
    if len(both) == 2:
        target = min(curve_frame(one)["value"].max() for one in both.values())
        rows.append(
            {
                "data": column,
                "profile": level,
                "seed": number,
                "target (%)": target,
            }
            | {
                f"{name} (MB)": megabytes_to(one, target)
                for name, one in both.items()
            }
        )
pd.DataFrame(rows).round(2)

# %% [markdown]
# ### The exchange rate
#
# A step of FedIOD has a fixed price, a round of FedAvg as well. In the paper's setting, how many steps cost as much as
# one round?

# %% tags=["hide-input"]
network = models.build("resnet8", 3, 32, 10, Rng(0))
model = 4 * sum(value.numel() for value in network.state_dict().values())
prices = {}
for name, weigh, repeats in (
    ("as printed", 1, 1),
    ("class ratios", 0, 1),
    ("five steps of the student", 0, 5),
):
    step = 2 * 4 * 64 * (pixels + 10) + weigh * 4 * (
        2 * 64 + 1
    )  # images, logits and gradients; D_k(x), E D_k
    step += (
        (repeats > 1) * repeats * 4 * 64 * (pixels + 10)
    )  # fresh images down, answers up
    prices[name] = {
        "MB a step and client": step / 2**20,
        "steps for a round of FedAvg": 2 * model / step,
    }
pd.DataFrame(prices).T.round(2)

# %% [markdown]
# Images are large and travel in every step. FedIOD is cheap where a network is large and the images are few and small.
#
# ## Where paper and code differ
#
# Differential privacy, the attack, the distances and the scores were never released. All on this page follows the text.
#
# ## Take away
#
# - A budget means nothing without its neighbours. Protecting a whole client over tens of thousands of steps needs
#   noise that drowns the answers.
# - Steps and noise are exchanged as $T / \sigma^2$ ({eq}`eq:iop-renyi`). Table 5 mixes two effects: noise, and, as we
#   read it, an earlier end.
# - Votes protect a sum; FedIOD needs single answers.
# - A large Fréchet distance follows from bad images as well. Compare with controls: noise, test images.
# - Each step is paid in images, both ways ({eq}`eq:iop-bytes`).
#
# ## Exercises
#
# ```{exercise} A larger batch
# :label: ex-iop-batch
#
# *Hard, 25 minutes.*
#
# Both noise and signal of {eq}`eq:iop-noise` grow with the batch size $N$. Does a larger batch help the generator?
# ```
#
# ````{solution} ex-iop-batch
# :class: dropdown
#
# Where the rows point the same way in the generator's weights, their sum grows like $N$. The noise of one number grows
# like $\sqrt N$, and the sum of $N$ independent draws like $\sqrt N \cdot \sqrt N = N$. Nothing is won:
#
# ```python
# for n in (8, 64, 512):
#     rows = torch.ones(n, 100) / 10
#     drawn = clip_and_noise(rows, 1.0, 0.1, Rng(n).generator()).sum(0)
#     print(n, round((drawn - rows.sum(0)).norm().item() / rows.sum(0).norm().item(), 2))
# ```
#
# With neighbours that differ in one image, a real one in a batch, the sensitivity would not grow with $N$. Then large
# batches help, as in DP-SGD.
# ````
#
# ```{exercise} One more digit of epsilon
# :label: ex-iop-exact
#
# *Medium, 15 minutes.*
#
# How many more steps would the exact $\varepsilon$ of {eq}`eq:iop-exact` allow than the accountant, at $\sigma = 100$
# and $\varepsilon = 10$?
# ```
#
# ````{solution} ex-iop-exact
# :class: dropdown
#
# ```python
# ours = affordable_steps(10.0, delta, 100.0, 1.0, 100_000)
# more = ours
# while exact(100.0, more) <= 10.0:
#     more += 100
# ours, more, more / ours
# ```
#
# About a tenth more. The accountant must be right for sampled mechanisms as well; this gap is the price.
# ````
#
# ```{exercise} A thief
# :label: ex-iop-thief
#
# *Easy, 15 minutes.*
#
# A generator hands out private images. What do its inception score, its Fréchet distance and its nearness say?
# ```
#
# ````{solution} ex-iop-thief
# :class: dropdown
#
# ```python
# stolen = reference[:100]
# (inception_score(probabilities(judge, stolen)), fid(reference[:100], stolen, features),
#  best_matches(stolen[:5], reference).psnr.min().item())
# ```
#
# The score praises it, the distance is 0 and the nearness infinite. So a *small* distance is a warning, but only in
# comparison: test images have a small one, too. Nearness to private against nearness to test images tells them apart.
# ````
#
# ```{exercise} Who breaks even
# :label: ex-iop-even
#
# *Easy, 10 minutes.*
#
# At which batch size does a step of FedIOD cost as much as a round of FedAvg, for a ResNet-8 at 32x32 pixels?
# ```
#
# ````{solution} ex-iop-even
# :class: dropdown
#
# ```python
# 2 * model / (2 * 4 * (pixels + 10))
# ```
#
# More than a thousand images. But a round of FedAvg is many local steps for one exchange, while FedIOD pays for each
# step.
# ````
#
# ```{exercise} The price of a question
# :label: ex-iod-bytes
#
# *Medium, 25 minutes.*
#
# How many bytes does FedIOD send on CIFAR-10 in the paper's setting: 20 clients, batches of 64, 300 epochs, one step of
# the student? Let the largest client have 8,000 images. How many rounds of FedAvg with a ResNet-8 are that?
# ```
#
# ````{solution} ex-iod-bytes
# :class: dropdown
#
# ```python
# from core import models
#
# network = models.build("resnet8", 3, 32, 10, Rng(0))
# model = 4 * sum(value.numel() for value in network.state_dict().values())
# batch, people, largest = 64, 20, 8_000
# image, answer = 4 * 3 * 32 * 32, 4 * 10
# down = batch * (image + answer + 4)          # images; gradients of logits and of D_k(x)
# up = batch * (answer + 4 + image) + 4        # logits, D_k(x), gradients of images; mean D_k on real images
# steps_taken = 300 * -(-largest // batch)
# total = people * steps_taken * (down + up)
# total / 1e9, total / (2 * people * model)
# ```
#
# An epoch is taken as one pass over the data of the largest client; the paper does not say. It is far more than 100
# rounds. Networks are large but travel rarely; images travel in each step.
# ````
