# %% [markdown]
# # FedIOD
#
# *Question:* how does FedIOD {cite:p}`fediod` train one model from networks that never leave their clients?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.\
# *Learn first:* [distillation](06_knowledge_distillation) and [many teachers](07_many_teachers), which shows why a plain
# average of teachers fails.
#
# Every client trains a *teacher* on its own data, to the end. On the server a *generator* makes query images, and a
# *student* learns to answer them as the teachers do. What makes a good query image? It looks real to the clients'
# *discriminators*, each teacher is sure about it, the teachers disagree, and the student does not know the answer yet.
#
# ```{figure} ../book/_static/fediod.svg
# :alt: A server above, clients below. In each step generated images go down, then gradients of the answers. Answers, gradients of the images and the mean of the discriminator on real images go up. Real images, teacher and discriminator stay with the client. The server has a generator and a student.
# :name: fig-fediod
# :width: 350px
#
# Who sends what to whom in a step of FedIOD. Grey goes down, green goes up, red stays.
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
alpha = 0.3
clients = 4
rounds = 6
steps = 36
student_steps = 5
seed = 0
profile = "quick"

# %% [markdown]
# The paper takes a step of the student for each step of the generator, tens of thousands of them. In a run of seconds
# the student cannot keep up, so it takes `student_steps`, as in the authors' code. Learning rates are larger than the
# paper's and networks narrower; all weights of losses are the paper's.

# %%
from functools import partial

import pandas as pd
import torch
from torch.testing import assert_close

from core import distillation
from core.rng import Rng
from lab.report import condensed_images, dots, lines, show
from lab.report.lesson import answers, share_right, small_lesson

same = partial(assert_close, rtol=1e-5, atol=1e-6)  # of 32-bit numbers
short = {"distill_steps": steps, "student_steps": student_steps}
fields = {"dataset": dataset, "alpha": alpha, "clients": clients}
fields |= {"rounds": rounds, "seed": seed}
lesson = small_lesson(profile, short, **fields)
task, members, algorithm = lesson.task, lesson.members(), lesson.method
classes, test = task.dataset.classes, task.dataset.test
show(lesson.partition_plot())

# %% [markdown] tags=["slide"]
# ## Stage one: teachers
#
# Plain training on the client's own data. A client sends its class counts once. Teachers may have different architectures (`teacher_models`). A teacher
# can hardly be better than the share of the test images whose class it has seen.

# %%
teachers, counts = lesson.teachers, lesson.counts
on_test = answers(teachers, task.inputs(test.images))  # (K, N, C)
pd.DataFrame(
    {
        "images": counts.sum(1).tolist(),
        "classes": (counts > 0).sum(1).tolist(),
        "accuracy (%)": [share_right(z, test.labels) for z in on_test],
    },
    index=[f"client {client.id}" for client in members],
).round(1)

# %% [markdown]
# ## Stage two: one step
#
# The run is cut into rounds only to test the student now and then.

# %%
run = lesson.run(clients=members)
run.per_round().T.round(1)

# %% [markdown]
# A step is a conversation (Algorithm 1). The server sends images $x = G(\xi)$ of noise $\xi$, the clients answer, the
# server sends back how its losses depend on the answers, and each client completes the chain rule through its own
# networks. "One-way" means that no network is sent, not that clients speak once: this crosses the network in *each*
# step, for each client.

# %%
server, side = algorithm.sides(run.state, run.clients, Rng(seed))
crossing = pd.DataFrame(
    {
        "direction": exchange.direction,
        "what": ", ".join(message.tensors),
        "bytes": message.nbytes,
    }
    for exchange in algorithm.step(server, side, run.state.meta["step"])
    for message in [exchange.of(0)]
)
crossing.value_counts(sort=False).rename("messages").reset_index()

# %% [markdown]
# The messages that repeat are those of the student's own steps. The gradient of an image depends on the client's
# networks and data; that is why the paper adds [differential privacy](31_fediod_privacy) here.
#
# ## What the generator learns
#
# From here on we look at the networks at the end of the run.
#
# ### Look real

