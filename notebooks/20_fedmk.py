# %% [markdown]
# # FedMK
#
# *Question:* how does a client of FedMK {cite:p}`fedmk` make a few images that others can learn from, equation by
# equation?\
# *Time:* some seconds on one CPU core. *Data:* scikit-learn's digits.
#
# Clients of FedMK send no models. Each makes a few images per class, its *meta knowledge*, and sends these. They are
# found by *bi-level optimisation*: a network takes a step on the made-up images, one looks how well it then does on
# the client's real images, and moves the made-up ones so that it would have done better. In the next round a client
# starts from the images of another client. The server trains the global model on all that it got, and on the output
# of a small generator of features.
#
# ```{figure} ../book/_static/fedmk.svg
# :alt: A server above, clients below. Down goes the global model and the meta knowledge of another client. Up goes meta knowledge, a few images per class with their labels. Real images and the weights of samples stay with the client. The server trains the global model on all knowledge and on features of its generator.
# :name: fig-fedmk
# :width: 300px
#
# Who sends what to whom in a round of FedMK. Grey goes down, green goes up, red stays.
# ```
#
# This page is about the client. It computes each step of the first round once more, in a few lines that are compared
# with `core`. [The next page](25_fedmk_server) shares the images, trains the server and runs the method. Which of the
# paper's numbers hold stands among the [results](22_fedmk_results); what each part adds, among the
# [ablations](21_fedmk_ablations); [the weights of samples](23_fedmk_weights) and [what is in the
# knowledge](24_fedmk_knowledge) have pages of their own.
#
# The paper prints no learning rate and no number of steps. Those of the short run (`SMALL` in `lab.report.lesson`)
# were chosen by looking at a handful of such runs on digits.

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
alpha = 0.5
clients = 6
images_per_class = 5
iterations = 50
seed = 0
profile = "quick"

# %% tags=["hide-input"]
from functools import partial

import pandas as pd
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from core import condensation
from core.condensation import bilevel
from core.rng import Rng
from lab.report import lines, show, source
from lab.report.lesson import SMALL, Lesson, share_right
from lab.report.texts import Markdown

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
lesson = Lesson(
    profile,
    "fedmk",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    seed=seed,
    model="lenet",
    own={
        "fedmk": {
            **SMALL["fedmk"],
            "images_per_class": images_per_class,
            "iterations": iterations,
        }
    },
)
algorithm = lesson.experiment().new_algorithm()
settings, task, members = algorithm.settings, lesson.task, lesson.members()
test = task.dataset.test


def source_of(client, state):
    """A client's data, weights and start, as in a round."""
    return algorithm.problem(
        client,
        algorithm.broadcast(state, client.id),
        task.model_from(state.tensors),
        Rng(seed).at("look", client.id),
    )


show(lesson.partition_plot())

# %% [markdown]
# Who holds what.
#
# ## Weights of real samples
#
# A sample on which the received model $\mathbf{w}^c$ errs weighs more (Eq. 7):
#
# $$
# \phi_i^c = \frac{1}{1 + \exp\bigl(-\kappa \, \ell(\mathbf{w}^c, x_i^c, y_i^c)\bigr)} , \qquad \kappa = 5 .
# $$ (eq:mk-weights)
#
# $\ell$ is the cross-entropy of one sample, $(x_i^c, y_i^c)$ is sample $i$ of client $c$: on the pages on FedMK $c$ is a
# client, and $C$ their number, as in the paper; elsewhere $c$ is a class. (The paper writes $\tau$ for the slope
# $\kappa$, and so does the setting.) We take the largest client at the start of the first round, and 64 of its images.

# %%
begin = lesson.start()
client = max(members, key=len)
received = task.model_from(begin.tensors)

loss = cross_entropy(
    task.outputs(received, client.images), client.labels, reduction="none"
).double()
phi = 1 / (1 + (-settings.tau * loss).exp())
same(phi, condensation.dynamic_weights(loss, settings.tau))

