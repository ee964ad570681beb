# %% [markdown]
# # Federated learning
#
# *Question:* why is it harder to train one model on many clients than on one machine, and what do the classic methods
# do about it?\
# *Time:* about half a minute on two CPU cores. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# $K$ clients have data that differ. A server wants one model that is good on all of them, and may not see the data.
# So the clients train, the server combines, and both repeat. Each step below is an equation and the lines of `core`
# that compute it.

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

# %%
import numpy as np
import pandas as pd
import torch

import core.federation as federation
import lab
from core import algorithms
from core.data import partition
from core.rng import Rng
from core.server import weighted_average
from lab.profiles import apply
from lab.report import curves, partition_plot, show, source


# %%
def experiment(algorithm="fedavg", alpha=alpha, **settings):
    return apply(
        profile,
        {
            "algorithm": algorithm,
            "dataset": dataset,
            "partition": {"name": "dirichlet", "alpha": alpha},
            "model_options": {"depth": 2, "width": 16},
            "clients": clients,
            "rounds": rounds,
            "settings": {"local_steps": 10, "lr": 0.05, "batch_size": 32}
            | settings,
            "seed": seed,
        },
    )


task = lab.make_task(experiment())
task.dataset.classes

# %% [markdown]
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
#
# Here $\mathcal{T}_k$ are the images of client $k$ with their labels, $f_w$ is the network with weights $w$, and $\ell$
# the cross-entropy. $F$ is the loss on all data together, which nobody can compute alone. Below, $C$ is the number of
# classes, $R$ that of rounds, $\eta$ a learning rate, $m$ a momentum ([notation](../book/notation)).
#
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

# %%
labels, classes = task.dataset.train.labels, task.dataset.classes
shown = sorted({100.0, 1.0, alpha}, reverse=True)
for value in shown:
    parts = partition.dirichlet(labels, clients, value, seed)
    show(partition_plot(labels, parts, classes, title=f"alpha = {value:g}"))

# %% [markdown]
# One number for how different clients are is the mean distance between the class frequencies $P_k$ of a client and
# those of all data $P$, in total variation:
#
# $$
# \mathrm{TV} = \frac{1}{K} \sum_{k=1}^{K} \frac{1}{2} \sum_{c=1}^{C} \bigl| P_k(c) - P(c) \bigr|.
# $$ (eq:fl-tv)
#
# It is 0 for equal clients, and close to $1 - 1/C$ when each client has one class only.


# %%
def total_variation(parts):
    counts = np.stack(
        [np.bincount(labels[part], minlength=len(classes)) for part in parts]
    )
    p = counts / counts.sum(1, keepdims=True)
    return np.abs(p - counts.sum(0) / counts.sum()).sum(1).mean() / 2


# %%
alphas = [0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0]
splits = {a: partition.dirichlet(labels, clients, a, seed) for a in alphas}
skew = {f"{a:g}": total_variation(parts) for a, parts in splits.items()}
pd.DataFrame(skew, index=["TV"]).rename_axis(columns="alpha").round(3)

# %% [markdown]
# ## Federated averaging
#
# FedAvg {cite:p}`fedavg` sends the model $w_t$ to the clients. From $w^k = w_t$ each takes some steps of SGD on its own
# $F_k$, $w^k \leftarrow w^k - \eta \, g_k(w^k)$, where $g_k$ is the gradient of a batch (here with momentum); what comes
# out is $w^k_{t+1}$. This is `local_update`:

# %%
source(algorithms.find("fedavg").local_update)

# %% [markdown]
# The server averages what comes back, weighted by numbers of samples:
#
# $$
# w_{t+1} = \sum_{k=1}^{K} \frac{n_k}{N} \, w^k_{t+1}.
# $$ (eq:fl-average)

# %%
source(algorithms.find("fedavg").server_update)

# %%
source(weighted_average)

