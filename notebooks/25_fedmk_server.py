# %% [markdown]
# # FedMK: sharing and the server
#
# *Question:* what do clients and server of FedMK {cite:p}`fedmk` do with meta knowledge, what does it look like, and how
# far does the method come in a few rounds?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits.
#
# [The page before](20_fedmk) has made the images of one client in one round. Here clients start from the images of
# others, the server trains on all that it got, and on a generator of features, and the whole method runs beside FedAvg.
# `rounds` must be at least 2, because nobody has knowledge to share in the first.

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

import attrs
import pandas as pd
import torch
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.testing import assert_close

from core import server
from core.algorithms import fedmk
from core.families import generative
from core.federation.tensors import pack, take_each, unpack
from core.rng import Rng
from lab.report import curves, image_rows, show
from lab.report.lesson import SMALL, Lesson, pooled, share_right
from lab.report.results import bytes_by_kind
from lab.report.texts import Markdown

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
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

# %% [markdown]
# The run; `active` of the clients take part in a round:

# %%
run = lesson.run(clients=members)
run.per_round().T.round(2)

# %% [markdown]
# Accuracy may fall in later rounds: here the server keeps one learning rate. In the [results](22_fedmk_results) the rate
# falls from round to round, and accuracy falls less.

# %% [markdown]
# ## Sharing
#
# Rounds are counted by $t$. In the first one every pixel starts from $U[-1, 1]$. From the second on, client $c$ starts from what *another*
# client extracted in the round before:
#
# $$
# \hat{\mathcal{D}}^c_\text{ini} \leftarrow \hat{\mathcal{D}}^{c'}_{t-1}, \qquad c' \sim \text{randint}[1, C] .
# $$ (eq:mk-sharing)
#
# (Here $C$ is the number of clients, as in the paper, and $c$ is a client; elsewhere in this book $C$ counts classes.)
# In the code $c'$ is drawn among the clients that took part in the round before, without $c$: only they have knowledge.
# Algorithm 1 says `elif t == 1`; the text says nothing of the kind, so we share in every round from the second on. The
# server hands the images over with the model. A class that the other client does not have starts from $U[-1, 1]$, and a
# client makes only images of classes that it has. The paper says neither; the setting `classes` makes it `"all"`.
#
# Now the pictures, of the first round and of the last: one client per row, one image of each class. A black square
# stands for a class that the client does not have. Values below black and above white are cut off in the picture, not
# in what is sent.


# %% tags=["hide-input"]
def gallery(result):
    """Show the first image of each class of each active client."""
    rows = {}
    for owner, held in take_each("knowledge/", result.state.tensors).items():
        pictures = lesson.as_images(held["images"])
        black = torch.zeros_like(pictures[:1])
        first = [pictures[held["labels"] == c][:1] for c in range(len(classes))]
        rows[f"client {owner}"] = torch.cat(
            [one if len(one) else black for one in first]
        )
    pixels = torch.cat(list(rows.values()))
    beyond = ((pixels == 0) | (pixels == 255)).float().mean().item()
    title = f"Round {result.round}"
    if result.metrics:  # some profiles test every second round only
        title += f", {result.metrics['accuracy']:.0%} correct"
    show(
        image_rows(rows, title, inches=0.38),
        alt=f"{title}. Meta knowledge, one row for each of {len(rows)} active "
        f"clients, one image of each of {len(classes)} classes. {beyond:.0%} "
        "of the pixels are black or white.",
    )


for result in (run.results[0], run.results[-1]):
    gallery(result)

# %% [markdown]
# To the eye it is noise. Nothing asks for a likeness: a step on the images shall do good, that is all. But noise
# vanishes in a mean. Here is the mean of all knowledge of a class in the last round, above the mean of the real images
# of the class.

# %% tags=["hide-input"]
last = run.state
sent = take_each("knowledge/", last.tensors).values()
uploaded = torch.cat([one["images"] for one in sent])
marks = torch.cat([one["labels"] for one in sent]).long()
held = marks.unique()


def class_means(images, labels):
    return torch.stack(
        [images[labels == c].float().mean(0).cpu() for c in held]
    )


def stretched(images):
    low, high = (
        way(images, (1, 2, 3), True) for way in (torch.amin, torch.amax)
    )
    return (images - low) / (high - low)


made_mean = class_means(uploaded, marks)
real_mean = class_means(*pooled(members)[:2])
rows = {"meta knowledge": stretched(made_mean), "real": stretched(real_mean)}
show(image_rows(rows, f"Mean of every class, round {rounds}", inches=0.38))
# what is common to all classes does not count
made_own, real_own = (
    (mean - mean.mean(0)).flatten(1) for mean in (made_mean, real_mean)
)
alike = cosine_similarity(made_own[:, None], real_own[None], dim=2)
right = (alike.argmax(1) == torch.arange(len(held))).sum().item()
rest = (alike.sum() - alike.trace()) / (alike.numel() - len(held))
Markdown(
    "Cosine of mean knowledge and mean real image, each without the mean over "
    f"classes: {alike.diag().mean():.2f} for the own class, {rest:.2f} for "
    f"others. The class with the largest cosine is the own one for {right} of "
    f"{len(held)} classes."
    + (
        " So images that look like noise can carry a picture of the class "
        "between them."
        if alike.diag().mean() > rest and 2 * right > len(held)
        else ""
    )
)