# %% [markdown]
# ## Two levels
#
# Let $\mathcal{D}^c$ be the client's data and $\hat{\mathcal{D}}^c$ its meta knowledge. It looks for (Eq. 4)
#
# $$
# \hat{\mathcal{D}}^{c,*} = \operatorname*{arg\,min}_{\hat{\mathcal{D}}^c} \mathcal{L}^c(\mathbf{w}^*, \mathcal{D}^c)
# \quad \text{s.t.} \quad
# \mathbf{w}^* = \operatorname*{arg\,min}_{\mathbf{w}^c} \mathcal{L}^c(\mathbf{w}^c, \hat{\mathcal{D}}^c) :
# $$ (eq:mk-bilevel)
#
# made-up images on which a network learns what makes it good on the real ones. On made-up images $\mathcal{L}^c$ is the
# plain mean of $\ell$. On the $N^c$ real images of the client it is so in Eq. 4, and each term gets its weight
# $\phi_i^c$ in {eq}`eq:mk-weighted`.
#
# Nobody can solve the inner problem to the end in every step of the outer one, so $\mathbf{w}^*$ is one gradient step
# with a rate $\eta$ away (Eq. 5; put into {eq}`eq:mk-bilevel` it is Eq. 3). The outer level moves the images down the
# weighted loss on real data (Eq. 6 and 8):
#
# $$
# \mathbf{w}^* = \mathbf{w}^c - \eta \nabla_{\mathbf{w}^c} \mathcal{L}^c(\mathbf{w}^c, \hat{\mathcal{D}}^c)
# $$ (eq:mk-inner)
#
# $$
# \mathcal{L}^c(\mathbf{w}^*, \mathcal{D}^c) = \frac{1}{N^c} \sum_i \phi_i^c \, \ell(\mathbf{w}^*, x_i^c, y_i^c)
# $$ (eq:mk-weighted)
#
# $$
# \hat{\mathcal{D}}^c \leftarrow \hat{\mathcal{D}}^c
# - \eta_S \nabla_{\hat{\mathcal{D}}^c} \mathcal{L}^c(\mathbf{w}^*, \mathcal{D}^c) .
# $$ (eq:mk-outer)
#
# (The paper writes $\alpha$ for the rate $\eta_S$.) The loss on real data does not contain the made-up images
# themselves. Apart from batch normalisation (below), the made-up images act on this loss only through $\mathbf{w}^*$.
# So the gradient goes back through the step {eq}`eq:mk-inner`. By the chain rule it is
#
# $$
# \nabla_{\hat{\mathcal{D}}^c} \mathcal{L}^c(\mathbf{w}^*, \mathcal{D}^c)
# = -\eta \, \Bigl[ \frac{\partial}{\partial \hat{\mathcal{D}}^c} \nabla_{\mathbf{w}}
# \mathcal{L}^c(\mathbf{w}^c, \hat{\mathcal{D}}^c) \Bigr]^{\!\top}
# \nabla_{\mathbf{w}} \mathcal{L}^c(\mathbf{w}^*, \mathcal{D}^c) ,
# $$ (eq:mk-chain)
#
# a mixed second derivative, the "gradient of gradient" of the paper's Appendix B. It is no curvature: images and model
# still take plain gradient steps, so what is known of second-order methods does not carry over. It says: change a pixel
# so that the step on the made-up images points more along the step that the real images ask for. The sums run over all
# images; the code draws batches in each iteration, `inner_batch` images of the knowledge for the step and `real_batch`
# real ones for the loss, and only the drawn images move. A footnote of the paper calls the one step an assumption. With
# several (`inner_steps`), each on images of its own, the gradient goes back through all of them, and an image of the
# first step also hears what the later ones make of it. [What that brings](27_fedmk_cifar) is measured elsewhere. Nobody
# has to write the derivative out:


# %%
start = source_of(client, begin)
network = bilevel.KnowledgeNetwork(task.model_from(begin.tensors).double())
real, y = task.inputs(client.images[:64]).double(), client.labels[:64]
marks, eta = start.knowledge_labels, settings.inner_lr


def outer_loss(made):
    """The loss on real images after a step on made-up ones, and w*."""
    w = {n: p.requires_grad_() for n, p in network.weights().items()}
    inner = cross_entropy(network.logits(w, made), marks)
    slopes = torch.autograd.grad(inner, list(w.values()), create_graph=True)
    w = {n: p - eta * s for (n, p), s in zip(w.items(), slopes, strict=True)}
    # knowledge first: its statistics normalise the real images too
    logits = network.logits(w, torch.cat([made, real]), len(made))[len(made) :]
    return (phi[:64] * cross_entropy(logits, y, reduction="none")).mean(), w


