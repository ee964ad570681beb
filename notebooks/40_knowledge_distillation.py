# %% [markdown]
# # Knowledge distillation
#
# *Question:* how does a network learn from the answers of another one?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# A network can be handed on without its weights and without the data that made it: by its answers. A *student* is
# trained to answer as a *teacher* does {cite:p}`distillation`. For federated learning this is tempting, as clients
# with different networks can teach one student. This chapter has one teacher; what goes wrong with [many
# teachers](47_many_teachers) is the next one. [FedIOD](41_fediod) is built on both.

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
width = 16
steps = 120
student_steps = 100
left_out = 3
seed = 0

# %% tags=["hide-input"]
import math
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch.nn import functional
from torch.testing import assert_close

from core import data, distillation
from core.errors import InputError
from core.federation import Task
from core.rng import Rng
from lab.report import condensed_images, scatter, show
from lab.report.lesson import distilled, share_right, trained
from lab.report.texts import Markdown

same = partial(assert_close, rtol=1e-9, atol=1e-12)
rng = Rng(seed)
task = Task(data.load(dataset), "convnet", {"depth": 2, "width": width})
train_set, test = task.dataset.train, task.dataset.test
classes = task.dataset.classes
if left_out == 3 >= len(classes):  # the default, and no such class
    left_out = len(classes) - 1
if not 0 <= left_out < len(classes):
    raise InputError(
        f"left_out must be a class of {dataset}, from 0 to {len(classes) - 1}"
    )
inputs = task.inputs(train_set.images)
teacher = trained(task, inputs, train_set.labels, steps, rng.at("teacher"))
known = share_right(task.outputs(teacher, test.images), test.labels)
Markdown(f"Accuracy of the teacher on test images: {known:.1f}%.")

# %% [markdown]
# ## Temperature
#
# A teacher's logits $z$ become probabilities by a softmax. A *temperature* $\tau$ flattens them (FedIOD, Eq. 1):
#
# $$
# p_\tau(z) = \left[ \frac{e^{z^1/\tau}}{\sum_c e^{z^c/\tau}}, \dots, \frac{e^{z^C/\tau}}{\sum_c e^{z^c/\tau}} \right] .
# $$ (eq:kd-temperature)
#
# A label says which class is right. The answer of a teacher also says which wrong classes are nearly right: which of
# them an image resembles, and which not at all. At $\tau = 1$ that is mostly hidden behind zeros. Here is an ordinary
# image: among the training images that the teacher knows, it has the median confidence.

