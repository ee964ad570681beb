# %% [markdown]
# # Beyond one machine
#
# *Question:* what changes when a thousand runs go to a cluster, and when hospitals keep their data; what crosses the
# wire, and what protects it?\
# *Time:* some seconds on two CPU cores. *Data:* the book's records.\
# *Learn first:* [federated learning](04_federated_learning).
#
# Every method of this book is a server and clients that exchange messages. So far both lived in one process. The same
# program runs in two other places: on many machines that each take whole experiments, and across institutions that each
# hold one client. With the same seed the result is the same in both, but for the order of sums, nodes that are
# lost, and private methods, whose noise is secret.

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
runs = 1000
gpus = 64
runs_per_gpu = 4
overhead = 2.0
seed = 0

# %% tags=["hide-input"]
import heapq

import pandas as pd
import torch

from core.federation import Ledger
from core.rng import Rng
from lab import records
from lab.report import source
from lab.report.style import sentences

known = list(records().values())

# %% [markdown]
# ## A thousand runs: a cluster
#
# A table needs many runs that know nothing of each other. `--on local:2` gives them to two processes, `--on ray` to a
# cluster, and `--shard 3/16` is a part of the queue for job arrays. No round begins that would end after 60 minutes, or
# after those of `--minutes`; the same command goes on:
#
# ```bash
# fedcon run --pending --profile laptop --on local:2
# fedcon run --pending --profile paper --on ray --gpus-per-run 0.25 --out /shared/runs
# sbatch --array=1-16 job.sh     # job.sh: ... --pending --shard $SLURM_ARRAY_TASK_ID/16 --out /shared/runs
# ```
#
# A task is one run to its record. A lost worker costs what was computed since the last round, because the run goes on
# from its checkpoint. How long do a thousand runs take? The queue's order is kept, so the answer is a simulation: each
# run goes to the worker that is free first. The durations are drawn from the records of this book, with two seconds for
# each run to begin. These are CPU seconds of small budgets; only the ratio between the rows carries over.

# %%
measured = [
    record.seconds for record in known if record.experiment.profile == "laptop"
]
drawn = torch.randint(len(measured), (runs,), generator=Rng(seed).generator())
durations = [measured[i] + overhead for i in drawn.tolist()]


def makespan(workers: int) -> float:
    """Seconds until the last of the runs ends."""
    free = [0.0] * workers
    for duration in durations:
        heapq.heappush(free, heapq.heappop(free) + duration)
    return max(free)


alone = makespan(1)
pd.DataFrame(
    {
        "workers": workers,
        "hours": makespan(workers) / 3600,
        "times as fast": alone / makespan(workers),
        "share of the time in use (%)": 100
        * alone
        / workers
        / makespan(workers),
    }
    for workers in (1, 2, 16, gpus, gpus * runs_per_gpu)
).round(2)