made = start.knowledge.double().requires_grad_()
value, w_star = outer_loss(made)
(slope,) = torch.autograd.grad(value, made)

sight = {"knowledge_labels": marks, "images": real, "labels": y}
step = bilevel.bilevel_step(
    *bilevel.network_losses(network),
    network.weights(),
    made.detach()[None],
    {n: v[None] for n, v in {**sight, "weights": phi[:64]}.items()},
    lr=eta,
    shared=True,
)
same(value, step.loss[0])
same(slope, step.gradient[0])

# %% [markdown]
# Do not believe a second derivative that you have not checked. We move the pixel with the largest slope a little in both
# directions, and look how the outer loss changes. And one more thing is in it: with batch normalisation real images are
# normalised by the statistics of the knowledge (`statistics="knowledge"`), as a network that was trained on knowledge
# would do. So there is a second way from the images to the loss, at fixed $\mathbf{w}^*$. How large is it?

# %% tags=["hide-input"]
pixel = slope.flatten().abs().argmax()
ways = []
for change in (1e-5, -1e-5):
    moved = made.detach().clone()
    moved.view(-1)[pixel] += change
    ways.append(outer_loss(moved)[0].item())
_, outer = bilevel.network_losses(network)
still = {name: weight.detach() for name, weight in w_star.items()}
seen = {**sight, "weights": phi[:64]}
fixed = torch.func.grad(lambda images: outer(still, images, seen))(
    made.detach()
)
Markdown(
    f"The steepest pixel: {slope.flatten()[pixel]:.6f} by the chain rule, "
    f"{(ways[0] - ways[1]) / 2e-5:.6f} by differences. Length of the gradient: "
    f"{(slope - fixed).norm():.2e} through the step, {fixed.norm():.2e} "
    "through the normalisation."
)

# %% [markdown]
# Eq. 8 as printed has the loss at $\mathbf{w}^c$. If that is the *received* model, the gradient with respect to the
# images is zero: they had no part in it. If it is the model that Eq. 5 has overwritten, it is $\mathbf{w}^*$. So the
# loss is taken at $\mathbf{w}^*$, as in Eq. 6, and the weights, once a round, at the received model.
#
# ## A round of extraction
#
# Both levels in turn. The paper leaves open when the inner steps start at the received model again: Eq. 3 starts there
# every time; Eq. 5, an assignment, lets the model go on moving. `horizon` covers both, and all between: after so many
# iterations the model is the received one again. Ours is as many steps as the server takes. Then the outer loss jumps
# up to that of the received model; does it fall further the second time?

# %% mystnb={"code_prompt_show": "Show the loop over all clients in core"} tags=["hide-cell"]
source(bilevel.extract)

# %% tags=["hide-input"]
sources = [source_of(member, begin) for member in members]
found, losses = condensation.extract(received, sources, settings, task.inputs)
trace = pd.DataFrame(
    losses.cpu(), columns=[f"client {member.id}" for member in members]
)
show(
    lines(
        trace.rename_axis("iteration")
        .reset_index()
        .melt("iteration", var_name="label"),
        "iteration",
        "value",
        ylabel="outer loss",
        title="Outer loss of every client in the first round",
    )
)

# %% tags=["hide-input"]
ends = trace.iloc[settings.horizon - 1 :: settings.horizon]
said = "There are fewer than two horizons: nothing to compare."
if len(ends) > 1:
    fell = (ends.iloc[-1] < ends.iloc[0]).sum()
    said = (
        f"{fell} of {len(members)} clients end their last horizon of "
        f"{settings.horizon} iterations with a lower loss than the first."
    )
Markdown(said)

# %% [markdown]
# What are the images worth? For every client a network takes as many steps as a horizon has from the received model:
# on the random start (every pixel from $U[-1, 1]$), on the knowledge, and on as many real images of the same classes.
# Accuracy in percent, on test images of the client's classes.


# %% tags=["hide-input"]
def learned(images, labels):
    """Test accuracy (%) on the classes of `labels` after plain steps on
    these images, as the server takes them.
    """
    network = bilevel.KnowledgeNetwork(received)
    inner, _ = bilevel.network_losses(network)
    steps = settings.horizon
    weights = bilevel.descend(
        inner,
        network.weights(),
        images.repeat(steps, 1, 1, 1),  # all of them in every step
        {"knowledge_labels": labels.repeat(steps)},
        settings.inner_lr,
        steps,
    )
    asked = torch.isin(test.labels, labels.cpu())
    inputs = task.inputs(test.images[asked].to(images.device))
    together = torch.cat([images, inputs])
    with torch.no_grad():
        logits = network.logits(weights, together, len(images))[len(images) :]
    return share_right(logits.cpu(), test.labels[asked])


