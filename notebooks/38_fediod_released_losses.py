# %% [markdown]
# # FedIOD: the released losses
#
# *Question:* what do the losses and optimisers of FedIOD's {cite:p}`fediod` authors' code ask for that print does not, and
# the other way round?\
# *Time:* about a quarter of a minute on one CPU core. *Data:* scikit-learn's digits.
#
# [Paper and released code](44_fediod_paper_vs_released) lists the switches between the two and measures what each is
# worth. This page looks at them from inside: equation beside equation, and what each pulls at. One of them turns a sign:
# what the printed generator is rewarded for, the released one is punished for.

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
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import pandas as pd
import torch
from torch.nn import functional

from core import distillation
from core.algorithms import find
from core.models import Stacked
from core.rng import Rng
from core.training import cosine
from lab.report import lines, show, source
from lab.report.lesson import answers, small_lesson
from lab.report.texts import Markdown

Settings = find("fediod").Settings
printed, released = Settings(), Settings.released()
lesson = small_lesson(
    profile,
    {"distill_steps": steps, "scored_images": 0},
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    evaluate_every=rounds,
)
task, members = lesson.task, lesson.members()
rates = {"gan_lr": released.gan_lr, "student_lr": released.student_lr}
runs = {
    "as printed": lesson.run(),
    "as released": lesson.but(variant="released").run(clients=members, **rates),
}

# %% [markdown]
# ## The generator
#
# ### Eq. 5: the sign of uniqueness
#
# In print the generator looks for images on which the teachers *differ*. With $\bar q = \sum_k \pi_k q_k$,
#
# $$
# L_\text{unique} = - \mathbb{E}_\xi \bigl[ \mathrm{JSD} \bigr], \qquad
# \mathrm{JSD} = \sum_k \pi_k \, \mathrm{KL}(q_k \,\Vert\, \bar q) .
# $$ (eq:ior-printed)
#
# (This is the same as the difference of entropies in {eq}`eq:iod-unique`.) The released code has
#
# $$
# L_\text{unique}^\text{released} = + \mathbb{E}_\xi \Bigl[ \frac{1}{K} \sum_k \mathrm{KL}(\bar q \,\Vert\, q_k) \Bigr],
# \qquad \bar q = \frac{1}{K} \sum_k q_k ,
# $$ (eq:ior-released)
#
# with all probabilities cut off below 0.01 and above 0.99. Three things are different: weights, the order of the two
# distributions, and the sign. A generator that minimises it looks for images on which the teachers *agree*.

# %% mystnb={"code_prompt_show": "Show reversed_divergence in core"} tags=["hide-cell"]
source(distillation.reversed_divergence)

# %% [markdown]
# Both divergences on two teachers that agree, differ a little, are both unsure, and are sure of two classes:

# %% tags=["hide-input"]
said = {
    "agree": ([0.8, 0.1, 0.1], [0.8, 0.1, 0.1]),
    "differ a little": ([0.8, 0.1, 0.1], [0.6, 0.2, 0.2]),
    "both unsure": ([1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3]),
    "sure of two": ([0.998, 0.001, 0.001], [0.001, 0.998, 0.001]),
}
even = torch.tensor([0.5, 0.5])
losses = {}
for name, pair in said.items():
    q = torch.tensor(pair)[:, None]
    losses[name] = {
        "printed: - JSD": -distillation.jensen_shannon(q, even).item(),
        "released: + mean KL": distillation.reversed_divergence(q).item(),
    }
pd.DataFrame(losses).T.round(3) + 0  # -0 + 0 is 0

# %% [markdown]
# The lower, the better for the generator. Its best answer of the first column is its worst of the second. In a run,
# with no other term than the adversarial one; the divergence {eq}`eq:ior-printed` on images of the same noise:


# %% tags=["hide-input"]
signs = {
    "printed sign": {},
    "released form": {"uniqueness_form": "released"},
    "without": {"uniqueness": 0},
}
path = lesson.opinions(
    {
        name: lesson.run(
            **{"mimic": 0, "confidence": 0, "uniqueness": 5, **how}
        ).states
        for name, how in signs.items()
    }
)
show(
    lines(
        path,
        "step",
        "JSD",
        xlabel="step of stage two",
        ylabel="divergence (nats)",
        title="Uniqueness of weight 5, by its sign",
    )
)

# %% tags=["hide-input"]
ends = path[path["step"] == path["step"].max()].set_index("label")["JSD"]
Markdown(
    f"Divergence of the teachers at the end: {ends['printed sign']:.2f} with "
    f"the printed sign, {ends['without']:.2f} without the term, "
    f"{ends['released form']:.2f} in the released form."
)

# %% [markdown]
# Which of the two helps the student is another question. Where teachers agree their ensemble is probably right, and
# where they differ there is most to learn, from a teacher that may be wrong. The row `uniqueness_form` of
# [the table of switches](44_fediod_paper_vs_released) is about that; while its cells are empty it is not measured.
#
# The cut at 0.01 also stops gradients. A probability that is cut off moves the released form through the mean
# $\bar q$ only, and not at all where that is cut off too. How many are there?

# %% tags=["hide-input"]
looked_at = {
    "on generated images": task.dataset.standardise(
        lesson.pictures(runs["as released"])
    ),
    "on real test images": task.inputs(task.dataset.test.images),
}
cut_off = {}
for name, inputs in looked_at.items():
    q = answers(lesson.teachers, inputs).softmax(-1)
    itself, its_mean = ((p < 0.01) | (p > 0.99) for p in (q, q.mean(0)))
    cut_off[name] = {
        "cut off (%)": 100 * itself.float().mean().item(),
        "and its mean (%)": 100 * (itself & its_mean).float().mean().item(),
    }
pd.DataFrame(cut_off).T.round(1).rename_axis("probabilities")

# %% [markdown]
# ### A term that is not in print
#
# `balance` makes the *batch* of images show all classes, to each teacher: with $\bar q_k$ the mean of $q_k$ over the
# batch,
#
# $$
# L_\text{balance} = \sum_k \pi_k \sum_c \bar q_k^c \log_2 \bar q_k^c .
# $$ (eq:ior-balance)

# %% mystnb={"code_prompt_show": "Show balance_loss in core"} tags=["hide-cell"]
source(distillation.balance_loss)

# %% [markdown]
# With it the sum holds, for each teacher, both halves of an inception score {eq}`eq:iop-inception`: sure of each image,
# all classes over the batch. Its weight is 10. How the weighted terms pull at the images of the run as printed:

# %% tags=["hide-input"]
ensemble, pi = Stacked(lesson.teachers), lesson.shares
forms = {
    "confidence": lambda q: distillation.confidence_loss(q, pi),
    "uniqueness, printed": lambda q: -distillation.jensen_shannon(q, pi).mean(),
    "uniqueness, released": lambda q: distillation.reversed_divergence(
        q
    ).mean(),
    "balance": lambda q: distillation.balance_loss(q, pi),
}
factors = {
    "confidence": (printed.confidence, released.confidence),
    "uniqueness, printed": (printed.uniqueness, 0.0),
    "uniqueness, released": (0.0, released.uniqueness),
    "balance": (printed.balance, released.balance),
}
images, pulls = lesson.pictures(runs["as printed"].state, 64), {}
for name, loss in forms.items():
    leaf = images.detach().clone().requires_grad_()
    said = ensemble(task.dataset.standardise(leaf)).float().softmax(-1)
    (g,) = torch.autograd.grad(loss(said), leaf)
    length = len(images) * g.flatten(1).norm(dim=1).mean().item()
    for where, factor in zip(("print", "released"), factors[name], strict=True):
        pulls["weight", where, name] = factor
        pulls["pull", where, name] = factor * length
pulls = pd.Series(pulls).unstack([0, 1]).reindex(forms)
pulls[["weight", "pull"]].round(2)

