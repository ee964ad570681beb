# %% [markdown]
# # FedMK: what is in the knowledge
#
# *Question:* do more images of meta knowledge hold more, how far apart are two sets of it, and what can somebody read
# from what FedMK {cite:p}`fedmk` sends?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits for the runs; records for the tables.
#
# Clients of [FedMK](20_fedmk) send a few made-up images of each class. Here are the number of these images (Figure 3),
# the earth mover's distance of two sets (Table 7), and an attack that reads images out of gradients (Figure 6). In the
# tables the learning rate of the server falls from round to round, as in the [results](22_fedmk_results); in the small
# runs on this page it is the same in all rounds.

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
rounds = 3
images_per_class = 5
iterations = 12
attack_iterations = 5
seed = 0
profile = "quick"
shown = "best"

# %% tags=["hide-input"]
import pandas as pd
import torch

from core.federation.tensors import take_each
from core.metrics import earth_movers_distance
from core.privacy import leakage
from core.rng import Rng
from lab.report import image_rows, show, source, table, table_frame
from lab.report.frames import verdict_counts
from lab.report.lesson import SMALL, Lesson
from lab.report.texts import Markdown

best = None if shown == "best" else shown
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
    settings={
        **SMALL["fedmk"],
        "images_per_class": images_per_class,
        "iterations": iterations,
    },
)
task, members = lesson.task, lesson.members()
classes, test = task.dataset.classes, task.dataset.test

# %% [markdown]
# ## Figure 3: how many images per class
#
# The claim: MNIST is best at 20 per class, CIFAR-10 rises with the number. Here every size has the same iterations on 64
# images, in one inner step: images of a larger set move less often. One size a set is measured, so the claim is open.

# %% tags=["hide-input"]
table("fedmk", "figure3", best)

# %% [markdown]
# On digits, with what an upload costs. For Table 7, below, clients also make knowledge of the smallest size.

# %% tags=["hide-input"]
sizes = (2, images_per_class, 4 * images_per_class)
of_size = {
    size: lesson.run(images_per_class=size, compare_size=sizes[0])
    for size in sizes
}
pd.DataFrame(
    {
        f"{size} per class": {
            "accuracy (%)": run.accuracy,
            "upload a round (kB)": run.results[-1].up / 1000,
        }
        for size, run in of_size.items()
    }
).T.round(1)

# %% [markdown]
# ## Table 7: the earth mover's distance
#
# ### What it measures
#
# Two sets of points $x_1, \dots, x_N$ and $y_1, \dots, y_M$; every point of a set is a heap of earth, $1/N$ or $1/M$ of
# the whole. Carrying a little from $x_i$ to $y_j$ costs its amount times the distance $d_{ij}$. The distance of the
# sets is the cost of the cheapest plan $\gamma$ that turns the first into the second:
#
# $$
# \mathrm{EMD} = \min_{\gamma \ge 0} \sum_{i,j} \gamma_{ij} \, d_{ij}
# \quad \text{s.t.} \quad \sum_j \gamma_{ij} = \frac{1}{N}, \qquad \sum_i \gamma_{ij} = \frac{1}{M} .
# $$ (eq:mk-emd)

# %% mystnb={"code_prompt_show": "Show the distance in core"} tags=["hide-cell"]
source(earth_movers_distance)

# %% [markdown]
# On a line it can be done by hand: it is the area between the two distribution functions. Heaps at 0 and 1 against
# heaps at 0, 1 and 3:

# %%
first, second = (
    torch.tensor([[0.0], [1.0]]),
    torch.tensor([[0.0], [1.0], [3.0]]),
)
by_hand = (1 / 2 - 1 / 3) * 1 + (1 - 2 / 3) * 2
computed = earth_movers_distance(first, second, "euclidean")
assert abs(by_hand - computed) < 1e-9

# %% [markdown]
# ### Which distance between two images?
#
# The paper names none. It cites DeepEMD {cite:p}`deepemd`, whose ground distance is one minus the cosine, so that is
# ours. Nor does it say in which space: pixels in $[-1, 1]$, grey values from 0 on, or features of a network. This is
# not a detail. We compare the knowledge of the last round of the runs above with that of the federation beside them,
# which has the smallest size and noise of its own. (From the same noise the small set would begin as a part of the
# large one.) To know what a number means it needs controls: sets of the same sizes that nobody optimised.


# %% tags=["hide-input"]
def knowledge(run, whose="knowledge/"):
    """All images that a server has after the last round."""
    held = take_each(whose, run.state.tensors).values()
    return torch.cat([one["images"] for one in held])


def noise(like, *purpose):
    """As many images from U[-1, 1]."""
    draws = Rng(seed).at(*purpose).generator()
    return 2 * torch.rand(like.shape, generator=draws).to(like.device) - 1