def some_real(source):
    """At most `images_per_class` real images of each class."""
    rows = [
        (source.labels == c).nonzero()[:images_per_class, 0]
        for c in source.labels.unique()
    ]
    return task.inputs(source.images[torch.cat(rows)]), source.labels[
        torch.cat(rows)
    ]


worth = {
    name: {
        "classes": len(source.labels.unique()),
        "random start": learned(source.knowledge, source.knowledge_labels),
        "meta knowledge": learned(made, source.knowledge_labels),
        "as many real images": learned(*some_real(source)),
    }
    for name, source, made in zip(trace, sources, found, strict=True)
}
worth = pd.DataFrame(worth).T
worth.loc["mean"] = worth.mean()
worth.round(1)

# %% tags=["hide-input"]
brought = worth.loc["mean"]
Markdown(
    f"In the mean the random start brings {brought['random start']:.0f}%, "
    f"knowledge {brought['meta knowledge']:.0f}% and as many real images "
    f"{brought['as many real images']:.0f}%."
)

# %% [markdown]
# What becomes of these images, and how far the method comes, is on [the next page](25_fedmk_server).
#
# ## Take away
#
# - Meta knowledge is made so that *steps on it* do good on real data {eq}`eq:mk-outer`; the gradient goes through
#   the step {eq}`eq:mk-chain`.
# - With batch normalisation the images act on the loss in a second way, at fixed weights.
# - The weights of the outer loss belong to the received model, the loss to the model after the step.
#
# ## Exercises
#
# ```{exercise} The gradient by hand
# :label: ex-mk-hand
#
# *Medium, 25 minutes.*
#
# Let the "network" be one number $w$, with $\mathcal{L}(w, \hat{x}) = \frac{1}{2} (w - \hat{x})^2$ on one made-up
# number and $\mathcal{L}(w, x) = \frac{1}{2} (w - x)^2$ on one real one. Work out {eq}`eq:mk-chain`, and compare it
# with `bilevel_step`. Where does {eq}`eq:mk-outer` come to rest? (To be checked: `resting_point(w, x, eta)`.)
# ```
#
# ````{solution} ex-mk-hand
# :class: dropdown
#
# $w^* = w - \eta (w - \hat{x})$, so the gradient is $(w^* - x) \, \eta$. It is zero where $w^* = x$, that is at
# $\hat{x} = w + (x - w) / \eta$: not at the real number, but far beyond it, so that one small step goes all the way.
#
# ```python
# w, x, eta, made = 0.2, 1.0, 0.1, torch.tensor([[0.5]])
# half = lambda weights, target: (weights["w"] - target).square().sum() / 2
# step = bilevel.bilevel_step(lambda weights, made, _: half(weights, made),
#                             lambda weights, _, real: half(weights, real["x"]),
#                             {"w": torch.tensor([w])}, made, {"x": torch.tensor([x])}, lr=eta)
# step.gradient.item(), eta * (w - eta * (w - 0.5) - x)
# ```
#
# So in this toy what is best for few small steps lies far outside the data. It suggests why meta knowledge does not look
# like data, and why its pixels leave $[-1, 1]$.
# ````


# %% tags=["solution", "remove-cell"]
def resting_point(w, x, eta):
    return w + (x - w) / eta


# %% name="ex-mk-hand" tags=["check", "remove-cell"]
def slope(made, w, x, eta):
    def half(at, target):
        return (at["w"] - target).square().sum() / 2

    return bilevel.bilevel_step(
        lambda at, made, _: half(at, made),
        lambda at, _, real: half(at, real["x"]),
        {"w": torch.tensor([w])},
        torch.tensor([[made]]),
        {"x": torch.tensor([x])},
        lr=eta,
    ).gradient.item()


for w, x, eta in [(0.2, 1.0, 0.1), (-1.0, 0.5, 0.5)]:
    assert resting_point(w, x, eta) is not None, "resting_point has no body yet"
    assert abs(slope(float(resting_point(w, x, eta)), w, x, eta)) < 1e-5, (
        "the gradient at this point is not zero"
    )
