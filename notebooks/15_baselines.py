# %% [markdown]
# # The methods that FedVCK is compared with
#
# *Question:* what is the idea of each method in FedVCK's {cite:p}`fedvck` tables, what does it send, and how far does
# it come?\
# *Time:* about a minute on two CPU cores. *Data:* scikit-learn's digits for the runs; records for the tables.
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
# | FedGen {cite:p}`fedgen` | a generator of features | both | generator (down), class counts (up) |
# | FedGAN {cite:p}`fedganrasouli,fedgan` | generated images | client's data | generator and discriminator |
# | FedMix {cite:p}`fedmix` | mixing with averages of others | client's loss | averaged images, once |
# | DFRD {cite:p}`dfrd` | distilling without data | server | class counts (up) |
# | FedDM {cite:p}`feddm` | condensed images, not models, go up | both | condensed images (up) |
# | DESA {cite:p}`desa` | condensed images as common anchors | client's loss | anchors, once; logits on them (down) |

# %% tags=["parameters"]
dataset = "digits"
alpha = 0.5
clients = 5
rounds = 3
local_steps = 10
lr = 0.05
iterations = 40
seed = 0
profile = "quick"
shown = "best"

# %%
import pandas as pd
import torch
from torch.nn import functional as F

from core import algorithms, models, server
from core.algorithms import desa, dfrd, feddm, fedgan, fedmix, moon
from core.experiments import TableSpec, records
from core.experiments.profiles import apply
from core.federation import tensors
from core.report import (
    condensed_images,
    curves,
    lines,
    method_name,
    show,
    source,
    table,
    table_frame,
)
from core.report.lesson import SMALL, Lesson
from core.report.results import bytes_by_kind, table_runs
from core.report.texts import Markdown
from core.rng import Rng

best = None if shown == "best" else shown
condensing = {
    **SMALL["fedvck"],
    "iterations": iterations,
    "server_steps": 60,
}
local = {"local_steps": local_steps, "lr": lr}
own = dict.fromkeys(("fedavg", "fedprox", "moon", "fedgan", "fedmix"), local)
own |= {
    "fedgen": {**local, "generator_steps": 30},
    "dfrd": {**local, "iterations": 4, "server_batch": 32},
    "desa": {
        **local,
        "batch_size": 64,
        "ipc": 5,
        "iterations": iterations // 2,
        "image_lr": 1.0,
    },
    "feddm": condensing,
    "fedvck": condensing,
}


# %% [markdown]
# ## One run of each
#
# Same data, same split, same first network, same local work. One seed on a tiny data set says nothing about which
# method is better. It lets us look inside each. The budgets of methods that generate or condense images are cut most:
# they learn little here, and Tables 3 and 11 are the place to compare.


# %%
lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    own=own,
)
task, members = lesson.task, lesson.members()
largest = max(members, key=len)
runs = {
    name: lesson.run(name) for name in ("fedavg", "fedprox", "moon", "fedgen")
}

# %%
runs |= {name: lesson.run(name) for name in ("fedgan", "fedmix", "dfrd")}

# %%
runs |= {name: lesson.run(name) for name in ("feddm", "desa", "fedvck")}

# %%
accuracy = {
    method_name(name): run.per_round()["accuracy (%)"]
    for name, run in runs.items()
}
pd.DataFrame(accuracy).round(1)

# %% [markdown]
# ## FedAvg: why average?
#
# The server averages the clients' models with the weights $n_k / n$, {eq}`eq:fl-average`. Why should an average of
# weights be any good? Each client forgets what it does not have, and every client forgets something else. We send the
# last but one model of the run to the clients, and test what comes back:

# %%
source(server.weighted_average)


# %%
def score(method, state):
    return 100 * task.evaluate(method.model(state))["accuracy"]