model = task.model_from(of_size[images_per_class].state.tensors).eval()
spaces = {
    "pixels, -1 to 1": lambda x: x,
    "pixels, 0 to 1": lambda x: (x + 1) / 2,
    "features": lambda x: model.embed(x).detach(),
}
pairs = {}
for size, run in of_size.items():
    both = knowledge(run), knowledge(run, "compared/knowledge/")
    pairs[f"knowledge, {size} per class"] = both
    pairs[f"U[-1, 1], {size} per class"] = [
        noise(one, size, k) for k, one in enumerate(both)
    ]
distances = {
    name: {
        space: earth_movers_distance(see(images), see(others))
        for space, see in spaces.items()
    }
    for name, (images, others) in pairs.items()
}
emd = pd.DataFrame(distances).T
emd.round(3)

# %% [markdown]
# Every second row is noise against other noise, which holds no information at all. Its distance hardly changes with the
# size. So a stable distance between sets of knowledge does not show that their information is stable. What would show
# something is a distance well below that of such a control.

# %% tags=["hide-input"]
control = emd.loc[f"U[-1, 1], {sizes[-1]} per class"]
own = emd.loc[f"knowledge, {sizes[-1]} per class"]
seven = table_frame("fedmk", 7, best)
larger, smallest = seven.iloc[1:], emd[emd > 1e-6].min().min()
Markdown(
    "Largest set against smallest, as a share of the distance of pure noise: "
    + ", ".join(
        f"{space}: {own[space] / control[space]:.0%}" for space in spaces
    )
    + f". The smallest distance above is {smallest:.2f}: in "
    f"{'no' if smallest > larger['printed'].max() else 'one'} space are two "
    "sets as near as in print. "
    f"Table 7, for sizes above 10: printed {larger['printed'].min():.3f} to "
    f"{larger['printed'].max():.3f}, measured {larger['measured'].min():.2f} "
    f"to {larger['measured'].max():.2f}. "
    f"{len(larger)} cells: {verdict_counts(larger)}."
)

# %% tags=["hide-input"]
table("fedmk", 7, best)

# %% [markdown]
# S=10 is the control: two federations of one size. Measured distances are between pixels from -1 to 1.
#
# ## Figure 6: deep leakage
#
# Somebody who knows the model and sees the gradient $\nabla W$ of one batch can look for a batch $(x', y')$ that has
# the same gradient (DLG, {cite:p}`dlg`):
#
# $$
# x'^*, y'^* = \operatorname*{arg\,min}_{x', y'}
# \Bigl\lVert \frac{\partial \ell(F(x', W), y')}{\partial W} - \nabla W \Bigr\rVert^2 .
# $$ (eq:mk-dlg)

# %% mystnb={"code_prompt_show": "Show the attack in core"} tags=["hide-cell"]
source(leakage.deep_leakage)

# %% [markdown]
# The paper feeds "the extracted meta knowledge and a trained model" to the attack and shows that what comes out does
# not resemble the originals. Meta knowledge is no gradient. What can somebody do who holds it? Compute the gradient
# that the model has *on the knowledge*. Then the attack at best restores the knowledge, which the attacker has already.
# So the bottom row of Figure 6 can hardly show anything else, and does not show that knowledge is safe.
#
# The paper takes a trained model. We take the one with random weights that the first round begins with, and three images
# of the largest client, each of another class. The label is taken to be known. The attack stops after a few steps (the
# parameter `attack_iterations`); its authors take 300. Rows: the original; what the attack restores from the gradient
# on it; the meta knowledge of the same class; what the attack restores from the gradient on that.


# %% tags=["hide-input"]
def grey(images):
    """Network inputs as fractions of white in [0, 1]."""
    return lesson.as_images(images).float() / 255


algorithm, begin = lesson.experiment().new_algorithm(), lesson.start()
client = max(members, key=len)
victim = task.model_from(begin.tensors).eval()
told = algorithm.client_update(
    client, algorithm.broadcast(begin, client.id), Rng(seed).at("told")
).tensors
marks = told["labels"].long()
chosen = client.class_counts.topk(min(3, len(marks.unique()))).indices
private = torch.cat([(client.labels == c).nonzero()[:1, 0] for c in chosen])
originals = task.inputs(client.images[private]).contiguous()
made = torch.cat([told["images"][marks == c][:1] for c in chosen])
attack = leakage.DeepLeakage(iterations=attack_iterations)


def restored(images, purpose):
    """One image at a time, from the gradient of the model on it."""
    found = [
        leakage.deep_leakage(
            victim,
            leakage.gradients(victim, images[k : k + 1], chosen[k : k + 1]),
            (1, *images.shape[1:]),
            len(classes),
            attack,
            Rng(seed).at(purpose, k),
            chosen[k : k + 1],
        )
        for k in range(len(images))
    ]
    return torch.cat([one.images for one in found])


from_real, from_made = restored(originals, "real"), restored(made, "made")
rows = {
    "original": originals,
    "from its gradient": from_real,
    "meta knowledge": made,
    "from the gradient on it": from_made,
}
rows = {name: lesson.as_images(images) for name, images in rows.items()}
show(image_rows(rows, title="Deep leakage"))

# %% [markdown]
# Peak signal-to-noise ratio in dB, higher is more alike: of what was restored to what the gradient was computed on, and
# to the original that is most like it among *all* images of the client. The control is the same search among as many
# test images, which no gradient has seen.


