# %% [markdown]
# # FedIOD: what each term asks for
#
# *Question:* which way does each term of the generator's loss move an image, and which term is the strongest?\
# *Time:* about a quarter of a minute on one CPU core. *Data:* scikit-learn's digits.
#
# The generator of FedIOD {cite:p}`fediod` minimises a sum of four terms {eq}`eq:iod-generator`. [Table
# 6](42_fediod_ablations) switches them on one after the other. Here all networks are held, and each term alone moves
# the pixels of an image.

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
import pandas as pd
import torch

from core import distillation
from core.algorithms.fediod.server import Server
from core.models import Stacked
from core.rng import Rng
from lab.report import lines, show, source
from lab.report.lesson import small_lesson
from lab.report.texts import Markdown

lesson = small_lesson(
    profile,
    {"distill_steps": steps, "student_steps": student_steps},
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    evaluate_every=rounds,
)
full = lesson.run()

# %% [markdown]
# ## One term at a time
#
# In the code each term that the teachers' answers decide is one line with a factor of its own. The temperature of
# $L_\text{mimic}$ is a setting, too:

# %% mystnb={"code_prompt_show": "Show shaping in core"} tags=["hide-cell"]
source(Server.shaping)

# %% mystnb={"code_prompt_show": "Show mimic in core"} tags=["hide-cell"]
source(Server.mimic)

# %% [markdown]
# In a run everything moves at once: generator, discriminators, student. To see what a term asks for, hold all networks
# and move the *pixels*. We take images from the first part of the full run
# (generator and student as they were then; the discriminators are those of its end, as a client keeps only its latest)
# and let each term alone change them, by
# steps of one length down its own gradient. In the generator these four pulls are added up. The ensemble of
# $L_\text{mimic}$ has weights by class here, so that no term reaches into another.

# %% tags=["hide-input"]
teachers, pi = lesson.teachers, lesson.shares
young, people = full.states[0], full.clients
server, side = lesson.method.sides(young, people, Rng(seed))
importance = distillation.class_input_importance(lesson.counts)
for network in (*teachers, *side.judges, server.student.eval()):
    network.requires_grad_(False)


def says(x):
    """Logits (K, N, C), D_k(x), (K, N), and the student's logits for images in
    [0, 1].
    """
    inputs = lesson.task.dataset.standardise(x)
    return (
        Stacked(teachers)(inputs).float(),
        distillation.generated(Stacked(side.judges)(inputs)),
        server.student(inputs).float(),
    )


terms = {
    "L_conf": lambda z, d, s: distillation.confidence_loss(z.softmax(-1), pi),
    "L_unique": lambda z, d, s: (
        -distillation.jensen_shannon(z.softmax(-1), pi).mean()
    ),
    "- L_mimic": lambda z, d, s: (
        -distillation.mimic_loss(s, distillation.ensemble_logits(z, importance))
    ),
    "- L_gan": lambda z, d, s: -(1 - d).sum(0).mean(),
}
losses = {name: lambda x, f=f: f(*says(x)) for name, f in terms.items()}
losses["their sum"] = lambda x: sum(f(*says(x)) for f in terms.values())


# %% tags=["hide-input"]
def slope(images, loss):
    """The gradient of a loss with respect to images, in their shape."""
    leaf = images.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def downhill(images, loss, steps=20, length=0.3):
    """Images after some steps of one length, each down its own gradient."""
    for _ in range(steps):
        g = slope(images, loss)
        norms = g.flatten(1).norm(dim=1).clamp_min(1e-12)
        images = (images - length * g / norms[:, None, None, None]).clamp(0, 1)
    return images


start = lesson.pictures(young, 100)
ends = {"at the start": start} | {
    f"down {name}": downhill(start, loss) for name, loss in losses.items()
}


@torch.no_grad()
def judged(x):
    z, d, s = says(x)
    inputs = lesson.task.dataset.standardise(x)
    return lesson.opinion(inputs) | {
        "L_mimic": -terms["- L_mimic"](z, d, s).item(),
        "D_k, mean": d.mean().item(),
    }


pd.DataFrame({name: judged(x) for name, x in ends.items()}).T.round(2)