# %% [markdown] tags=["slide"]
# Client $k$ has the share $\pi_k$ of all images; $x'_k$ is one of its own, $D_k$ its discriminator. The paper has (Eq. 2)
#
# $$
# \max_G \min_{D_k} L_\text{gan}^k = \mathbb{E}_{x'_k}\bigl[\pi_k D_k(x'_k)\bigr]
# + \mathbb{E}_{\xi}\bigl[1 - D_k(G(\xi))\bigr] .
# $$ (eq:iod-gan)

# %% [markdown]
# So $D_k(x)$ says how *generated* $x$ looks: low on real images, high on generated ones. The paper does not bound it;
# here it is a sigmoid. $\pi_k$ is before the real images only, so a client with few of them is hardly asked to tell
# them apart. An exercise finds the best $D_k$.

# %%
server, side = algorithm.sides(run.state, run.clients, Rng(seed))
pi, judges = server.weights, side.judges
inputs = task.dataset.standardise(server.images(0).detach())

says = answers(judges, inputs)  # (K, N, 1, h, w), positive for real
D_fake = (-says).sigmoid().mean((2, 3, 4))
on_real = lesson.judged(judges)  # E D_k(x'_k), (K,)
pd.DataFrame(
    {
        "pi_k": pi,
        "D_k, own images": on_real,
        "D_k, generated images": D_fake.mean(1),
    },
    index=[f"client {client.id}" for client in members],
).round(2)

# %% [markdown] tags=["slide"]
# ### Make teachers sure, and apart
#
# A teacher that cannot decide teaches little. Teacher $T_k$ answers with logits $z_k$ and probabilities $q_k$. The
# generator makes their entropy small (Eq. 3):
#
# $$
# L_\text{conf} = \mathbb{E}_{\xi} \Bigl[ \sum_k \pi_k H(q_k) \Bigr], \qquad H(q) = - \sum_c q^c \log q^c .
# $$ (eq:iod-confidence)

# %% [markdown] tags=["slide"]
# But where all agree, the student learns nothing that a single client could not teach. So they shall differ, in the
# Jensen-Shannon divergence (Eq. 4 and 5):
#
# $$
# \begin{aligned}
# \mathrm{JSD}(q_1, \dots, q_K) &= H(\bar q) - \sum_k \pi_k H(q_k), \qquad \bar q = \sum_k \pi_k q_k, \\
# L_\text{unique} &= \mathbb{E}_{\xi}[-\mathrm{JSD}] .
# \end{aligned}
# $$ (eq:iod-unique)

# %% [markdown] tags=["slide"]
# Both together ask for teachers that are each sure, and a mixture that is unsure:
#
# $$
# L_\text{conf} + L_\text{unique} = \mathbb{E}_{\xi} \Bigl[ 2 \sum_k \pi_k H(q_k) - H(\bar q) \Bigr] .
# $$ (eq:iod-together)


# %%
def H(p):
    return -torch.special.xlogy(p, p).sum(-1)


z = answers(teachers, inputs)  # (K, N, C)
q = z.softmax(-1)
each = torch.einsum("k,kn->n", pi, H(q))
q_bar = torch.einsum("k,knc->nc", pi, q)
L_conf, L_unique = each.mean(), (each - H(q_bar)).mean()
same(L_conf, distillation.confidence_loss(q, pi))
same(L_unique, -distillation.jensen_shannon(q, pi).mean())

# %% tags=["slide"]
states = [lesson.start(), *run.states]
path = lesson.opinions({"generated": states})
show(
    lines(
        path.melt("step", ["entropy", "JSD"], var_name="label"),
        "step",
        "value",
        xlabel="step of stage two",
        ylabel="nats",
        title="Entropy of the teachers, and their divergence",
    )
)

