# %% [markdown]
# # GDD-FL: what precision and recall mean
#
# *Question:* over what are the precision and recall averaged that GDD-FL {cite:p}`gddfl` prints, and what do they say of
# melanoma?\
# *Time:* some seconds on one CPU core; nothing is trained here. *Data:* the paper's printed numbers.
#
# [The results](32_gddfl_results) have the paper's table. ISIC 2020 {cite:p}`isic2020` has very few malignant lesions,
# and the paper prints a precision near 97% beside a recall near 78%, without a word on how they are averaged. Are they
# those of *melanoma*? A model that finds 78% of the melanomas with hardly a false alarm has an AUC of hardly less than
# 78%, and the printed ones are near 70%.
#
# `example_hits` and `example_alarms` are of the model in the small example: the shares of melanomas that it finds, and
# of other lesions that it takes for melanomas.

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
example_hits = 0.5
example_alarms = 0.2

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
from IPython.display import display

from core.checks import check_number
from lab.report import table_frame
from lab.report.texts import Markdown

# %% [markdown]
# ## A small example
#
# The paper's test set, and a model that finds half of the melanomas and raises a false alarm in every fifth of the
# others.

# %% tags=["hide-input"]
check_number("example_hits", example_hits, 0, 1)
check_number("example_alarms", example_alarms, 0, 1)
images, malignant = 33_126, 584  # of ISIC 2020
tested = 3_314  # Section 3.1
positives = round(tested * malignant / images)
negatives = tested - positives
hits = int(example_hits * positives)
alarms = int(example_alarms * negatives)
misses, rejections = positives - hits, negatives - alarms
each = pd.DataFrame(
    {
        "images": {"melanoma": positives, "benign": negatives},
        "precision": {
            "melanoma": hits / (hits + alarms),
            "benign": rejections / (rejections + misses),
        },
        "recall": {
            "melanoma": hits / positives,
            "benign": rejections / negatives,
        },
    }
)


def harmonic_mean(precision, recall):
    return 2 * precision * recall / (precision + recall)


each["F1"] = harmonic_mean(each["precision"], each["recall"])
measures = ["precision", "recall", "F1"]
weights = each["images"] / each["images"].sum()
means = {
    "mean, each class alike": each[measures].mean(),
    "mean, weighted by class size": each[measures].mul(weights, axis=0).sum(),
}
means = pd.DataFrame(means).T
(100 * pd.concat([each[measures], means])).round(2)

# %% [markdown]
# There it is: weighted by class size the same model has a precision near 97% and a recall near 80%. Weighted means are
# means over the benign lesions, with a melanoma here and there. The weighted recall is the accuracy. And what would a
# model get that calls everything benign?

# %% tags=["hide-input"]
frame = table_frame("gddfl", 1, "paper", measured={})
scores = frame[frame["metric"].ne("upload_mb") & frame["printed"].notna()]
constant = negatives / (positives + negatives)
benign = pd.Series(
    {
        "auc": 50,
        "precision": 100 * constant**2,
        "recall": 100 * constant,
        "f1": 100 * harmonic_mean(constant**2, constant),
    }
)
pd.DataFrame(
    {
        "all benign (%)": benign,
        "rows of the table that are better": {
            name: f"{(of['printed'] > benign[name]).sum()} of {len(of)}"
            for name, of in scores.groupby("metric")
        },
    }
).round(2)

# %% [markdown]
# It finds no melanoma, and no row of the table has a better recall or F1. A weighted precision of 97% is half a point
# above no diagnosis at all. AUC is the number to read in this paper's table.
#
# ## How the paper averaged
#
# Is that how the paper averaged? The numbers of one run belong to one table of hits and misses, and means over runs
# nearly do, so they can be tested. For every averaging (*binary*: of melanoma; *negative*: of the benign; *macro*: both
# classes alike; *weighted*: by class size; *micro*: of all images, which is the accuracy) we look for a table with the
# printed recall, take the one whose precision is nearest, and ask whether precision and AUC fit. A score whose
# threshold gives a true positive rate $a$ and a false positive rate $b$ has
#
# $$
# a (1 - b) \; \le \; \mathrm{AUC} \; \le \; 1 - (1 - a) b ,
# $$ (eq:gdd-auc)
#
# since these are the AUCs when all other pairs are in the wrong, and in the right, order.

