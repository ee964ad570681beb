# %% [markdown]
# # FedIOD: the student
#
# *Question:* whom does the student of FedIOD {cite:p}`fediod` believe, on which class and which image?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.
#
# In [FedIOD](41_fediod) a generator invents images, and teachers that never leave their clients answer them. This page
# mixes the answers, class by class and image by image, and trains the student on the mixture. It runs FedIOD as the
# page before did, and looks at the networks as they are at the end of the run.

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
from functools import partial

import pandas as pd
import torch
from torch.testing import assert_close

from core import distillation
from core.rng import Rng
from lab.report.lesson import answers, share_right, small_lesson
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
test, counts, pi = task.dataset.test, lesson.counts, lesson.shares

# %%
run = lesson.run(clients=members)
run.per_round().T.round(1)

# %% [markdown]
# What the generator makes after the last round, and what teachers and discriminators say of it:

# %%
server, side = algorithm.sides(run.state, members, Rng(seed))
judges = side.judges
inputs = task.dataset.standardise(server.images(0).detach())

z = answers(lesson.teachers, inputs)  # (K, N, C)
D_fake = distillation.generated(answers(judges, inputs))  # D_k(x), (K, N)
on_real = lesson.judged(judges)  # E D_k(x'_k), (K,)

# %% [markdown]
# ## The loss of the student
#
# Distillation compares probabilities at a temperature (Eq. 6, {eq}`eq:kd-loss`). FedIOD goes to $\tau \to \infty$,
# where this becomes regression on logits {eq}`eq:kd-limit`: the student $S$ learns what the ensemble $A$ of the
# teachers $T_k$ says (Eq. 10):
#
# $$
# \begin{aligned}
# & \max_G \min_S L_\text{mimic}, \qquad x = G(\xi), \\
# & L_\text{mimic} = \mathbb{E}_{\xi} \bigl\lVert S(x) - A\bigl(T_1(x), \dots, T_K(x), x\bigr) \bigr\rVert^2 .
# \end{aligned}
# $$ (eq:iod-mimic)
#
# ## Whom to believe
#
# Let $P_k$ be the distribution of client $k$'s data and $P$ that of all. The weight of a teacher on class $c$ and image
# $x$ shall stand for the ratio (Eq. 7)
#
# $$
# \frac{P_k(y \mid x)}{P(y \mid x)} \approx \frac{P_k(y)}{P(y)} \cdot \frac{P(x)}{P_k(x)} .
# $$ (eq:iod-ratio)
#
# The first factor is a ratio of class counts. For the second one the discriminator is asked: $D_k(x)$ shall be large
# where generated images, which stand for all data, are denser than those of client $k$ (Eq. 8; what Eq. 2 as printed
# makes of it, an exercise on [the page before](41_fediod) finds). Then the answers are mixed, class by class
# (Eq. 9; $\odot$ multiplies element by element). Client $k$ has $n_{k,c}$ images of class $c$ (the text says number,
# the symbol of Eq. 8 share: [FedIOD: weights](39_fediod_weights)); $x'_k$ is one of its images, and $z_k = T_k(x)$ its
# teacher's logits:
#
# $$
# \hat\pi_k^c(x) = \frac{n_{k,c}}{\frac{1}{K} \sum_j n_{j,c}} \cdot \frac{D_k(x)}{\mathbb{E}_{x'_k} D_k(x'_k)}, \qquad
# \pi_k^c(x) = \frac{\hat\pi_k^c(x)}{\sum_{j} \hat\pi_j^c(x)} .
# $$ (eq:iod-importance)
#
# $$
# A(z_1, \dots, z_K, x) = \sum_{k=1}^{K} \pi_k(x) \odot z_k .
# $$ (eq:iod-ensemble)

# %%
n = counts.float()[:, None]  # (K, 1, C)
pi_hat = n / n.mean(0) * (D_fake / on_real[:, None])[..., None]
pi_kc = pi_hat / pi_hat.sum(0)  # (K, N, C)
A = (pi_kc * z).sum(0)

core_pi = distillation.class_input_importance(counts, D_fake, on_real)
same(pi_kc, core_pi)
same(A, distillation.ensemble_logits(z, core_pi), atol=1e-4)

