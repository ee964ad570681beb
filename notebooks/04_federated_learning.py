# %% [markdown]
# # Federated learning
#
# *Question:* why is it harder to train one model on many clients than on one machine, and what do the classic methods
# do about it?\
# *Time:* about half a minute on two CPU cores. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# $K$ clients have data that differ. A server wants one model that is good on all of them, and may not see the data.
# So the clients train, the server combines, and both repeat. You will see
#
# - the goal, the split and the round as equations;
# - why clients that differ pull the model apart, and three classic remedies;
# - how far these are from training on all data, and what they send.

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
alpha = 0.05
clients = 10
rounds = 5
seed = 0
profile = "quick"
shown = "laptop"

# %%
import pandas as pd
import torch

import lab
from core import algorithms, federation
from core.data import partition
from core.rng import Rng
from lab.report import curves, lines, partition_plot, show, source, table
from lab.report.lesson import Lesson

# what all runs of this page share: `lesson.run(method)` is one of them, and
# `lesson.changed(alpha=1.0)` is the same with another split
lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    model_options={"depth": 2, "width": 16},
    settings={"local_steps": 10, "lr": 0.05, "batch_size": 32},
)
task = lesson.task

# %% [markdown] tags=["slide"]
# ## The goal
#
# Client $k$ holds $n_k$ of all $N$ samples. With its mean loss $F_k$, the goal is
#
# $$
# \begin{aligned}
# &\min_w F(w), \qquad F(w) = \sum_{k=1}^{K} \frac{n_k}{N} F_k(w), \\
# &F_k(w) = \frac{1}{n_k} \sum_{(x, y) \in \mathcal{T}_k} \ell\bigl(f_w(x), y\bigr).
# \end{aligned}
# $$ (eq:fl-goal)

# %% [markdown]
# Here $\mathcal{T}_k$ are the images of client $k$ with their labels, $f_w$ is the network with weights $w$, and $\ell$
# the cross-entropy. $F$ is the loss on all data together, which nobody can compute alone. Below, $C$ is the number of
# classes, $R$ that of rounds, $\eta$ a learning rate, $m$ a momentum ([notation](../book/reference)).

# %% [markdown] tags=["slide"]
# ## Clients that differ
#
# Real hospitals see different diseases. Experiments imitate this with a Dirichlet distribution
# {cite:p}`dirichletsplit`: for each class $c$, shares of the $K$ clients are drawn,
#
# $$
# (q_{1,c}, \dots, q_{K,c}) \sim \mathrm{Dir}(\alpha, \dots, \alpha),
# $$ (eq:fl-dirichlet)
#
# and client $k$ gets the share $q_{k,c}$ of the samples of class $c$. A large $\alpha$ gives nearly equal shares;
# with a small one a few clients own a class.

# %% tags=["slide"]
labels, classes = task.dataset.train.labels, task.dataset.classes
for value in (100.0, alpha):
    parts = partition.dirichlet(labels, clients, value, seed)
    show(partition_plot(labels, parts, classes, title=f"alpha = {value:g}"))

# %% [markdown] tags=["slide"]
# ## Federated averaging
#
# FedAvg {cite:p}`fedavg` sends the model $w_t$ to the clients. From $w^k = w_t$ each takes some steps of SGD on its own
# $F_k$, $w^k \leftarrow w^k - \eta \, g_k(w^k)$, where $g_k$ is the gradient of a batch (here with momentum). The
# result is $w^k_{t+1}$.

# %%
source(algorithms.find("fedavg").local_update)

# %% [markdown] tags=["slide"]
# The server averages what comes back, weighted by numbers of samples:
#
# $$
# w_{t+1} = \sum_{k=1}^{K} \frac{n_k}{N} \, w^k_{t+1}.
# $$ (eq:fl-average)

# %% [markdown]
# The running means and variances of batch normalisation are averaged as well, though they are no parameters. A round is
# the same for most methods, so it is written once: every message passes a ledger that counts its bytes, and every upload
# is validated before the server uses it.

# %%
source(federation.Algorithm.round)

# %% [markdown] tags=["slide"]
# ## Client drift
#
# Each client walks towards the minimum of its own $F_k$. When clients differ they walk apart. By how much? Let all take
# one round from the same start. The drift is the mean distance between their models and the plain mean
# $\bar w = \frac{1}{K} \sum_k w^k$, relative to the distance they went,
#
# $$
# \mathrm{drift} = \frac{\sum_k \lVert w^k - \bar w \rVert}{\sum_k \lVert w^k - w_t \rVert}.
# $$ (eq:fl-drift)