# %% [markdown]
# Read the table down a column: who moves this quantity, and whose side effect is it? $D_k$ near 1 means *generated*
# {eq}`eq:iod-gan`, and the generator wants it small. *classes* says to how many classes the images look in the
# mean answer over all of them, the exponential of its entropy; nothing in the sum asks the images to differ.
#
# ## Who pulls, and where to
#
# The length of a term's gradient says who decides about an image, as all weights are 1 in print. The cosine between
# two gradients says whether they help each other ($+1$) or fight ($-1$); means over images.

# %% tags=["hide-input"]
pulls = {
    name: len(start) * slope(start, losses[name]).flatten(1) for name in terms
}
force = pd.DataFrame(
    {
        a: {"length": pulls[a].norm(dim=1).mean().item()}
        | {
            f"cosine with {b}": torch.cosine_similarity(pulls[a], pulls[b])
            .mean()
            .item()
            for b in terms
        }
        for a in terms
    }
).T
force.round(2)

# %% tags=["hide-input"]
strongest = force["length"].idxmax()
share = 100 * force["length"].max() / force["length"].sum()
together = force.loc["L_conf", "cosine with L_unique"]
Markdown(
    f"The strongest pull is that of {strongest}: {share:.0f}% of the sum of "
    f"lengths. Cosine of L_conf and L_unique: {together:+.2f}."
)

# %% [markdown]
# `L_mimic` is a squared error of logits, without a bound; the other terms are bounded by $\log C$, $\log K$ and $K$.
# With equal weights it can drown them, the more so the larger the teachers' logits grow in training.
#
# $L_\text{conf}$ and $L_\text{unique}$ share a part, because
#
# $$
# L_\text{unique} = \mathbb{E}_\xi \Bigl[ \sum_k \pi_k H(q_k) \Bigr] - \mathbb{E}_\xi \bigl[ H(\bar q) \bigr]
# = L_\text{conf} - \mathbb{E}_\xi \bigl[ H(\bar q) \bigr] .
# $$ (eq:ioa-share)
#
# Uniqueness alone already makes each teacher sure. So the two rows "+ confidence" and "+ uniqueness" of Table 6 switch
# on overlapping losses, and one cannot expect their gains to add up. In print they do, almost exactly ([the
# table](42_fediod_ablations)).
#
# ## In a run
#
# Here are the two together and one by one, without the game against the student so that nothing drowns them:

# %% tags=["hide-input"]
square = {
    "neither": lesson.run(mimic=0, confidence=0, uniqueness=0),
    "confidence": lesson.run(mimic=0, uniqueness=0),
    "uniqueness": lesson.run(mimic=0, confidence=0),
    "both": lesson.run(mimic=0),
}
path = lesson.opinions({name: one.states for name, one in square.items()})
show(
    lines(
        path,
        "step",
        "entropy",
        xlabel="step of stage two",
        ylabel="entropy (nats)",
        title="How unsure the teachers are",
    )
)

# %% tags=["hide-input"]
show(
    lines(
        path,
        "step",
        "JSD",
        xlabel="step of stage two",
        ylabel="divergence (nats)",
        title="How much the teachers differ",
    )
)

# %% [markdown]
# ## Take away
#
# - With weights of 1, the unbounded $L_\text{mimic}$ can pull harder than all else.
# - $L_\text{unique}$ contains $L_\text{conf}$ {eq}`eq:ioa-share`, so their gains cannot be expected to add up.
#
# ## Exercise
#
# ```{exercise} Who drowns whom
# :label: ex-ioa-drown
#
# *Medium, 20 minutes.*
#
# Train the teachers four times as long and look at the lengths of the four pulls again. What happened?
# ```
#
# ````{solution} ex-ioa-drown
# :class: dropdown
#
# Add `"local_steps": 200` to the settings in `lesson` and run the page again. Longer training makes larger logits. The
# pull of $L_\text{mimic}$ nearly doubles, as the gradient of a squared error grows with what it compares; those of the
# bounded terms stay small, whatever the teachers have learnt.
# The paper's teachers train for 500 epochs. Weights that suit one length of training do not suit another; the released
# code has `mimic` at 0.2.
# ````
