# %% [markdown]
# # FedVCK: the released code from inside
#
# *Question:* what do the differences between the equations of FedVCK {cite:p}`fedvck` and the authors' code do?\
# *Time:* some seconds on two CPU cores. *Data:* scikit-learn's digits.
#
# [The page before](13_fedvck_paper_vs_released) lists the differences and measures what each is worth. Here we look at
# the larger ones alone, in small calculations: first those of the client, then those of the server.

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
clients = 3
seed = 0
profile = "quick"

# %% tags=["hide-input"]
import pandas as pd
import torch

from core import condensation, server
from core.algorithms import find
from core.condensation.engine import Draws
from core.rng import Rng
from lab.report import lines, show, source
from lab.report.lesson import Lesson, condensed, trained

released = find("fedvck").Settings.released()
lesson = Lesson(
    profile, "fedvck", dataset=dataset, alpha=alpha, clients=clients, seed=seed
)
task = lesson.task

# %% [markdown]
# ## The client
#
# ### Eq. 4: current or running statistics
#
# In print, condensed images are normalised by the statistics of the current real batch. The released code embeds the
# real batch in training mode, which only moves the running statistics by a tenth, and the condensed images in
# evaluation mode. So they see an average over the last batches, and at first mostly the values of the received model.
# This is how much of these is left:

# %%
left = {f"iterations: {n}": 100 * 0.9**n for n in (1, 5, 10, 20, 50)}
pd.Series(left).round(1).to_frame("received values (%)")

# %% [markdown]
# ### Eq. 7 and 8: how far from uniform
#
# The released code blends logits and takes a softmax over the weights, which lie in $(0, 1)$. The bound on the ratio of
# the largest to the smallest probability, by $b$:

# %% tags=["hide-input"]
low = torch.tensor(
    [condensation.importance(torch.zeros(1), b).item() for b in (0.0, 0.3, 0.7)]
)
pd.DataFrame(
    {
        "printed, 1 / w(0)": 1 / low,
        "released, exp(1 - w(0))": torch.exp(1 - low),
    },
    index=["b = 0", "b = 0.3", "b = 0.7"],
).round(2)

# %% [markdown]
# ### Eq. 9: sliding batches
#
# The released loop takes `indices[it : it + bs]`, so that two batches in a row share all images but one. How many
# images are drawn in so many iterations?

# %%
draws, size = 100, 256
pd.Series(
    {"fresh batches": draws * size, "sliding batches": size + draws - 1},
    name=f"draws in {draws} iterations",
).to_frame()

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(Draws.rows)

# %% [markdown]
# ### Round 0 and the start of the images
#
# This page counts rounds from 0, as the code does. In round 0 each released client starts from a random network of its
# own. So the logit prototypes of that round come from networks that nobody else has, and $M_{t-1}$ of the next round is
# private. And from round 1 on it goes on with its last images in place of fresh noise. With few iterations this can
# help, since the work of all rounds adds up; but it makes the images of two rounds alike, which is what Figures 1b and
# 3 measure.
#
# ### The learning rate of the images
#
# In print it is 0.001 to 0.01. The released code takes 0.1 to 1.0 and bounds the norm of the gradient. Here are the
# losses of one client with one condensed image per class, under a network that has learned a little:

# %%
client, train = max(lesson.members(), key=len), task.dataset.train
eye = trained(
    task, task.inputs(train.images), train.labels, 40, Rng(seed).at("eye")
)


def trace(**settings):
    *_, loss = condensed(
        task,
        eye,
        client.images,
        client.labels,
        1,
        Rng(seed).at("rates"),
        iterations=60,
        **settings,
    )
    return loss


# %% tags=["hide-input"]
rates = {
    f"{rate:g}, {text}": {"image_lr": rate, "clip_norm": bound}
    for rate in (0.01, 0.1, 1.0, 10.0)
    for bound, text in ((None, "no bound"), (30.0, "bound 30"))
}
losses = pd.concat(
    [
        pd.DataFrame(
            {"step": range(1, 61), "loss": trace(**how), "label": name}
        )
        for name, how in rates.items()
    ]
)
drawn = losses["label"].str.match("0.01|1,") & (losses["loss"] < 1e9)
show(
    lines(
        losses[drawn],
        "step",
        "loss",
        log="y",
        ylabel="loss per class",
        title="Two of the rates, with and without the bound",
    )
)

# %% [markdown]
# All of them, at the first and at the last step:

# %%
values = losses.groupby("label", sort=False)["loss"]
ends = values.agg(["first", "last"])
ends["finite to the end"] = values.apply(
    lambda loss: bool((loss.abs() < 1e38).all())
)
ends.style.format("{:.2g}", subset=["first", "last"])

# %% [markdown]
# Where the loss is no longer finite, the images have left all range. In a federation the server refuses such an upload,
# with a sentence that names the client.
#
# ## The server
#
# ### Eq. 13: the own class among the negatives
#
# From round 1 on the released code forces class $c$ into its own hard negatives, in the place of the $K$-th:

# %% tags=["hide-input"]
prototypes = torch.tensor(
    [
        [3.0, 1.0, 2.0, 0.0],
        [0.5, 4.0, 0.2, 0.1],
        [1.5, 2.5, 1.0, 0.0],
        [0.1, 0.2, 0.3, 0.9],
    ]
)
pd.DataFrame(
    {
        own: [
            str(row)
            for row in server.hard_negatives(prototypes, 2, own=own).tolist()
        ]
        for own in ("never", "forced")
    }
).rename_axis("class")

# %% [markdown]
# ### Eq. 15: the form of the loss
#
# As printed, the positive is not below the line and similarity is a dot product. The released form takes the cosine,
# puts the positive below the line, and counts a class as often as it is in the batch. Our default is the printed ratio
# with the cosine. Why not the dot product? Let a projector learn under each of the three, on random features:

# %% tags=["hide-input"]
generator = Rng(seed).at("forms").generator()
features, marks = torch.randn(60, 16, generator=generator), torch.arange(60) % 4
means, here = server.feature_prototypes(features, marks, 4)
negatives = server.hard_negatives(prototypes, 2)


def descend(form, similarity, steps=60):
    projector, values = server.Projector(16, Rng(seed).at("projector")), []
    optimiser = torch.optim.SGD(projector.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        z = projector(features)
        given = (z, marks, means, negatives, 0.1, form, similarity, here)
        loss = server.relational_contrastive_loss(*given)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(loss.item())
    return pd.DataFrame(
        {
            "step": range(1, steps + 1),
            "loss": values,
            "label": f"{form}, {similarity}",
        }
    )


falls = pd.concat(
    [
        descend("printed", "dot"),
        descend("printed", "cosine"),
        descend("released", "cosine"),
    ]
)
show(
    lines(
        falls[falls["label"] != "printed, dot"],
        "step",
        "loss",
        ylabel="L_rc",
        title="Forms with a bound",
    )
)

# %%
falls.groupby("label", sort=False)["loss"].agg(["first", "last"]).rename(
    columns={"first": "at the start", "last": "after 60 steps"}
)

# %% [markdown]
# With the dot product: once a feature's product with its own prototype is larger than those with its hard negatives',
# the loss falls without end as the feature grows. In training it would take over from the cross-entropy.
# `similarity="dot"` is there for whoever wants to see it.
#
# ### Eq. 15: the projector
#
# The released code draws a new projector in every round and zeroes its gradients once a round, so that each Adam step
# follows the sum of all gradients so far. In print the projector is learnable, and nothing is said of its resets.
#
# ### Eq. 16: a weight that fades
#
# `con_beta`, as the code calls the weight of $L_{rc}$, is multiplied by 0.1 half way through every round and never
# restored. The weight of $L_{rc}$ in the first half of each round:

# %%
pd.Series({f"round {r}": released.contrast * 0.1**r for r in range(6)}).map(
    "{:.0e}".format
).to_frame("con_beta")

# %% [markdown]
# In round 0 the term is skipped. So the contrastive loss of the released code never has more than a tenth of its stated
# weight, and soon none. The paper's ablation credits it with the last step to the full method, see [the
# ablations](12_fedvck_ablations).
#
# ### Eq. 16: what the server keeps
#
# In print the server trains on $\mathcal{S}^t$ or $\mathcal{S}^{:t}$, by the copy of the text ([the
# server](11_fedvck) says how we read it). The released code keeps the condensed images of the last
# $\max(10, R / 2)$ rounds, so in ten rounds it keeps all. Cross-entropy and contrast then see several times as many
# images as with those of one round.
#
# ## The wire
#
# In print a pixel costs a byte. The released code hands over 32-bit tensors in memory. A pixel that noise left beyond
# black or white is cut off on the way in the first case and not in the second ([the wire](07_condensed_images) shows
# how many these are). The bytes:

# %%
data, many = task.dataset, 100
cost = (
    pd.Series({"uint8": 1, "float32": 4}) * many * data.channels * data.size**2
)
cost.to_frame(f"bytes of {many} images")

# %% [markdown]
# ## Take away
#
# - Two of the paper's ideas are weak in the code: the selection is close to uniform, and the contrast fades out.
# - With its dot product Eq. 15 can fall without end. The code's largest image rate, 1, needs its bound on the gradient;
#   0.1 does not here.
# - A warm start changes what Figures 1b and 3 measure, whatever it does to [accuracy](13_fedvck_paper_vs_released).
#
# ## Exercise
#
# ```{exercise} Softmax of weights
# :label: ex-rel-softmax
#
# *Easy, 10 minutes.*
#
# Show that no probability of the released selection is more than $e$ times another, whatever the errors are.
# ```
#
# ```{solution} ex-rel-softmax
# :class: dropdown
#
# $P_i / P_j = e^{w_i - w_j}$, and $w_i - w_j < 1$ since both weights lie in $(0, 1)$.
# ```