# %% [markdown]
# What else the images carry is the question of [a page of its own](24_fedmk_knowledge).
#
# ## What the server does
#
# It takes the uploaded images as training data (Eq. 9). $\mathbf{W}_G$ are the weights of the global model,
# $(\hat{x}_i, \hat{y}_i)$ is a made-up image with its label:
#
# $$
# \mathcal{L}(\mathbf{W}_G, \hat{\mathcal{D}}) = \frac{1}{|\hat{\mathcal{D}}|}
# \sum_{\hat{x}_i, \hat{y}_i \in \hat{\mathcal{D}}} \ell(\mathbf{W}_G, \hat{x}_i, \hat{y}_i) ,
# \qquad \hat{\mathcal{D}} = \bigcup_c \hat{\mathcal{D}}^c .
# $$ (eq:mk-server)
#
# The model is a feature extractor with a classifier $\mathbf{W}_G^\mathcal{C}$ on top. A generator $\mathcal{G}$ maps a
# label (and noise) to features $z$, such that the classifier sees the label in them (Eq. 10). $p(y)$, which the paper does
# not name, is here the share of a label among the uploads; $\mathbf{w}^\mathcal{G}$ are the generator's weights:
#
# $$
# \mathcal{G}^* = \operatorname*{arg\,max}_{\mathcal{G}: y \to z} \;
# \mathbb{E}_{y \sim p(y)} \mathbb{E}_{z \sim \mathcal{G}(y, \mathbf{w}^\mathcal{G})}
# \log p(y \mid z, \mathbf{W}_G^\mathcal{C}) .
# $$ (eq:mk-generator)
#
# FedGen {cite:p}`fedgen` trains its generator in the same way against the classifiers of all clients; here the ensemble
# is the one global model. The samples are the *pseudo knowledge*, and the global model minimises (Eq. 11)
#
# $$
# \mathcal{L}_\text{overall} = \mathcal{L}(\mathbf{W}_G, \hat{\mathcal{D}})
# + \beta \, \mathcal{L}(\mathbf{W}_G, \hat{\mathcal{D}}^\text{pseu}) , \qquad
# \beta = \frac{|\hat{\mathcal{D}}^\text{pseu}|}{|\hat{\mathcal{D}}|} .
# $$ (eq:mk-overall)
#
# A single step of the server on all that it has, in single precision:

# %%
model = task.model_from(last.tensors)
generator = generative.feature_generator(task, model.feature_size, Rng(seed))
unpack(generator, last.tensors, "generator/")
count = round(settings.pseudo * len(marks))
rng = Rng(seed).at("server")
z, z_marks = fedmk.draw_pseudo(generator, marks, count, rng.at("pseudo"))

pseudo = cross_entropy(model.classifier(z), z_marks)
ours = cross_entropy(model.train()(uploaded), marks)
(ours + count / len(marks) * pseudo).backward()
lr = settings.server_lr
mine = {n: p - lr * p.grad for n, p in model.named_parameters()}

once = attrs.evolve(settings.training, lr=lr, steps=1, batch_size=len(marks))
single = attrs.evolve(task.runtime, precision="float32")
theirs = task.model_from(last.tensors)
given = (theirs, generator, uploaded, marks, once, rng)
algorithm.train_model(attrs.evolve(task, runtime=single), *given)
assert_close(dict(theirs.named_parameters()), mine)
head = server.Heads.of([pack(task.model_from(last.tensors))])
same(server.ensemble_cross_entropy(head.logits(z), z_marks), pseudo)

# %% [markdown]
# Pseudo knowledge is features, so it enters at the classifier: the second term trains the last layer only. The paper
# says that the generator "models the distribution of uploaded meta knowledge". {eq}`eq:mk-generator` does not say so:
# the uploaded images are not in it. Is the output alike all the same? How often the classifier is right about both
# kinds of features, how sure it is, how long they are, and the cosine of their class means:

# %% tags=["hide-input"]
model = task.model_from(last.tensors).eval()
features = {
    "uploaded": (model.embed(uploaded).detach(), marks),
    "generated": (z, z_marks),
}
rows = {}
for name, (one, y) in features.items():
    p = model.classifier(one).detach().softmax(1)
    rows[name] = {
        "right (%)": share_right(p, y),
        "sure (%)": 100 * p.amax(1).mean().item(),
        "mean length": one.norm(dim=1).mean().item(),
    }
both = [c for c in held if (z_marks == c).any()]
means = [
    torch.stack([one[y == c].mean(0) for c in both])
    for one, y in features.values()
]
cosine = cosine_similarity(*means).mean().item()
seen = pd.DataFrame(rows).T
seen.round(2)

