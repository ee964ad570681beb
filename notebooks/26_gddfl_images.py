# %% [markdown]
# # GDD-FL: update steps and initialisation
#
# *Question:* after how many update steps, with which encoder and from which initialisation are condensed images worth
# as much as random real ones?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the records that come with the book.\
# *Learn first:* [GDD-FL](24_gddfl); the paper's table is among the [results](25_gddfl_results).
#
# GDD-FL {cite:p}`gddfl` and DM {cite:p}`dm` have the same augmentation here; they differ by the
# [shift](27_gddfl_shift) and by steps twice as long. All runs are on HAM10000 by centre (substitute data set for ISIC
# 2020): four clients, ten images of each class. *R.S.@40* has as many random real images as all four clients send, the
# control beside which a condensed image is worth something.

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
shown = "best"

# %%
import pandas as pd

from lab.report import dots, lines, show, table
from lab.report.frames import table_runs
from lab.report.results import by_seed, gains

best = None if shown == "best" else shown


def gaps(name, against):
    """Differences in points of AUC to one row of a table, for `dots`."""
    frame = gains("gddfl", name, "auc", against, best)
    return frame.rename(columns={"gain": "value", "row": "name"})


# %% [markdown]
# ## Update steps
#
# Condensed images start from noise. The paper trains for 300 epochs, taken here as so many update steps; its code takes
# 100. The level lines are random real images.

# %%
scores = by_seed(table_runs("gddfl", "budgets", best and [best]), "auc_macro")
frame = scores.melt(value_name="auc", ignore_index=False).reset_index()
parts = frame["row"].str.extract(r"^(.*), ([\d,]+) iterations$")
steps = parts[1].str.replace(",", "").astype(float)
condensed = frame.assign(label=parts[0], steps=steps).dropna(subset="steps")
level = pd.concat(
    frame[steps.isna()].assign(label=frame["row"], steps=end)
    for end in (steps.min(), steps.max())
)
show(
    lines(
        pd.concat([condensed, level]),
        "steps",
        "auc",
        xlabel="update steps of the images",
        ylabel="AUC (%)",
        log="x",
        title="HAM10000 by centre, ten images per class and client",
    )
)

# %%
table("gddfl", "budgets", best)

# %% [markdown]
# The worth of a condensed image depends on the work that goes into it. GDD-FL's loss has a second part, so at one
# learning rate its steps are longer than DM's. [The shift](27_gddfl_shift) tells the two apart.
#
# ## Encoder and initialisation
#
# Does the laptop budget hold the images back? The wide encoder has four times its channels and batches of real images
# as large as the paper's. Would images do better if they started as random real ones? (Then they [show
# them](09_attacks); *not optimised* sends them as they are.) Each row minus *R.S.@40*, with 90% intervals over paired
# seeds:

# %%
xlabel = "AUC minus that of as many real images (points)"
batch_norm = gaps("initialisation", "R.S.@40")
of_instance = batch_norm["name"].str.endswith("instance norm")
show(dots(batch_norm[~of_instance], xlabel, "A server with batch norm"))

# %% [markdown]
# The server's network has batch norm above. GDD-FL's code and the evaluation of DM's give it instance norm, and then
# random real images must have it too:

# %%
instance = gaps("initialisation", "R.S.@40, a server with instance norm")
instance = instance[instance["name"].str.endswith("instance norm")]
show(dots(instance, xlabel, "A server with instance norm"))

# %% [markdown]
# ## Take away
#
# - What a condensed image is worth depends on the work that goes into it: say how much it was.
# - As many random real images are a control that costs little to run. It belongs beside every table, with the same
#   network of the server.
# - Look which lines leave out 0: with three seeds few do, and the others leave the order open. On CIFAR-10
#   [FedDM's real images](13_fedvck_budgets) gain by being optimised.
#
# ```{exercise} The price of an image
# :label: ex-gddw-price
#
# *Easy, 10 minutes.*
#
# A client condenses ten images of each of two classes. In each update step the encoder sees these images and 64 real
# images of each class, forwards; the way back, through the condensed images only, costs twice a forward pass. Training
# a model on 20 images for 50 epochs costs three forward passes an image. How many times the cost of that training are
# 300 update steps? (To be checked: `price`.)
# ```
#
# ````{solution} ex-gddw-price
# :class: dropdown
#
# ```python
# condensing = 300 * (2 * 64 + 3 * 20)
# training = 50 * 3 * 20
# condensing / training
# ```
#
# 18.8 times, if the encoder costs as much as the model. Random selection pays for the training only.
# ````

# %% tags=["solution", "remove-cell"]
price = 300 * (2 * 64 + 3 * 20) / (50 * 3 * 20)

# %% name="ex-gddw-price" tags=["check", "remove-cell"]
assert abs(price / 18.8 - 1) < 0.01, (
    "real images pass forwards, condensed ones both ways"
)
