# %% [markdown]
# # What is sent
#
# *Question:* how many bytes do the methods of this book send, and when is that less than federated averaging sends?\
# *Time:* under a minute on two CPU cores. *Data:* scikit-learn's digits.\
# *Learn first:* [federated learning](04_federated_learning).
#
# FedAvg sends a model up and down in every round, whatever it has learned. FedVCK {cite:p}`fedvck`, FedMK
# {cite:p}`fedmk` and GDD-FL {cite:p}`gddfl` send condensed images up, FedIOD {cite:p}`fediod` sends images and answers
# in every step. You will see
#
# - the ledger, which counts all traffic of this book by kind;
# - a formula for each kind of method, compared with the ledger;
# - for which networks and images which of them is cheap.

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
clients = 4
rounds = 2
steps = 12
student_steps = 4
seed = 0
profile = "quick"

# %%
import pandas as pd
import torch

from core import federation, models
from core.condensation.engine import condensed_counts
from core.models import count_parameters
from core.rng import Rng
from lab.report import lines, show, source
from lab.report.lesson import ADVERSARIAL, SMALL, Lesson, small_lesson

# %% [markdown]
# ## The ledger
#
# A message is a set of named tensors, each in the form in which it travels. Its cost is their bytes:

# %%
source(federation.Message.sizes.fget)

# %%
split = {"dataset": dataset, "alpha": alpha, "clients": clients}
split |= {"rounds": rounds, "seed": seed}
small = {"iterations": 2, "server_steps": 2, "generator_steps": 2}
own = {"fedmk": SMALL["fedmk"] | small, "gddfl": {"iterations": 2}}
lesson = Lesson(profile, "fedvck", own=own, **split)
asking = {"distill_steps": steps, "student_steps": student_steps}
asked = small_lesson(profile, ADVERSARIAL | asking, **split)
runs = {
    "FedAvg": lesson.run("fedavg"),
    "FedVCK": lesson.run("fedvck"),
    "FedMK": lesson.run("fedmk"),
    "GDD-FL": lesson.run("gddfl"),
    "FedIOD": asked.run(),
}
sent = {
    name: pd.Series(
        {
            (way, kind): size / len(run.record.rounds)
            for way, kinds in run.record.bytes.items()
            for kind, size in kinds.items()
        }
    )
    for name, run in runs.items()
}
table = pd.DataFrame(sent).fillna(0).round().astype(int)
table.rename_axis(["direction", "kind"])

# %% [markdown]
# These are bytes of a round, the mean over rounds, over all clients; FedVCK's Table 10 has words in their place. Nothing
# is sent before the first round. `buffers` are the running statistics of batch
# normalisation. Beside its images FedVCK sends one byte for a label and the logit prototypes. FedMK's clients get each
# other's images from the second round on. FedIOD's network here is smaller than that of the others.
#
# ## Condensed images
#
# Client $k$ has $n_{k,c}$ real images of class $c$. Where there are any, FedVCK makes $m_{k,c} = \max(m_0, \lceil r \,
# n_{k,c} \rceil)$ condensed ones, with $r$ their share (the paper's $p$) and $m_0$ the least number per class. With one
# byte for a pixel ($C_x$ channels, $H$ by $H$) and for a label, 4 bytes for a logit and 8 for a number of samples,
# clients upload
#
# $$
# \text{bytes} = \sum_{k, c} m_{k,c} \, (C_x H^2 + 1) + K (4 C^2 + 8 C) .
# $$ (eq:comm-upload)

# %%
source(condensed_counts)

# %%
run, data = runs["FedVCK"], lesson.task.dataset
C, pixels = data.num_classes, data.channels * data.size**2
per_class = torch.cat([client.class_counts for client in lesson.members()])
settings = run.experiment.new_algorithm().settings
m = condensed_counts(per_class[per_class > 0], settings).sum().item()
m * (pixels + 1) + clients * (4 * C**2 + 8 * C), run.record.rounds[0]["up"]

# %% [markdown]
# The formula and the ledger agree. [FedVCK's tables](12_fedvck_results) are compared with the same formula.
#
# ## FedMK's arithmetic
#
# FedMK sends images as numbers of 4 bytes. Appendix A of the paper works the cost of ten rounds out for MNIST, with ten
# active clients, 20 images of each class and a model of 105 K bytes. Line by line:

# %%
K = 1e3
up = 4 * 28 * 28 * 20 * 10
down = up + 105 * K * 10
pd.DataFrame(
    [
        ("upload, 4 x 28 x 28 x 20 x 10", up, 627.2 * K),
        ("download, upload + 105 K x 10", down, 1677.2 * K),
        ("ten rounds of both", 10 * (up + down), 16e6),
        ("ten rounds, download only", 10 * down, 16e6),
        ("ten rounds, all clients' uploads", 10 * (10 * up + down), 16e6),
        ("200 rounds of FedAvg", 105 * K * 10 * 2 * 200, 420e6),
    ],
    columns=["bytes", "computed", "paper"],
).set_index("bytes").map("{:,.0f}".format)

# %% [markdown]
# Two things are odd. The total of the paper is that of the download alone. And its upload has one factor of ten, where
# there are ten classes *and* ten clients: it is that of *one* client. FedAvg's sum has ten clients. The server
# broadcasts the model and the images, so a client may even get the images of all clients.
#
# The 200 rounds of FedAvg are read off a figure. [With a learning rate of its own](19_fedmk_rules) FedAvg needs far
# fewer here.
#
# ## Images and answers in every step
#
# For $T$ steps, $K$ clients, batches of $N$ images of $P$ numbers, $C$ classes and
# weights by class only, let the student take $s$ steps on fresh images after each of the generator ($s = 0$ where it
# learns on the generator's own, as in the paper). $u$ is 1 where the generator's loss has a term in the logits, and else 0:
#
# $$
# \begin{aligned}
# \text{bytes} = 4 K T N \bigl[ &\underbrace{(P + u C)}_\text{down: images, gradients of logits}
# + \underbrace{(C + P)}_\text{up: logits, gradients of images} \\
# &+ s \underbrace{(P + C)}_\text{images down, logits up} \bigr] + \text{once: counts, } \pi_k .
# \end{aligned}
# $$ (eq:iop-bytes)

# %%
run, chosen = runs["FedIOD"], asked.method.settings
T, N = steps, chosen.distill_batch
s = 0 if chosen.student_steps == 1 else chosen.student_steps
u = any((chosen.mimic, chosen.confidence, chosen.uniqueness, chosen.balance))
P = pixels
formula = 4 * len(run.clients) * T * N * ((P + u * C) + (C + P) + s * (P + C))
sent = pd.DataFrame(run.record.bytes).sum(axis=1)  # by kind, both ways
formula, int(sent.sum() - sent.reindex(["counts", "meta"]).sum())

# %% [markdown]
# Figure 8 of FedIOD's paper asks how many bytes a method needs for an accuracy, and says that FedIOD needs no more than
# FedAvg. On the records of Table 1, with a small ResNet-8, FedAvg is the cheaper one. Most accuracies there are near chance
# level, so they do not test Figure 8.
#
# ## Which is cheap?
#
# The price of a model grows with the network, that of images with their pixels and number. One client, one round, both
# directions, in the papers' settings for CIFAR-10 and ten clients:

# %%
image, rows = 3 * 32 * 32, []
for weights in (3e4, 1e5, 3e5, 1e6, 3e6, 1e7):
    model = 4 * weights
    price = {
        "FedAvg": 2 * model,
        "FedVCK, share 2%": model + 0.02 * 5_000 * image,
        "FedMK, 100 images a class": model + 2 * 4 * 100 * 10 * image,
        "FedIOD, 100 steps": 100 * 64 * 2 * 4 * (image + 10),
    }
    rows += [(weights, of / 2**20, name) for name, of in price.items()]
axes = ("parameters of the network", "MB", "label")
frame = pd.DataFrame(rows, columns=axes)
show(lines(frame, *axes, log="xy", title="One client and round, CIFAR-10"))