# %% [markdown] tags=["slide"]
# ### Be hard for the student
#
# The generator also climbs the loss of the student, $L_\text{mimic}$ below. Together (Eq. 11 and Algorithm 1):
#
# $$
# \min_G \; L_\text{conf} + L_\text{unique} - L_\text{mimic} - \sum_k L_\text{gan}^k .
# $$ (eq:iod-generator)

# %% [markdown]
# Every row follows one noise vector through stage two, from the untrained generator at the left, sorted by what the
# teachers take the last image for:

# %% tags=["slide"]
film = [lesson.pictures(state) for state in states]
by_class = distillation.class_input_importance(counts)
last = answers(teachers, task.dataset.standardise(film[-1]))
guess = distillation.ensemble_logits(last, by_class).argmax(1)
shown = guess.unique()
first = torch.stack([(guess == c).nonzero()[0, 0] for c in shown])
show(
    condensed_images(
        torch.cat([shots[first] for shots in film]),
        shown.repeat(len(film)),
        classes,
        columns=len(film),
        title="Images of one noise as the generator learns",
        inches=0.4,
    )
)

# %% [markdown]
# The images need not look like real ones to us: they are good if the student learns from them.
#
# ## What the student learns

# %% [markdown] tags=["slide"]
# FedIOD distils at $\tau \to \infty$, where distillation becomes regression on logits {eq}`eq:kd-limit`: the student
# $S$ learns what the ensemble $A$ of the teachers says (Eq. 10),
#
# $$
# \max_G \min_S L_\text{mimic}, \qquad
# L_\text{mimic} = \mathbb{E}_{\xi} \bigl\lVert S(x) - A\bigl(T_1(x), \dots, T_K(x), x\bigr) \bigr\rVert^2 .
# $$ (eq:iod-mimic)

# %% [markdown] tags=["slide"]
# Whom to believe? Let $P_k$ be the distribution of client $k$'s data and $P$ that of all. The weight of a teacher on
# class $y$ and image $x$ shall follow the ratio (Eq. 7)
#
# $$
# \frac{P_k(y \mid x)}{P(y \mid x)} \approx \frac{P_k(y)}{P(y)} \cdot \frac{P(x)}{P_k(x)} .
# $$ (eq:iod-ratio)

# %% [markdown] tags=["slide"]
# The first factor is a ratio of class counts $n_{k,c}$. For the second one the discriminator is asked, since generated
# images stand for all data (Eq. 8); then answers are mixed class by class (Eq. 9):
#
# $$
# \hat\pi_k^c(x) = \frac{n_{k,c}}{\frac{1}{K} \sum_j n_{j,c}} \cdot \frac{D_k(x)}{\mathbb{E}_{x'_k} D_k(x'_k)}, \qquad
# \pi_k^c(x) = \frac{\hat\pi_k^c(x)}{\sum_{j} \hat\pi_j^c(x)} .
# $$ (eq:iod-importance)
#
# $$
# A(z_1, \dots, z_K, x)^c = \sum_{k=1}^{K} \pi_k^c(x) \, z_k^c .
# $$ (eq:iod-ensemble)

# %%
n = counts.float()[:, None]  # (K, 1, C)
pi_hat = n / n.mean(0) * (D_fake / on_real[:, None])[..., None]
pi_kc = pi_hat / pi_hat.sum(0)  # (K, N, C)
A = (pi_kc * z).sum(0)
core_pi = distillation.class_input_importance(counts, D_fake, on_real)
same(A, distillation.ensemble_logits(z, core_pi), atol=1e-4)

student = algorithm.model(run.state).eval()
with torch.no_grad():
    S = student(inputs).float()
L_mimic = (S - A).square().sum(1).mean()
same(L_mimic, distillation.mimic_loss(S, A), atol=1e-3)

# %% [markdown]
# Does each factor help? Real test images can be asked about without any training:

# %% tags=["slide"]
judged = distillation.generated(answers(judges, task.inputs(test.images)))
weights = {
    "mean of logits": pi[:, None, None],
    "by class": by_class,
    "by class and input (Eq. 8)": distillation.class_input_importance(
        counts, judged, on_real
    ),
}
accuracy = {
    "best single teacher": max(share_right(z, test.labels) for z in on_test),
    **{
        name: share_right(
            distillation.ensemble_logits(on_test, weight), test.labels
        )
        for name, weight in weights.items()
    },
    "the student": run.accuracy,
}
frame = pd.DataFrame(accuracy.items(), columns=["name", "value"])
show(dots(frame, "accuracy (%)", "Teachers, their ensembles, and the student"))

# %% [markdown]
# The student has seen the ensemble on generated images only, none of them real. [Losses and
# weights](30_fediod_ablations) asks what each term and factor adds, and [student against ensemble](29_fediod_results)
# where accuracy is lost.

# %% [markdown] tags=["slide"]
# ## Take away
#
# - Networks stay at the clients. Images, answers and gradients travel, in every step.
#   [Bytes](08_communication) compares this with FedAvg.
# - A good query image looks real, makes each teacher sure and the teachers differ {eq}`eq:iod-together`, and is hard
#   for the student {eq}`eq:iod-generator`.
# - The student imitates logits {eq}`eq:iod-mimic`, mixed by class and image {eq}`eq:iod-ensemble`.

# %% [markdown]
# The paper's tables are among the [results](29_fediod_results); [paper and code](32_fediod_paper_vs_released) lists
# where the authors' code differs.
#
# ## Exercises
#
# ```{exercise} The best discriminator
# :label: ex-iod-best
#
# *Hard, 25 minutes.*
#
# Let $P_k$ be the density of client $k$'s images, $P_g$ that of generated ones, and $0 \le D_k \le 1$. Which $D_k$ makes
# {eq}`eq:iod-gan` smallest? What does that mean for the input ratio $D_k(x) / \mathbb{E} \, D_k(x'_k)$ of a client with
# a small $\pi_k$? (To be checked: `best_answer(generated, own, share)` returns $D_k(x)$ for given $P_g(x)$, $P_k(x)$ and
# $\pi_k$.)
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
def best_answer(generated, own, share):
    return float(generated > share * own)


# %% name="ex-iod-best" tags=["check", "remove-cell"]
grid = torch.linspace(0, 1, 101)
cases = [(0.5, 2.0, 0.1), (0.5, 2.0, 0.9), (3.0, 2.0, 0.9)]
for generated, own, share in [*cases, (0.5, 0.8, 1), (0.05, 0.1, 1)]:
    answer = best_answer(generated, own, share)
    assert answer is not None, "best_answer has no body yet"
    least = grid[(grid * (share * own - generated)).argmin()].item()
    assert answer == least, "the integrand is linear in D: look at its ends"

# %% [markdown]
# ```{exercise} Teachers of two kinds
# :label: ex-iod-two
#
# *Medium, 15 minutes.*
#
# Let every second client have a residual network: take `two = lesson.changed(own={"fediod": {"teacher_models": kinds}})`,
# where the list `kinds` has an entry for each kind: `{"model": "convnet", "depth": 2, "width": 16}`, as all have it
# here, and `{"model": "resnet8", "width": 8, "grid": 1}`. What is `two.run().accuracy`, and what is the chance level?
# ```
#
# ````{solution} ex-iod-two
# :class: dropdown
#
# ```python
# kinds = [
#     {"model": "convnet", "depth": 2, "width": 16},
#     {"model": "resnet8", "width": 8, "grid": 1},
# ]
# two = lesson.changed(own={"fediod": {"teacher_models": kinds}})
# together = distillation.ensemble_logits(answers(two.teachers, task.inputs(test.images)), by_class)
# two.run().accuracy, share_right(together, test.labels)
# ```
#
# With ten classes the chance level is 10%. Compare with the plot of accuracies. The student learns less here, though the teachers together may keep what they
# know; how much less changes from seed to seed. There is no real image to ask about, and far from real images networks
# of two kinds need not answer alike. For the program nothing else changes, because only answers and gradients are
# exchanged.
# ````
