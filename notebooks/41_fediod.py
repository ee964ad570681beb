# %% [markdown]
# # FedIOD
#
# *Question:* how does FedIOD {cite:p}`fediod` work, and how does its generator find good questions for the teachers?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.
#
# Every client trains a *teacher* on its own data, to the end. No network ever leaves a client. On the server a
# *generator* invents images, and a *student* learns to answer them as the teachers do. What makes an image a good
# question? It should look real to the clients' *discriminators*, each teacher should be sure about it, the teachers
# should disagree, and the student should not know the answer yet. The teachers' answers are mixed with weights by
# class and image. [Many teachers](47_many_teachers) explains why a plain average would fail.
#
# ```{figure} ../book/_static/fediod.svg
# :alt: A server above, clients below. In each step generated images go down, then gradients of the answers. Answers, gradients of the images and the mean of the discriminator on real images go up. Real images, teacher and discriminator stay with the client. The server has a generator and a student.
# :name: fig-fediod
# :width: 350px
#
# Who sends what to whom in a step of FedIOD. Grey goes down, green goes up, red stays.
# ```
#
# This page is about the teachers, the messages and the generator. It runs FedIOD on digits and computes each step once
# more, in a few lines that are compared with `core`. [The next page](35_fediod_student) does so for the answers and the
# student. Which of the paper's numbers hold stands among the [results](46_fediod_results).
#
# The paper takes a step of the student for each step of the generator, for 300 epochs: by our reading tens of thousands
# of them. In a run of seconds the student cannot keep up, so it gets `student_steps`, as in the authors' code. All
# weights of losses are as printed. The game's rate is twice the printed one, the student's ten times, batches are half
# as large and the networks narrower.

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
alpha = 0.3
clients = 4
rounds = 6
steps = 36
student_steps = 5
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import math
from functools import partial

import pandas as pd
import torch
from torch.testing import assert_close

from core import distillation
from core.algorithms import find
from core.algorithms.fediod.server import Server
from core.algorithms.fediod.teachers import train_teacher
from core.rng import Rng
from lab.report import bars, condensed_images, lines, show, source
from lab.report.frames import table_runs
from lab.report.lesson import answers, share_right, small_lesson
from lab.report.results import by_seed, spreads
from lab.report.texts import Markdown

same = partial(assert_close, rtol=1e-5, atol=1e-6)  # of 32-bit numbers
lesson = small_lesson(
    profile,
    {"distill_steps": steps, "student_steps": student_steps},
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
)
task, members, algorithm = lesson.task, lesson.members(), lesson.method
classes, test = task.dataset.classes, task.dataset.test
show(lesson.partition_plot())

# %% [markdown]
# ## Stage one: teachers
#
# Plain training on the client's own data. Teachers may have different architectures (`teacher_models`). A teacher
# cannot be better than the share of the test images whose class it has seen.

# %% mystnb={"code_prompt_show": "Show the training of a teacher in core"} tags=["hide-cell"]
source(train_teacher)

# %% tags=["hide-input"]
teachers = lesson.teachers
on_test = answers(teachers, task.inputs(test.images))
pd.DataFrame(
    {
        "images": [len(client) for client in members],
        "classes": (lesson.counts > 0).sum(1),
        "teacher's accuracy (%)": [
            share_right(z, test.labels) for z in on_test
        ],
    },
    index=[f"client {client.id}" for client in members],
).round(1)

# %% [markdown]
# ## Stage two: one step
#
# A round is a part of stage two: cutting it into rounds changes nothing but how often the student is tested.

# %%
run = lesson.run(clients=members)
run.per_round().assign(
    steps=[state.meta["step"] for state in run.states]
).T.round(1)