# %% tags=["hide-input"]
def nearest(images, others):
    """Mean PSNR of network inputs to the nearest of some 8-bit images."""
    return leakage.best_matches(grey(images), others / 255).psnr.mean().item()


def to_source(found, images):
    """Mean PSNR of each restored image to its own source."""
    pairs = zip(grey(found).split(1), grey(images).split(1), strict=True)
    matches = [leakage.best_matches(*pair).psnr for pair in pairs]
    return torch.cat(matches).mean().item()


order = torch.randperm(len(test), generator=Rng(seed).at("unseen").generator())
unseen = test.images[order[: len(client)]].to(client.images.device)
judged = {
    f"gradient on {what}": {
        "its source": to_source(found, images),
        "nearest private": nearest(found, client.images),
        "nearest unseen": nearest(found, unseen),
    }
    for what, found, images in (
        ("real images", from_real, originals),
        ("knowledge", from_made, made),
    )
}
judged = pd.DataFrame(judged).T
judged.round(1)

# %% tags=["hide-input"]
real, synthetic = judged.round(1).values
Markdown(
    f"Restored from gradients on real images: {real[0]} dB to the image "
    f"itself. From gradients on knowledge: {synthetic[1]} dB to the nearest "
    f"private image and {synthetic[2]} dB to the nearest unseen one."
)

# %% [markdown]
# ## Looking at the knowledge itself
#
# No attack is needed to look. FedMK hands the knowledge of a client to others {eq}`eq:mk-sharing`. Is it nearer to
# the client's own images than to images that it never saw, which have another mix of classes? If not, single images are
# not simply copied.

# %% tags=["hide-input"]
many = min(len(unseen), len(client))
pd.Series(
    {
        "to own images": nearest(told["images"], client.images[:many]),
        "to unseen images": nearest(told["images"], unseen[:many]),
    }
).round(2).to_frame("nearest image (dB)")

# %% [markdown]
# That is a weak test: the mean of many images that look like noise shows the class ([the page on the server](25_fedmk_server) draws it). And to
# guess *who is in* a data set, no picture is needed. The paper answers with a bound: what membership inference can gain
# is of order $|\hat{\mathcal{D}}| / |\mathcal{D}|$, and the first is "much fewer". Is it? Images of knowledge of a
# client with all classes, and images that a client has on average (half of the training set over 20 clients):

# %% tags=["hide-input"]
counts = {
    "mnist": (20, 10, 60_000),
    "svhn": (100, 10, 73_257),
    "cifar10": (100, 10, 50_000),
    "cifar100 (coarse)": (40, 20, 50_000),
}
size = {
    name: {"knowledge": per_class * many, "data": images / 2 / 20}
    for name, (per_class, many, images) in counts.items()
}
size = pd.DataFrame(size).T.astype({"knowledge": int})
size.assign(ratio=size["knowledge"] / size["data"]).round(2)

# %% [markdown]
# For the colour sets the two are of one order, in one round. A client that takes part in several rounds sends new
# knowledge every time.
#
# ## What the paper leaves open
#
# - Table 7 names neither the ground distance nor the space, nor $\alpha$ or rounds.
# - Figure 3 names no $\alpha$; the sizes on its axes cannot be read.
#
# ## Take away
#
# - In the small run more images did not always bring more (one seed); each is moved less often. Figure 3 is still open.
# - A distance between sets says nothing without a ground distance, a space and a control.
# - The attack needs a gradient, and knowledge is none: that it fails shows nothing. Test who was in the data.
#
# ## Exercises
#
# ```{exercise} Twice the same
# :label: ex-mka-twice
#
# *Easy, 10 minutes.*
#
# What is the earth mover's distance between a set and the same set with every image twice? And between a set and its
# first half?
# ```
#
# ````{solution} ex-mka-twice
# :class: dropdown
#
# ```python
# whole = knowledge(of_size[images_per_class])
# earth_movers_distance(whole, torch.cat([whole, whole])), earth_movers_distance(whole, whole[: len(whole) // 2])
# ```
#
# Zero: a set is what shares of earth lie where, not how many points there are. The half is at some distance.
# ````
#
# ```{exercise} Two images at once
# :label: ex-mka-two
#
# *Medium, 20 minutes.*
#
# Gradients are sent for batches. Let the attack restore two images of two classes from the gradient of both together.
# ```
#
# ````{solution} ex-mka-two
# :class: dropdown
#
# ```python
# two = leakage.deep_leakage(victim, leakage.gradients(victim, originals[:2], chosen[:2]), (2, *originals.shape[1:]),
#                            len(classes), attack, Rng(seed).at("two"), chosen[:2])
# leakage.best_matches(grey(two.images), grey(originals[:2])).psnr.mean().item(), judged.iloc[0, 0]
# ```
#
# Only the mean of two gradients is known, and twice as many pixels are sought. A batch of 32, as in the tables, is
# harder still; but what one attack achieves is no bound on what a patient attacker can do.
# ````