# %% [markdown]
# ### Eq. 2: the adversarial loss
#
# In print it is linear in $D_k$, and $\pi_k$ stands before the real images: a client with little data hardly asks its
# discriminator to know them. The released code has the usual cross-entropy, which gives the generator a steep slope
# where the discriminator is sure, and $\pi_k$ stands before the generator's loss: a client with little data has little
# say in what the images look like.
#
# The place matters. Let $P_k$ be the density of client $k$'s images and $P_g$ that of generated ones. As printed $D_k$
# minimises
#
# $$
# \pi_k \, E_{P_k}[D_k(x)] + E_{P_g}[1 - D_k(x)] = 1 + \int D_k(x) \, (\pi_k P_k(x) - P_g(x)) \, dx ,
# $$ (eq:ior-linear)
#
# so the best $D_k$ says *generated* wherever $P_g > \pi_k P_k$. With 20 clients of one size $\pi_k = 1/20$: an image
# passes as real only where real images are more than twenty times as dense as generated ones. Once the generator comes
# nearer than that, $D_k = 1$ everywhere is the best answer, and a sigmoid that is sure has no slope left for the
# generator. With $\pi_k$ before the generator's loss the linear form's bound is $P_g > P_k$. Cross-entropy has no such
# edge: with $\pi_k$ where print has it the best $D_k$ is $P_g / (\pi_k P_k + P_g)$, as released $P_g / (P_k + P_g)$. It
# is sure only where one density vanishes.

# %% mystnb={"code_prompt_show": "Show gan_losses in core"} tags=["hide-cell"]
source(distillation.gan_losses)

# %% tags=["hide-input"]
logit = torch.linspace(-6, 6, 25, requires_grad=True)
probability = torch.sigmoid(-logit)  # D_k(x): generated
slopes = {
    "linear (printed)": torch.autograd.grad(probability.sum(), logit)[0],
    "non-saturating (released)": torch.autograd.grad(
        functional.softplus(-logit).sum(), logit
    )[0],
}
curve = pd.concat(
    pd.DataFrame({"D": probability.detach(), "slope": -g, "label": name})
    for name, g in slopes.items()
)
show(
    lines(
        curve,
        "D",
        "slope",
        xlabel="D_k(x): how generated the image looks",
        ylabel="size of the gradient",
        title="What drives the generator",
    )
)

# %% [markdown]
# With the linear loss the generator learns least where the discriminator is sure that an image is generated: just where
# it has most to learn. How a run of Table 1 ends, [the records](46_fediod_results) say.
#
# ## The student
#
# ### Eq. 10: a temperature of 10,001
#
# The paper goes to the limit, the squared error of logits. The released code computes a divergence at $\tau = 10001$,
# times $\tau^2$, in single precision at best: most of its scripts have `--fp16`. By {eq}`eq:kd-limit` this is
# $1 / (2 C)$ of the squared error of *centred* logits: a smaller loss, which does not see the mean over classes.
# Against the other weights it shrinks the student's part in the generator's loss:

# %% tags=["hide-input"]
z, z_hat = (
    4
    * torch.randn(
        64,
        task.dataset.num_classes,
        generator=Rng(seed).at("logits", n).generator(),
    )
    for n in "ab"
)
tau, gap = released.tau, z_hat - z
centred = gap - gap.mean(1, keepdim=True)
square = distillation.mimic_loss(z_hat, z)
double = distillation.mimic_loss(z_hat, z, tau)
single = tau**2 * functional.kl_div(
    (z_hat / tau).log_softmax(1), (z / tau).softmax(1), reduction="batchmean"
)
pd.Series(
    {
        "squared error (Eq. 10)": square.item(),
        "centred, over 2 C": centred.square().sum(1).mean().item()
        / (2 * z.shape[1]),
        f"tau = {tau:g}, double precision": double.item(),
        f"tau = {tau:g}, single precision": single.item(),
    }
).round(3).to_frame("loss")

