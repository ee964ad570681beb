# %% [markdown]
# # GDD-FL: what condensed images are worth
#
# *Question:* how long must images be moved, at which encoder and from which start, until they are worth as much as
# random real ones?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the records that come with the book.
#
# In the [results](32_gddfl_results) ten condensed images of a class from each client do not beat as many random real
# ones. Here is what that depends on: the number of moves, the width of the encoder with the size of its batches,
# what the images start from, and how batches are drawn. GDD-FL {cite:p}`gddfl` and DM {cite:p}`dm` have the same
# augmentation here; they differ by the [shift](31_gddfl_shift) and by steps twice as long.
#
# `shown` is the profile that the tables show; "best" is the one at which most is measured.

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

# %% tags=["hide-input"]
import pandas as pd

from lab.report import bars, lines, show, table
from lab.report.frames import table_runs
from lab.report.results import by_seed, gains, spreads
from lab.report.texts import Markdown

best = None if shown == "best" else shown

# %% [markdown]
# ## How long they are moved
#
# Condensed images start from noise. How long must they be moved until they are worth as much as random real ones? The
# paper trains for 300 epochs, read here as so many moves, and its code moves them 100 times. On HAM10000 by centre (*a
# stand-in for ISIC 2020*), four clients with ten images of each class:

# %% tags=["hide-input"]
moved = table_runs("gddfl", "ladder", best and [best])
moved = moved.assign(
    auc=[100 * record.metrics["auc_macro"] for record in moved["record"]]
)
parts = moved["row"].str.extract(r"^(.*), ([\d,]+) iterations$")
rungs = moved.assign(
    label=parts[0], iterations=parts[1].str.replace(",", "").astype(float)
).dropna(subset="iterations")
real = moved[parts[1].isna()].groupby("row")["auc"].mean()
ends = rungs["iterations"].agg(["min", "max"])
level = [
    {"label": f"{row}, real images", "iterations": end, "auc": auc}
    for row, auc in real.items()
    for end in ends
]
if len(rungs):
    show(
        lines(
            pd.concat([rungs, pd.DataFrame(level)]),
            "iterations",
            "auc",
            xlabel="iterations of condensation",
            ylabel="AUC (%)",
            log="x",
            title="HAM10000 by centre, ten images per class and client",
        )
    )

# %% tags=["hide-input"]
reached = rungs.groupby(["label", "iterations"])["auc"].agg(["mean", "count"])
Markdown(
    "AUC, mean over seeds: "
    + "; ".join(
        f"{label} "
        + ", ".join(
            f"{one['mean']:.1f}% after {iterations:,.0f} iterations "
            f"({one['count']:.0f})"
            for (_, iterations), one in of.iterrows()
        )
        for label, of in reached.groupby(level="label", sort=False)
    )
    + "; "
    + "; ".join(f"{row} {auc:.1f}%" for row, auc in real.items())
    + ". In brackets how many seeds. *R.S.@40* has as many real images as all "
    "four clients send."
    if len(rungs)
    else "Not measured at this profile."
)

# %% tags=["hide-input"]
longest = "GDD-FL, 1,000 iterations"
found = gains("gddfl", "ladder", "auc", longest, best).set_index("row")
other = found.reindex(["DM, 1,000 iterations"]).iloc[0]
Markdown(
    f"After 1,000 moves DM leads GDD-FL by {other.gain:.1f} points (90% "
    f"interval {other.low:.1f} to {other.high:.1f}, {other.seeds:.0f} seeds). "
    "GDD-FL's loss has a second part, so at one rate its steps are longer; "
    "whether this is the reason was not tried."
    if other.notna().all()
    else "Not measured at this profile."
)

# %% mystnb={"code_prompt_show": "Show the numbers"} tags=["hide-cell"]
table("gddfl", "ladder", best)