# %% tags=["hide-input"]
longer = by_seed(
    table_runs("fediod", "ladder", ["laptop"]).query("column == 'mnist-0.1'")
)
longer = longer[longer.index.str.startswith("FedIOD")]
show(bars(spreads(longer), "accuracy (%)", title="From records, on MNIST"))
by_class = distillation.class_input_importance(lesson.counts)
ensemble = distillation.ensemble_logits(on_test, by_class)
means = longer.mean(axis=1)
Markdown(
    f"These seconds leave the student at {run.accuracy:.1f}%; its teachers, "
    "with weights by class, have "
    f"{share_right(ensemble, test.labels):.1f}%. With a larger budget, from "
    f"records on MNIST, *{means.idxmax()}* has {means.max():.1f}% and "
    f"*{means.idxmin()}* {means.min():.1f}%, means over seeds. The steps are "
    "those of each teacher, the *script* has the authors' losses, and their "
    "rates unless it says otherwise."
)

# %% [markdown]
# [Another page](53_fediod_teachers) asks what a student's accuracy depends on.
#
# Algorithm 1 of the paper, as a conversation. The server sends images $x = G(\xi)$ of noise $\xi$ (the paper writes
# $w$), the clients answer, the server sends back how its losses depend on the answers, and each client completes the
# chain rule through its own networks.
# "One-way" means that no network is sent. It does not mean that the clients speak once: all this crosses the network
# in *each* step, for each client.

# %% mystnb={"code_prompt_show": "Show the step in core"} tags=["hide-cell"]
source(find("fediod").step)

# %% tags=["hide-input"]
final = run.state
server, side = algorithm.sides(final, members, Rng(seed))
ways = {"down": "server to client", "up": "client to server"}
crossing = pd.DataFrame(
    {
        "direction": ways[exchange.direction],
        "what": ", ".join(message.tensors),
        "shape": ", ".join(
            str(tuple(t.shape)) for t in message.tensors.values()
        ),
        "bytes": message.nbytes,
    }
    for exchange in algorithm.step(server, side, final.meta["step"])
    for message in [exchange.of(0)]
)
crossing.groupby(list(crossing), sort=False).size().rename(
    "messages"
).reset_index()

# %% [markdown]
# The messages that repeat are those of the student's own steps on fresh images. The gradient of an image
# depends on the client's networks and data; that is why the paper adds [differential privacy](43_fediod_privacy) here.
#
# ## Questions: what the generator learns
#
# From here on we look at the networks as they are at the end of the run.
#
# ### Realism
#
# Client $k$ has $n_k$ images and the share $\pi_k = n_k / \sum_j n_j$ of all; $x'_k$ is one of its images, $D_k$ its
# discriminator. The paper prints (Eq. 2)
#
# $$
# \max_G \min_{D_k} L_\text{gan}^k = \mathbb{E}_{x'_k}\bigl[\pi_k D_k(x'_k)\bigr]
# + \mathbb{E}_{\xi}\bigl[1 - D_k(G(\xi))\bigr] .
# $$ (eq:iod-gan)
#
# $D_k$ makes this small: low values on real images, high ones on generated images. So $D_k(x)$ says how *generated*
# $x$ looks, unlike the usual reading. The paper does not bound $D_k$; unbounded, the loss has no minimum. Here $D_k$ is
# a sigmoid, a choice of this project.

# %%
server, side = algorithm.sides(final, members, Rng(seed))
pi, judges = server.weights, side.judges
inputs = task.dataset.standardise(server.images(0).detach())
real = [task.inputs(client.images[: len(inputs)]) for client in members]

fake_says = answers(judges, inputs)  # (K, N, 1, h, w), positive for real
D_fake = (-fake_says).sigmoid().mean((2, 3, 4))
for k, own in enumerate(real):
    real_says = answers([judges[k]], own)
    D_real = (-real_says).sigmoid().mean((2, 3, 4))
    L_gan = pi[k] * D_real.mean() + (1 - D_fake[k]).mean()
    learns, _ = distillation.gan_losses(fake_says[[k]], real_says, pi[[k]])
    same(L_gan, learns[0])

# %% tags=["hide-input"]
on_real = lesson.judged(judges)
pd.DataFrame(
    {
        "pi_k": pi,
        "D_k, own real images": on_real,
        "D_k, generated images": D_fake.mean(1),
    },
    index=[f"client {client.id}" for client in members],
).round(2)

