# %% [markdown]
# # The methods that FedVCK is compared with
#
# *Question:* what is the idea of each method in FedVCK's {cite:p}`fedvck` tables, and what does it send?\
# *Time:* under half a minute on two CPU cores. *Data:* scikit-learn's digits.
#
# A comparison is worth as much as its weakest rival. So every row of the paper's tables is a method of its own here,
# written from its own paper and with its own hyper-parameters; [how these were chosen](91_tuning) has a page as well.
# Most of the methods are FedAvg with one more thing:
#
# | method | what is new | where | what crosses the network beside the model |
# |---|---|---|---|
# | FedAvg {cite:p}`fedavg` | averaging | server | nothing |
# | FedProx {cite:p}`fedprox` | a tie to the model received | client's loss | nothing |
# | MOON {cite:p}`moon` | features stay near the global model's | client's loss | a projection head |
# | FedMix {cite:p}`fedmix` | mixing with averages of others | client's data | averaged images, once |
# | FedGen {cite:p}`fedgen` | a generator of features | both | generator (down), class counts (up) |
# | FedGAN {cite:p}`fedganrasouli,fedgan` | generated images | client's data | generator and discriminator |
# | DFRD {cite:p}`dfrd` | distilling without data | server | class counts (up) |
# | FedDM {cite:p}`feddm` | condensed images, not models, go up | both | condensed images (up) |
# | DESA {cite:p}`desa` | condensed images as common anchors | client's loss | anchors, once; logits on them (down) |
#
# ```{figure} ../book/_static/baselines.svg
# :alt: A server above, a client below, and where each method acts. On the server: FedAvg averages the models, DFRD distils them without data, FedGen trains a generator of features, FedDM trains on condensed images. On a client: FedProx adds to the loss of the weights, MOON and DESA to the loss of the features, FedMix and FedGAN change the images that are trained on.
# :name: fig-baselines
# :width: 380px
#
# Where each method acts.
# ```
#
# This page takes the first four: FedAvg, two that change what a client minimises, one that changes its data. [The other
# five](18_baselines_generators) generate or condense something. How far all come: see their
# [results](19_baselines_results).

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
clients = 5
rounds = 3
local_steps = 10
lr = 0.05
seed = 0
profile = "quick"

# %% tags=["hide-input"]
from functools import partial

import pandas as pd
import torch
from IPython.display import display
from torch.nn import functional as F
from torch.testing import assert_close

from core import algorithms, server
from core.baselines import fedmix, moon
from core.federation import tensors
from core.rng import Rng
from lab.report import lines, method_name, show, source
from lab.report.lesson import Lesson
from lab.report.texts import Markdown

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    settings={"local_steps": local_steps, "lr": lr},
)
task, members = lesson.task, lesson.members()
largest = max(members, key=len)

# %% [markdown]
# ## One run of each
#
# Same data, split, local work and, but for MOON with its head (below), first network. One seed says little.

# %%
names = ("fedavg", "fedprox", "moon", "fedmix")
runs = {name: lesson.run(name) for name in names}
accuracy = {
    method_name(name): run.per_round()["accuracy (%)"]
    for name, run in runs.items()
}
pd.DataFrame(accuracy).round(1)

# %% [markdown]
# ## FedAvg: why average?
#
# The server averages the clients' models with the weights $n_k / N$, {eq}`eq:fl-average`. Why should an average of
# weights be any good? Each client forgets what it does not have, and every client forgets something else. We send the
# last but one model of the run to the clients, and test what comes back:

# %% tags=["hide-input"]
fedavg = lesson.experiment().new_algorithm()
before = runs["fedavg"].states[-2 if rounds > 1 else -1]
uploads = {
    client.id: fedavg.client_update(
        client, fedavg.broadcast(before, client.id), Rng(seed).at(client.id)
    )
    for client in members
}


