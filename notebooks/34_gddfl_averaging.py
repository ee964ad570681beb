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
import pandas as pd
from IPython.display import display

from core.checks import check_number
from core.data import isic
from core.metrics import averaging
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
images, malignant = isic.OFFICIAL
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
each["F1"] = averaging.harmonic_mean(each["precision"], each["recall"])
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
        "f1": 100 * averaging.harmonic_mean(constant**2, constant),
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
printed = scores.assign(fraction=scores["printed"] / 100).pivot(
    index=["row", "column"], columns="metric", values="fraction"
)
top = printed.loc["Upper bound"].iloc[0]
tries = {
    name: averaging.fit(
        name, top["precision"], top["recall"], positives, negatives
    )
    for name in averaging.AVERAGINGS
}
pd.DataFrame(
    {
        name: {
            "melanomas found": f"{found.hits:.0f} of {positives}",
            "false alarms": f"{found.false_alarms:.0f}",
            "precision (%)": f"{100 * found.precision:.2f}",
            "AUC (%)": " to ".join(f"{100 * v:.1f}" for v in found.auc),
            "fits": found.explains(top["precision"], top["auc"]),
        }
        for name, found in tries.items()
    }
).T

# %% tags=["hide-input"]
Markdown(
    f"Printed for the upper bound: precision {100 * top['precision']:.2f}, "
    f"recall {100 * top['recall']:.2f}, "
    f"AUC {100 * top['auc']:.2f}. Fits: "
    + (
        ", ".join(
            n
            for n, f in tries.items()
            if f.explains(top["precision"], top["auc"])
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
    found = averaging.fit("weighted", p, r, positives, negatives)
    possible = averaging.possible_averagings(
        p, r, row["auc"], positives, negatives
    )
    alarmed = found.hits + found.false_alarms
    reading[key] = {
        "possible": ", ".join(possible),
        "found": round(found.hits),
        "false alarms": round(found.false_alarms),
        "true alarms (%)": round(100 * found.hits / alarmed, 2),
        "weighted F1": 100 * found.f1,
        "2PR/(P+R)": 100 * averaging.harmonic_mean(p, r),
        "printed F1": 100 * row["f1"],
    }
reading = pd.DataFrame(reading).T
scores_of = ["weighted F1", "2PR/(P+R)", "printed F1"]
reading.drop(columns=scores_of).astype({"true alarms (%)": float})

# %% mystnb={"code_prompt_show": "Show F1 of all rows"} tags=["hide-cell"]
reading[scores_of].astype(float).round(2)

# %% tags=["hide-input"]
fits = reading["possible"].str.contains("weighted")
unlike = [
    f"{row} ({column}): {name or 'none'}"
    for (row, column), name in reading["possible"][~fits].items()
]
short = reading["2PR/(P+R)"] - reading["printed F1"]
near = short.abs() < 0.011
display(
    Markdown(
        f"{int(fits.sum())} of {len(reading)} rows can be weighted means. The "
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
# averaging.possible_averagings(row["precision"], row["recall"], row["auc"], positives, negatives)
# ```
#
# Only the mean of both classes alike. Is it likely? Look at the table that it needs:
#
# ```python
# averaging.fit("macro", row["precision"], row["recall"], positives, negatives)
# ```
#
# About a third of the melanomas with only a handful of false alarms, from 200 training images. Read in the same way,
# all other rows but the upper bound's need at most a dozen; read as weighted means, they raise hundreds. A test set
# with more melanomas could be behind these rows as well; the paper does not say.
# ````