# %% [markdown]
# $\pi_k$ stands before the real images only. A client with few of them is hardly asked to tell them apart, and may call
# everything generated. An exercise finds the best $D_k$.
#
# ### Sure, each and apart
#
# A teacher that cannot decide teaches little. Teacher $T_k$ answers an image with logits $z_k$. With $q_k = p_1(z_k)$
# by {eq}`eq:kd-temperature` (Eq. 1), the generator makes the teachers' entropy small (Eq. 3, at the default temperature
# 1). But where all agree, the student learns nothing that a single client could not teach, so they shall differ, in the
# Jensen-Shannon divergence (Eq. 4 and 5):
#
# $$
# L_\text{conf} = \mathbb{E}_{\xi} \Bigl[ \sum_k \pi_k H(q_k) \Bigr], \qquad H(q) = - \sum_c q^c \log q^c .
# $$ (eq:iod-confidence)
#
# $$
# \begin{aligned}
# \mathrm{JSD}(q_1, \dots, q_K) &= H(\bar q) - \sum_k \pi_k H(q_k), \qquad \bar q = \sum_k \pi_k q_k, \\
# L_\text{unique} &= \mathbb{E}_{\xi}[-\mathrm{JSD}] .
# \end{aligned}
# $$ (eq:iod-unique)

# %%
z = answers(teachers, inputs)  # (K, N, C)
q = z.softmax(-1).double()


def H(p):
    return -torch.special.xlogy(p, p).sum(-1)


each = torch.einsum("k,kn->n", pi.double(), H(q))
q_bar = torch.einsum("k,knc->nc", pi.double(), q)
L_conf, L_unique = each.mean(), (each - H(q_bar)).mean()
same(L_conf, distillation.confidence_loss(q, pi.double()))
same(L_unique, -distillation.jensen_shannon(q, pi.double()).mean())
same(L_conf + L_unique, (2 * each - H(q_bar)).mean())

# %% [markdown]
# The divergence lies between 0 and $H(\pi) \le \log K$. Both terms together are
#
# $$
# L_\text{conf} + L_\text{unique} = \mathbb{E}_{\xi} \Bigl[ 2 \sum_k \pi_k H(q_k) - H(\bar q) \Bigr] :
# $$ (eq:iod-together)
#
# each teacher sure, their mixture unsure. How both go along in the run, on images of the same noise:

# %% tags=["hide-input"]
states = [lesson.start(), *run.states]
seen = lesson.opinions({"generated": states})
show(
    lines(
        seen.melt("step", ["entropy", "JSD"], var_name="label"),
        "step",
        "value",
        xlabel="step of stage two",
        ylabel="nats",
        title="Entropy of the teachers, and their divergence",
    )
)

# %% [markdown]
# No equation asks for all classes: the authors' code adds a term for it (`balance`).

# %% mystnb={"code_prompt_show": "Show the same on real images, and how many classes the images show"} tags=["hide-cell"]
compared = {
    "generated, at the start": seen.iloc[0],
    "generated, at the end": seen.iloc[-1],
    "real test images": lesson.opinion(task.inputs(test.images)),
    "largest possible": {
        "entropy": math.log(len(classes)),
        "JSD": distillation.entropy(pi).item(),
        "classes": len(classes),
    },
}
what = ["entropy", "JSD", "classes"]
pd.DataFrame(
    {name: {key: row[key] for key in what} for name, row in compared.items()}
).T.astype(float).round(2)

# %% [markdown]
# ### What the student does not know
#
# The generator also climbs the loss of the student $S$, $L_\text{mimic} = \mathbb{E}_\xi \lVert S(x) - A(x) \rVert^2$,
# the squared distance of its logits from those of the teachers' mixture $A$ ($\max_G \min_S L_\text{mimic}$, Eq. 10;
# [the next page](35_fediod_student) has $A$): it looks for images on which the student lags behind. Together (Eq. 11
# and Algorithm 1)
#
# $$
# \min_G \; L_\text{conf} + L_\text{unique} - L_\text{mimic} - \sum_k L_\text{gan}^k .
# $$ (eq:iod-generator)

# %% mystnb={"code_prompt_show": "Show what the server learns from answers, in core"} tags=["hide-cell"]
source(Server.learn)

