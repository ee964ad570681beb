# %% [markdown]
# # FedIOD: masks and images
#
# *Question:* how does FedIOD {cite:p}`fediod` learn where every pixel has an answer, and how do its tables compare?\
# *Time:* about half a minute on one CPU core. *Data:* nuclei drawn by this package for the run; records on MoNuSeg, and
# on substitute data sets, for the tables.\
# *Learn first:* [FedIOD](28_fediod).
#
# In segmentation a network answers for every pixel: background, the inside of a nucleus, or its rim. The rim is a class
# of its own so that nuclei that touch can be kept apart. Nothing in FedIOD's equations {eq}`eq:iod-generator`,
# {eq}`eq:iod-importance` asks for one answer per image, so each pixel is a prediction.
#
# One thing is new. Noise is a poor start for an image of tissue, so the generator is given a **label map** and paints an
# image that fits it. The label maps are the clients' own masks: each sends them once. Discriminators see an image beside
# its map, and a perceptual loss compares it with the real image of this map, by the encoder of the client's teacher.

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
dataset = "nuclei_drawn"
clients = 4
local_steps = 60
steps = 40
width = 8
seed = 0
shown = "best"

# %% [markdown]
# ## One run
#
# Four sites stain their tissue in four colours; each is a client. Teachers learn first, then generator, discriminators
# and student together. A run this small shows what happens, not how well it can work.

# %%
import pandas as pd

from lab import Experiment, make_clients, make_task, rounds
from lab.report import image_rows, show, table, table_frame

best = None if shown == "best" else shown
experiment = Experiment(
    algorithm="fediod",
    dataset=dataset,
    model="unet",
    model_options={"width": width},
    partition={"name": "natural"},
    clients=clients,
    rounds=1,
    seed=seed,
    settings={
        "local_steps": local_steps,
        "batch_size": 8,
        "lr": 0.1,
        "distill_steps": steps,
        "distill_batch": 8,
        "pretrain_steps": steps,
        "generator_width": 8,
        "discriminator_width": 8,
        "gan_lr": 0.005,
        "student_lr": 0.01,
    },
)
task = make_task(experiment)
members = make_clients(experiment, task)
algorithm = experiment.new_algorithm()
*_, last = rounds(experiment, task=task, clients=members, algorithm=algorithm)
measures = ["dice", "sensitivity", "specificity", "obj_dice", "aji", "hd95"]
pd.Series(last.metrics)[measures].round(3)

# %% [markdown]
# Dice, $2 |y \cap \hat y| / (|y| + |\hat y|)$, counts pixels of nuclei; sensitivity is the share of the true pixels that
# are found, specificity the share of the others that are left alone. Object Dice and AJI count nuclei, so two that are
# taken for one cost much; they are 0 where a student takes all of a nucleus for rim, for then there is no inside to
# count. HD95 is how far the borders of the two masks are apart, in pixels, but for the worst twentieth.
#
# Each column is one site: a training patch, its mask (black: background, grey: inside, white: rim), what the student
# predicts, and what the generator paints from the mask.


# %%
def drawn(labels):
    """Label maps (N, H, W) as grey images (N, 3, H, W)."""
    return (labels[:, None] / 2).expand(-1, 3, -1, -1)


train = task.dataset.train
first = [int((train.centre == site).nonzero()[0]) for site in range(clients)]
patches, masks = train.images[first], train.masks[first]
student = algorithm.model(last.state)
painted = algorithm.painted(last.state, masks)
rows = {
    "image": patches,
    "mask": drawn(masks),
    "prediction": drawn(task.predict(task.outputs(student, patches))),
    "painted": painted,
}
show(image_rows(rows, "A column for each site", inches=1))

# %% [markdown]
# No network crosses the network. But in each step images and answers for all their pixels go back and forth, and the
# masks of the clients' patients are sent to the server, which averaging never does.
#
# ## Tables 3, 4 and 8: nuclei
#
# Table 3 has four organs of MoNuSeg as four clients. Tables 4 and 8 have three sites: CPM-15 for Cell17, MoNuSeg, and
# images of the Data Science Bowl 2018 {cite:p}`bowl` for TNBC. A dagger marks what is measured on a substitute data set,
# where only the order of the methods can be compared with the paper.

# %%
table("fediod", 3, best)

# %%
table("fediod", 4, best)

# %%
table("fediod", 8, best)

# %% [markdown]
# ## Table 2: tumours of ten sizes
#
# T1 images with contrast {cite:p}`cheng` for the T2 images of BraTS 2018; ten clients have tumours of ten sizes. Learning
# rates and rounds were set after a look at test images here and for Table 9, so the order is no fair comparison either.
# Where Dice is near 0 and specificity near 100, a student marks hardly any pixel.

# %%
table("fediod", 2, best)

# %% [markdown]
# ## Table 9: images from a quarter of their measurements
#
# A scanner measures the spectrum of an image, column by column, and what is missing must be learned. SSIM is the
# similarity of structure, PSNR the ratio of the largest value to the error in decibels. The answer is an image, so there
# is no entropy: our choice is to leave out $L_\text{conf}$ and to take the variance of the teachers' values in place of
# the Jensen-Shannon divergence.

# %%
table("fediod", 9, best)

# %% [markdown]
# ## How far the orders agree
#
# Verdicts on all cells of the five tables; Tables 2, 3 and 9 are no fair comparison at this budget, and count for no total
# and no claim. The [claims](34_status) of the paper about them are judged by paired seeds.

# %%
frame = pd.concat(
    table_frame("fediod", number, best).assign(table=f"Table {number}")
    for number in (2, 3, 4, 8, 9)
)
pd.crosstab(frame["table"], frame["verdict"])

# %% [markdown]
# FedIOD's generator takes some 400 steps here: this says what a small budget gives, and refutes no number of the paper.
#
# ## Take away
#
# - A pixel is a prediction: FedIOD's losses and weights need no change for masks, and methods that average networks need
#   none at all.
# - The generator is given masks, so shapes and places need not be learned from noise. It is a disclosure that averaging
#   does not have.
#
# ```{exercise} What a rim costs
# :label: ex-dense-rim
#
# *Easy, 10 minutes.*
#
# In `nuclei_drawn`, what Dice and what AJI does the *true* mask get, without its instance numbers, when nuclei are kept
# apart by their rims? Use `task.objects` and `core.metrics.objects` on the masks of the test set, one of each site.
# ```
#
# ````{solution} ex-dense-rim
# :class: dropdown
#
# ```python
# from core.metrics import objects
#
# test = task.dataset.test
# [objects(true.numpy(), task.objects(mask)) for true, mask in zip(test.instances, test.masks)]
# ```
#
# Dice is 1 by definition, but object Dice and AJI stay well below 1 at every site: small nuclei have no inside that is
# left when the rim is taken off, and what overlap leaves of a nucleus can be too thin for one, or fall into parts.
# ````