# %% [markdown]
# However many workers there are, the whole takes at least as long as its longest run; where the last column is small,
# most of them wait for it.
#
# ## A thousand clients in one run
#
# The other way to be large is a run with many clients. A client here is an index over the one array of training images,
# which the system maps into memory, and makes its images when it is asked for them. Methods that condense serve clients
# in chunks: at most 1,000 groups, a group being one class of one client, are condensed at once. What grows with clients are
# the models that a round of FedAvg uploads, which the server holds until it averages; for FedVCK the images.
#
# ## Three hospitals: the wire
#
# Flower [^flower] carries the messages between machines. The server runs the round loop of
# {doc}`04_federated_learning`, and each hospital what the algorithm does for one client. Nothing else is new:
#
# ```{figure} ../book/_static/wire.svg
# :alt: Three hospitals on the left, a server on the right. Images, labels and the memory of each hospital stay inside it. From the server a model goes down to each hospital. From each hospital condensed images with labels, logit prototypes and counts go up. A line between them stands for TLS and the keys of the hospitals. The server checks every upload and keeps the ledger.
# :name: fig-wire
#
# What crosses the wire in a round of FedVCK. Red stays, green goes up, grey goes down.
# ```
#
# ```bash
# make federation-demo                     # keys, certificates, a server and three hospitals, on this machine
# make federation-simulation               # the same rounds; Flower simulates the hospitals, on this machine
# ```
#
# The demonstration starts a SuperLink and three SuperNodes as processes, each with a folder of its own, and says at the
# end what a hospital reaches alone. (`hospitals/pyproject.toml` has the line of `flwr run` for a simulation by hand, and
# two variables that it needs.) A node that is killed comes back with its memory; until then the round waits for it or
# goes on without it, as `wait-for-all` says, and the record names it. All draws of random numbers come from the same
# streams as in one process, so with the same seed the record is the same, bit for bit, where clients are computed one
# by one and none is private. (In one process FedVCK condenses all clients as one batch, and small networks train side by
# side as one program: their sums have another order.)
#
# ### Two hosts, step by step
#
# All commands are Flower's own and those of OpenSSL and OpenSSH; on each host they run in a clone of this repository after
# `make machines` and `export PATH="$PWD/.venv-machines/bin:$PATH"`. The server is called `server.example.org` here.
#
# **1. Server: a certificate, and the process that all connect to.** One port must be open to the hospitals, here 8000.
# (The second address is for the server's own processes.) `server.key` stays there.
#
# ```bash
# mkdir -p private && cd private && umask 077
# openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days 30 -subj /CN=server.example.org \
#   -addext subjectAltName=DNS:server.example.org,IP:127.0.0.1 -keyout server.key -out server.pem
# flower-superlink --host 0.0.0.0 --port 8000 --enable-supernode-auth --disable-runtime-dependency-installation \
#   --ssl-ca-certfile server.pem --ssl-certfile server.pem --ssl-keyfile server.key
# ```
#
# **2. Hospital: a key.** Only `node.key.pub` leaves the host, and `server.pem` comes to it, both by a way that both sides
# trust.
#
# ```bash
# mkdir -p private memory && cd private && umask 077
# ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f node.key
# ```
#
# **3. Server: register the key** of each hospital. Flower's tool finds the server by an entry in `config.toml` of its folder,
# `~/.flwr` or `$FLWR_HOME`:
#
# ```toml
# [superlink]
# default = "study"
#
# [superlink.study]
# address = "server.example.org:8000"
# root-certificates = "/srv/fedcon/private/server.pem"
# ```
#
# ```bash
# flwr supernode register node.key.pub study
# ```
#
# **4. Hospital: join** as client 0, 1, ... Its images lie in `images`, as `xrays.npz` in MedMNIST's layout, where the part to
# test on may be one black image. No port of a hospital is open to others: 9094 is its own address alone.
#
# ```bash
# flower-supernode --superlink server.example.org:8000 --root-certificates private/server.pem \
#   --auth-supernode-private-key private/node.key --host 127.0.0.1 --port 9094 \
#   --node-config "partition-id=0 data='$PWD/images' memory='$PWD/memory'"
# ```
#
# **5. Server: run.** `server-data` has an `xrays.npz` with the images to test on; the record comes to `out`.
#
# ```bash
# cat > run.toml <<END
# experiment = '{"algorithm": "fedvck", "dataset": "xrays", "clients": 2, "rounds": 3, "profile": "laptop"}'
# server-data = "/srv/fedcon/test"
# out = "/srv/fedcon/records"
# END
# flwr run hospitals study --run-config run.toml --stream
# ```
#
# Before the server computes anything, an upload must have at most the bytes that its form allows, must answer the
# call of this round, and passes the checks of `core.federation.validation`. What fails is refused by name.
#
# Every method of this book runs so but centralized training, which needs the data themselves. FedIOD calls its
# clients twice in each step of its distillation, and one more for each step of the student on fresh images; a client
# may be another process at each: it keeps its networks in its memory, and computes once more what it needs of the step.
# Where a table tests the clients' own networks (FedMD, FedDistill, standalone training), these cross the network for
# the test alone, because the test images are the server's.
#
# [^flower]: Beutel, Topal, Mathur, Qiu, Fernandez-Marques, Gao, Sani, Li, Parcollet, de Gusmão, Lane. Flower: A Friendly
#     Federated Learning Research Framework. arXiv 2007.14390, 2020.
#
# ## What each method sends
#
# All traffic passes through a ledger, here and across a network, and every record holds its sums:

# %%
source(Ledger.count)

# %% [markdown]
# One record of each algorithm, in the setting that most records share: kB for one client and round (a *turn*), and how
# many images are among them. Compare rows of one setting only.


# %% tags=["hide-cell"]
def setting(record) -> str:
    """Data, network, clients and wanted images of a run."""
    e = record.experiment
    made = record.settings.get("images_per_class")
    made = f", {made} images of a class" if made else ""
    return f"{e.dataset}, {e.model}, {e.clients} clients{made}"


def traffic(record) -> dict:
    """kB that one client sends and receives, and what they are."""
    e, place = record.experiment, setting(record)
    if e.algorithm == "random_selection":
        place += " from all clients together"
    row = {"setting": place, "algorithm": e.algorithm, "images up": ""}
    turns = len(record.rounds) * (e.active or e.clients)
    # records name what FedIOD's discriminators say after their network
    says = {"discriminator": "scores"} if e.algorithm == "fediod" else {}
    for way in ("up", "down"):
        kinds = record.bytes[way]
        row[f"kB {way} a turn"] = sum(kinds.values()) / turns / 1000
        row[f"sent {way}"] = ", ".join(says.get(kind, kind) for kind in kinds)
    sent = record.bytes["up"]
    if e.algorithm == "centralized":
        row["images up"] = "all"
    elif "images" in sent:  # each has one label, of one byte
        row["images up"] = f"{sent['labels'] / turns:,.0f}"
    return row


printed = [
    record
    for record in known
    if record.experiment.variant == "printed" and record.status == "complete"
]
common = pd.Series([setting(record) for record in printed]).value_counts()
first = {}
for record in sorted(printed, key=lambda record: -common[setting(record)]):
    first.setdefault(record.experiment.algorithm, record)
table = pd.DataFrame(map(traffic, first.values()))
sentences(table.sort_values(["setting", "kB up a turn"]))

# %% [markdown]
# Methods that send models cost the same in every round; one-shot methods send images once, and their bytes are spread
# over the rounds of the record. FedIOD talks in every step of its distillation. *Buffers* are the running statistics of
# batch normalisation. *Progress* is how FedVCK's loss of condensation fell: a few numbers that a run may ask for; the
# method does not need them, so the figure above does not have them. *Meta* is what takes a few bytes: a count of images,
# the round, a seed. FedIOD's *scores* are what discriminators say of images; the discriminators stay with the clients.
# FedGAN sends its own.
#
# ## What protects the wire
#
# | protection | against whom | helps with | does not help with |
# |---|---|---|---|
# | TLS | somebody on the network | reading or changing messages on their way | the server: it reads everything |
# | keys of the nodes | a stranger who wants to take part | uploads under a false name | a hospital that has a key and lies; whoever may register keys and start runs |
# | checks of uploads | a broken or hostile hospital | wrong forms, NaN, sizes, counts, late answers, copies of another's upload | values that are plausible and wrong, also its own old ones; how many images a hospital says it has, up to `most-samples` |
# | secure aggregation | the server | it sees the sum of the uploads only | uploads that are no summands; checks of uploads, for a masked one looks like noise; a server with all hospitals but one on its side |
# | central differential privacy | readers of the model | bounds what the model says of one client | the server, which sees the uploads before the noise |
# | local differential privacy | the server too | each upload by itself | accuracy: the noise is not averaged first |
#
# **Secure aggregation** adds a mask to every upload. Each pair of clients agrees on a mask that one adds and the other
# subtracts, so all masks vanish from the sum, and only from the sum:

# %%
generator = Rng(seed).at("masks").generator()
#: three uploads in fixed point, modulo 2^31
uploads = torch.randint(0, 2**20, (3, 5), generator=generator)
masks = torch.randint(0, 2**31, (3, 3, 5), generator=generator)
# client i adds the mask that it shares with a later one, and subtracts that
# which it shares with an earlier one
own = (
    masks[0, 1] + masks[0, 2],
    masks[1, 2] - masks[0, 1],
    -masks[0, 2] - masks[1, 2],
)
masked = (uploads + torch.stack(own)).remainder(2**31)
seen = masked.sum(0).remainder(2**31)
assert torch.equal(seen, uploads.sum(0))
pd.DataFrame(
    {
        "an upload": uploads[0],
        "what the server sees of it": masked[0],
        "sum of the uploads": uploads.sum(0),
        "sum of what it sees": seen,
    }
)

# %% [markdown]
# FedAvg needs nothing but a weighted sum. **Condensed images are not summable**: the server trains on each image with its
# label, and the sum of three hospitals' images is one picture of nothing. Of FedVCK's upload only the logit prototypes can
# be summed (with their counts, Eq. 12), of FedMK's and GDD-FL's nothing, and FedIOD's server takes the answers of each. So
# these servers see each hospital's upload, and what it reveals must be bounded before it leaves, with noise at each client.
# For FedIOD [a page](31_fediod_privacy) shows what this costs; for condensed images it is not measured here.
#
# **Central differential privacy** bounds what one *client* changes in the model. Its noise is spread over the clients
# of a round: the deviation of the mean is $2 \sigma B / K$ for clip norm $B$ and $K$ clients, of which one may have
# other data. With a million phones it is nothing; with three hospitals it is a third of what one client would need
# alone. And the server still sees the uploads.
#
# The runs of this book draw all random numbers from one seed that the server knows, so that they can be repeated; it could
# subtract noise that comes from this seed. So across a network each hospital draws noise from a secret of its own, and a
# client of private FedKD ([FedIOD and privacy](31_fediod_privacy)) refuses a query that asks for less noise than the
# settings of the run say. That is a check, not a guarantee. Limits remain:
#
# * Each run has a budget of its own. A hospital limits all runs together with `epsilon=8` in its `--node-config`: it then
#   keeps an account in its memory folder, and answers no run without noise, or beyond what is left. The account does not
#   cover how many images it has, and with FedIOD how many of each class.
# * Flower's nodes run the program that they are sent. A real federation closes the server's port to all but its operator,
#   or asks for accounts, and lets its nodes take signed programs only (`--trusted-entities`).
# * PyTorch's source of random numbers is not made for secrets: who knew enough of its numbers could compute the next ones.
#
# ## Take away
#
# - Many runs: the queue on workers, with the records of a serial run.
# - Hospitals: the same round loop, with clients that are elsewhere; the ledger counts the same bytes.
# - TLS and keys protect uploads on their way, but not from the server. Secure aggregation does, but only for sums.
#
# ## Exercises
#
# ```{exercise} A lost hospital
# :label: ex-machines-lost
#
# *Medium, 15 minutes.*
#
# One of three hospitals goes away, (a) after it has sent its masked upload, (b) before. In which case can the server still
# read the sum?
# ```
#
# ```{solution} ex-machines-lost
# :class: dropdown
#
# After: all masks are there, and they vanish. Before: the masks that the others share with it remain in the sum. Real
# protocols let the others give those masks away, by secret sharing (Bonawitz et al., CCS 2017).
# ```
#
# ```{exercise} The cluster's tail
# :label: ex-machines-tail
#
# *Easy, 10 minutes.*
#
# Sort the durations so that the longest run begins first. How much sooner do 64 workers end?
# (To be checked: `longest_first`, the sorted list.)
# ```
#
# ````{solution} ex-machines-tail
# :class: dropdown
#
# ```python
# longest_first, before = sorted(durations, reverse=True), makespan(gpus)
# durations = longest_first
# before - makespan(gpus)
# ```
#
# The long runs no longer begin last, so the end is near the larger of the mean load and the longest run.
# ````

# %% tags=["solution", "remove-cell"]
longest_first = sorted(durations, reverse=True)

# %% name="ex-machines-tail" tags=["check", "remove-cell"]
assert list(longest_first) == sorted(durations, reverse=True), "longest first"
durations, before = list(longest_first), makespan(gpus)
assert makespan(gpus) <= before, "the long runs must not begin last"