# %% [markdown]
# It is 0 when all take the same step. When all go equally far at right angles to each other, it is $\sqrt{1 - 1/K}$.


# %%
def one_round(plan):
    """The server's state, the model that it sends, the uploads."""
    members, rng = lab.make_clients(plan, task), Rng(plan.seed)
    algorithm = plan.new_algorithm()
    state = algorithm.initialise(task, rng.at("initialise"))
    sent = {
        client.id: algorithm.broadcast(state, client.id) for client in members
    }
    uploads = algorithm.at_clients(
        "client_update", members, sent, rng.at("round", 1, "client")
    )
    return state, sent[0], uploads


def vector(message):
    """The parameters in a message, one after the other (D,)."""
    return torch.cat(
        [
            value.flatten()
            for name, value in message.tensors.items()
            if name.startswith("parameters/")
        ]
    )


def drift_and_distance(plan):
    _, sent, uploads = one_round(plan)
    start = vector(sent)
    models = torch.stack([vector(upload) for upload in uploads.values()])
    apart = (models - models.mean(0)).norm(dim=1)
    gone = (models - start).norm(dim=1)
    return (apart.sum() / gone.sum()).item(), gone.mean().item()


# %% tags=["slide"]
rows = []
for value in (0.05, 0.3, 1.0, 10.0, 100.0):
    plan = lesson.changed(alpha=value).experiment(local_steps=2)
    rows.append((value, drift_and_distance(plan)[0], "two local steps"))
frame = pd.DataFrame(rows, columns=["alpha", "drift", "label"])
show(
    lines(frame, "alpha", "drift", log="x", title="Drift after two local steps")
)

# %% [markdown]
# The smaller $\alpha$, the less the clients agree. Even at $\alpha = 100$ the models are apart: clients have few images
# and draw different batches.

# %% [markdown] tags=["slide"]
# ## Three remedies
#
# **FedProx** {cite:p}`fedprox` ties each client to the model that it received. It minimises
#
# $$
# h_k(w; w_t) = F_k(w) + \frac{\mu}{2} \lVert w - w_t \rVert^2 .
# $$ (eq:fl-prox)

# %%
source(algorithms.find("fedprox").loss)

# %% [markdown] tags=["slide"]
# **SCAFFOLD** {cite:p}`scaffold` estimates the drift and takes it out. Every client has a *control variate* $u_k$, its
# mean gradient of the last time, the server $u$, their mean. Every local step is corrected by the difference (the paper
# writes $y_i$ for $w^k$, $c_i$ for $u_k$ and $c$ for $u$):
#
# $$
# w^k \leftarrow w^k - \eta \, (g_k(w^k) - u_k + u).
# $$ (eq:fl-scaffold)

# %% [markdown]
# The server sends $u$ beside the model and a client sends back the change of its $u_k$, so a round costs twice as much.
# The correction is the gradient of a linear term.

# %% [markdown] tags=["slide"]
# **FedAvgM** {cite:p}`fedavgm` leaves the clients alone. Its server follows the averaged change $\Delta_t =
# \sum_k \frac{n_k}{N} w^k_{t+1} - w_t$ with momentum, so that what differs from round to round cancels (the paper turns
# the sign and writes $\beta$ for $m$):
#
# $$
# v_{t+1} = m \, v_t + \Delta_t, \qquad w_{t+1} = w_t + v_{t+1}.
# $$ (eq:fl-momentum)

# %% [markdown]
# Two more methods frame these. *Centralized* has all data in one place and takes as many steps as all clients together:
# the ceiling. *Standalone* lets every client train alone and sends nothing: what a method gains above it, it owes to the
# others.


# %% tags=["slide"]
runs = [
    lesson.run("centralized"),
    lesson.run("standalone"),
    lesson.run("fedavg"),
    lesson.run("fedprox", mu=0.1),
    lesson.run("scaffold"),
    lesson.run("fedavgm", server_momentum=0.7),
]
show(curves([run.record for run in runs], title=lesson.title))

