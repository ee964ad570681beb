# %% [markdown]
# # Knowledge distillation
#
# *Question:* how does a network learn from the answers of another one, and why is the average of several a bad teacher
# when each has seen other classes?\
# *Time:* about half a minute on one CPU core. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# A network can be handed on without its weights and without the data that made it: by its answers. A *student* is
# trained to answer as a *teacher* does {cite:p}`distillation`. For federated learning this is tempting, as clients
# with different networks can teach one student. But clients also have different data, and then their answers do not
# fit together. This chapter shows what goes wrong and what can be done. [FedIOD](41_fediod) is built on it.

# %% tags=["parameters"]
dataset = "digits"
width = 16
alpha = 0.1
clients = 8
steps = 50
student_steps = 150
questions = 1500
left_out = 3
seed = 0

# %%
import math

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from core import data, distillation
from core.data import partition
from core.data.auxiliary import PHOTOGRAPHS, auxiliary
from core.federation import LocalTraining, Task, supervised, train
from core.models import Stacked
from core.report import condensed_images, lines, partition_plot, show, source
from core.report.texts import Markdown
from core.rng import Rng

rng = Rng(seed)
task = Task(data.load(dataset), "convnet", {"width": width})
train_set, test, classes = (
    task.dataset.train,
    task.dataset.test,
    task.dataset.classes,
)


# %%
def taught(images, labels, steps, *name):
    """A network that has learned from labels, frozen: a teacher."""
    model = task.new_model(rng.at("teacher", *name))
    train(
        model,
        images,
        labels,
        LocalTraining(lr=0.05, batch_size=32),
        steps,
        supervised(task),
        rng.at(*name),
    )
    return model.eval().requires_grad_(False)


def share_right(scores, labels=test.labels):
    """Accuracy (%) of scores (N, C)."""
    return 100 * (scores.argmax(1) == labels).float().mean().item()


teacher = taught(train_set.images, train_set.labels, 3 * steps, "all")
known = share_right(task.outputs(teacher, test.images))
f"accuracy of the teacher: {known:.1f}%"

# %% [markdown]
# ## One teacher
#
# ### Temperature
#
# A teacher's logits $z$ become probabilities by a softmax. A *temperature* $\tau$ flattens them (FedIOD, Eq. 1):
#
# $$
# p_\tau(z) = \left[ \frac{e^{z^1/\tau}}{\sum_c e^{z^c/\tau}}, \dots, \frac{e^{z^C/\tau}}{\sum_c e^{z^c/\tau}} \right] .
# $$ (eq:kd-temperature)
#
# A label says which class is right. The answer of a teacher also says which wrong classes are nearly right: this 3
# looks like a 5 and not at all like a 4. At $\tau = 1$ that is hidden behind many zeros. Here is the training image
# that the teacher knows, and is least sure of.

# %%
logits = task.outputs(teacher, train_set.images)
right = logits.argmax(1) == train_set.labels
doubtful = (
    torch.where(right, logits.softmax(1).max(1).values, 2.0).argmin().item()
)
show(
    condensed_images(
        train_set.images[[doubtful]],
        train_set.labels[[doubtful]],
        classes,
        title="The image",
    )
)

# %%
flat = {tau: (logits[doubtful] / tau).softmax(0) for tau in (1.0, 4.0, 20.0)}
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
    lines(
        frame,
        "class",
        "p",
        ylabel="probability",
        title="One answer at three temperatures",
    ),
    alt=f"Probabilities of all {len(classes)} classes for one image: {ends}.",
)

# %% [markdown]
# ### The loss
#
# The student's logits are $\hat z$. With $q = p_\tau(z)$ and $\hat q = p_\tau(\hat z)$ it minimises the
# Kullback-Leibler divergence (Eq. 6):
#
# $$
# \mathrm{KL}(q \,\Vert\, \hat q) = H(q, \hat q) - H(q), \qquad H(q, \hat q) = -\sum_c q^c \log \hat q^c .
# $$ (eq:kd-loss)

# %%
source(distillation.kl_divergence)

# %% [markdown]
# FedIOD prints $- H(\hat q)$ at the end. That is no divergence: an exercise below makes it negative.
#
# ### Temperature without end
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
source(distillation.mimic_loss)