# %% tags=["hide-input"]
pull = (printed.mimic * square.item(), released.mimic * single.item())
Markdown(
    f"With its weight the term is {pull[0]:.1f} in print and {pull[1]:.2f} as "
    f"released: a factor of {pull[0] / pull[1]:.0f}."
)

# %% [markdown]
# ### Algorithm 1: five steps for one
#
# As printed, generator and student take a step each, on the same images. The released student takes five, each on
# fresh noise. Every one is a batch down and answers up for each client: see "MB sent" [there](44_fediod_paper_vs_released).

# %% mystnb={"code_prompt_show": "Show step in core"} tags=["hide-cell"]
source(find("fediod").step)

# %% [markdown]
# ### Optimisers
#
# The rates of the student and of generator and discriminators over stage two:

# %% tags=["hide-input"]
done = [part / 20 for part in range(21)]
schedules = {
    "student, Adam (printed)": (printed, "student"),
    "student, SGD (released)": (released, "student"),
    "G and D, Adam (printed)": (printed, "gan"),
    "G and D, Adam (released)": (released, "gan"),
}
rates = pd.DataFrame(
    [
        {"share": part, "rate": cosine(first, last, part), "label": label}
        for label, (s, whose) in schedules.items()
        for first in [getattr(s, f"{whose}_lr")]
        for last in [getattr(s, f"{whose}_last_lr")]
        for part in done
    ]
)
show(
    lines(
        rates,
        "share",
        "rate",
        xlabel="share of stage two",
        ylabel="learning rate",
        title="Learning rates",
    )
)

# %% [markdown]
# Adam and SGD do not share a scale, so the two rates of the student cannot be compared. In `released` the generator has
# a tenth of the printed rate, and its $\beta_1$ of 0.5 forgets faster, as is usual for adversarial training.
#
# ## Take away
#
# - In the authors' script for CIFAR-10 at $\alpha = 1$ the generator is paid where the teachers agree, in print where
#   they differ: {eq}`eq:ior-released`, {eq}`eq:ior-printed`; their other scripts have no such term.
# - `balance` is not in print, and has the largest weight of the released terms.
# - Where a discriminator is sure of a generated image, the printed loss has no slope left, the released its steepest.
# - The printed method takes one step of the student for one of the generator, the released one five.
#
# ## Exercises
#
# ```{exercise} Two forms of one divergence
# :label: ex-ior-forms
#
# *Medium, 15 minutes.*
#
# Show that {eq}`eq:ior-printed` is the difference of entropies of {eq}`eq:iod-unique`.
# ```
#
# ```{solution} ex-ior-forms
# :class: dropdown
#
# $\sum_k \pi_k \mathrm{KL}(q_k \Vert \bar q) = \sum_k \pi_k \sum_c q_k^c \log q_k^c - \sum_c \bigl(\sum_k \pi_k q_k^c
# \bigr) \log \bar q^c = - \sum_k \pi_k H(q_k) + H(\bar q)$.
# ```
#
# ```{exercise} Only the sign
# :label: ex-ior-sign
#
# *Medium, 20 minutes.*
#
# Turn the sign of the printed divergence and nothing else. Is it the sign that matters, or the form?
# ```
#
# ````{solution} ex-ior-sign
# :class: dropdown
#
# A negative factor is refused, so compare on answers. Where two teachers are nearly alike both forms are half the
# squared distance in the same metric, so the form hardly matters:
#
# ```python
# for gap in (0.01, 0.05, 0.2):
#     q = torch.tensor([[0.5 + gap, 0.5 - gap], [0.5 - gap, 0.5 + gap]])[:, None]
#     print(gap, distillation.jensen_shannon(q, even).item(), distillation.reversed_divergence(q).item())
# ```
#
# They part where teachers are sure: the Jensen-Shannon divergence is bounded by $\log K$, the other one only by the cut
# at 0.01. So the sign turns the direction, and the form decides how hard a disagreement is punished.
# ````