# %% [markdown]
# Running means and variances of batch norm are averaged as well. They are no parameters, and some code forgets them:
# then the averaged model is tested with the statistics of an untrained network.
#
# ## The round
#
# A round is the same for most methods, so it is written once. Every message goes through a ledger that counts its
# bytes, and every upload is checked before the server looks at it.

# %%
source(federation.Algorithm.round)

# %% [markdown]
# Around it stands the loop. Everything random comes from the seed, the round and the client, so a run that was
# stopped and resumed gives the same result as one that was not.

# %%
source(federation.rounds)

# %% [markdown]
# ## Client drift
#
# Each client walks towards the minimum of its own $F_k$. When clients differ they walk apart. We measure by how much
# after one round from the same start: the mean distance between the clients' models and their plain mean
# $\bar w = \frac{1}{K} \sum_k w^k$, relative to the distance they went,
#
# $$
# \mathrm{drift} = \frac{\sum_k \lVert w^k - \bar w \rVert}{\sum_k \lVert w^k - w_t \rVert}.
# $$ (eq:fl-drift)
#
# It is 0 when all take the same step. Where all go equally far it is at most 1, and near 1 when each goes its own way
# and the average hardly moves: at right angles to each other it is $\sqrt{1 - 1/K}$.


# %%
def one_round(plan):
    """The model that was sent, and those that came back, as vectors."""
    members, rng = lab.make_clients(plan, task), Rng(plan.seed)
    algorithm = plan.new_algorithm()
    state = algorithm.initialise(task, rng.at("initialise"))
    sent = {
        client.id: algorithm.broadcast(state, client.id) for client in members
    }
    received = algorithm.at_clients(
        "client_update", members, sent, rng.at("round", 1, "client")
    ).values()
    return vector(sent[0]), torch.stack(
        [vector(message) for message in received]
    )


def vector(message):
    """The parameters in a message, one after the other."""
    return torch.cat(
        [
            value.flatten()
            for name, value in message.tensors.items()
            if name.startswith("parameters/")
        ]
    )


# %%
def drift(plan):
    start, models = one_round(plan)
    apart = (models - models.mean(0)).norm(dim=1).sum()
    return float(apart / (models - start).norm(dim=1).sum())


# %%
drifts = {f"{a:g}": drift(experiment(alpha=a)) for a in shown}
pd.DataFrame(drifts, index=["drift"]).rename_axis(columns="alpha").round(3)

# %% [markdown]
# Even with $\alpha = 100$ the models are apart: clients have few images and draw different batches. Compare the value
# at the smallest $\alpha$ of the table with $\sqrt{1 - 1/K}$: near it, clients have hardly a common direction.
#
# ## Three remedies
#
# **FedProx** {cite:p}`fedprox` ties each client to the model that it received. It minimises
#
# $$
# h_k(w; w_t) = F_k(w) + \frac{\mu}{2} \lVert w - w_t \rVert^2 .
# $$ (eq:fl-prox)

# %%
source(algorithms.find("fedprox").loss)


# %%
def distance(plan):
    """How far clients go in one round, on average."""
    start, models = one_round(plan)
    return float((models - start).norm(dim=1).mean())


# %%
gone = {
    f"{mu:g}": distance(experiment("fedprox", mu=mu))
    for mu in (0.01, 1.0, 10.0)
}
pd.DataFrame(gone, index=["mean distance from the received model"]).rename_axis(
    columns="mu"
).round(3)

# %% [markdown]
# **SCAFFOLD** {cite:p}`scaffold` estimates the drift and takes it out. Every client keeps a *control variate* $u_k$,
# its mean gradient of the last time, the server $u$, their mean, and every local step with the gradient $g_k$ of a batch
# is corrected by the difference (the paper writes $y_i$ for $w^k$, $c_i$ for $u_k$ and $c$ for $u$):
#
# $$
# w^k \leftarrow w^k - \eta \, (g_k(w^k) - u_k + u).
# $$ (eq:fl-scaffold)
#
# The server sends $u$ beside the model, a client sends back the change of its $u_k$, so a round costs twice as much. As
# in the paper the server counts every client once, whatever $n_k$ is; the other methods on this page average as in
# {eq}`eq:fl-average`. The correction is the gradient of a linear term, so it is one more objective:

# %%
source(algorithms.find("scaffold").objective)

# %% [markdown]
# **FedAvgM** {cite:p}`fedavgm` leaves the clients alone. Its server takes the averaged change $\Delta_t = w_t -
# \sum_k \frac{n_k}{N} w^k_{t+1}$ as a gradient and follows it with momentum, so that what differs from round to round
# cancels (the paper writes $\beta$ for $m$; the code has a rate of the server too, 1 here):
#
# $$
# v_{t+1} = m \, v_t + \Delta_t, \qquad w_{t+1} = w_t - v_{t+1}.
# $$ (eq:fl-momentum)

# %%
source(algorithms.find("fedavgm").server_update)


# %%
def run(algorithm, **settings):
    plan = experiment(algorithm, **settings)
    record = lab.new_record(plan, task)
    for result in lab.rounds(plan, task=task):
        record.add(result)
    return record


# %%
records = [
    run("fedavg"),
    run("fedprox", mu=0.1),
    run("scaffold"),
    run("fedavgm", server_momentum=0.7),
    run("centralized"),
]

# %%
show(curves(records, title=f"{dataset}, alpha = {alpha:g}"))

# %% [markdown]
# *Centralized* puts all data in one place and takes as many steps as all clients together. It is the ceiling; what is
# missing to it is the price of keeping the data apart. SCAFFOLD takes plain SGD, as its paper does, the others have
# momentum in their local steps; all have the same learning rate, which does not suit them equally well. And these are
# single runs on a tiny data set: the [reference methods](02_reference_methods) compare them on real data with three
# seeds.
#
# ## What travels
#
# In FedAvg every client receives and sends the model in every round. With $|w|$ numbers of 4 bytes,
#
# $$
# \text{bytes} = 2 \cdot R \cdot K \cdot 4\,|w| .
# $$ (eq:fl-bytes)
#
# The ledger counts what is really sent, so it can be compared, without the running statistics of batch norm and the few
# bytes beside the model:

# %%
model = task.new_model(Rng(0))
numbers = sum(parameter.numel() for parameter in model.parameters())
counted = sum(records[0].bytes[way]["parameters"] for way in ("up", "down"))
counted, 2 * rounds * clients * 4 * numbers

# %%
show(
    curves(records, x="megabytes", title="the same runs against what was sent")
)

# %% [markdown]
# The cost does not depend on how much a client has learned. This is where the papers of this book come in: they send
# a few condensed images or predictions in place of the model, and hope to need fewer rounds.
#
# ## Take away
#
# - Federated learning minimises {eq}`eq:fl-goal` though no one ever holds all of its data.
# - A small $\alpha$ in {eq}`eq:fl-dirichlet` makes clients differ; {eq}`eq:fl-tv` says by how much.
# - Clients that differ drift apart, and the average of good models need not be good.
# - FedProx holds clients back, FedAvgM smooths the server; both send as much as FedAvg. SCAFFOLD corrects each step
#   and sends twice as much.
#
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
#     plan = experiment(local_steps=steps)
#     print(steps, drift(plan), distance(plan))
# ```
#
# The drift hardly changes: already with the first batch clients point in different directions, because their batches
# hold different classes. What grows is the distance. More local work saves rounds while the clients still agree on where
# to go, and with small $\alpha$ they agree on little.
# ````
#
# ```{exercise} The price of a round
# :label: ex-fl-bytes
#
# *Easy, 10 minutes.*
#
# A ConvNet has about $3.2 \cdot 10^5$ parameters, 10 clients take part. How many MB go up per round? By the 12.13 to 12.21
# MB that FedVCK prints for four data sets (Table 9), what must one MB be? (To be checked: `bytes_per_mb`.)
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