# %% [markdown]
# ## What they start from, and how wide the encoder is
#
# Does the laptop's budget hold the images back? Its encoder has 32 channels and 16 real images of a class in a batch;
# the widest here has 128 and 64 (print has batches of 64 and gives no width). And would they do better if they started
# as random real images of their client? (Then they [show them](09_leakage).) 300 moves each. *R.S.@40* draws from all
# clients together, so a large centre gives more than a small one; *not moved* sends ten of each class from every
# centre, as condensation does. The server's network has batch norm here; GDD-FL's code and the evaluation of DM's give
# it instance norm, and so do three rows:

# %% tags=["hide-input"]
scores = by_seed(table_runs("gddfl", "starts", best and [best]), "auc_macro")
if len(scores):
    show(
        bars(
            spreads(scores),
            "AUC (%)",
            "HAM10000 by centre, ten images per class and client",
        )
    )

# %% tags=["hide-input"]
still = "DM, real images not moved"
gaps = {}
for row in scores.index[scores.index.str.contains("^DM|^GDD-FL")]:
    method, _, how = row.partition(", ")
    like = f"R.S.@40, {how}"
    for name, rival in (
        ("its plain row", method),
        ("DM, not moved", still),
        ("R.S.@40", like if like in scores.index else "R.S.@40"),
    ):
        if row != rival and rival in scores.index:
            gap = (scores.loc[row] - scores.loc[rival]).dropna()
            gaps[row, name] = f"{gap.mean():+z.1f}" if len(gap) else ""
beside = pd.Series(gaps, dtype=str).unstack().fillna("")
beside.reindex(columns=["its plain row", "DM, not moved", "R.S.@40"])

# %% [markdown]
# Points of AUC above another row, means over seeds: the same method's first row, DM's real images that are not moved,
# and as many random real images (with the same network of the server).

# %% mystnb={"code_prompt_show": "Show the numbers of all starts"} tags=["hide-cell"]
table("gddfl", "starts", best)

# %% [markdown]
# ## How batches are drawn
#
# In these tables an image may stand twice in a batch of real images. The code of DC, DSA and DM draws without
# replacement, and so does GDD-FL's. Ten images per class and client, as above:

# %% tags=["hide-input"]
table("gddfl", "batches", best)

# %% tags=["hide-input"]
said = []
for row in ("DC", "DSA", "DM"):
    of = gains("gddfl", "batches", "auc", row, best).set_index("row")
    for one in of[of.index == f"{row}, without replacement"].itertuples():
        said.append(
            f"{row} {one.gain:+z.1f} (90% interval {one.low:+.1f} to "
            f"{one.high:+.1f}, {one.seeds} seeds)"
        )
Markdown(
    f"What it changes, in points of AUC: {'; '.join(said)}."
    if said
    else "Not measured at this profile."
)

# %% [markdown]
# ## Take away
#
# - What a condensed image is worth depends on the work that goes into it: say how much it was. That it is worth more
#   than a real one is not shown here.
# - A wide encoder adds a little here, and seeds disagree. Images that start from real ones end below those from noise
#   with every seed, and on average below the same images unmoved. On the second seeds disagree: whether moving makes
#   them worse is open.
#   On CIFAR-10 [FedDM's real images](03_fedvck_starts) gain by being moved, unless batch normalisation takes their own
#   statistics.
# - Where the server has instance norm, as in the authors' code, as many random real images are ahead of DM's and of
#   GDD-FL's with every seed; where it has batch norm seeds disagree.
# - As many random real images are a control that costs little to run. It belongs beside every table.
#
# ```{exercise} The price of an image
# :label: ex-gddw-price
#
# *Easy, 10 minutes.*
#
# A client condenses ten images of each of two classes. In each move the encoder sees these images and 64 real images of
# each class, forwards; the way back, through the condensed images only, costs twice a forward pass. Training a model on
# 20 images for 50 epochs costs three forward passes an image. How many times the cost of that training are 300 moves?
# (To be checked: `price`.)
# ```
#
# ````{solution} ex-gddw-price
# :class: dropdown
#
# ```python
# moving = 300 * (2 * 64 + 3 * 20)
# training = 50 * 3 * 20
# moving / training
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
