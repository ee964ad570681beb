# %% [markdown]
# # FedIOD: whom to believe
#
# *Question:* what are the weights of FedIOD's {cite:p}`fediod` ensemble worth, by class and by input, which way does the
# input ratio point, and what does the temperature change?\
# *Time:* about a quarter of a minute on one CPU core. *Data:* scikit-learn's digits.
#
# The student learns what the teachers' ensemble says. Its weights are a ratio of class counts times a ratio of
# discriminators {eq}`eq:iod-importance`. In a run the weights, the temperature $\tau$ and the generator's images
# change together, and [Table 6](42_fediod_ablations) has only their sum. Here the images are held.

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
clients = 3
rounds = 3
steps = 6
student_steps = 3
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import math
from functools import partial

import pandas as pd
import torch

from core import distillation
from core.rng import Rng
from lab.report import lines, show, source
from lab.report.lesson import answers, distilled, share_right, small_lesson
from lab.report.texts import Markdown

lesson = small_lesson(
    profile,
    {
        "distill_steps": steps,
        "student_steps": student_steps,
        "scored_images": 0,
    },
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    evaluate_every=rounds,
)
task, teachers, counts = lesson.task, lesson.teachers, lesson.counts
train_set, test, pi = task.dataset.train, task.dataset.test, lesson.shares
whole = lesson.run()
game = lesson.run(mimic=0, confidence=0, uniqueness=0)
members = whole.clients
server, side = lesson.method.sides(whole.state, members, Rng(seed))
own_images = lesson.judged(side.judges)
show(lesson.partition_plot())


def how_generated(inputs):
    """D_k(x), (K, N), for images in the form of network inputs."""
    return distillation.generated(answers(side.judges, inputs))


# %% mystnb={"code_prompt_show": "Show class_input_importance in core"} tags=["hide-cell"]
source(distillation.class_input_importance)

# %% [markdown]
# ## With the images held
#
# Fresh students learn what the ensemble says about three sets of images: from the end of the full run, from the run with
# the adversarial loss only, and real training images, which nobody has in FedIOD.

# %% tags=["hide-input"]
by_class = distillation.class_input_importance(counts)


def mixtures(inputs):
    """The ensemble's logits for images in the form of network inputs, by each
    kind of weight.
    """
    z = answers(teachers, inputs)
    weights = {
        "sizes": pi[:, None, None],
        "class ratio (*)": by_class,
        "class and input (Eq. 8)": distillation.class_input_importance(
            counts, how_generated(inputs), own_images
        ),
    }
    return {
        name: distillation.ensemble_logits(z, weight)
        for name, weight in weights.items()
    }


def student(inputs, targets, tau):
    """Test accuracy (%) of a fresh network that learned to answer the
    images.
    """
    loss = partial(distillation.mimic_loss, tau=tau)
    model = distilled(task, inputs, targets, loss, 30, Rng(seed).at("student"))
    return share_right(task.outputs(model, test.images), test.labels)


order = Rng(seed).at("held").generator()
some = torch.randperm(len(train_set), generator=order)[:600]
held = {
    "full run": task.dataset.standardise(lesson.pictures(whole.state, 600)),
    "adversarial loss only": task.dataset.standardise(
        lesson.pictures(game.state, 600)
    ),
    "real": task.inputs(train_set.images[some]),
}
taus = {"tau = 1": 1.0, "tau = infinity": float("inf")}
grid = pd.DataFrame(
    {
        (images, name): {
            text: student(inputs, targets, tau) for text, tau in taus.items()
        }
        for images, inputs in held.items()
        for name, targets in mixtures(inputs).items()
    }
).T
grid.rename_axis(["images", "weights"]).round(1)

# %% tags=["hide-input"]
own = {
    name: share_right(targets, test.labels)
    for name, targets in mixtures(task.inputs(test.images)).items()
}
gains = {
    images: grid.loc[images].diff().iloc[1] for images in ("real", "full run")
}
Markdown(
    "Accuracy of the ensemble itself on test images: "
    + ", ".join(f"{score:.1f}% ({name})" for name, score in own.items())
    + "".join(
        f". At {tau} weights by class change the student by "
        f"{gains['real'][tau]:+.1f} points on real images and by "
        f"{gains['full run'][tau]:+.1f} on those of the full run"
        for tau in taus
    )
    + f"; a guess has {100 / task.dataset.num_classes:.0f}%."
)

# %% [markdown]
# One student each. Compare the rows of real images with the others. Class-wise weights set each class's score by
# different teachers, and that is right as far as their logits are of one scale. Each was trained on real images of its
# own; nothing says how their logits compare elsewhere, so on an image of no class the mix may name a class that no
# single teacher would name. An exercise shows one way how.
#
# [Knowledge distillation](40_knowledge_distillation) says what to look for in $\tau$: at $\tau = 1$ a sure ensemble
# tells its class and little else. How sure is it here, and how much of the student's gradient is left?