# %% tags=["hide-input"]
real, drawn = (seen.loc[name] for name in features)
Markdown(
    f"The class means have a cosine of {cosine:.2f}. Generated features are "
    f"{drawn['mean length'] / real['mean length']:.1f} times as long, and the "
    "classifier gives its answer for them a probability of "
    f"{drawn['sure (%)']:.0f}% in place of {real['sure (%)']:.0f}%. "
    + ("So they are not alike." if cosine < 0.9 else "So they point alike.")
)

# %% [markdown]
# ## The run beside FedAvg
#
# Equal rounds. The baselines of the paper have a "local updating number" of 20 and a batch size of 32. We read this as
# 20 batches in a round, as in the code of FedGen, with its learning rate of 0.01 and plain SGD.

# %% tags=["hide-input"]
local = {
    "lr": 0.01,
    "local_steps": 20,
    "batch_size": 32,
    "momentum": 0.0,
    "weight_decay": 0.0,
}
runs = [run.record, lesson.run("fedavg", **local).record]
show(curves(runs, title=f"Equal rounds: {dataset}, alpha = {alpha:g}"))
work = settings.iterations * settings.real_batch
Markdown(
    f"In a round a client's network sees {work:,} real images in FedMK, and "
    f"{settings.iterations * settings.inner_steps * settings.inner_batch:,} "
    "made-up ones that are differentiated twice. In FedAvg it sees "
    f"{local['local_steps'] * local['batch_size']:,} real ones. By the ledger, "
    "clients sent "
    + " and ".join(
        f"{sum(one.bytes['up'].values()) / 1000:,.0f} kB in {name}"
        for name, one in zip(("FedMK", "FedAvg"), runs, strict=True)
    )
    + "."
)

# %% [markdown]
# Equal rounds are not equal work: 20 batches at this learning rate are little, and an exercise gives FedAvg more.

# %% mystnb={"code_prompt_show": "Show the bytes by direction and kind"} tags=["hide-cell"]
bytes_by_kind(
    {record.experiment.algorithm: record for record in runs}, each_round=False
)

# %% [markdown]
# LeNet is a very small network. With a larger one FedAvg would send more, and FedMK's uploads would stay as they are.
# [A page of its own](26_communication) works out the costs that the paper prints.
#
# ## Take away
#
# - Knowledge is made for a limited number of steps on the server. Eq. 3 assumes one. How many the server takes the paper
#   does not say.
# - Single images look like noise; the mean of a class need not.
# - The generator does not see the uploaded images, and its samples train the last layer only.
# - Equal rounds favour the method that works more within a round.
#
# ## Exercises
#
# ```{exercise} More steps than the knowledge was made for
# :label: ex-mk-horizon
#
# *Medium, 20 minutes.*
#
# Let the server take four times as many steps (`server_steps`; here 25), with the clients' settings as they are. Then set
# `horizon=1`, the literal Eq. 3, and let the server take its 25 steps, and one.
# ```
#
# ````{solution} ex-mk-horizon
# :class: dropdown
#
# ```python
# def accuracy(**changed):
#     return lesson.run(**changed).accuracy
#
# {"as above": accuracy(), "four times the steps": accuracy(server_steps=100),
#  "horizon 1": accuracy(horizon=1), "horizon 1, one step": accuracy(horizon=1, server_steps=1)}
# ```
#
# At the defaults of this page, with one seed: four times the steps threw away most of what was learned. A likely reason
# is that the knowledge is good for the place where the model was. Knowledge of horizon 1 was not worse when the server
# took its 25 steps, and of little use when it took the one step that it was made for. So a longer horizon is no safe
# gain, and the number of steps on the server may matter more. The paper is silent on both.
# ````
#
# ```{exercise} Equal work
# :label: ex-mk-work
#
# *Medium, 20 minutes.*
#
# How many local batches does FedAvg need in a round to be as good as FedMK on this page? Compare with the numbers of
# images above.
# ```
#
# ````{solution} ex-mk-work
# :class: dropdown
#
# ```python
# for steps in (20, 50, 100):
#     run = lesson.run("fedavg", **local | {"local_steps": steps})
#     print(steps, round(run.accuracy, 1))
# ```
#
# At the defaults of this page and with one seed FedAvg was ahead with 50 batches, and with 20 at five times the learning
# rate (`local | {"lr": 0.05}`) as well. A comparison at equal rounds says little until the rival's learning rate and steps
# have been tuned too; those of FedMK were.
# ````
#
# ```{exercise} A cheaper wire
# :label: ex-mk-wire
#
# *Easy, 15 minutes.*
#
# Other methods of this book send a byte for a pixel. What would FedMK's uploads cost then, and what would be lost? Look
# at how many pixels lie outside $[-1, 1]$.
# ```
#
# ````{solution} ex-mk-wire
# :class: dropdown
#
# ```python
# beyond = (uploaded.abs() > 1).float().mean().item()
# f"{uploaded.numel() * 4:,} bytes as sent, {uploaded.numel():,} as bytes, {beyond:.0%} of the pixels would be cut off"
# ```
#
# A quarter of the bytes. But the outer level may push a pixel as far as it likes, and no loss keeps it within the range
# of an image. What is cut off was there for a purpose: measure the accuracy before you save.
# ````