fedavg = lesson.experiment().new_algorithm()
before = runs["fedavg"].states[-2 if rounds > 1 else -1]
uploads = {
    client.id: fedavg.client_update(
        client, fedavg.broadcast(before, client.id), Rng(seed).at(client.id)
    )
    for client in members
}
alone = {
    number: score(
        fedavg, fedavg.server_update(before, {number: upload}, Rng(seed))
    )
    for number, upload in uploads.items()
}
together = score(fedavg, fedavg.server_update(before, uploads, Rng(seed)))
scores = pd.DataFrame(
    [
        {"client": number, "accuracy": value, "label": label}
        for number in alone
        for label, value in (
            ("its own model", alone[number]),
            ("the average", together),
        )
    ]
)
show(
    lines(
        scores,
        "client",
        "accuracy",
        ylabel="accuracy on all classes (%)",
        title="Models after one round",
    )
)

# %% [markdown]
# Each of them is good at its own classes. What the methods below try to mend is that the average loses as well, once
# clients go too far apart.
#
# ## FedProx: stay near
#
# A client minimises $F_k(w) + \frac{\mu}{2} \lVert w - w_t \rVert^2$, {eq}`eq:fl-prox`. The gradient of the second
# term, $\mu (w - w_t)$, pulls back. How far do clients go for different $\mu$?

# %%
source(algorithms.find("fedprox").objective)


# %%
def way(mu):
    """How far clients go in one round, on average."""
    method, far = lesson.experiment("fedprox", mu=mu).new_algorithm(), []
    for client in members:
        sent = method.broadcast(before, client.id)
        answer = method.client_update(client, sent, Rng(seed).at(client.id))
        far.append(
            torch.stack(
                [
                    (answer.tensors[name] - sent.tensors[name]).square().sum()
                    for name in sent.tensors
                    if name.startswith("parameters/")
                ]
            )
            .sum()
            .sqrt()
        )
    return torch.stack(far).mean().item()