# %% [markdown]
# One seed and few rounds say nothing about the order of the methods. SCAFFOLD takes plain SGD, as its paper does, the
# others have momentum in their local steps; all have one learning rate, which does not suit them equally well.
#
# ## On real data
#
# The same six methods on PneumoniaMNIST, MNIST and CIFAR-10, with ten clients that differ as much, three seeds and a
# small budget. FedAvg, FedProx and SCAFFOLD have learning rates [chosen on validation data](10_verdicts); the others were
# not tuned, so the table does not rank FedAvgM.

# %%
table("reference", 1, shown)

# %% [markdown]
# The gap to *Centralized* is the price of keeping the data apart. `fedcon run --cell
# reference/1/FedAvg/cifar10-0.05 --profile paper` runs a cell at full budget.

# %% [markdown] tags=["slide"]
# ## What travels
#
# In FedAvg every client receives and sends the model in every round. With $|w|$ numbers of 4 bytes,
#
# $$
# \text{bytes} = 2 \cdot R \cdot K \cdot 4\,|w| .
# $$ (eq:fl-bytes)

# %% [markdown]
# The cost does not depend on how much a client has learned. This is where the papers of this book come in: they send
# [condensed images](05_dataset_condensation) or [predictions](06_knowledge_distillation) in place of the model, and hope
# to need fewer rounds. [Bytes](08_communication) compares what each of them sends with what the ledger counts.
#
# ## A client that lies
#
# `core.federation.validation` refuses uploads that cannot be honest, such as numbers that are not finite. What passes may
# still be hostile: one client may send the opposite of what it has learnt, ten times as long.
#
# In place of the mean {eq}`eq:fl-average` the server may take, of each number, the median over the clients, or the mean
# without the largest and the smallest tenth {cite:p}`byzantinerobust`. Or it cuts each update $\Delta_k = w^k - w_t$ to
# the median length $M$ before it takes the mean {cite:p}`normclipping`:
#
# $$
# \Delta_k \leftarrow \Delta_k \, \min\bigl(1, M / \lVert \Delta_k \rVert\bigr), \qquad
# M = \operatorname*{median}_j \lVert \Delta_j \rVert .
# $$ (eq:robust-clip)
#
# Such rules bound what one client can do. They also bound what an honest client with rare classes can say: it looks
# like a liar, and is left out like one. An exercise measures it.

# %% [markdown] tags=["slide"]
# ## Take away
#
# - Clients whose data differ drift apart, and the average of good models need not be good.
# - FedProx holds clients back, FedAvgM smooths the server; both send as much as FedAvg. SCAFFOLD corrects each step
#   and sends twice as much.
# - *Centralized* and *Standalone* say how much there is to win.

# %% [markdown]
# ## Exercises
#
# ```{exercise} One step
# :label: ex-fl-one-step
#
# *Medium, 15 minutes.*
#
# Let every client take one full-batch gradient step with rate $\eta$, without momentum. Show that FedAvg is then
# gradient descent on $F$. Where does the argument fail for two steps?
# ```
#
# ```{solution} ex-fl-one-step
# :class: dropdown
#
# $w^k = w_t - \eta \nabla F_k(w_t)$, so $\sum_k \frac{n_k}{N} w^k = w_t - \eta \sum_k \frac{n_k}{N} \nabla F_k(w_t) =
# w_t - \eta \nabla F(w_t)$. For the second step each client's gradient is taken at its own $w^k$, no longer at a
# common point. The average of gradients at different points is not a gradient of $F$.
# ```
#
# ```{exercise} More local work
# :label: ex-fl-steps
#
# *Easy, 15 minutes.*
#
# Measure the drift for `local_steps` of 1, 10 and 50, and how far the clients go. Which of the two grows with local
# work?
# ```
#
# ````{solution} ex-fl-steps
# :class: dropdown
#
# ```python
# for steps in (1, 10, 50):
#     print(steps, drift_and_distance(lesson.experiment(local_steps=steps)))
# ```
#
# At an alpha of 0.05 the drift hardly changes: already with the first batch clients point in different directions,
# because their batches hold different classes. What grows is the distance. More local work saves rounds while the clients
# still agree on where to go, and with small $\alpha$ they agree on little.
# ````
#
# ```{exercise} The price of a round
# :label: ex-fl-bytes
#
# *Easy, 10 minutes.*
#
# A ConvNet has about $3.2 \cdot 10^5$ parameters, 10 clients take part. How many MB go up per round? FedVCK
# reports about 12.2 MB for four data sets (Table 9). What must one MB be? (To be checked: `bytes_per_mb`.)
# ```
#
# ```{solution} ex-fl-bytes
# :class: dropdown
#
# $10 \cdot 4 \cdot 3.2 \cdot 10^5 = 12.8 \cdot 10^6$ bytes. With $10^6$ bytes to the MB this is 12.8 MB; with
# $2^{20}$ it is 12.2 MB. So the paper's MB are $2^{20}$ bytes, and so are ours.
# ```