# %% tags=["hide-input"]
facts = {}
for images, inputs in held.items():
    targets = mixtures(inputs)["class ratio (*)"]
    with torch.no_grad():
        guess = server.student.eval()(inputs).float()
    slopes = (guess.softmax(1) - targets.softmax(1)).norm(dim=1)
    facts[images] = {
        "largest probability, mean": targets.softmax(1)
        .max(1)
        .values.mean()
        .item(),
        "gradient below 0.1 at tau = 1 (%)": 100
        * (slopes < 0.1).float().mean().item(),
        "|z^ - z|, mean": (guess - targets).norm(dim=1).mean().item(),
    }
pd.DataFrame(facts).round(2)

# %% [markdown]
# At $\tau = 1$ the gradient dies where student and ensemble are sure of the same class; the second row says how often
# that is so for the student of this run. Such an image teaches nothing more. And the generator climbs the same loss:
# where it is flat, there is no way to a harder question.
#
# ## What the input ratio does
#
# The second factor of {eq}`eq:iod-importance` is meant to act for each image. How much of it does? We split the
# variance of $\log (D_k(x) / \mathbb{E} D_k)$ into a part between clients, which is a constant factor for each of them,
# and a part within clients, from image to image.

# %% tags=["hide-input"]
fake = how_generated(held["full run"])
factor = fake / own_images[:, None]
log = factor.clamp_min(1e-12).log()
within, between = log.var(1, correction=0).mean(), log.mean(1).var(correction=0)
by_both = distillation.class_input_importance(counts, fake, own_images)
shift = 0.5 * (by_both - by_class).abs().sum(0).mean()
pd.DataFrame(
    {
        "pi_k": pi,
        "E D_k, real": own_images,
        "D_k(x), mean": fake.mean(1),
        "factor, 5%": factor.quantile(0.05, dim=1),
        "factor, 95%": factor.quantile(0.95, dim=1),
    },
    index=[f"client {client.id}" for client in members],
).round(2)

# %% tags=["hide-input"]
inside = 100 * (within / (within + between)).item()
Markdown(
    f"Of the variance of the logarithm of the factor {inside:.0f}% lies within "
    f"clients. In the mean the factor moves {100 * shift.item():.1f}% of a "
    "class's weight to other teachers."
)

# %% [markdown]
# A discriminator that calls everything generated ($D_k \approx 1$ on both) has a factor of 1 everywhere and leaves `*`.
# One that is right about all generated images has the constant factor $1 / \mathbb{E} D_k$. Only in between does the
# weight depend on the image.
#
# ## Which way it points
#
# The released code has no input ratio at all. For those who add it as printed, one thing must be settled. Eq. 7 writes
#
# $$
# \frac{P_k(y \mid x)}{P(y \mid x)} = \frac{P_k(y)}{P(y)} \cdot \frac{P_k(x \mid y)}{P(x \mid y)} \cdot
# \frac{P(x)}{P_k(x)}
# $$ (eq:ior-ratio)
#
# and takes the middle factor as 1. $D_k(x) / \mathbb{E} D_k$ stands for the last one. So $D_k$ must be *large* where
# the mixture is denser than client $k$, that is, on images that do not look like the client's: the probability of
# *generated*. Eq. 2 as printed turns $D_k$ this way (`input_ratio="generated"`), though [its edge lies at
# $P_g = \pi_k P_k$](38_fediod_released_losses). Read as usual, $D_k$ is the probability of *real*, and the factor
# points the other way (`"real"`), to $P_k(x) / P(x)$. That is what the mixture rule {eq}`eq:kd-mixture` asks for, but
# not what Eq. 7 says.
#
# Take two clients on a line, with normal densities at $-1$ and $+1$, and the perfect discriminators of a cross-entropy
# loss, $D_k(x) = P(x) / (P(x) + P_k(x))$. (Eq. 2 does not train these: it is linear, so its best answer is 0 or 1.)

# %% tags=["hide-input"]
x = torch.linspace(-3, 3, 25)
density = torch.stack(
    [
        torch.exp(-0.5 * (x - c) ** 2) / math.sqrt(2 * math.pi)
        for c in (-1.0, 1.0)
    ]
)
mixture = density.mean(0)
generated = mixture / (mixture + density)
weight = {}
for name, d in (("generated (as printed)", generated), ("real", 1 - generated)):
    ratio = d / (density * d).sum(1, keepdim=True).div(
        density.sum(1, keepdim=True)
    )
    weight[name] = (ratio / ratio.sum(0))[0]
weight["mixture rule"] = density[0] / density.sum(0)
drawn = pd.concat(
    pd.DataFrame({"x": x, "weight": w, "label": name})
    for name, w in weight.items()
)
show(
    lines(
        drawn,
        "x",
        "weight",
        xlabel="x (the client's own data are around -1)",
        ylabel="weight of the client",
        title="Whom to believe, two readings",
    )
)

# %% [markdown]
# As printed, a client is believed *less* near its own data. On real test images, with the discriminators of the full
# run: the mean factor where the image's class is one that the client has much of, or little of.

