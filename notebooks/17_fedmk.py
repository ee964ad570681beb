# %% [markdown]
# # FedMK
#
# *Question:* how does a client of FedMK {cite:p}`fedmk` make a few images that others can learn from, and what does the
# server do with them?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.\
# *Learn first:* [federated learning](04_federated_learning) and [dataset condensation](05_dataset_condensation).
#
# Clients of FedMK send no models. Each condenses its images into a few per class, which the paper calls *meta
# knowledge*, by *bi-level optimisation*: a network takes a step on the condensed images, one measures how well it then
# does on the client's real images, and changes the condensed ones so that it would have done better. In the next round
# a client starts from the images of another client. The server trains the global model on all that it received, and on
# features from a small generator.
#
# ```{figure} ../book/_static/fedmk.svg
# :alt: A server above, clients below. Down goes the global model and the meta knowledge of another client. Up goes meta knowledge, a few images per class with their labels. Real images and the weights of samples stay with the client. The server trains the global model on all knowledge and on features of its generator.
# :name: fig-fedmk
# :width: 300px
#
# A round of FedMK. Grey goes down, green goes up, red stays.
# ```
#
# Each equation is computed here in a few lines and compared with `core`. "Eq. 7" is an equation of the paper. Which of
# the paper's numbers hold is the subject of the [results](18_fedmk_results). The paper states no learning rate and no
# number of steps; those of this small run (`SMALL` in `lab.report.lesson`) were chosen by looking at a handful of runs on
# digits. `rounds` must be at least 2: nobody has images to share in the first.

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
active = 4
rounds = 5
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

from core import condensation, server
from core.algorithms import fedmk
from core.condensation import bilevel
from core.families import generative
from core.federation.tensors import pack, take_each, unpack
from core.rng import Rng
from lab.report import image_rows, lines, show, source
from lab.report.lesson import SMALL, Lesson, pooled

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits

# %%
lesson = Lesson(
    profile,
    "fedmk",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    model="lenet",
    active=active,
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
classes = task.dataset.classes
show(lesson.partition_plot())

# %% [markdown]
# ## The client: weights of real samples

# %% [markdown] tags=["slide"]
# A sample on which the received model $\mathbf{w}^c$ errs weighs more (Eq. 7):
#
# $$
# \phi_i^c = \frac{1}{1 + \exp\bigl(-\kappa \, \ell(\mathbf{w}^c, x_i^c, y_i^c)\bigr)} , \qquad \kappa = 5 .
# $$ (eq:mk-weights)

# %% [markdown]
# $\ell$ is the cross-entropy of one sample, $(x_i^c, y_i^c)$ is sample $i$ of client $c$. In the equations on FedMK $c$ is a
# client, and $C$ their number, as in the paper; elsewhere, and in code, `c` is a class. (The paper writes $\tau$ for the
# slope
# $\kappa$, and so does the setting.) We take the largest client at the start of the first round.

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
# [Weights](22_fedmk_weights) asks what they do.
#
# ## The client: two levels

# %% [markdown] tags=["slide"]
# Let $\mathcal{D}^c$ be the client's $N^c$ samples, $\hat{\mathcal{D}}^c$ its condensed images, and
# $\mathcal{L}^c(\mathbf{w}, \mathcal{D})$ the mean loss of $\mathbf{w}$ on a set $\mathcal{D}$, weighted where weights
# $\phi$ are given. It looks for (Eq. 4)
#
# $$
# \hat{\mathcal{D}}^{c,*} = \operatorname*{arg\,min}_{\hat{\mathcal{D}}^c} \mathcal{L}^c(\mathbf{w}^*, \phi^c, \mathcal{D}^c)
# \quad \text{s.t.} \quad
# \mathbf{w}^* = \operatorname*{arg\,min}_{\mathbf{w}^c} \mathcal{L}^c(\mathbf{w}^c, \hat{\mathcal{D}}^c) .
# $$ (eq:mk-bilevel)

# %% [markdown] tags=["slide"]
# These are images on which a network learns what makes it good on the real ones. The inner problem is not solved to the
# end: $\mathbf{w}^*$ is one gradient step away (Eq. 5). The outer level changes the images along the gradient of the
# weighted loss on real data (Eq. 6 and 8):
#
# $$
# \mathbf{w}^* = \mathbf{w}^c - \eta \nabla_{\mathbf{w}^c} \mathcal{L}^c(\mathbf{w}^c, \hat{\mathcal{D}}^c)
# $$ (eq:mk-inner)
#
# $$
# \mathcal{L}^c(\mathbf{w}^*, \phi^c, \mathcal{D}^c) = \frac{1}{N^c} \sum_i \phi_i^c \, \ell(\mathbf{w}^*, x_i^c, y_i^c)
# $$ (eq:mk-weighted)
#
# $$
# \hat{\mathcal{D}}^c \leftarrow \hat{\mathcal{D}}^c
# - \eta_S \nabla_{\hat{\mathcal{D}}^c} \mathcal{L}^c(\mathbf{w}^*, \phi^c, \mathcal{D}^c) .
# $$ (eq:mk-outer)

# %% [markdown]
# (The paper writes $\alpha$ for the rate $\eta_S$.) The loss on real data does not contain the condensed images: they act
# on it through $\mathbf{w}^*$. So the gradient goes back through the step {eq}`eq:mk-inner`. By the chain rule it is a
# mixed second derivative,
#
# $$
# \nabla_{\hat{\mathcal{D}}^c} \mathcal{L}^c(\mathbf{w}^*, \mathcal{D}^c)
# = -\eta \, \Bigl[ \frac{\partial}{\partial \hat{\mathcal{D}}^c} \nabla_{\mathbf{w}}
# \mathcal{L}^c(\mathbf{w}^c, \hat{\mathcal{D}}^c) \Bigr]^{\!\top}
# \nabla_{\mathbf{w}} \mathcal{L}^c(\mathbf{w}^*, \mathcal{D}^c) .
# $$ (eq:mk-chain)
#
# It says: change a pixel so that the step on the condensed images points more along the step that the real images ask
# for. Nobody has to write it out; `create_graph=True` does. One more thing is in it: with batch normalisation the real
# images are normalised by the statistics of the condensed ones, which is a second way from the images to the loss.

# %%
problem = algorithm.problem(
    client,
    algorithm.broadcast(begin, client.id),
    received,
    Rng(seed).at("look", client.id),
)
network = bilevel.KnowledgeNetwork(task.model_from(begin.tensors).double())
real, y = task.inputs(client.images[:64]).double(), client.labels[:64]
labels, eta = problem.knowledge_labels, settings.inner_lr


def outer_loss(condensed):
    """The loss on real images after a step on condensed ones."""
    w = {n: p.requires_grad_() for n, p in network.weights().items()}
    inner = cross_entropy(network.logits(w, condensed), labels)
    slopes = torch.autograd.grad(inner, list(w.values()), create_graph=True)
    w = {n: p - eta * s for (n, p), s in zip(w.items(), slopes, strict=True)}
    # condensed first: their statistics normalise the real images too
    both = torch.cat([condensed, real])
    logits = network.logits(w, both, len(condensed))[len(condensed) :]
    return (phi[:64] * cross_entropy(logits, y, reduction="none")).mean()


condensed = problem.knowledge.double().requires_grad_()
value = outer_loss(condensed)
(slope,) = torch.autograd.grad(value, condensed)

batch = {
    "knowledge_labels": labels,
    "images": real,
    "labels": y,
    "weights": phi[:64],
}
step = bilevel.bilevel_step(
    *bilevel.network_losses(network),
    network.weights(),
    condensed.detach()[None],
    {name: values[None] for name, values in batch.items()},
    lr=eta,
    shared=True,
)
same(value, step.loss[0])
same(slope, step.gradient[0])

# %% [markdown]
# Do not believe a second derivative that you have not checked. We change the pixel with the largest slope a little in
# both directions, and see how the outer loss changes:

# %%
pixel = slope.flatten().abs().argmax()
values = []
for change in (1e-5, -1e-5):
    changed = condensed.detach().clone()
    changed.view(-1)[pixel] += change
    values.append(outer_loss(changed).item())
difference = (values[0] - values[1]) / 2e-5
assert_close(difference, slope.flatten()[pixel].item(), rtol=1e-3, atol=1e-9)

# %% [markdown]
# ## A round of condensation
#
# Both levels in turn. The paper leaves open where the next inner step starts. By its Eq. 3 (not shown here) every
# iteration starts at the received model again. Its Eq. 5, which we write with $\mathbf{w}^*$ on the left
# {eq}`eq:mk-inner`, overwrites $\mathbf{w}^c$, so the model goes on. `horizon` covers both, and all between: after so many
# iterations the model is the received one again, and the outer loss jumps up. Ours is as many steps as the server takes.

# %%
source(bilevel.extract)

# %% tags=["slide"]
_, losses = condensation.extract(received, [problem], settings, task.inputs)
trace = pd.DataFrame({"loss": losses.flatten().cpu(), "label": "largest"})
show(
    lines(
        trace.rename_axis("iteration").reset_index(),
        "iteration",
        "loss",
        ylabel="outer loss",
        title="Outer loss of the largest client in the first round",
    )
)

# %% [markdown] tags=["slide"]
# ## Sharing
#
# Rounds are counted by $t$. In the first one every pixel starts from $U[-1, 1]$. From the second on client $c$ starts
# from what *another* client made in the round before:
#
# $$
# \hat{\mathcal{D}}^c_\text{ini} \leftarrow \hat{\mathcal{D}}^{c'}_{t-1}, \qquad c' \sim \text{randint}[1, C] .
# $$ (eq:mk-sharing)

# %% [markdown]
# In the code $c'$ is drawn among the clients that took part in the round before, without $c$: only they have images.
# (Algorithm 1 says `elif t == 1`; the text says nothing of the kind, so we share in every round from the second on.)
# A class that the other client does not have starts from $U[-1, 1]$.
#
# The images of the last round: a row for each client, an image of each class. A black square is a class that the
# client does not have; values beyond black and white are cut off in the picture, not in what is sent.

# %% tags=["slide"]
run = lesson.run(clients=members)
last = run.state
uploads = take_each("knowledge/", last.tensors)
rows = {}
for owner, sent in uploads.items():
    pictures = lesson.as_images(sent["images"])
    black = torch.zeros_like(pictures[:1])
    first = [pictures[sent["labels"] == c][:1] for c in range(len(classes))]
    row = torch.cat([image if len(image) else black for image in first])
    rows[f"client {owner}"] = row
show(image_rows(rows, f"Round {rounds}", inches=0.38))

# %% [markdown] tags=["slide"]
# To the eye it is noise. Nothing asks for a likeness: a step on the images shall do good, that is all. Nor does a mean show
# more. The mean of all condensed images of a class, above the mean of its real images:

# %% tags=["slide"]
uploaded = torch.cat([sent["images"] for sent in uploads.values()])
marks = torch.cat([sent["labels"] for sent in uploads.values()]).long()
means = {}
real_images, real_labels, _ = pooled(members)
for name, pictures, of in (
    ("condensed", uploaded, marks),
    ("real", real_images, real_labels),
):
    mean = torch.stack(
        [pictures[of == c].float().mean(0).cpu() for c in marks.unique()]
    )
    low, high = mean.amin((1, 2, 3), True), mean.amax((1, 2, 3), True)
    means[name] = (mean - low) / (high - low)
show(image_rows(means, f"Mean of every class, round {rounds}", inches=0.38))

# %% [markdown]
# What else the images carry is the question of [a page of its own](23_fedmk_knowledge).
#
# ## The server

# %% [markdown] tags=["slide"]
# It takes the uploaded images as training data (Eq. 9). $\mathbf{W}_G$ are the weights of the global model:
#
# $$
# \mathcal{L}(\mathbf{W}_G, \hat{\mathcal{D}}) = \frac{1}{|\hat{\mathcal{D}}|}
# \sum_{\hat{x}_i, \hat{y}_i \in \hat{\mathcal{D}}} \ell(\mathbf{W}_G, \hat{x}_i, \hat{y}_i) ,
# \qquad \hat{\mathcal{D}} = \bigcup_c \hat{\mathcal{D}}^c .
# $$ (eq:mk-server)

# %% [markdown] tags=["slide"]
# The model is a feature extractor with a classifier $\mathbf{W}_G^\mathcal{C}$ on top. A generator $\mathcal{G}$ maps a
# label and noise to features $z$ in which the classifier sees the label (Eq. 10; $p(y)$ is here the share of a label
# among the uploads):
#
# $$
# \mathcal{G}^* = \operatorname*{arg\,max}_{\mathcal{G}: y \to z} \;
# \mathbb{E}_{y \sim p(y)} \mathbb{E}_{z \sim \mathcal{G}(y, \mathbf{w}^\mathcal{G})}
# \log p(y \mid z, \mathbf{W}_G^\mathcal{C}) .
# $$ (eq:mk-generator)

# %% [markdown] tags=["slide"]
# Its samples are the *pseudo knowledge*, and the global model minimises (Eq. 11)
#
# $$
# \mathcal{L}_\text{overall} = \mathcal{L}(\mathbf{W}_G, \hat{\mathcal{D}})
# + \beta \, \mathcal{L}(\mathbf{W}_G, \hat{\mathcal{D}}^\text{pseu}) , \qquad
# \beta = \frac{|\hat{\mathcal{D}}^\text{pseu}|}{|\hat{\mathcal{D}}|} .
# $$ (eq:mk-overall)

# %%
model = task.model_from(last.tensors)
generator = generative.feature_generator(task, model.feature_size, Rng(seed))
unpack(generator, last.tensors, "generator/")
count = round(settings.pseudo * len(marks))
z, z_labels = fedmk.draw_pseudo(generator, marks, count, Rng(seed).at("z"))

pseudo = cross_entropy(model.classifier(z), z_labels)
overall = cross_entropy(model.train()(uploaded), marks)
overall = overall + count / len(marks) * pseudo

heads = server.Heads.of([pack(task.model_from(last.tensors))])
same(server.ensemble_cross_entropy(heads.logits(z), z_labels), pseudo)

# %% [markdown]
# Pseudo knowledge is features, so it enters at the classifier: the second term trains the last layer only. The paper
# says that the generator "models the distribution of uploaded meta knowledge", but the uploaded images are not in
# {eq}`eq:mk-generator`.
#
# The accuracy and the bytes of the run (four bytes a pixel: nothing keeps pixels within the range of an image):

# %%
run.per_round().round(2)

# %% [markdown]
# Here the server keeps one learning rate, so accuracy may fall in later rounds.

# %% [markdown] tags=["slide"]
# ## Take away
#
# - Condensed images are made so that *steps on them* do good on real data {eq}`eq:mk-outer`, through the step
#   {eq}`eq:mk-chain`.
# - The outer weights belong to the received model, the loss to the model after the step.
# - The generator does not see uploaded images; its samples train the last layer only.

# %% [markdown]
# Where to go on: [what each part adds](21_fedmk_ablations), [what the paper leaves open](20_fedmk_cifar), [the protocol
# of its baselines](19_fedmk_rules), [costs](08_communication).
#
# ## Exercises
#
# ```{exercise} The gradient by hand
# :label: ex-mk-hand
#
# *Medium, 25 minutes.*
#
# Let the "network" be one number $w$, with $\mathcal{L}(w, \hat{x}) = \frac{1}{2} (w - \hat{x})^2$ on one condensed
# number and $\mathcal{L}(w, x) = \frac{1}{2} (w - x)^2$ on one real one. Work out {eq}`eq:mk-chain`; the check
# compares your answer with `bilevel_step`. Where does {eq}`eq:mk-outer` come to rest? (To be checked: `resting_point(w,
# x, eta)`.)
# ```
#
# ````{solution} ex-mk-hand
# :class: dropdown
#
# $w^* = w - \eta (w - \hat{x})$, so the gradient is $(w^* - x) \, \eta$. It is zero where $w^* = x$, that is at
# $\hat{x} = w + (x - w) / \eta$: not at the real number, but far beyond it, so that one small step goes all the way.
# It suggests why the condensed images of FedMK do not look like data, and why their pixels leave $[-1, 1]$.
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

# %% [markdown]
# ```{exercise} More steps than the images were made for
# :label: ex-mk-horizon
#
# *Medium, 20 minutes.*
#
# Let the server take four times as many steps (`server_steps`; here 25), with the clients' settings as they are. Then set
# `horizon=1`, every iteration from the received model, and let the server take its 25 steps, and one.
# ```
#
# ````{solution} ex-mk-horizon
# :class: dropdown
#
# ```python
# {"as above": run.accuracy, "four times the steps": lesson.run(server_steps=100).accuracy,
#  "horizon 1": lesson.run(horizon=1).accuracy,
#  "horizon 1, one step": lesson.run(horizon=1, server_steps=1).accuracy}
# ```
#
# Images are good for the place where the model was, so more steps can throw away what was learned, and images of horizon
# 1 need not be worse for 25 steps. The number of steps on the server may matter more than the horizon; the paper is
# silent on both.
# ````