# %% tags=["solution", "remove-cell"]
bytes_per_mb = 2**20

# %% name="ex-fl-bytes" tags=["check", "remove-cell"]
sent = 10 * 4 * 3.2e5
assert abs(sent / bytes_per_mb - 12.2) < 0.05, (
    "a network of this size must come to about 12.2 MB a round"
)

# %% [markdown]
# ```{exercise} One poisoner
# :label: ex-robust-rules
#
# *Medium, 25 minutes.*
#
# Take the uploads of one round, reverse the update of the client with the most samples and make it ten times as long.
# How good is the next model by each rule of `core.server.aggregation.RULES`, with and without the poisoner? Compare
# $\alpha = 10$ with $\alpha = 0.05$.
# ```
#
# ````{solution} ex-robust-rules
# :class: dropdown
#
# ```python
# from core.federation import Message
# from core.server.aggregation import RULES
#
#
# def by_rule(alpha):
#     plan = lesson.changed(alpha=alpha).experiment
#     state, sent, honest = one_round(plan(local_steps=40))
#     liar = max(honest, key=lambda k: honest[k].meta["samples"])
#     turned = {
#         name: sent.tensors[name] - 10 * (value - sent.tensors[name])
#         for name, value in honest[liar].tensors.items()
#         if name.startswith("parameters/")
#     }
#     lie = Message(honest[liar].tensors | turned, honest[liar].meta)
#     rows = {}
#     for rule in RULES:
#         method = plan(aggregation=rule).new_algorithm()
#         for who, uploads in {"honest": honest, "lie": honest | {liar: lie}}.items():
#             model = method.model(method.server_update(state, uploads, Rng(seed)))
#             accuracy = 100 * task.evaluate(model)["accuracy"]
#             rows.setdefault(who, {})[rule] = accuracy
#     return pd.DataFrame(rows)
#
#
# by_rule(10.0), by_rule(0.05)
# ```
#
# Where clients are alike the mean suffers from the lie and the other rules hardly do. Where clients differ the median and
# the trimmed mean cost accuracy though all are honest. Try other seeds, for one run is one draw of clients.
# ````
#
# ```{exercise} How long may a lie be?
# :label: ex-robust-lie
#
# *Medium, 15 minutes.*
#
# Of $K$ clients with equal numbers of samples, $K - 1$ send the update $\Delta$ and one sends $-a \Delta$, with $a > 1$.
# From which $a$ on does the mean move away from what the honest want? And what does {eq}`eq:robust-clip` make of the
# lie? (To be checked: `least_lie` for $K = 10$, and `kept_share`, how much of $\Delta$ is left by clipping there.)
# ```
#
# ````{solution} ex-robust-lie
# :class: dropdown
#
# The mean is $\frac{K - 1 - a}{K} \Delta$: it turns round at $a = K - 1$, for ten clients at nine. With clipping $M$ is
# $\lVert \Delta \rVert$, the lie becomes $-\Delta$, and $\frac{K - 2}{K}$ of $\Delta$ is left, eight tenths, however
# long the lie is.
# ````

# %% tags=["solution", "remove-cell"]
least_lie = 10 - 1
kept_share = (10 - 2) / 10

# %% name="ex-robust-lie" tags=["check", "remove-cell"]
from core.server import Aggregation, combined

zero = {"w": torch.zeros(1, dtype=torch.float64)}


def left(lie, rule):
    sent = [{"w": torch.ones(1).double()} for _ in range(9)]
    sent.append({"w": torch.tensor([-float(lie)]).double()})
    return combined(sent, [1] * 10, zero, Aggregation(aggregation=rule))["w"]


assert abs(left(least_lie, "mean").item()) < 1e-9, "the mean is not 0 there"
assert left(least_lie + 0.1, "mean") < 0 < left(least_lie - 0.1, "mean")
assert abs(left(50, "norm_clipping").item() - kept_share) < 1e-9, (
    "a lie of any length comes down to the median length"
)
