# %% [markdown]
# # Knowledge distillation
#
# *Question:* how does a network learn from the answers of another one?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# A network can be handed on without its weights and without the data that made it: by its answers. A *student* is
# trained to answer as a *teacher* does {cite:p}`distillation`. For federated learning this is tempting, as clients
# with different networks can teach one student. This page has one teacher, [the next](07_many_teachers) has many. You
# will see
#
# - how a temperature makes a teacher's answers say more;
# - the loss, its gradient, and what becomes of both at high temperature;
# - that answers carry something even about a class that the student never meets.

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

# %%
import math
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch.nn import functional
from torch.testing import assert_close

from core import data, distillation
from core.federation import Task
from core.rng import Rng
from lab.report import condensed_images, lines, scatter, show
from lab.report.lesson import distilled, share_right, trained

same = partial(assert_close, rtol=1e-9, atol=1e-12)
rng = Rng(seed)
task = Task(data.load(dataset), "convnet", {"depth": 2, "width": width})
train_set, test = task.dataset.train, task.dataset.test
classes = task.dataset.classes
left_out = min(left_out, len(classes) - 1)
inputs = task.inputs(train_set.images)
teacher = trained(task, inputs, train_set.labels, steps, rng.at("teacher"))
known = share_right(task.outputs(teacher, test.images), test.labels)
f"accuracy of the teacher on test images: {known:.1f}%"

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
# them an image resembles, and which not at all. Here is an ordinary image: among the training images that the teacher
# knows, it has the median confidence.

# %%
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

# %%
flat = {tau: (logits[ordinary] / tau).softmax(0) for tau in (1.0, 4.0, 20.0)}
frame = pd.DataFrame({f"tau = {tau:g}": p for tau, p in flat.items()})
frame = frame.rename_axis("class").reset_index()
frame = frame.melt("class", var_name="label", value_name="probability")
show(scatter(frame, "class", "probability", title="One answer"))

# %% [markdown]
# At $\tau = 1$ what the answer says of the other classes is hidden near zero. At $\tau = 4$ it can be seen which of them
# are the nearest. At $\tau = 20$ hardly anything is left but their order.
#
# ## The loss
#
# The student's logits are $\hat z$. With $q = p_\tau(z)$ and $\hat q = p_\tau(\hat z)$ it minimises the
# Kullback-Leibler divergence (Eq. 6):
#
# $$
# \mathrm{KL}(q \,\Vert\, \hat q) = H(q, \hat q) - H(q), \qquad H(q, \hat q) = -\sum_c q^c \log \hat q^c .
# $$ (eq:kd-loss)
#
# $H(q) = H(q, q)$ is the *entropy*: how undecided the teacher is.

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
# In the paper the last term is $- H(\hat q)$. That is no divergence: an exercise makes it negative.
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
# How large must $\tau$ be? The plot has $\tau^2 \mathrm{KL}$ of two sets of random logits, divided by its limit, in double
# and in single precision.

# %%
gap = z_hat - z - (z_hat - z).mean(1, keepdim=True)
limit = gap.square().sum(1).mean() / (2 * len(classes))
rows = []
for tau in (1.0, 4.0, 20.0, 100.0, 1000.0, 10001.0):
    for name, kind in {
        "float64": torch.float64,
        "float32": torch.float32,
    }.items():
        kl = functional.kl_div(
            (z_hat.to(kind) / tau).log_softmax(1),
            (z.to(kind) / tau).softmax(1),
            reduction="batchmean",
        )
        rows.append((tau, float(tau**2 * kl / limit), name))
frame = pd.DataFrame(rows, columns=["tau", "ratio", "label"])
show(lines(frame, "tau", "ratio", log="x", title="tau^2 KL / its limit"))

# %% [markdown]
# Near the limit the two distributions are equal in almost all digits, and in single precision their difference drowns in
# rounding. The authors' code takes the largest $\tau$ of the plot, in single precision at best; `core` computes the
# divergence in double precision.
#
# ## What an answer carries
#
# An experiment of Hinton and others {cite:p}`distillation`: the student never gets to see one class. All its images,
# set by `left_out`, are taken away (class 3, or the last one where there is no class 3). No label ever names that class.
# Do answers tell something of it?
#
# A student that has hardly ever had a large answer for a class will rarely choose it, even if it knows it when it sees
# it. So, as in that experiment, a constant is added to this one logit, such that the class is chosen as often as it
# occurs among the test images. This needs their labels: it measures what the student knows, and is no method.


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
    raised = scores.clone()
    raised[:, left_out] += (
        gap.sort().values[max(int(unseen.sum()) - 1, 0)] + 1e-4
    )
    return raised


# %%
ways = {
    "its class only": lambda s, z: functional.cross_entropy(s, z.argmax(1)),
    "tau = 1": lambda s, z: distillation.mimic_loss(s, z, 1.0),
    "tau = 4": lambda s, z: distillation.mimic_loss(s, z, 4.0),
    "tau = infinity": distillation.mimic_loss,
}
unseen = test.labels == left_out
others = train_set.labels != left_out
images, rows = train_set.images[others], {}
for name, loss in ways.items():
    students = [student(images, logits[others], loss, k) for k in range(2)]
    for how, see in {"": lambda s: s, ", shifted": shifted}.items():
        rates = [
            share_right(see(s)[unseen], test.labels[unseen]) for s in students
        ]
        rows.setdefault(f"left-out class{how} (%)", {})[name] = np.mean(rates)
pd.DataFrame(rows).rename_axis("what the teacher says").round(1)

# %% [markdown]
# A random choice of as many images would find about a tenth of the class. Students of labels find more of it after the
# shift, for a simple reason: images of a class that they never saw get unsure answers, and the shift picks those. What
# students of answers find beyond that comes from the teacher: its answers to *other* classes say how much each image
# resembles the missing one. An answer on a class carries knowledge even if the input is of another class. [A teacher
# that has not seen a class itself](07_many_teachers) answers nonsense there.
#
# ## Take away
#
# - A teacher's answer says more than a label: which other classes an image resembles. Temperature makes it louder.
# - At high temperature distillation is regression on logits {eq}`eq:kd-limit`.
#
# ## Exercises
#
# ```{exercise} Not a divergence
# :label: ex-kd-printed
#
# *Medium, 15 minutes.*
#
# Find $q$ and $\hat q$ for which $H(q, \hat q) - H(\hat q)$, as in FedIOD's paper, is negative. Does it have the same
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
# another one, because $H(\hat q)$ depends on the student, while $H(q)$ does not. With the paper's form the student would
# also be rewarded for uncertain answers.
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
