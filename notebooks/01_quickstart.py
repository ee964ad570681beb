# %% [markdown]
# # Quick start: a federated run in five minutes
#
# *Question:* what happens in federated learning, from the data to a result?\
# *Time:* under a minute on two CPU cores. *Data:* scikit-learn's handwritten digits, nothing to download.
#
# Several clients hold different images. They train one network together, and no image leaves a client. The cell that
# begins with `dataset =` holds all that you may change; the same names work from the command line:
# `fedcon notebook 01_quickstart -p alpha 1.0`.

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
rounds = 8
seed = 0
profile = "quick"

# %%
import lab
from lab.profiles import apply
from lab.report import curves, partition_plot, show

# %% [markdown]
# ## Who holds what
#
# An experiment is plain data: an algorithm, a data set, a way to hand out the data, and a seed. The budget (`profile`)
# says how much is computed; it fills in the rest, such as the width of the network.

# %%
experiment = apply(
    profile,
    {
        "algorithm": "fedavg",
        "dataset": dataset,
        "partition": {"name": "dirichlet", "alpha": alpha},
        "clients": clients,
        "rounds": rounds,
        "settings": {"local_steps": 10, "lr": 0.05},
        "seed": seed,
    },
)
experiment.model, experiment.model_options

# %% [markdown]
# `alpha` says how unequal the clients are. Near 0 each client sees few classes; at 100 all look alike.

# %%
task = lab.make_task(experiment)
members = lab.make_clients(experiment, task)

# %%
import torch

labels = torch.cat([client.labels for client in members])
parts = torch.arange(len(labels)).split([len(client) for client in members])
classes = task.dataset.classes
show(
    partition_plot(
        labels, parts, classes, title=f"{dataset}, alpha = {alpha:g}"
    )
)

# %% [markdown]
# ## The run
#
# In each round the server sends its model to the clients. Each client trains it for a few batches on its own images
# and sends it back. The server averages what it receives: this is *federated averaging*, FedAvg.

# %%
record = lab.new_record(experiment, task)
for result in lab.rounds(experiment, task=task, clients=members):
    record.add(result)
    # some profiles test the model every second round only
    correct = result.metrics.get("accuracy")
    tested = "not tested" if correct is None else f"accuracy {correct:.1%}"
    print(
        f"round {result.round}: {tested}, "
        f"{result.up / 2**20:.2f} MB up, {result.down / 2**20:.2f} MB down"
    )

# %%
show(curves(record, title=f"FedAvg on {dataset}"))

# %% [markdown]
# Accuracy is always that of the *last* round on the test set, never the best of all rounds: in practice nobody has a
# test set to choose the round with.
#
# Your numbers may differ from those on the site, by some points at the end and by more on the way: other processors
# round differently, and the training enlarges that from round to round. On one machine's CPU a seed gives the same
# numbers; a GPU adds some of them in another order each time.

# %%
f"accuracy after round {rounds}: {record.metrics['accuracy']:.1%}"

# %% [markdown]
# ## What it cost
#
# Everything that crosses the network passes through a ledger, which counts bytes by kind of content. Here the models
# travel, not the images: `parameters`, and `buffers`, the running statistics of batch norm. `meta` is the number of
# samples that a model was trained on.

# %%
import pandas as pd

sent = pd.DataFrame(record.bytes).fillna(0).astype(int)
sent.rename_axis("bytes of the whole run")

# %% [markdown]
# ## The same on real data
#
# The command line runs an experiment with a progress bar and keeps a record. `fedcon data` says
# what is missing and how to get it.
#
# ```bash
# fedcon run --algorithm fedavg --dataset pneumoniamnist \
#     --alpha 0.05 --clients 10 --profile laptop
# ```
#
# ## Take away
#
# - A federated run is a loop of rounds: send, train, send back, combine.
# - Unequal clients (small `alpha`) make it slow and rough; [Federated learning](04_federated_learning) measures why.
# - The ledger counts what travels. The methods of this book send images or answers in place of models, which can be less
#   or far more.
#
# ```{exercise} Equal and unequal clients
# :label: ex-quick-alpha
#
# *Easy, 10 minutes.*
#
# Set `alpha = 100` in the cell that begins with `dataset =` and run the notebook again. In which round does FedAvg
# first reach 60%, with this `alpha` and with 0.05? Does it stay there?
# ```
#
# ```{solution} ex-quick-alpha
# :class: dropdown
#
# With nearly equal clients the averaged model is there no later, stays, and ends far higher; with
# unequal ones it can fall back. Try other seeds too, for one run is one draw of clients. Clients that are alike pull
# the model in more similar directions, which [Federated learning](04_federated_learning) measures, so averaging loses less.
# ```