# %% tags=["hide-input"]
judged = how_generated(task.inputs(test.images))
much = counts[:, test.labels] / counts.sum(1, keepdim=True) > 1 / len(
    task.dataset.classes
)
readings = {
    "generated (as printed)": judged / own_images[:, None],
    "real": (1 - judged) / (1 - own_images[:, None]),
}
pd.DataFrame(
    {
        name: {
            "much of the class": f[much].mean().item(),
            "little of it": f[~much].mean().item(),
            "smallest": f.min().item(),
            "largest": f.max().item(),
        }
        for name, f in readings.items()
    }
).T.round(3)

# %% [markdown]
# A factor that hardly leaves 1 changes nothing, whichever way it points: then the discriminators have not learned yet,
# or call everything generated. [The chapter on many teachers](47_many_teachers) measures both readings with
# perfect teachers, [FedIOD's student](41_fediod) with trained ones.
#
# ## Counts or shares
#
# The first factor of Eq. 8 is an *expectation*, $\mathbb{E}_{y'_k} |y'_k = c|$, a share of the client's data. The
# sentence below it says "the number of samples". Two clients, one with a thousand images and one with ten:

# %% tags=["hide-input"]
two = torch.tensor([[500, 500], [0, 10]])
pd.DataFrame(
    {
        how: distillation.class_input_importance(two, class_ratio=how)[
            1, 0
        ].tolist()
        for how in ("count", "share")
    },
    index=["class 0", "class 1"],
).round(2).rename_axis("small client")

# %% [markdown]
# With shares, the ten images of one client outweigh the five hundred of the other on class 1.
#
# ## Take away
#
# - In these few steps at one rate students at $\tau = 1$ do better than at $\tau \to \infty$, or as well (one seed).
#   Later the gradient at $\tau = 1$ would fade, where student and ensemble are sure of the same class; in this short
#   run that hardly ever happens.
# - Class-wise weights are made for images that the teachers know. Whether generated images are such is what counts.
# - The input ratio depends on the image only as far as the discriminators are undecided. Eq. 2 decides which way it
#   points, and the printed way is not that of the mixture rule.
#
# ## Exercises
#
# ```{exercise} A constant that matters
# :label: ex-ioa-constant
#
# *Medium, 20 minutes.*
#
# A teacher's probabilities do not change when a constant is added to all of its logits. Does the ensemble
# {eq}`eq:iod-ensemble`?
# ```
#
# ````{solution} ex-ioa-constant
# :class: dropdown
#
# It does: the constant $b$ of teacher $k$ enters class $c$ as $\pi_k^c b$, which differs between classes.
#
# ```python
# z = answers(teachers, held["full run"])
# lifted = z.clone()
# lifted[0] += 10
# before, after = (distillation.ensemble_logits(one, by_class).argmax(1) for one in (z, lifted))
# (before != after).float().mean()
# ```
#
# With one weight for all classes (`sizes`) the answer would stay. Nothing in training fixes a teacher's constant, so
# class-wise mixing rests on something that no loss asked for. Taking off the mean over classes from each teacher's
# logits would settle it.
# ````
#
# ```{exercise} Turned
# :label: ex-iod-turned
#
# *Medium, 20 minutes.*
#
# Run FedIOD with `input_ratio="real"`, and without the factor. Which student is best? How many seeds do you need to be
# sure?
# ```
#
# ````{solution} ex-iod-turned
# :class: dropdown
#
# ```python
# for how in ({}, {"input_ratio": "real"}, {"importance": "class_ratio"}):
#     print(how, round(lesson.run(**how).accuracy, 1))
# ```
#
# Let $d$ be the mean of the paired differences over $n$ seeds and $s$ their deviation. A difference counts when $|d|$
# is above about $2 s / \sqrt{n}$, so $n$ is about $(2 s / d)^2$: for $s = 5$ points and $d = 1$ a hundred seeds. At the
# few steps of this page all three are at a guess; raise `steps` and `student_steps` first. In a run as short as this
# one the factor hardly leaves 1; in longer ones it does, and which reading is better there is not measured.
# ````
#
# ```{exercise} Both readings
# :label: ex-ior-both
#
# *Hard, 30 minutes.*
#
# Derive the weight of the client in "Whom to believe" for `real`, without the means $\mathbb{E} D_k$. Is it the mixture
# rule?
# ```
#
# ```{solution} ex-ior-both
# :class: dropdown
#
# $1 - D_k = P_k / (P + P_k)$, so the weights stand as $P_1 / (P + P_1)$ to $P_2 / (P + P_2)$, and the mixture rule
# wants $P_1$ to $P_2$. Both grow with $P_k$, but a probability saturates: $P_k \le 2 P$ everywhere, so
# $1 - D_k$ is at most $2/3$. The odds $(1 - D_k) / D_k = P_k / P$ would be the ratio itself, and Eq. 8 would need odds
# in the place of $D_k$ in its printed direction as well.
# ```