# %% tags=["hide-input"]
# the share that the measures of melanoma have in each mean
shares = {
    "binary": 1,
    "negative": 0,
    "macro": 1 / 2,
    "weighted": positives / tested,
    "micro": positives / tested,  # its recall is the weighted one
}


def nearest(name, precision, recall):
    """The table of hits and false alarms with this recall whose precision is
    nearest. Counts are real numbers: a report is a mean over runs."""
    share, grid = shares[name], np.linspace(0, 1, 2_000_001)
    if share == 1:
        hits, alarms = np.full_like(grid, recall * positives), grid * negatives
    else:
        hits = grid * positives
        rejected = (recall - share * grid) / (1 - share)
        alarms = (1 - rejected) * negatives
    possible = (alarms >= 0) & (alarms <= negatives)
    hits, alarms = hits[possible], alarms[possible]
    misses, rejections = positives - hits, negatives - alarms
    with np.errstate(invalid="ignore"):  # a class that is never predicted
        precisions = share * np.nan_to_num(hits / (hits + alarms)) + (
            1 - share
        ) * np.nan_to_num(rejections / (rejections + misses))
    if name == "micro":
        precisions = (hits + rejections) / tested
    best = np.abs(precisions - precision).argmin()
    hits, alarms = hits[best], alarms[best]
    misses, rejections = positives - hits, negatives - alarms
    a, b = hits / positives, alarms / negatives
    return {
        "hits": hits,
        "alarms": alarms,
        "precision": precisions[best],
        "f1": share * 2 * hits / (2 * hits + alarms + misses)
        + (1 - share) * 2 * rejections / (2 * rejections + alarms + misses),
        "auc": (a * (1 - b), 1 - (1 - a) * b),
    }


def fits(table, precision, auc):
    """Whether a table gives the printed values, to half a unit."""
    low, high = table["auc"]
    near = abs(table["precision"] - precision) <= 5e-5
    return bool(near and low - 5e-5 <= auc <= high + 5e-5)


printed = scores.assign(fraction=scores["printed"] / 100).pivot(
    index=["row", "column"], columns="metric", values="fraction"
)
top = printed.loc["Upper bound"].iloc[0]
tries = {
    name: nearest(name, top["precision"], top["recall"]) for name in shares
}
pd.DataFrame(
    {
        name: {
            "melanomas found": f"{table['hits']:.0f} of {positives}",
            "false alarms": f"{table['alarms']:.0f}",
            "precision (%)": f"{100 * table['precision']:.2f}",
            "AUC (%)": " to ".join(f"{100 * v:.1f}" for v in table["auc"]),
            "fits": fits(table, top["precision"], top["auc"]),
        }
        for name, table in tries.items()
    }
).T

# %% tags=["hide-input"]
Markdown(
    f"Printed for the upper bound: precision {100 * top['precision']:.2f}, "
    f"recall {100 * top['recall']:.2f}, "
    f"AUC {100 * top['auc']:.2f}. Fits: "
    + (
        ", ".join(
            name
            for name, table in tries.items()
            if fits(table, top["precision"], top["auc"])
        )
        or "none"
    )
    + "."
)

# %% [markdown]
# All rows, read as weighted means; the first column says which averagings are possible. *True alarms* is the
# precision of melanoma, which the paper does not print.

# %% tags=["hide-input"]
reading = {}
for key in dict.fromkeys(zip(scores["row"], scores["column"], strict=True)):
    row = printed.loc[key]
    p, r = row["precision"], row["recall"]
    tables = {name: nearest(name, p, r) for name in shares}
    table = tables["weighted"]
    alarmed = table["hits"] + table["alarms"]
    reading[key] = {
        "possible": ", ".join(
            name for name in shares if fits(tables[name], p, row["auc"])
        ),
        "found": round(table["hits"]),
        "false alarms": round(table["alarms"]),
        "true alarms (%)": round(100 * table["hits"] / alarmed, 2),
        "weighted F1": 100 * table["f1"],
        "2PR/(P+R)": 100 * harmonic_mean(p, r),
        "printed F1": 100 * row["f1"],
    }