# %% [markdown]
# ### The images as they sharpen
#
# Every row follows one noise vector through stage two, from the untrained generator at the left. Rows are sorted by
# what the ensemble takes the last image for.

# %% tags=["hide-input"]
counts = lesson.counts
film = [lesson.pictures(state) for state in states]
guess = distillation.ensemble_logits(
    answers(teachers, task.dataset.standardise(film[-1])),
    distillation.class_input_importance(counts),
).argmax(1)
found = guess.unique()
first = torch.stack([(guess == c).nonzero()[0, 0] for c in found])
when = ", ".join(str(state.meta["step"]) for state in states)
show(
    condensed_images(
        torch.cat([shots[first] for shots in film]),
        found.repeat(len(film)),
        classes,
        columns=len(film),
        title=f"After {when} steps",
        inches=0.4,
    )
)

# %% [markdown]
# The images need not look like real ones to us: they are good if the student learns from them.
#
# ## Take away
#
# - Networks stay at the clients. Images, answers and gradients travel, in every step. [What this
#   costs](49_fediod_communication) beside FedAvg has a page.
# - A good question looks real, makes each teacher sure and the teachers differ {eq}`eq:iod-together`, and is hard for
#   the student {eq}`eq:iod-generator`.
# - The equations are those in print. [Where the authors' code has something else](44_fediod_paper_vs_released), a
#   setting has its value.
#
# ## Exercises
#
# ```{exercise} Sure, each and together
# :label: ex-iod-together
#
# *Easy, 10 minutes.*
#
# Derive {eq}`eq:iod-together`. What would the generator do with $L_\text{conf}$ alone?
# ```
#
# ````{solution} ex-iod-together
# :class: dropdown
#
# Insert {eq}`eq:iod-unique` into the sum: $\sum_k \pi_k H(q_k) - H(\bar q) + \sum_k \pi_k H(q_k)$. In numbers:
#
# ```python
# L_conf + L_unique, 2 * each.mean() - H(q_bar).mean()
# ```
#
# Alone, $L_\text{conf}$ is smallest when every teacher is sure of something, and they may all agree, always on the
# same class.
# ````
#
# ```{exercise} The best discriminator
# :label: ex-iod-best
#
# *Hard, 25 minutes.*
#
# Let $P_k$ be the density of client $k$'s images, $P_g$ that of generated ones, and $0 \le D_k \le 1$. Which $D_k$ makes
# {eq}`eq:iod-gan` smallest? What does a client with a small $\pi_k$ say of its own images? The server will weight a
# teacher with its *input ratio* $D_k(x) / \mathbb{E} \, D_k(x'_k)$, the mean over the client's own images (Eq. 8): what
# is it for this client? (To be checked:
# `best_answer(generated, mine, share)` returns $D_k(x)$ for given $P_g(x)$, $P_k(x)$ and $\pi_k$.)
# ```
#
# ```{solution} ex-iod-best
# :class: dropdown
#
# The loss is $1 + \int D_k(x) \, (\pi_k P_k(x) - P_g(x)) \, dx$. It is smallest for $D_k(x) = 1$ where
# $P_g(x) > \pi_k P_k(x)$, and 0 elsewhere. So the linear loss asks for a decision, where a weight by input would need a
# ratio of densities. And with a small $\pi_k$ even the client's own images count as generated as soon as the generator
# makes anything like them: then $D_k = 1$ on both, and the input ratio of this client is 1.
# ```


# %% tags=["solution", "remove-cell"]
def best_answer(generated, mine, share):
    return float(generated > share * mine)


# %% name="ex-iod-best" tags=["check", "remove-cell"]
grid = torch.linspace(0, 1, 101)
cases = [(0.5, 2.0, 0.1), (0.5, 2.0, 0.9), (3.0, 2.0, 0.9)]
for generated, mine, share in [*cases, (0.5, 0.8, 1), (0.05, 0.1, 1)]:
    answer = best_answer(generated, mine, share)
    assert answer is not None, "best_answer has no body yet"
    least = grid[(grid * (share * mine - generated)).argmin()].item()
    assert answer == least, "the integrand is linear in D: look at its ends"