# %% [markdown]
# How large must $\tau$ be? Below, $\tau^2 \mathrm{KL}$ of two sets of random logits, divided by its limit. The authors'
# code takes $\tau = 10001$ and computes in single precision; the last column does the same.

# %%
z, z_hat = (
    3 * torch.randn(64, len(classes), generator=rng.at("logits", n).generator())
    for n in "ab"
)
limit = (z_hat - z - (z_hat - z).mean(1, keepdim=True)).square().sum(
    1
).mean() / (2 * len(classes))


def single(tau):
    """tau^2 KL in float32, as a library computes it."""
    return tau**2 * functional.kl_div(
        (z_hat / tau).log_softmax(1),
        (z / tau).softmax(1),
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
# ### What an answer carries
#
# An experiment of Hinton and others {cite:p}`distillation`: the student never gets to see one class. All its images,
# set by `left_out`, are taken away. A student of labels cannot know that class. Can one who learns from answers?
#
# A student that has hardly ever had a large answer for a class will rarely choose it, even if it knows it when it sees
# it. So, as in that experiment, a constant is added to this one logit, such that the class is chosen as often as it
# occurs.


# %%
def student(images, answers, loss, *name, steps=student_steps):
    """Scores of a fresh network on the test set, after it learned to give these
    answers (N, C) to images (N, ...).
    """
    model = task.new_model(rng.at("student", *name))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    train(
        model,
        task.inputs(images),
        answers,
        LocalTraining(batch_size=32),
        steps,
        lambda net, x, z: loss(net(x), z),
        rng.at("learn", *name),
        [adam],
    )
    return task.outputs(model, test.images)


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


# %%
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

# %%
gain = left["left-out class, shifted"]
Markdown(
    f"Test images of class {classes[left_out]!r} that are recognised, after "
    f"the shift: {gain.iloc[0]:.0f}% of them "
    f"by students of labels, {gain.iloc[-1]:.0f}% by students of logits. Two "
    "students each."
)

# %% [markdown]
# Look at the last column. The answers to *other* classes say how much each image resembles the missing one, and high
# temperature lets that through. Remember it for the clients: an answer on a class carries knowledge even if the input
# is of another class, and nonsense if the teacher has none.
#
# ## Many teachers
#
# Now the data belong to clients. Each trains a teacher on its own data and to the end.


# %%
def hand_out(alpha):
    """The clients' rows of the training set; empty clients are left out."""
    parts = partition.dirichlet(train_set.labels, clients, alpha, seed)
    return [torch.as_tensor(part) for part in parts if len(part)]


def class_counts(parts):
    return torch.stack(
        [
            torch.bincount(train_set.labels[part], minlength=len(classes))
            for part in parts
        ]
    )


def teachers_of(parts, alpha):
    return [
        taught(
            train_set.images[part],
            train_set.labels[part],
            steps,
            "client",
            k,
            f"{alpha:g}",
        )
        for k, part in enumerate(parts)
    ]


# %%
parts = hand_out(alpha)
counts, teachers = class_counts(parts), teachers_of(parts, alpha)
show(
    partition_plot(train_set.labels, parts, classes, title=f"alpha = {alpha:g}")
)

# %% [markdown]
# How does a teacher judge an image of a class that it has seen, and one that it has not?


# %%
def answers_of(networks, images):
    """Logits (K, N, C)."""
    with torch.no_grad():
        return torch.cat(
            [
                Stacked(networks)(task.inputs(part)).float()
                for part in images.split(500)
            ],
            1,
        )


z = answers_of(teachers, test.images)
q = z.softmax(-1)
truth = test.labels.expand(len(teachers), -1)
known = counts[:, test.labels] > 0
found = {
    "accuracy": z.argmax(-1) == truth,
    "its probability of the right class": q.gather(2, truth[..., None])[..., 0],
    "its largest probability": q.max(-1).values,
}
view = pd.DataFrame(
    {
        name: {
            what: 100 * values[of].float().mean().item()
            for what, values in found.items()
        }
        for name, of in (
            ("a class it has", known),
            ("a class it has not", ~known),
        )
        if of.any()
    }
)
view.T.round(1)

# %% [markdown]
# A teacher cannot say "I do not know". Its probabilities must sum to one over the classes that it has, so it is often
# sure of a wrong one. And a class that it never saw gets a very low logit on *all* images: pushing it down cost nothing
# in training.
#
# ### Two averages
#
# With $\pi_k = n_k / N$, the ensemble can be the mean of probabilities or the mean of logits:
#
# $$
# \bar q(x) = \sum_{k=1}^{K} \pi_k \, q_k(x), \qquad \bar z(x) = \sum_{k=1}^{K} \pi_k \, z_k(x) .
# $$ (eq:kd-averages)
#
# The first lets sure teachers win, right or wrong. The second gives each teacher a *veto*: one very low logit pulls the
# sum down, and here it comes from those who know least. Class-wise weights (FedIOD, Eq. 8, first factor, and Eq. 9)
# ask, for class $c$, only those who have it, in proportion to how many images of it they have:
#
# $$
# A(x)^c = \sum_{k=1}^{K} \frac{n_{k,c}}{\sum_{j} n_{j,c}} \, z_k^c(x) .
# $$ (eq:kd-classwise)

# %%
source(distillation.ensemble_logits)


# %%
def ensembles(z, counts):
    """Scores (N, C) of the three ensembles."""
    pi = (counts.sum(1) / counts.sum()).to(z.dtype)
    mean = torch.einsum("k,knc->nc", pi, z.softmax(-1))
    return {
        "mean of probabilities": mean.log(),
        "mean of logits": torch.einsum("k,knc->nc", pi, z),
        "class-wise weights": distillation.ensemble_logits(
            z, distillation.class_input_importance(counts)
        ),
    }


mixed = ensembles(z, counts)
scores = {"best single teacher": max(share_right(one) for one in z)}
scores |= {name: share_right(one) for name, one in mixed.items()}
pd.Series(scores).round(1).to_frame("accuracy (%)")

# %% [markdown]
# ## Why: perfect teachers
#
# Is this the fault of small networks? Let us take teachers that make no error at all. Points in the plane come from
# $C$ classes with known densities $P(x \mid c)$, and client $k$ differs from the others in its class frequencies
# $P_k(c)$ only. Its perfect answer is Bayes' rule,
#
# $$
# P_k(c \mid x) = \frac{P_k(c) \, P(x \mid c)}{P_k(x)}, \qquad P_k(x) = \sum_c P_k(c) \, P(x \mid c) .
# $$ (eq:kd-bayes)
#
# What should come out is the answer of one who has all data. It *is* a mean of the clients' answers, with weights that
# depend on the input:
#
# $$
# P(c \mid x) = \sum_{k=1}^{K} \pi_k \, \frac{P_k(x)}{P(x)} \, P_k(c \mid x) .
# $$ (eq:kd-mixture)
#
# So those should be heard who have seen inputs like $x$ (Mansour and others {cite:p}`multiplesources`). Leaving
# $P_k(x) / P(x)$ out is the error of the mean of probabilities. And the mean of the logarithms, with the logits
# normalised, is
#
# $$
# \sum_k \pi_k \log P_k(c \mid x) = \log P(x \mid c) + \sum_k \pi_k \log P_k(c) + \text{const}(x) :
# $$ (eq:kd-veto)
#
# Bayes' rule again, but with the *geometric* mean of the class frequencies, where the arithmetic mean is right. A
# client with $P_k(c) \to 0$ sends it to zero. That is the veto.
#
# Class-wise weights take this veto away, as a client without the class has no say on it. They leave another error
# behind. By {eq}`eq:kd-bayes` a logit holds $- \log P_k(x)$. In {eq}`eq:kd-veto` it is the same for all classes; with
# weights of its own for each class it is not.
#
# FedIOD weights with $P_k(y \mid x) / P(y \mid x)$ (Eq. 7). By {eq}`eq:kd-bayes` this is
#
# $$
# \frac{P_k(y \mid x)}{P(y \mid x)} = \frac{P_k(y)}{P(y)} \cdot \frac{P(x)}{P_k(x)} ,
# $$ (eq:kd-ratio)
#
# a class ratio and an input ratio. Note that the input ratio stands the other way up than in {eq}`eq:kd-mixture`: it
# is large for clients who have *not* seen such inputs. As here all densities are known, we can try both.


# %%
def toy(alpha, draw, points=4000, many=5):
    """Accuracy (%) of ensembles of perfect teachers, each of one Dirichlet draw
    of class shares.
    """
    here = rng.at("toy", draw)
    angle = 2 * math.pi * torch.arange(many) / many
    centres = 1.5 * torch.stack([angle.cos(), angle.sin()], 1)
    generator = here.generator()
    y = torch.randint(many, (points,), generator=generator)
    x = centres[y] + torch.randn(points, 2, generator=generator)
    # 10,000 images of each class, handed out
    counts = torch.from_numpy(
        here.numpy().dirichlet(np.full(many, alpha), many).T * 10_000
    ).round()
    pi, own = (
        counts.sum(1) / counts.sum(),
        counts / counts.sum(1, keepdim=True).clamp_min(1),
    )
    log_x_given_c = -(x[:, None] - centres).square().sum(-1) / 2
    joint = (
        log_x_given_c + own.clamp_min(1e-12).log()[:, None]
    )  # log P_k(c) P(x | c)
    log_p_k = joint.logsumexp(-1)  # log P_k(x)
    z = joint - log_p_k[..., None]  # log P_k(c | x)
    ratio = (
        log_p_k - (log_x_given_c - math.log(many)).logsumexp(-1)
    ).exp()  # P_k(x) / P(x)

    def weighted(generated):
        ones = torch.ones(many)
        return distillation.ensemble_logits(
            z, distillation.class_input_importance(counts, generated, ones)
        )

    scores = ensembles(z, counts) | {
        "class-wise, P(x) / P_k(x)": weighted(1 / ratio),
        "class-wise, P_k(x) / P(x)": weighted(ratio),
        "mixture, as one client": torch.einsum(
            "k,kn,knc->nc", pi, ratio, z.exp()
        ),
    }
    return {name: share_right(one, y) for name, one in scores.items()}


toys = pd.DataFrame(
    [
        {"alpha": a, "label": name, "accuracy": value}
        for a in (0.05, 0.1, 0.3, 1.0, 3.0, 10.0)
        for draw in range(8)
        for name, value in toy(a, draw).items()
    ]
)
shown = toys[~toys["label"].str.contains(",")]
reference = toys[toys["label"] == "mixture, as one client"]
show(
    lines(
        pd.concat([shown, reference]),
        "alpha",
        "accuracy",
        log="x",
        ylabel="accuracy (%)",
        xlabel="alpha (small: unequal clients)",
        title="Ensembles of perfect teachers (band: over splits)",
    )
)

# %%
pivot = toys.pivot_table(
    index="label", columns="alpha", values="accuracy", sort=False
)
pivot.rename_axis(index=None).round(1)

# %%
kept_order = [
    "class-wise, P(x) / P_k(x)",
    "class-wise weights",
    "class-wise, P_k(x) / P(x)",
]
hardest = pivot[pivot.columns.min()]
Markdown(
    f"At alpha = {pivot.columns.min():g}: "
    + "; ".join(f"{name} {hardest[name]:.1f}%" for name in kept_order)
    + f"; one client with all data {hardest['mixture, as one client']:.1f}%."
)

# %% [markdown]
# The row *P(x) / P_k(x)* has the ratio of Eq. 7, the row *P_k(x) / P(x)* its inverse. Compare both with class-wise
# weights alone. The mixture is as good as one client with all data, at any skew: perfect answers are enough if the
# right teachers are heard.
#
# No weight by class can be as good. In the extreme case, where each client has a single class, every teacher answers
# "my class, surely" to any input, and has all the weight of its class.
#
# ## Back to networks
#
# Networks are no perfect teachers: their logits are not normalised, and far from their data they can say anything. The
# same comparison, over the skew of the clients:


# %%
def compared(alpha):
    parts = hand_out(alpha)
    z = answers_of(teachers_of(parts, alpha), test.images)
    return {
        name: share_right(one)
        for name, one in ensembles(z, class_counts(parts)).items()
    }


swept = {a: compared(a) for a in sorted({0.05, 0.5, 10.0} - {alpha})} | {
    alpha: {name: scores[name] for name in mixed}
}
frame = pd.DataFrame(
    [
        {"alpha": a, "label": name, "accuracy": value}
        for a in sorted(swept)
        for name, value in swept[a].items()
    ]
)
show(
    lines(
        frame,
        "alpha",
        "accuracy",
        log="x",
        ylabel="accuracy (%)",
        xlabel="alpha (small: unequal clients)",
        title=f"Ensembles of {clients} networks on {dataset}",
    )
)

# %%
pd.DataFrame(swept).sort_index(axis=1).rename_axis(columns="alpha").round(1)

# %% [markdown]
# Where clients are alike, all ensembles are alike. One split and one seed: do not read more into small differences.
#
# ## A student of the ensemble
#
# The student inherits what the ensemble knows. It needs inputs to ask about, but no labels. First the clients' own
# images, which in truth nobody may collect: then only the ensembles differ. The last row is a student of the one
# teacher with all data, and says what imitation itself costs in so few steps.

# %%
losses = {"mean of probabilities": ways["tau = 1"]}
order = torch.randperm(
    len(train_set.labels), generator=rng.at("questions").generator()
)
asked = train_set.images[order[:questions]]
pool = answers_of(teachers, asked)


def heir(images, target, loss=distillation.mimic_loss):
    return share_right(
        student(images, target, loss, "heir", steps=2 * student_steps)
    )


learned = {
    name: heir(asked, target, losses.get(name, distillation.mimic_loss))
    for name, target in ensembles(pool, counts).items()
}
everything = "one teacher with all data"
scores[everything] = share_right(task.outputs(teacher, test.images))
learned[everything] = heir(asked, logits[order[:questions]])
pd.DataFrame(
    {
        "teacher": {name: scores[name] for name in learned},
        "its student": learned,
    }
).round(1)

# %% [markdown]
# ### Which inputs?
#
# Now the ensemble stays the same, with class-wise weights, and the inputs change: the clients' images; windows of two
# photographs, which stand for public data of another kind; and noise. The last column counts to how many classes the
# inputs look: the exponential of the entropy of the ensemble's mean answer.

# %%
noise = torch.randint(
    256, asked.shape, generator=rng.at("noise").generator(), dtype=torch.uint8
)
inputs = {
    "the clients' images": asked,
    "photographs": auxiliary(PHOTOGRAPHS, task.dataset)[: len(asked)],
    "noise": noise,
}
rows = {}
for name, images in inputs.items():
    target = ensembles(answers_of(teachers, images), counts)[
        "class-wise weights"
    ]
    looks = distillation.entropy(target.softmax(1).mean(0)).exp().item()
    rows[name] = {
        "student (%)": learned["class-wise weights"]
        if images is asked
        else heir(images, target),
        "classes": looks,
    }
pd.DataFrame(rows).T.round(1)

# %% [markdown]
# FedDF {cite:p}`feddf`, FedMD {cite:p}`fedmd` and FedKD {cite:p}`fedkdgong` ask about public images, and depend on how
# much these resemble the clients'. FedIOD *learns* its inputs: a generator makes images that look real to the clients,
# on which teachers are sure, yet differ. That is [the next chapter](41_fediod).
#
# ## Many networks in one program
#
# Twenty small networks on one batch keep a GPU waiting for many small kernels. Networks of one architecture can run as
# one program over their stacked weights; others run one by one.

# %%
source(Stacked.run_together)

# %%
batch = task.inputs(test.images[:50])
with torch.no_grad():
    one_by_one, together = (
        Stacked(teachers, batched=way)(batch) for way in (False, True)
    )
f"largest difference of the logits: {(one_by_one - together).abs().max():.1e}"

# %% [markdown]
# ## Take away
#
# - A teacher's answer says more than a label: which other classes an image resembles. Temperature lets it be heard.
# - At high temperature distillation is regression on logits ({eq}`eq:kd-limit`).
# - A teacher is sure even where it knows nothing. Under label skew an average listens to the wrong teachers: averaged
#   logits give everyone a veto ({eq}`eq:kd-veto`).
# - Class-wise weights ({eq}`eq:kd-classwise`) remove the veto. What is right for a perfect teacher is a weight by input
#   ({eq}`eq:kd-mixture`).
# - A student needs inputs that look to the teachers like what they know.
#
# ## Exercises
#
# ```{exercise} Not a divergence
# :label: ex-kd-printed
#
# *Medium, 15 minutes.*
#
# Find $q$ and $\hat q$ for which $H(q, \hat q) - H(\hat q)$, as FedIOD prints it, is negative. Does it have the same
# gradient for the student as {eq}`eq:kd-loss`?
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
# The teacher is sure, the student nearly so: $-\log 0.7 = 0.36$ is less than $H(\hat q) = 0.61$. The gradient is
# another one, because $H(\hat q)$ depends on the student, while $H(q)$ does not. As printed, the student would also be
# rewarded for uncertain answers.
# ````

# %% tags=["solution", "remove-cell"]
sure = [1.0, 0.0]
nearly_sure = [0.7, 0.3]

# %% tags=["check", "remove-cell"] name="ex-kd-printed"
q, q_hat = torch.tensor(sure), torch.tensor(nearly_sure)
for chances in (q, q_hat):
    assert chances.min() >= 0 and abs(chances.sum() - 1) < 1e-6, (
        "probabilities are at least 0 and add up to 1"
    )
cross = -(q * q_hat.clamp_min(1e-12).log()).sum()
assert cross - distillation.entropy(q_hat) < 0, (
    "not negative: let the teacher be surer than the student"
)

# %% [markdown]
# ```{exercise} The factor $\tau^2$
# :label: ex-kd-factor
#
# *Medium, 15 minutes.*
#
# Why is the divergence multiplied by $\tau^2$? Check {eq}`eq:kd-gradient` with the gradient of `kl_divergence`.
# ```
#
# ````{solution} ex-kd-factor
# :class: dropdown
#
# ```python
# for tau in (1.0, 10.0, 100.0):
#     guess = z_hat.clone().requires_grad_()
#     answer = torch.zeros_like(z_hat)
#     distillation.kl_divergence(guess, answer, tau).backward()
#     print(tau, guess.grad.norm().item(), (tau**2 * guess.grad).norm().item())
# ```
#
# Gradients fall as $1 / \tau^2$, so without the factor a high temperature would also be a small learning rate, and
# next to another loss the term would fade away.
# ````
#
# ```{exercise} One class each
# :label: ex-kd-single
#
# *Hard, 30 minutes.*
#
# Let each client of the toy have one class only. What do the three ensembles answer? What does {eq}`eq:kd-mixture`
# answer?
# ```
#
# ````{solution} ex-kd-single
# :class: dropdown
#
# $P_k(k \mid x) = 1$ for every $x$. The mean of probabilities is $\bar q^c = \pi_c$, the same for all inputs. All
# logarithms but one are $-\infty$, so is their mean. Class-wise weights give $A(x)^c = \log 1 = 0$ for each class: a
# tie. A ratio of inputs changes nothing, as after normalisation the only owner of a class has weight 1. Only the
# mixture is right: it is $\pi_c P_c(x) / P(x)$, Bayes' rule.
#
# ```python
# pd.Series(toy(1e-3, 0))
# ```
#
# comes close: there each class has one owner, who may have several.
# ````
#
# ```{exercise} Who counts how much
# :label: ex-kd-share
#
# *Medium, 15 minutes.*
#
# `class_input_importance(counts, class_ratio="share")` divides each client's counts by its size. How do the weights
# change for the smallest client, and which form has {eq}`eq:kd-classwise`?
# ```
#
# ````{solution} ex-kd-share
# :class: dropdown
#
# ```python
# smallest = counts.sum(1).argmin()
# pd.DataFrame({ratio: distillation.class_input_importance(counts, class_ratio=ratio)[smallest, 0]
#               for ratio in ("count", "share")})
# ```
#
# Counts are {eq}`eq:kd-classwise`. With shares a client with one image weighs as much on its class as a client with
# thousands of which all are of that class. FedIOD's Eq. 8 can be read both ways; its text speaks of the number of
# samples.
# ````