reading = pd.DataFrame(reading).T
scores_of = ["weighted F1", "2PR/(P+R)", "printed F1"]
reading.drop(columns=scores_of).astype({"true alarms (%)": float})

# %% mystnb={"code_prompt_show": "Show F1 of all rows"} tags=["hide-cell"]
reading[scores_of].astype(float).round(2)

# %% tags=["hide-input"]
weighted = reading["possible"].str.contains("weighted")
assert (weighted.sum(), len(reading)) == (18, 21), "the text below says so"
unlike = [
    f"{row} ({column}): {name or 'none'}"
    for (row, column), name in reading["possible"][~weighted].items()
]
short = reading["2PR/(P+R)"] - reading["printed F1"]
near = short.abs() < 0.011
display(
    Markdown(
        f"{int(weighted.sum())} of {len(reading)} rows can be weighted means. "
        "The "
        f"others: {'; '.join(unlike) or 'none'}."
    )
)
Markdown(
    "The printed F1 is the harmonic mean of the two means in "
    f"{int(near.sum())} of {len(reading)} rows. "
    f"In the other {int((~near).sum())} it is smaller "
    f"{int((short[~near] > 0).sum())} times."
)

# %% [markdown]
# In the rows that do not fit, the printed precision is too low for any table with that accuracy. A mean of both classes
# alike is possible in all rows but the upper bound's, so it fits more rows than the weighted mean does. But no
# averaging fits all: they were not averaged in one way, or not over one test set. What speaks for the weighted mean is
# not the count. The upper bound allows nothing else, and as means of both classes alike the other rows need at most a
# dozen false alarms among 3,256 benign lesions, most of them about two, beside AUCs near 70%. F1 is another matter. The
# harmonic mean is concave, so the mean of several runs' F1 lies below the harmonic mean of their mean precision and
# recall, or on it. A printed F1 that is smaller is what a mean over runs gives. The book measures what fits the upper
# bound and 17 other rows: weighted precision and recall, and the harmonic mean of the two as F1 (`f1_of_weighted`,
# which is not the usual weighted F1).
#
# ## Take away
#
# - Most printed precisions and recalls, the upper bound's among them, can be means weighted by class size; three rows
#   cannot. Plain means of both classes fit all rows but the upper bound's, so no averaging fits all. With 1.8%
#   positives such means say little; AUC does.
# - The measures of a run belong to one table of hits and misses, means over runs nearly so: test them against each
#   other.
#
# ## Exercises
#
# ```{exercise} All benign
# :label: ex-gdd-benign
#
# *Medium, 20 minutes.*
#
# A data set has a share $q$ of positives. Which weighted precision, recall and F1 has the model that calls everything
# negative? For which $q$ is its weighted precision 97%?
# ```
#
# ````{solution} ex-gdd-benign
# :class: dropdown
#
# The negative class has precision $1 - q$ and recall 1, the other has 0. Weighted: precision $(1 - q)^2$, recall
# $1 - q$, and F1 $(1 - q) \cdot 2 (1 - q) / (2 - q)$.
#
# ```python
# 1 - 0.97**0.5
# ```
#
# At about 1.5% positives, a little fewer than ISIC 2020 has.
# ````
#
# ```{exercise} Which averaging?
# :label: ex-gdd-averaging
#
# *Medium, 20 minutes.*
#
# The row R.S.@100 fits no weighted mean. Which averaging does fit its precision, recall and AUC?
# ```
#
# ````{solution} ex-gdd-averaging
# :class: dropdown
#
# ```python
# row = printed.loc["R.S.@100"].iloc[0]
# tables = {name: nearest(name, row["precision"], row["recall"]) for name in shares}
# [name for name in shares if fits(tables[name], row["precision"], row["auc"])]
# ```
#
# Only the mean of both classes alike. Is it likely? Look at the table that it needs:
#
# ```python
# nearest("macro", row["precision"], row["recall"])
# ```
#
# About a third of the melanomas with only a handful of false alarms, from 200 training images. Read in the same way,
# all other rows but the upper bound's need at most a dozen; read as weighted means, they raise hundreds. A test set
# with more melanomas could be behind these rows as well; the paper does not say.
# ````