# %% [markdown]
# - FedVCK still sends the model *down* in every round, so it saves at most half of FedAvg's traffic. Tables 5 and 9 of
#   its paper have uploads only.
# - FedMK's images cost more than a small network, and little beside a large one.
# - FedIOD never sends a network. Its price does not depend on the network, but on the number of steps.
# - A method with fewer rounds may pay more for each: accuracy against MB sent is the fair plot.
#
# ## Take away
#
# - The ledger counts what travels, and a formula for each method gives the same number.
# - A saving is meant for one network, one number of images and one number of rounds: say which.
#
# ## Exercises
#
# ```{exercise} Break even
# :label: ex-comm-even
#
# *Easy, 10 minutes.*
#
# For which share $r$ of the 50,000 images does FedVCK upload as much as FedAvg on CIFAR-10, with ten clients and the
# ConvNet, `models.build("convnet", 3, 32, 10, Rng(0))`? Leave out the rounding. (To be checked: `even_share`, as a share,
# not in percent.)
# ```
#
# ````{solution} ex-comm-even
# :class: dropdown
#
# ```python
# 10 * 4 * count_parameters(models.build("convnet", 3, 32, 10, Rng(0))) / (50_000 * 3 * 32 * 32)
# ```
#
# A share of 8.3%. The model's bytes do not depend on the data, the images' bytes do: on a small data set condensation
# is cheap at any share, on a large one only at a small share.
# ````

# %% tags=["solution", "remove-cell"]
convnet = count_parameters(models.build("convnet", 3, 32, 10, Rng(0)))
even_share = 10 * 4 * convnet / (50_000 * 3 * 32 * 32)

# %% name="ex-comm-even" tags=["check", "remove-cell"]
network = count_parameters(models.build("convnet", 3, 32, 10, Rng(0)))
images_sent = even_share * 50_000
assert abs(images_sent * 3 * 32 * 32 / (10 * 4 * network) - 1) < 0.01, (
    "the bytes of the images must equal those of ten models"
)

# %% [markdown]
# ```{exercise} An upload as large as a model
# :label: ex-mk-even
#
# *Easy, 10 minutes.*
#
# How many images of each class may a client of MNIST send at most, so that its upload is not larger than a model of
# 105 kB (105,000 bytes)? (To be checked: `most_images`, a whole number.)
# ```
#
# ````{solution} ex-mk-even
# :class: dropdown
#
# ```python
# 105_000 // (4 * 28**2 * 10)
# ```
#
# A float has four bytes, and there are ten classes. One more of each class, and the upload is the larger.
# ````

# %% tags=["solution", "remove-cell"]
most_images = 105_000 // (4 * 28**2 * 10)

# %% name="ex-mk-even" tags=["check", "remove-cell"]
assert most_images == int(most_images), "a whole number"
assert most_images * 31_360 <= 105_000, "that many cost more than the model"
assert (most_images + 1) * 31_360 > 105_000, "one more of each class fits"

# %% [markdown]
# ```{exercise} Many clients
# :label: ex-comm-clients
#
# *Medium, 15 minutes.*
#
# What happens to the upload of FedVCK when the same data are spread over 100 clients with few images of a class each?
# ```
#
# ```{solution} ex-comm-clients
# :class: dropdown
#
# The least number of five images a class takes over: the upload is five times the number of pairs of client and class
# that exist, as long as $r$ asks for no more than five of a class. With 100 clients that hold all ten classes these are
# 5,000 images in every round.
# ```
#
# ```{exercise} The price of a query image
# :label: ex-iod-bytes
#
# *Medium, 25 minutes.*
#
# How many bytes does FedIOD send on CIFAR-10 in the paper's setting: 20 clients, batches of 64, 300 epochs, one step of
# the student? Let the largest client have 8,000 images. How many rounds of FedAvg with a ResNet-8 are that?
# Weights by input need one more number for each image, [$D_k(x)$](28_fediod), and its gradient.
# ```
#
# ````{solution} ex-iod-bytes
# :class: dropdown
#
# ```python
# batch, people, largest = 64, 20, 8_000
# image, answer = 4 * 3 * 32 * 32, 4 * 10
# down = batch * (image + answer + 4)          # images; gradients of logits and of D_k(x)
# up = batch * (answer + 4 + image) + 4        # logits, D_k(x), gradients of images; mean D_k on real images
# steps_taken = 300 * -(-largest // batch)
# total = people * steps_taken * (down + up)
# model = 4 * count_parameters(models.build("resnet8", 3, 32, 10, Rng(0)))
# total / 1e9, total / (2 * people * model)
# ```
#
# An epoch is taken as one pass over the data of the largest client; the paper does not say. That is more than a terabyte,
# as much as some 1,500 rounds of FedAvg. Networks are large but travel rarely; images travel in each step.
# ````