def hits(uploads):
    """Which test images the average of some uploads recognises, as 0 or 1."""
    model = fedavg.model(fedavg.server_update(before, uploads, Rng(seed)))
    return (task.outputs(model, test.images).argmax(1) == test.labels).double()


test, rows = task.dataset.test, {}
of_class, average = torch.bincount(test.labels), hits(uploads).mean().item()
for client in members:
    alone, held = hits({client.id: uploads[client.id]}), client.class_counts
    own = (held / of_class)[test.labels].double() @ alone / held.sum()
    rows[f"client {client.id}"] = {
        "all classes (%)": 100 * alone.mean().item(),
        "its own (%)": 100 * own.item(),
    }
table = pd.DataFrame(rows).T
every, own = table.to_numpy().T
said = f"""The average has {100 * average:.1f}% on all classes;
{(every < 100 * average).sum()} of {len(table)} clients' models have less. *Its
own* weighs each class as often as the client holds it: so {(own > every).sum()}
of them are better than on all classes."""
display(table.round(1), Markdown(said))

# %%
models = [
    {name: value.double() for name, value in upload.tensors.items()}
    for upload in uploads.values()
]
sizes = [upload.meta["samples"] for upload in uploads.values()]
shares = torch.tensor(sizes).double() / sum(sizes)  # n_k / N
for name, average in server.weighted_average(models, sizes).items():
    each = torch.stack([model[name] for model in models])
    same(torch.tensordot(shares, each, dims=1), average)

# %% [markdown]
# A client's model knows best what the client holds. What the methods below try to mend is that the average loses as
# well, once clients go too far apart.
#
# ## FedProx: stay near
#
# A client minimises $F_k(w) + \frac{\mu}{2} \lVert w - w_t \rVert^2$, {eq}`eq:fl-prox`. The gradient of the second
# term, $\mu (w - w_t)$, pulls back. How far do clients go for different $\mu$?

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(algorithms.find("fedprox").loss)


# %% tags=["hide-input"]
def distance(mu):
    """How far clients go in one round, on average."""
    method, far = lesson.experiment("fedprox", mu=mu).new_algorithm(), []
    for client in members:
        sent = method.broadcast(before, client.id)
        answer = method.client_update(client, sent, Rng(seed).at(client.id))
        gone = [
            (answer.tensors[name] - start).flatten()
            for name, start in sent.tensors.items()
            if name.startswith("parameters/")
        ]
        far.append(torch.cat(gone).norm().item())
    return sum(far) / len(far)


mus = pd.DataFrame({"mu": [0.01, 0.1, 1.0, 10.0], "label": "FedProx"})
show(
    lines(
        mus.assign(distance=mus["mu"].map(distance)),
        "mu",
        "distance",
        ylabel="mean distance from the received model",
        log="x",
        title="A larger mu holds back",
    )
)

# %% [markdown]
# A client that cannot move cannot learn either: the best $\mu$ lies between, and depends on the data.
#
# ## MOON: see as the others see
#
# MOON ties features, not weights. Of an image $x$ there are three: $z$ by the model in training, $z_{glob}$ by the
# global model, and $z_{prev}$ by the client's own model of the round before. With the cosine $s$, which a temperature
# $\tau$ divides (the smaller it is, the more a small difference of cosines counts),
#
# $$
# \ell_{con} = -\log \frac{e^{s(z, z_{glob}) / \tau}}{e^{s(z, z_{glob}) / \tau} + e^{s(z, z_{prev}) / \tau}} .
# $$ (eq:base-moon)
#
# A client minimises $\ell_{sup} + \mu \, \ell_{con}$, where $\ell_{sup}$ is the cross-entropy. The global model has seen
# all classes, so its features are the better guide. The first round has no $z_{prev}$ and no such term.


# %%
def moon_loss(z, z_glob, z_prev, tau):
    near = (F.cosine_similarity(z, z_glob) / tau).exp()
    past = (F.cosine_similarity(z, z_prev) / tau).exp()
    return -(near / (near + past)).log().mean()