ways = pd.DataFrame(
    [
        {"mu": mu, "way": way(mu), "label": "FedProx"}
        for mu in (0.01, 0.1, 1.0, 10.0)
    ]
)
show(
    lines(
        ways,
        "mu",
        "way",
        xlabel="mu",
        ylabel="mean way of a client",
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
# global model, and $z_{prev}$ by the client's own model of the round before. With the cosine $s$,
#
# $$
# \ell_{con} = -\log \frac{e^{s(z, z_{glob}) / \tau}}{e^{s(z, z_{glob}) / \tau} + e^{s(z, z_{prev}) / \tau}} .
# $$ (eq:base-moon)
#
# A client minimises $\ell_{sup} + \mu \, \ell_{con}$. The global model has seen all classes, so its features are the
# better guide. The first round has no $z_{prev}$ and no such term.

# %%
source(moon.contrast)


# %%
def similarities(mu):
    """Mean cosines of the largest client's features after its second round."""
    method = lesson.experiment("moon", mu=mu).new_algorithm()
    client = max(lesson.members(), key=len)
    sent = method.broadcast(method.initialise(task, Rng(seed)), client.id)
    previous = method.client_update(client, sent, Rng(seed)).tensors
    received = method.broadcast(runs["moon"].states[0], client.id)
    after = method.client_update(
        client, received, Rng(seed).at("second")
    ).tensors
    with torch.no_grad():
        z, z_glob, z_prev = (
            method.network(task, tensors)
            .eval()
            .embed(task.inputs(client.images))
            for tensors in (after, received.tensors, previous)
        )
    return {
        "z_glob": F.cosine_similarity(z, z_glob).mean().item(),
        "z_prev": F.cosine_similarity(z, z_prev).mean().item(),
    }


found = [
    {"mu": mu, "cosine": value, "label": label}
    for mu in (0.0, 1.0, 5.0, 10.0)
    for label, value in similarities(mu).items()
]
show(
    lines(
        pd.DataFrame(found),
        "mu",
        "cosine",
        xlabel="mu",
        ylabel="cosine of z with it",
        title="Features of a client after its second round",
    )
)

# %% [markdown]
# The loss asks for a *difference* of two cosines, {eq}`eq:base-moon`. Look at which of the two moves: going away from
# one's own past is as good as coming near to the global model.
#
# In MOON's paper the features pass a projection head of two layers, which belongs to the model and is sent with it.
# FedVCK prints for MOON the upload of FedAvg to the last digit, so no head was sent there. The head is the default
# here; with `projection: 0` the features themselves are compared. Two more layers have to be learned from the same few
# batches, so the tries of the laptop profile ([how they were chosen](91_tuning)) go both ways.

# %%
sizes = {
    f"projection {size}": sum(
        value.numel()
        for name, value in lesson.experiment("moon", projection=size)
        .new_algorithm()
        .initialise(task, Rng(seed))
        .tensors.items()
        if name.startswith("parameters/")
    )
    for size in (0, 256)
}
pd.Series(sizes).to_frame("parameters")

# %% [markdown]
# ## FedGen: generated features
#
# The server cannot see data, but it has the last layers $g_k$ of all clients. It trains a generator $G(y, \epsilon)$
# of *features* that they together take for class $y$,
#
# $$
# \min_G \; \mathbb{E}_{y, \epsilon} \; \ell\Bigl(\sigma\Bigl(\sum_k \omega_{k,y} \, g_k(z)\Bigr), y\Bigr) , \qquad
# z = G(y, \epsilon) ,
# $$ (eq:base-fedgen)
#
# and sends it out. Clients train their own last layer on features of classes that they lack. The paper weights all
# clients alike, $\omega = 1/K$; its code weights them by their share of the class, which is the default here: a client
# without the class has nothing to say on it.

# %%
source(server.ensemble_cross_entropy)


# %%
@torch.no_grad()
def recognised(state, samples=50):
    """Of generated features, how many the global model takes for the wanted
    class, in percent.
    """
    generator = (
        lesson.experiment("fedgen")
        .new_algorithm()
        .generator(task, state.tensors)
        .eval()
    )
    device = task.runtime.device
    wanted = torch.arange(
        task.dataset.num_classes, device=device
    ).repeat_interleave(samples)
    draws = Rng(seed).at("look").generator(device)
    noise = torch.randn(
        len(wanted), generator.noise, generator=draws, device=device
    )
    taken = (
        task.model_from(state.tensors)
        .eval()
        .classifier(generator(noise, wanted))
        .argmax(1)
    )
    return 100 * (taken == wanted).float().mean().item()


seen = [
    {"round": number, "share": recognised(state), "label": "FedGen"}
    for number, state in enumerate(runs["fedgen"].states, 1)
]
show(
    lines(
        pd.DataFrame(seen),
        "round",
        "share",
        xlabel="communication round",
        ylabel="seen as wanted (%)",
        title="Generated features in the global model",
    )
)

# %% [markdown]
# The generator learns from the clients, and they learn from it. In early rounds the clients know little, and features
# that agree with them are no features of real images: FedGen may start slower than FedAvg.
#
# ## FedGAN: generated images
#
# Every client trains a generator $G$ and a discriminator $D$ on its own images; the server averages both as it
# averages the classifier. With the class known to both,
#
# $$
# \begin{aligned}
# L_D &= -\,\mathbb{E} \log D(x \mid y) - \mathbb{E} \log\bigl(1 - D(G(z, y) \mid y)\bigr), \\
# L_G &= -\,\mathbb{E} \log D(G(z, y) \mid y).
# \end{aligned}
# $$ (eq:base-gan)
#
# From the second round on a client adds images of *all* classes from the averaged generator to its own.

# %%
source(fedgan.adversarial_losses)

# %%
method = lesson.experiment("fedgan").new_algorithm()
generator = method.generator(task, runs["fedgan"].state.tensors)
images, labels = fedgan.draw(
    task, generator, 10 * task.dataset.num_classes, Rng(seed).at("draw")
)
show(
    condensed_images(
        images,
        labels,
        task.dataset.classes,
        columns=8,
        title=f"Images of FedGAN's generator after {rounds} rounds",
    )
)

# %% [markdown]
# A generator needs thousands of steps. In ten rounds it has few, and until then its images are wrong examples. This is
# the price of ten rounds, and not a fault of the method.
#
# ## FedMix: mixing with averages
#
# Mixup trains on mixtures of two images. Of another client's image a client may only know an average $\bar x$ of
# several, with the average $\bar y$ of their labels. So FedMix mixes $x$ with $\bar x$, to first order in $\lambda$:
#
# $$
# \ell_{mix} = (1 - \lambda) \, \ell(\tilde x, y) + \lambda \, \ell(\tilde x, \bar y)
# + \lambda \, \frac{\partial}{\partial \tilde x} \bigl[(1 - \lambda) \, \ell(\tilde x, y)\bigr] \cdot \bar x ,
# \qquad \tilde x = (1 - \lambda) x .
# $$ (eq:base-fedmix)
#
# The averages are sent once, before training.

# %%
source(fedmix.mixup_loss)

# %% [markdown]
# How good is the first order? We compare with the true mixture, for several averages. For small $\lambda$ the error
# falls like $\lambda$ without the last term, and like $\lambda^2$ with it.

# %%
last = runs["fedmix"].state
network = task.model_from(last.tensors).double().eval()
client = largest
x, y = task.inputs(client.images[:32]).double(), client.labels[:32]
means, shares = (part[:10] for part in fedmix.kept(last.tensors))
averages = list(
    zip(
        task.inputs(means).double().split(1),
        shares.double().split(1),
        strict=True,
    )
)


def errors(share, x_g, y_g):
    mixed = network((1 - share) * x + share * x_g)
    true = (1 - share) * F.cross_entropy(mixed, y) + share * F.cross_entropy(
        mixed, y_g.expand(len(y), -1)
    )
    with_term, without = (
        fedmix.mixup_loss(network, F.cross_entropy, x, y, other, y_g, share)
        for other in (x_g, torch.zeros_like(x_g))
    )
    return {
        "with the derivative": (with_term - true).abs().item(),
        "without it": (without - true).abs().item(),
    }


gaps = pd.DataFrame(
    [
        {"share": share, "error": value, "label": label}
        for share in (0.01, 0.02, 0.05, 0.1, 0.2)
        for x_g, y_g in averages
        for label, value in errors(share, x_g, y_g).items()
    ]
)
means = gaps.groupby(["label", "share"], as_index=False)["error"].mean()
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
# ## DFRD: distilling without data
#
# The server keeps all models of the round and plays a game with images from a generator. The images $s$ shall look
# like their class $y$ to the ensemble (fidelity), lie where the ensemble is right and the global model $f$ is wrong
# (transferability), and differ (diversity). Then $f$ learns from the ensemble on them:
#
# $$
# \begin{aligned}
# L_{gen} &= \mathrm{CE}\Bigl(\sum_i \tau_{i,y} f_i(s), y\Bigr) + \beta_{tran} L_{tran} + \beta_{div} L_{div}, \\
# L_{md} &= \mathrm{KL}\Bigl(f(s), \sum_i \tau_{i,y} f_i(s)\Bigr)
# + \alpha \, \mathrm{KL}\Bigl(f(\tilde s), \sum_i \tau_{i,\tilde y} f_i(\tilde s)\Bigr) .
# \end{aligned}
# $$ (eq:base-dfrd)
#
# $\tau_{i,y}$ is the share of client $i$ in the samples of class $y$, and $\tilde s$ comes from a moving average of
# the generator, so that old lessons are not forgotten. $\mathrm{KL}(a, b)$ is $\sum b \log(b / a)$ here, as in the
# authors' code: the student learns from the ensemble.

# %%
source(dfrd.DFRD.generator_loss)

# %%
source(dfrd.DFRD.student_loss)

# %% [markdown]
# The diversity loss is printed as $\exp(-\frac{1}{Q^2} \sum_{i,j} \lVert s_i - s_j \rVert \, \lVert h_i - h_j \rVert)$,
# $h$ being what enters the generator. We compute it for random images of growing side:

# %%
sides, merged = (
    (2, 3, 4, 6, 8, 12, 16),
    torch.randn(64, 64, generator=Rng(seed).at("h").generator()),
)
pictures = {
    side: torch.rand(
        64,
        task.dataset.channels,
        side,
        side,
        generator=Rng(seed).at("s", side).generator(),
    )
    for side in sides
}
values = [
    {
        "side": side,
        "loss": dfrd.diversity_loss(pictures[side], merged, kind).item(),
        "label": label,
    }
    for side in sides
    for kind, label in (
        ("norm", "2-norm, as printed"),
        ("mean_square", "mean square, here"),
    )
]
show(
    lines(
        pd.DataFrame(values),
        "side",
        "loss",
        xlabel="side of the image (pixels)",
        ylabel="diversity loss",
        log="y",
        title="DFRD's diversity loss of random images",
    )
)

# %% [markdown]
# The norm grows with the number of pixels. A loss that is zero everywhere has no gradient, so the default is the mean
# of squared differences, as in the code of the authors' next paper; `distance: norm` is the printed form.
#
# ## FedDM: send images, not models
#
# FedDM is the nearest relative of FedVCK. A client condenses images $S_c$ of every class whose mean features and
# logits match those of its data ({eq}`eq:dc-means`), not at the global model alone but at weights around it,
#
# $$
# w = w_t + \min\Bigl(1, \frac{\rho}{\lVert g \rVert}\Bigr) g, \qquad g \sim \mathcal{N}(0, I) ,
# $$ (eq:base-feddm)
#
# so that the images remain useful while the server moves. The server trains the global model on the images of this
# round.

# %%
source(feddm.disturbance)

# %%
method, client = lesson.experiment("feddm").new_algorithm(), largest
answer = method.client_update(
    client, method.broadcast(runs["feddm"].state, client.id), Rng(seed)
)
show(
    condensed_images(
        answer.tensors["images"],
        answer.tensors["labels"].long(),
        task.dataset.classes,
        columns=5,
        title="What FedDM's largest client uploads",
    )
)

# %% [markdown]
# There is no FedAvg in FedDM: nothing is averaged. What it lacks beside FedVCK are the latent constraints, the
# selection, the contrastive loss and the images of earlier rounds; the [ablations](12_fedvck_ablations) take off the
# first three.
#
# ## DESA: common anchors
#
# Before training every client condenses a few images per class, once, at random networks. Averaged over the clients
# they are anchors $D_{syn}$ that everybody has. A client then minimises
#
# $$
# L = L_{CE}(D_i \cup D_{syn}) + \lambda_{REG} L_{REG}(D_i, D_{syn})
# + \lambda_{KD} T^2 \, \mathrm{KL}\bigl(Z_i \,\Vert\, f_i(D_{syn})\bigr) .
# $$ (eq:base-desa)
#
# $L_{REG}$ pulls features of a class towards those of its anchors. $Z_i$ is what the *other* clients' models say of
# the anchors. DESA's paper has no server; FedVCK's comparison has a global model, so models are averaged here.

# %%
source(desa.DESA.objective)

# %%
anchors = desa.anchors(runs["desa"].state)
show(
    condensed_images(
        anchors["anchors/images"],
        anchors["anchors/labels"].long(),
        task.dataset.classes,
        title="The anchors that all clients share",
    )
)

# %% [markdown]
# An anchor is an average over clients, pixel by pixel, of images that were condensed apart: it is greyer where a class
# has several owners. So few iterations leave much of the noise that the images start from.
#
# ## Each is FedAvg when its own term is off
#
# This is a strong test of a baseline: whatever makes a difference is the method's own term, and nothing else. The same
# seed must give the same weights, bit for bit. MOON goes without its head here, and FedDM has no FedAvg inside.

# %%
switched_off = {
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0, "projection": 0},
    "fedgen": {"alpha": 0.0, "beta": 0.0},
    "fedgan": {"share": 0.0},
    "fedmix": {"mixup": 0.0},
    "dfrd": {"iterations": 0},
    "desa": {"learn_anchors": False, "reg": 0.0, "kd": 0.0},
}


short = lesson.but(rounds=2)


def weights(name, **settings):
    """The global model after two short rounds."""
    state = short.run(name, local_steps=2, **settings).state
    return tensors.weights(state.tensors)


plain = weights("fedavg")
rows = {}
for name, off in switched_off.items():
    reduced = weights(name, **off)
    gap = max(
        (reduced[key].double() - plain[key].double()).abs().max().item()
        for key in plain
    )
    rows[method_name(name)] = {
        "switched off": ", ".join(
            f"{key} {value}" for key, value in off.items()
        ),
        "largest difference to FedAvg": gap,
    }
pd.DataFrame(rows).T

# %% [markdown]
# ## What crosses the network
#
# From the ledger: bytes of a round by direction and kind, over all clients, the mean over the rounds.

# %%
bytes_by_kind({method_name(name): run.record for name, run in runs.items()}).T

# %% [markdown]
# Some things are sent once. The first round beside the last, in kB:

# %%
each = {
    method_name(name): {
        (way, label): run.record.rounds[row][way] / 1000
        for way in ("up", "down")
        for label, row in (("first", 0), ("last", -1))
    }
    for name, run in runs.items()
}
pd.DataFrame(each).T.round(1)

# %% [markdown]
# FedMix and DESA exchange averages and anchors before the first round; FedGen's generator comes down from the second
# round on. FedGAN multiplies every message. [What is sent](14_fedvck_communication) compares such numbers with
# FedVCK's Tables 5, 9 and 10.
#
# ### Accuracy against MB
#
# All methods in one picture, both directions counted, on a logarithmic axis:


# %%
def against_traffic(found, title):
    figure = curves(found, x="megabytes", title=title)
    figure.axes[0].set_xscale("log")
    return figure


show(
    against_traffic(
        [run.record for run in runs.values()],
        f"{dataset}, alpha = {alpha:g}, one seed",
    )
)

# %% [markdown]
# On such tiny images and with such a small network this picture is only a picture. The same from records, for every
# column of Tables 3 and 11 where at least three methods are measured:

# %%
measured = pd.concat(
    table_runs("fedvck", number).assign(table=number) for number in (3, 11)
)
columns = {
    key: list(of.drop_duplicates("id")["record"])
    for key, of in measured.groupby(["table", "column", "profile"], sort=False)
}
full = {
    key: found
    for key, found in columns.items()
    if len({record.experiment.algorithm for record in found}) >= 3
}
for (number, column, level), found in full.items():
    show(against_traffic(found, f"Table {number}, {column}, profile {level}"))
drawn = {key[:2] for key in full}
every = sum(len(TableSpec.find("fedvck", n).columns) for n in (3, 11))
Markdown(f"{len(drawn)} of {every} columns have three methods or more so far.")

# %% [markdown]
# Read such a figure in two ways. Along a vertical line: what does each method reach for the same traffic? Along a
# horizontal one: what does the same accuracy cost? Images go up in FedDM and FedVCK, but a model comes down in all.
#
# ## Tables 3 and 11
#
# The paper's comparison within ten rounds. Pending cells are runs that nobody has done yet.

# %%
table("fedvck", 3, best)

# %%
table("fedvck", 11, best)

# %% [markdown]
# How often is the order of two methods that of the paper?

# %%
summary = {}
for number in (3, 11):
    frame = table_frame("fedvck", number, best)
    both = frame.dropna(subset=["printed", "measured"])
    pairs = both.merge(both, on="column").query(
        "row_x < row_y and printed_x != printed_y"
    )
    same = (pairs["printed_x"] > pairs["printed_y"]) == (
        pairs["measured_x"] > pairs["measured_y"]
    )
    first = (
        both.loc[both.groupby("column")["measured"].idxmax()]
        if len(both)
        else both
    )
    summary[f"Table {number}"] = {
        "cells printed": int(frame["printed"].notna().sum()),
        "of them measured": len(both),
        "pairs of methods": len(pairs),
        "ordered as printed": int(same.sum()),
        "columns with two methods or more": int(
            (both.groupby("column").size() > 1).sum()
        ),
        "of them FedVCK first": int(
            first[first["column"].isin(pairs["column"])]["row"]
            .eq("FedVCK")
            .sum()
        ),
    }
pd.DataFrame(summary).T

# %% [markdown]
# ## Out of memory
#
# Some cells of Tables 2 and 3 are printed as OOM:

# %%
known, out = records(), []
for number in (2, 3):
    level = table_frame("fedvck", number, best)["profile"].iat[0]
    for cell in TableSpec.find("fedvck", number).cells(level):
        if cell.published and cell.published.text == "OOM":
            found = [
                known[run_.id] for run_ in cell.experiments if run_.id in known
            ]
            out.append(
                {
                    "table": number,
                    "method": cell.row,
                    "column": cell.column,
                    "printed": cell.published.text,
                    "data here": cell.experiments[0].dataset,
                    "profile": level,
                    "peak (GiB)": max(
                        (record.peak_memory for record in found), default=0
                    )
                    / 2**30
                    or None,
                    "accuracy (%)": pd.Series(
                        [100 * r.metrics["accuracy"] for r in found],
                        dtype=float,
                    ).mean(),
                }
            )
numbers = {"peak (GiB)": float, "accuracy (%)": float}
styler = (
    pd.DataFrame(out)
    .set_index(["table", "method", "column"])
    .astype(numbers)
    .style
)
styler.format(
    "{:.2f}", na_rep="pending", subset=list(numbers)
).set_table_attributes('class="dataframe"')

# %% [markdown]
# All are images of 224 pixels with a ResNet-18. For training, the maps of all layers are kept until the gradient is
# computed, and maps grow with the square of the side. We add up the outputs of all layers for a batch of 64, without
# computing them (PyTorch's `meta` device has shapes only):


# %%
def maps(network, *inputs):
    """GiB of the outputs of all layers in float32."""
    total = []
    for layer in network.modules():
        if not list(layer.children()):
            layer.register_forward_hook(
                lambda _, __, output: total.append(output.numel())
            )
    network(*inputs)
    return 4 * sum(total) / 2**30


def demand(size, kind):
    batch, wide = 64, {"device": "meta"}
    classifier = models.build(kind, 1, size, 11, Rng(0)).to("meta")
    gan, game = (
        apply("paper", {"algorithm": name, "dataset": dataset})
        .new_algorithm()
        .settings
        for name in ("fedgan", "dfrd")
    )
    with torch.device("meta"):
        generator = models.ImageGenerator(
            1, size, noise=gan.noise, width=gan.generator_width
        )
        judge = models.PatchDiscriminator(12, width=gan.discriminator_width)
        maker = models.ImageGenerator(
            1, size, noise=game.noise, width=game.generator_width
        )
    one = maps(classifier, torch.empty(batch, 1, size, size, **wide))
    return {
        "network": kind,
        "a model": one,
        "FedGAN: G and D": maps(
            generator, torch.empty(batch, gan.noise, **wide)
        )
        + maps(judge, torch.empty(2 * batch, 12, size, size, **wide)),
        "DFRD: G, ten clients, the global model": maps(
            maker, torch.empty(batch, game.noise, **wide)
        )
        + 11 * one,
    }


pd.DataFrame(
    {
        f"{size} pixels": demand(size, kind)
        for size, kind in ((28, "convnet"), (64, "convnet"), (224, "resnet18"))
    }
).T

# %% [markdown]
# DFRD's generator needs the gradient through all clients' models at once; FedGAN keeps a generator and a wide
# discriminator at full size. Weights, gradients and the workspace of convolutions come on top. The paper ran everything
# on a GeForce RTX 3090 (appendix), which has 24 GB, and gives the same two reasons. One cell is odd: FedGAN is OOM on
# OrganC and not on Pneumonia, though a batch of one is as large as a batch of the other. What differs is the number of
# classes and of images.
#
# Whether a method fits depends on the machine, the batch and the program. So OOM is a fact about a machine, and no
# result to reproduce.
#
# What our runs took at most, where records have it (of the whole process on a CPU, data set and program included; of
# tensors on a GPU), in GiB:

# %%
peaks = pd.DataFrame(
    [
        {
            "method": method_name(record.experiment.algorithm),
            "data": record.experiment.dataset,
            "profile": record.experiment.profile,
            "device": record.environment.get("device", ""),
            "GiB": record.peak_memory / 2**30,
        }
        for record in known.values()
        if record.peak_memory and record.experiment.algorithm in runs
    ],
    columns=["method", "data", "profile", "device", "GiB"],
)
peaks.groupby(["data", "profile", "device", "method"])["GiB"].agg(
    ["max", "size"]
).round(2).set_axis(["GiB at most", "runs"], axis=1)

# %% [markdown]
# ## Where papers and code differ
#
# Each file in `core/algorithms` opens with what its paper leaves open and what was chosen. The larger ones:
#
# - MOON's head (above). FedGen's weights and two terms that stand in its code only.
# - FedMix: two public programs average twice over the batch, so that their derivative term is too small by the size of
#   the batch. The figure above would show it: the error would fall like $\lambda$.
# - FedGAN: two papers, no code. FedVCK's Tables 5 and 9 fix the size of generator and discriminator, not their form.
# - DFRD: the diversity loss (above). DESA: a server was added, because the comparison has one.
#
# ## Take away
#
# - Seven of the nine methods are FedAvg plus one term, and become FedAvg when it is off.
# - The terms act on weights (FedProx), features (MOON, FedGen, DESA), data (FedGAN, FedMix) or on the server (DFRD).
#   FedDM and FedVCK replace the upload itself.
# - Generators need many steps; within ten rounds they have few.
# - What a method sends belongs beside its accuracy. OOM belongs to a machine.
#
# ## Exercises
#
# ```{exercise} Break one
# :label: ex-base-break
#
# *Medium, 30 minutes.*
#
# Choose a method, say before you run it at which `alpha` it will fall behind FedAvg or down to chance, and why. Then
# raise heterogeneity: `alpha` of 10, 0.5 and 0.02.
# ```
#
# ````{solution} ex-base-break
# :class: dropdown
#
# ```python
# for name in ("fedavg", "moon", "fedgen", "dfrd"):
#     print(name, [round(lesson.but(alpha=a).run(name).accuracy, 1)
#                  for a in (10, 0.5, 0.02)])
# ```
#
# When we tried this, with the defaults, all four were worse at 0.02 than at 0.5, and FedGen and DFRD fell far below
# FedAvg. A likely reason is the ensemble that teaches them: at 0.02 a class has few owners, and an owner of a single
# class takes *anything* for its class. A generator that asks it reaches its goal with any image or feature, and the
# lesson is empty.
# FedVCK's paper speaks of a vicious circle of poor synthesis and a poor global model (its text on Table 2). One seed
# is one draw of clients: repeat with others before you believe an order.
# ````
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
# for size in (5, 2):
#     run = lesson.but(rounds=1).run("fedmix", mean_batch=size)
#     means, shares = fedmix.kept(run.state.tensors)
#     show(condensed_images(means, shares.argmax(1)))
# ```
#
# With two images both can often be seen. Where a class has little variety, an average of many looks like every one of
# them. And a client with fewer images than `mean_batch` sends the average of what it has.
# ````
#
# ```{exercise} Why the printed form is zero
# :label: ex-base-norm
#
# *Medium, 20 minutes.*
#
# Let the pixels of $s$ be uniform in $[0, 1]$, $d$ in number, and let the 64 numbers of $h$ have variance 1. How large
# is the exponent of DFRD's printed diversity loss for $28 \times 28$ pixels?
# ```
#
# ```{solution} ex-base-norm
# :class: dropdown
#
# The difference of two uniform numbers has mean square $1/6$, that of two numbers of variance 1 has $2$. So
# $\lVert s_i - s_j \rVert \approx \sqrt{d / 6} = \sqrt{784 / 6} \approx 11$ and $\lVert h_i - h_j \rVert \approx
# \sqrt{128} \approx 11$. The exponent is near $-129$, and $e^{-129}$ is smaller than any float32. With means of squares
# it is $-\frac{1}{6} \cdot 2$, whatever the size.
# ```
#
# ```{exercise} The same traffic
# :label: ex-base-traffic
#
# *Easy, 15 minutes.*
#
# How many rounds of every other method fit into the traffic of one round of FedGAN? What follows for a comparison at
# ten rounds each?
# ```
#
# ````{solution} ex-base-traffic
# :class: dropdown
#
# ```python
# cost = {name: run.results[-1].up + run.results[-1].down for name, run in runs.items()}
# pd.Series({method_name(name): cost["fedgan"] / size for name, size in cost.items()}).round(1)
# ```
#
# A comparison at equal rounds favours methods that send much in a round. One at equal traffic favours those that send
# little. The figure of accuracy against MB shows both.
# ````
