# %% [markdown]
# # One poisoner
#
# *Question:* what can a single hostile client do to the average, and what do robust rules cost when all are honest?\
# *Time:* half a minute on two CPU cores. *Data:* scikit-learn's digits.
#
# A server cannot see its clients' data, so it cannot see who lies about them. It refuses uploads that cannot be honest
# (`core.federation.validation`: the declared form, finite numbers, no negative variance, no more samples than announced,
# a bound on the length of an update). What passes may still be hostile.

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
rounds = 3
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import math

import pandas as pd
import torch
from torch.testing import assert_close

from core.errors import Diverged
from core.federation import Message
from core.rng import Rng
from core.server import Aggregation, combined
from core.server.aggregation import RULES
from lab.report.lesson import Lesson
from lab.report.texts import Markdown

lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    settings={"local_steps": 8, "lr": 0.1},
)
alike = lesson.but(alpha=10.0)
runs = {10.0: alike.run(), alpha: lesson.run()}


def answers(run, here):
    """What all clients send in one round more, and the model they had."""
    fedavg, rng = here.experiment().new_algorithm(), Rng(seed)
    start = fedavg.broadcast(run.state, 0)
    return start, {
        client.id: fedavg.client_update(
            client, fedavg.broadcast(run.state, client.id), rng.at(client.id)
        )
        for client in here.members()
    }


# %% [markdown]
# ## The rules
#
# Let $\Delta_k = w^k - w_t$ be the update of client $k$ ([the first page](01_federated_learning) has the other sign,
# where the change is taken for a gradient). In place of the mean with the weights $n_k / N$ {eq}`eq:fl-average` the
# server may take, of each number, the median over the clients, or the mean without the largest and the smallest tenth,
# rounded up {cite:p}`byzantinerobust`. Or it cuts long updates to a length $M$ before it takes the mean
# {cite:p}`normclipping`, here the median length:
#
# $$
# \Delta_k \leftarrow \Delta_k \, \min\bigl(1, M / \lVert \Delta_k \rVert\bigr), \qquad
# M = \operatorname*{median}_j \lVert \Delta_j \rVert .
# $$ (eq:robust-clip)
#
# The first two rules count every client once, however many samples it has. Running statistics of batch normalisation
# are no update: by the third rule, too, their median is taken. In a few lines, beside `core`, for the weights of one
# layer:

# %%
start, uploads = answers(runs[alpha], lesson)
layer = next(name for name in start.tensors if name.startswith("parameters/"))
sent = [message.tensors[layer].double() for message in uploads.values()]
samples = [message.meta["samples"] for message in uploads.values()]
w = torch.stack(sent)  # (K, ...)


def by(rule):
    models = [{layer: one} for one in sent]
    begun = {layer: start.tensors[layer].double()}
    return combined(models, samples, begun, Aggregation(aggregation=rule))


assert_close(w.quantile(0.5, dim=0), by("median")[layer])

share = torch.tensor(samples).double() / sum(samples)
moves = (w - start.tensors[layer]).flatten(1)  # Delta_k
length = moves.norm(dim=1)
cut = moves * (length.quantile(0.5) / length).clamp(max=1)[:, None]
clipped = start.tensors[layer] + (share @ cut).view(w.shape[1:])
assert_close(clipped, by("norm_clipping")[layer])

# %% [markdown]
# ## The attack
#
# All clients train the model of a FedAvg run for one round more. Then the client with the most samples turns the
# update of its weights round and sends it ten times as long. Its running statistics stay honest, and the checks let it
# pass.


# %%
def poisoned(uploads, start):
    """The largest client sends the opposite of what it has learnt."""
    one = max(uploads, key=lambda id_: uploads[id_].meta["samples"])
    turned = {
        name: start.tensors[name] - 10 * (value - start.tensors[name])
        for name, value in uploads[one].tensors.items()
        if name.startswith("parameters/")
    }
    upload = Message(uploads[one].tensors | turned, uploads[one].meta)
    return uploads | {one: upload}


def accuracy(here, model):
    """In percent; nan where the model's outputs are not finite."""
    try:
        return 100 * here.task.evaluate(model)["accuracy"]
    except Diverged:
        return math.nan


def accuracies(run, here):
    """Accuracy of the next model by rule, with and without a poisoner."""
    start, honest = answers(run, here)
    rows = {"honest": honest, "one poisoner": poisoned(honest, start)}
    methods = [
        here.experiment(aggregation=rule).new_algorithm() for rule in RULES
    ]
    return {
        who: [
            accuracy(
                here,
                method.model(method.server_update(run.state, sent, Rng(seed))),
            )
            for method in methods
        ]
        for who, sent in rows.items()
    }


# %% tags=["hide-input"]
found = {10.0: accuracies(runs[10.0], alike)}
found[alpha] = accuracies(runs[alpha], lesson)
pd.DataFrame(
    {
        (f"alpha = {concentration:g}", who): scores
        for concentration, columns in found.items()
        for who, scores in columns.items()
    },
    index=pd.Index(RULES, name="aggregation"),
).map(lambda one: "not finite" if math.isnan(one) else f"{one:.1f}")

# %% tags=["hide-input"]


def span(points, form):
    """From the smallest to the largest, of those that are numbers."""
    sound = [one for one in points if not math.isnan(one)]
    if not sound:
        return "what is not finite"
    ends = (f"{round(one) + 0:{form}}" for one in (min(sound), max(sound)))
    said = " to ".join(dict.fromkeys(ends))  # equal ends once
    return said + " (where finite)" * (len(sound) < len(points))


first, *rest = (
    honest - hit for honest, hit in zip(*found[10.0].values(), strict=True)
)
plain, *robust = found[alpha]["honest"]
lost = any(
    math.isnan(one)
    for columns in found.values()
    for scores in columns.values()
    for one in scores
)
Markdown(
    "Accuracy in percent"
    + (
        ", *not finite* where a model's outputs are no numbers."
        if lost
        else "."
    )
    + " Where clients are alike, one poisoner "
    + (
        "leaves the mean without finite outputs; it costs, in points, "
        if math.isnan(first)
        else f"costs the mean {first:.0f} points, "
    )
    + f"the other rules {span(rest, 'd')}. With clients as different as "
    f"alpha = {alpha:g} makes them, and all honest, the other rules are "
    f"{span([one - plain for one in robust], '+d')} points off the mean."
)

# %% [markdown]
# Where clients differ such rules have a risk: an honest client with rare classes looks like a poisoner, and is left out
# like one. What the rules cost where clients differ and all are honest, in points below the mean, for this seed and two
# more:

# %% tags=["hide-input"]
costs = {seed: [plain - one for one in robust]}
for other in (seed + 1, seed + 2):
    here = lesson.but(seed=other)
    usual, *ruled = accuracies(here.run(), here)["honest"]
    costs[other] = [usual - one for one in ruled]
costs = pd.DataFrame(costs, pd.Index(list(RULES)[1:], name="aggregation"))
costs.rename(columns="seed {}".format).assign(mean=costs.mean(axis=1)).round(1)

# %% [markdown]
# The first two count every client once, which costs most where clients differ; one seed may say otherwise. The setting
# is `aggregation` of FedAvg and of all methods that average models; the default is the mean, as the papers have it.
#
# ## Take away
#
# - One client can carry the mean anywhere: its update counts with its weight, and nothing bounds its length but the
#   server's own check.
# - Robust rules bound what one client can do. They also bound what an honest client with rare data can say: over three
#   seeds the median and the trimmed mean cost accuracy where all are honest and clients differ.
#
# ## Exercise
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