draws = torch.randn(3, 8, 16, generator=Rng(seed).at("z").generator()).double()
same(moon_loss(*draws, 0.5), moon.contrast(*draws, 0.5))


# %% tags=["hide-input"]
def similarities(mu):
    """Mean cosines of the largest client's features after its second round."""
    method = lesson.experiment("moon", mu=mu).new_algorithm()
    client = max(lesson.members(), key=len)
    sent = method.broadcast(method.initialise(task, Rng(seed)), client.id)
    previous = method.client_update(client, sent, Rng(seed)).tensors
    received = method.broadcast(runs["moon"].states[0], client.id)
    after = method.client_update(client, received, Rng(seed).at("second"))
    x, seen = task.inputs(client.images), (after.tensors, received.tensors)
    with torch.no_grad():
        z, z_glob, z_prev = (
            method.network(task, values).eval().embed(x)
            for values in (*seen, previous)
        )
    return {
        "z_glob": F.cosine_similarity(z, z_glob).mean().item(),
        "z_prev": F.cosine_similarity(z, z_prev).mean().item(),
    }


found = {mu: similarities(mu) for mu in (0.0, 1.0, 5.0, 10.0)}
cosines = pd.DataFrame(found).rename_axis("label").reset_index()
show(
    lines(
        cosines.melt("label", var_name="mu", value_name="cosine"),
        "mu",
        "cosine",
        ylabel="cosine of z with it",
        title="Features of a client after its second round",
    )
)

# %% [markdown]
# The loss asks for a *difference* of two cosines, {eq}`eq:base-moon`. Here mostly that with the client's own past
# moves, away from it; that with the global model rises a little at a small $\mu$, and not at a large one.
#
# In MOON's paper the features pass a projection head of two layers, which belongs to the model and is sent with it, as
# it is here by default. FedVCK prints for MOON the upload of FedAvg to the last digit, so no head was sent there; with
# `projection: 0` the features themselves are compared. On [validation data](91_tuning) the head did worse.


# %% tags=["hide-input"]
def parameters(projection):
    method = lesson.experiment("moon", projection=projection).new_algorithm()
    start = method.initialise(task, Rng(seed)).tensors
    return sum(value.numel() for value in tensors.weights(start).values())


Markdown(
    f"With the head {parameters(256):,} numbers are sent, without it "
    f"{parameters(0):,}."
)

# %% [markdown]
# ## FedMix: mixing with averages
#
# Mixup trains on mixtures of two images. Of another client's image a client may only know an average $\bar x$ of
# several, with the average $\bar y$ of their labels. So FedMix mixes a share $\lambda$ of $\bar x$ into
# $x$, to first order in $\lambda$:
#
# $$
# \begin{aligned}
# \ell_{mix} &= (1 - \lambda) \, \ell(\tilde x, y) + \lambda \, \ell(\tilde x, \bar y)
# + \lambda \, \frac{\partial}{\partial \tilde x} \bigl[(1 - \lambda) \, \ell(\tilde x, y)\bigr] \cdot \bar x , \\
# \tilde x &= (1 - \lambda) x .
# \end{aligned}
# $$ (eq:base-fedmix)
#
# The last term is that of the paper's Algorithm 2; its Eq. 3 leaves out the factor $1 - \lambda$ within the bracket, a
# difference of order $\lambda^2$. Forward differentiation gives the slope along $\bar x$. Averages are sent once.

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(fedmix.mixup_loss)

# %% [markdown]
# How good is the first order? We compare with the true mixture. For a smooth network the error falls like $\lambda$
# without the last term, like $\lambda^2$ with it. This one has rectifiers: there the second line is only steeper.

# %% tags=["hide-input"]
last = runs["fedmix"].state
network = task.model_from(last.tensors).double().eval()
x, y = task.inputs(largest.images[:32]).double(), largest.labels[:32]
means, shares = (part[:10] for part in fedmix.kept(last.tensors))
parts = (part.double().split(1) for part in (task.inputs(means), shares))
averages = list(zip(*parts, strict=True))