student = algorithm.model(run.state).eval()
with torch.no_grad():
    S = student(inputs).float()
L_mimic = (S - A).square().sum(1).mean()
same(L_mimic, distillation.mimic_loss(S, A))

# %% [markdown]
# ## Does each factor help?
#
# Real test images can be asked about without any training. `turned` takes $1 - D_k$ in the place
# of $D_k$ in both places of {eq}`eq:iod-importance`: then a teacher counts *more* where an image looks like its own
# data, as the mixture {eq}`eq:kd-mixture` has it.

# %% tags=["hide-input"]
on_test = answers(lesson.teachers, task.inputs(test.images))
judged = distillation.generated(answers(judges, task.inputs(test.images)))
weights = {
    "mean of logits": pi[:, None, None],
    "class ratio only (*)": distillation.class_input_importance(counts),
    "class and input ratio (Eq. 8)": distillation.class_input_importance(
        counts, judged, on_real
    ),
    "class and input ratio, turned": distillation.class_input_importance(
        counts, 1 - judged, 1 - on_real
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
pd.Series(accuracy).round(1).to_frame("test accuracy (%)")

# %% tags=["hide-input"]
gap, turned = (
    accuracy[f"class and input ratio{name}"] - accuracy["class ratio only (*)"]
    for name in (" (Eq. 8)", ", turned")
)
Markdown(
    "Here the input ratio changes the accuracy of the ensemble by "
    f"{gap:+.1f} points as printed and by {turned:+.1f} turned. The student "
    f"has {accuracy['the student']:.1f}% where its ensemble has "
    f"{accuracy['class and input ratio (Eq. 8)']:.1f}%: it has heard the "
    "ensemble on generated images only, none of them real."
)

# %% [markdown]
# [How good a student can get](53_fediod_teachers) has a page of its own. One small run says little about FedIOD, but
# the direction can be reasoned about: {eq}`eq:iod-ratio` tells how much *more* than it should client $k$ believes in
# $y$, not how far it should be believed. With perfect teachers [a page](47_many_teachers) measures both directions. The
# setting is `input_ratio`; we read the rows with * in Tables 6 and 7 as being without this factor. What it does to the
# weights [has a page](39_fediod_weights).
#
# ## Take away
#
# - The student imitates logits, not probabilities {eq}`eq:iod-mimic`.
# - Answers are mixed by class {eq}`eq:iod-ensemble`. The factor by input points the other way than the mixture rule.
#
# ## Exercise
#
# ```{exercise} Teachers of two kinds
# :label: ex-iod-two
#
# *Medium, 15 minutes.*
#
# Let every second client have a residual network: take `two = lesson.but(own={"fediod": {"teacher_models": kinds}})`,
# where the list `kinds` has an entry for each kind: `{"model": "convnet", "depth": 2, "width": 16}`, as all have it
# here, and `{"model": "resnet8", "width": 8, "grid": 1}`. What is `two.run().accuracy`, and what would a guess have?
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
# two = lesson.but(own={"fediod": {"teacher_models": kinds}})
# share, rows = distillation.class_input_importance(counts), {}
# for name, one in {"one kind": lesson, "two kinds": two}.items():
#     end = one.run()
#     made = task.dataset.standardise(one.pictures(end.state))
#     says = answers([one.method.model(end.state).eval()], made)[0]
#     on_made, on_test = (
#         distillation.ensemble_logits(answers(one.teachers, x), share)
#         for x in (made, task.inputs(test.images))
#     )
#     rows[name] = {
#         "teachers (%)": share_right(on_test, test.labels),
#         "student (%)": end.accuracy,
#         "student to teachers": distillation.mimic_loss(says, on_made).item(),
#     }
# pd.DataFrame(rows).T.round(1)
# ```
#
# At the defaults the student is left with what a guess among ten classes has, a tenth, and the teachers together lose,
# too; with other seeds the teachers keep what they know, and the student loses little or much. The last column says
# what is lost besides: on the images of the generator, the student's answers are farther from those of the teachers.
# There is no real image to ask about, and far from real images networks of two kinds need not answer alike. One run
# says little.
#
# For the program nothing else changes, because only answers and gradients are exchanged: the student keeps the network
# of the experiment, teachers of one kind run together, the others one by one.
# ````