# %% tags=["hide-input"]
logits = task.outputs(teacher, train_set.images)
right = (logits.argmax(1) == train_set.labels).nonzero().flatten()
confidence = logits[right].softmax(1).max(1).values
ordinary = right[confidence.argsort()[len(right) // 2]].item()
show(
    condensed_images(
        train_set.images[[ordinary]],
        train_set.labels[[ordinary]],
        classes,
        title="The image",
        inches=1.0,
    )
)

# %% tags=["hide-input"]
flat = {tau: (logits[ordinary] / tau).softmax(0) for tau in (1.0, 4.0, 20.0)}
frame = pd.concat(
    [
        pd.DataFrame(
            {"class": range(len(classes)), "p": p, "label": f"tau = {tau:g}"}
        )
        for tau, p in flat.items()
    ]
)
ends = "; ".join(
    f"at tau = {tau:g} they lie between {p.min():.3f} and {p.max():.3f}"
    for tau, p in flat.items()
)
show(
    scatter(
        frame,
        "class",
        "p",
        ylabel="probability",
        title="One answer at three temperatures",
    ),
    alt=f"Probabilities of all {len(classes)} classes for one image: {ends}.",
)

# %% tags=["hide-input"]
first, *others = logits[ordinary].argsort(descending=True).tolist()
own = {tau: float(100 * p[first]) for tau, p in flat.items()}
nearest = " and ".join(repr(classes[c]) for c in others[:2])
Markdown(
    f"At tau = 1 the teacher gives {own[1.0]:.1f}% to the class "
    f"{classes[first]!r} and {100 - own[1.0]:.1f}% to all others together. At "
    f"tau = 4 the others have {100 - own[4.0]:.0f}%, and it can be seen which "
    f"classes are the nearest: {nearest}. At tau = 20 hardly anything is left "
    "but their order."
)

# %% [markdown]
# ## The loss
#
# The student's logits are $\hat z$. With $q = p_\tau(z)$ and $\hat q = p_\tau(\hat z)$ it minimises the
# Kullback-Leibler divergence (Eq. 6):
#
# $$
# \mathrm{KL}(q \,\Vert\, \hat q) = H(q, \hat q) - H(q), \qquad H(q, \hat q) = -\sum_c q^c \log \hat q^c, \qquad
# H(q) = H(q, q) .
# $$ (eq:kd-loss)
#
# $H(q)$ is the *entropy*: how undecided the teacher is.

# %%
shape = (64, len(classes))
z, z_hat = (
    3 * torch.randn(shape, generator=rng.at("logits", n).generator()).double()
    for n in "ab"
)


def p(logits, tau):
    e = (logits / tau).exp()
    return e / e.sum(1, keepdim=True)


q, q_hat = p(z, 4.0), p(z_hat, 4.0)
KL = (q * (q.log() - q_hat.log())).sum(1).mean()
same(KL, distillation.kl_divergence(z_hat, z, 4.0))

# %% [markdown]
# FedIOD prints $- H(\hat q)$ at the end. That is no divergence: an exercise below makes it negative.
#
# ## Temperature without end
#
# The gradient for one logit of the student is the difference of two probabilities:
#
# $$
# \frac{\partial \, \mathrm{KL}}{\partial \hat z^c} = \frac{1}{\tau} \bigl( \hat q^c - q^c \bigr)
# \approx \frac{1}{C \tau^2} \bigl( (\hat z^c - \overline{\hat z}) - (z^c - \overline{z}) \bigr) .
# $$ (eq:kd-gradient)
#
# The right side holds for large $\tau$, where $e^{z / \tau} \approx 1 + z / \tau$; the bars are means over classes. So
#
# $$
# \tau^2 \, \mathrm{KL}(q \,\Vert\, \hat q) \;\longrightarrow\;
# \frac{1}{2 C} \bigl\lVert (\hat z - \overline{\hat z}) - (z - \overline{z}) \bigr\rVert^2
# \qquad (\tau \to \infty).
# $$ (eq:kd-limit)
#
# At high temperature, imitation is regression on logits. FedIOD goes to the limit at once and takes
# $\lVert \hat z - z \rVert^2$. It does not subtract the means, so the student must also meet the sum of the logits,
# which no probability shows.

# %%
regression = (z_hat - z).square().sum(1).mean()
same(regression, distillation.mimic_loss(z_hat, z))

# %% [markdown]
# How large must $\tau$ be? Below, $\tau^2 \mathrm{KL}$ of two sets of random logits, divided by its limit. The authors'
# code takes $\tau = 10001$ and computes in single precision at best; the last column has single precision.

# %% tags=["hide-input"]
limit = (z_hat - z - (z_hat - z).mean(1, keepdim=True)).square().sum(
    1
).mean() / (2 * len(classes))


def single(tau):
    """tau^2 KL in float32, as a library computes it."""
    return tau**2 * functional.kl_div(
        (z_hat.float() / tau).log_softmax(1),
        (z.float() / tau).softmax(1),
        reduction="batchmean",
    )


pd.DataFrame(
    {
        f"{tau:g}": {
            "tau^2 KL / limit": float(
                distillation.mimic_loss(z_hat, z, tau) / limit
            ),
            "the same in float32": float(single(tau) / limit),
        }
        for tau in (1.0, 4.0, 20.0, 100.0, 1000.0, 10001.0)
    }
).T.rename_axis("tau").round(4)

# %% [markdown]
# Near the limit the two distributions are equal in almost all digits, and their difference drowns in rounding. That is
# why our divergence is computed in double precision.
#
# ## What an answer carries
#
# An experiment of Hinton and others {cite:p}`distillation`: the student never gets to see one class. All its images,
# set by `left_out`, are taken away (class 3, or the last one where there is no class 3). No label ever names that class.
# Do answers tell something of it?
#
# A student that has hardly ever had a large answer for a class will rarely choose it, even if it knows it when it sees
# it. So, as in that experiment, a constant is added to this one logit. Here it is such that the class is chosen as often
# as it occurs among the test images. It needs their labels: it measures what the student knows, and is no method.


# %%
def student(images, answers, loss, k):
    """Scores for the test images of a fresh network that learned to give these
    answers (N, C) to images (N, ...).
    """
    x = task.inputs(images)
    net = distilled(task, x, answers, loss, student_steps, rng.at("student", k))
    return task.outputs(net, test.images)


def shifted(scores):
    """Scores with a constant added to the left-out class, so that it is chosen
    as often as it occurs.
    """
    others = scores.clone()
    others[:, left_out] = -math.inf
    gap = others.max(1).values - scores[:, left_out]
    moved = scores.clone()
    moved[:, left_out] += (
        gap.sort().values[max(int(unseen.sum()) - 1, 0)] + 1e-4
    )
    return moved


# %% tags=["hide-input"]
ways = {
    "its class only": lambda s, z: functional.cross_entropy(s, z.argmax(1)),
    "tau = 1": lambda s, z: distillation.mimic_loss(s, z, 1.0),
    "tau = 4": lambda s, z: distillation.mimic_loss(s, z, 4.0),
    "tau = infinity": distillation.mimic_loss,
}
unseen = test.labels == left_out
kept = train_set.labels != left_out
rows = {}
for name, loss in ways.items():
    each = [
        student(train_set.images[kept], logits[kept], loss, k) for k in range(2)
    ]
    rows[name] = {
        "other classes": np.mean(
            [share_right(s[~unseen], test.labels[~unseen]) for s in each]
        ),
        "left-out class": np.mean(
            [share_right(s[unseen], test.labels[unseen]) for s in each]
        ),
        "left-out class, shifted": np.mean(
            [share_right(shifted(s)[unseen], test.labels[unseen]) for s in each]
        ),
    }
left = pd.DataFrame(rows).T.rename_axis("what the teacher tells")
left.round(1)

# %% tags=["hide-input"]
gain = left["left-out class, shifted"]
chance = 100 * unseen.float().mean().item()
Markdown(
    f"Test images of class {classes[left_out]!r} that are recognised, after "
    f"the shift, by two students each: a random choice of as many images would "
    f"find {chance:.0f}% of them. Students of labels find {gain.iloc[0]:.0f}%, "
    f"students of answers at tau = 1 {gain.iloc[1]:.0f}%, and those at higher "
    f"temperatures {gain.iloc[2:].min():.0f} to {gain.iloc[2:].max():.0f}%."
)

# %% [markdown]
# Look at the last column. What students of labels find has a simple reason: images of a class that they never saw get
# unsure answers, and the shift picks those. What students of answers find beyond that comes from the teacher: its
# answers to *other* classes say how much each image resembles the missing one. Remember it for the clients: an answer
# on a class carries knowledge even if the input is of another class, and nonsense if the teacher has none.
#
# ## Take away
#
# - A teacher's answer says more than a label: which other classes an image resembles. Temperature makes it louder.
# - At high temperature distillation is regression on logits {eq}`eq:kd-limit`.
# - An answer on a class carries knowledge even if the input is of another class.
#
# ## Exercises
#
# ```{exercise} Not a divergence
# :label: ex-kd-printed
#
# *Medium, 15 minutes.*
#
# Find $q$ and $\hat q$ for which $H(q, \hat q) - H(\hat q)$, as FedIOD prints it, is negative. Does it have the same
# gradient for the student as {eq}`eq:kd-loss`? (To be checked: `teacher_q` and `student_q`, lists of probabilities.)
# ```
#
# ````{solution} ex-kd-printed
# :class: dropdown
#
# ```python
# q, q_hat = torch.tensor([1.0, 0.0]), torch.tensor([0.7, 0.3])
# -(q * q_hat.log()).sum() - distillation.entropy(q_hat)
# ```
#
# The teacher is sure, the student is not: $-\log 0.7 = 0.36$ is less than $H(\hat q) = 0.61$. The gradient is
# another one, because $H(\hat q)$ depends on the student, while $H(q)$ does not. As printed, the student would also be
# rewarded for uncertain answers.
# ````

# %% tags=["solution", "remove-cell"]
teacher_q = [1.0, 0.0]
student_q = [0.7, 0.3]

# %% name="ex-kd-printed" tags=["check", "remove-cell"]
q, q_hat = torch.tensor(teacher_q), torch.tensor(student_q)
assert q.shape == q_hat.shape, "both are chances of the same classes"
for chances in (q, q_hat):
    assert chances.min() >= 0 and abs(chances.sum() - 1) < 1e-6, (
        "probabilities are at least 0 and add up to 1"
    )
cross = -torch.special.xlogy(q, q_hat).sum()
assert cross - distillation.entropy(q_hat) < 0, (
    "not negative: let the teacher be surer than the student"
)

# %% [markdown]
# ```{exercise} The factor $\tau^2$
# :label: ex-kd-factor
#
# *Medium, 20 minutes.*
#
# Derive the first form of {eq}`eq:kd-gradient` on paper, then check both forms with the gradient of `kl_divergence`. Why
# is the divergence multiplied by $\tau^2$?
# ```
#
# ````{solution} ex-kd-factor
# :class: dropdown
#
# $\partial \log \hat q^j / \partial \hat z^c = (\delta_{jc} - \hat q^c) / \tau$, where $\delta_{jc}$ is one if $j = c$, else
# zero. So the gradient of the divergence is $-\sum_j q^j (\delta_{jc} - \hat q^c) / \tau = (\hat q^c - q^c) / \tau$.
#
# ```python
# gap = z_hat - z
# for tau in (1.0, 10.0, 100.0, 1000.0):
#     guess = z_hat.clone().requires_grad_()
#     distillation.kl_divergence(guess, z, tau).backward()
#     left = len(z) * guess.grad
#     same(left, (p(z_hat, tau) - p(z, tau)) / tau)
#     right_side = (gap - gap.mean(1, keepdim=True)) / (len(classes) * tau**2)
#     off = (left - right_side).norm() / right_side.norm()
#     print(tau, left.norm().item(), (tau**2 * left).norm().item(), off.item())
# ```
#
# `kl_divergence` is a mean over the batch of 64 answers, so the gradient for one answer is 64 times what it returns,
# hence `len(z)`. Then the first form of {eq}`eq:kd-gradient` holds at every temperature. How far the second form is off,
# the last number, falls with $\tau$. Gradients fall as $1 / \tau^2$, so without the factor a high temperature would also
# be a small learning rate, and next to another loss the term would fade away.
# ````