def errors(share, x_g, y_g):
    mixed = network((1 - share) * x + share * x_g)
    other_label = F.cross_entropy(mixed, y_g.expand(len(y), -1))
    true = (1 - share) * F.cross_entropy(mixed, y) + share * other_label
    with_term, without = (
        fedmix.mixup_loss(network, F.cross_entropy, x, y, other, y_g, share)
        for other in (x_g, torch.zeros_like(x_g))
    )
    return {
        "with the derivative": (with_term - true).abs().item(),
        "without it": (without - true).abs().item(),
    }


gaps = [
    {"share": share, "error": value, "label": label}
    for share in (0.01, 0.02, 0.05, 0.1, 0.2)
    for x_g, y_g in averages
    for label, value in errors(share, x_g, y_g).items()
]
means = pd.DataFrame(gaps).groupby(["label", "share"], as_index=False).mean()
show(
    lines(
        means,
        "share",
        "error",
        xlabel="lambda",
        ylabel="distance to the true mixture",
        log="xy",
        title="FedMix is mixup to first order",
    )
)

# %% [markdown]
# ## Each is FedAvg when its own term is off
#
# A strong test of a baseline: only its own term may make a difference, so the same seed must give the same weights, but
# for the order of sums: FedAvg's clients train side by side where their networks are small. MOON goes without its head
# here, DESA takes FedAvg's batches of 64. FedDM has no FedAvg inside.

# %% tags=["hide-input"]
switched_off = {
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0, "projection": 0},
    "fedgen": {"alpha": 0.0, "beta": 0.0},
    "fedgan": {"share": 0.0},
    "fedmix": {"mixup": 0.0},
    "dfrd": {"iterations": 0},
    "desa": {"learn_anchors": False, "reg": 0.0, "kd": 0.0, "batch_size": 64},
}
short = lesson.but(rounds=2)


def weights(name, **settings):
    """The global model after two short rounds."""
    state = short.run(name, local_steps=2, **settings).state
    return tensors.weights(state.tensors)


plain, rows = weights("fedavg"), {}
for name, off in switched_off.items():
    other, put = weights(name, **off), [f"{key} {off[key]}" for key in off]
    gaps = [(other[key] - plain[key]).abs().max().item() for key in plain]
    rows[method_name(name)] = ", ".join(put), max(gaps)
reduced = pd.DataFrame(rows, ["switched off", "difference to FedAvg"]).T
equal = (reduced["difference to FedAvg"] < 1e-4).sum()
said = f"{equal} of {len(reduced)} are FedAvg, to rounding."
display(reduced, Markdown(said))

# %% [markdown]
# ## Take away
#
# - Seven of the nine methods are FedAvg and something of their own, and become FedAvg when it is off.
# - The terms act on weights (FedProx), features (MOON, FedGen, DESA), data (FedGAN, FedMix) or on the server (DFRD).
#   FedDM and FedVCK replace the upload. Where papers and code differ stands with the [results](19_baselines_results).
#
# ## Exercises
#
# ```{exercise} What an average reveals
# :label: ex-base-average
#
# *Easy, 15 minutes.*
#
# FedMix sends averages of at least five images (`mean_batch`). Look at them, then at averages of two. Which averages
# show single images, whatever `mean_batch` is?
# ```
#
# ````{solution} ex-base-average
# :class: dropdown
#
# ```python
# from lab.report import condensed_images
#
# for size in (5, 2):
#     run = lesson.but(rounds=1).run("fedmix", mean_batch=size)
#     means, shares = fedmix.kept(run.state.tensors)
#     show(condensed_images(means, shares.argmax(1)))
# ```
#
# With two images both can often be seen. Where nearly all of a client's images are of one class of little variety, an
# average looks like each of them. And a client with fewer images than `mean_batch` sends the average of what it has.
# ````
