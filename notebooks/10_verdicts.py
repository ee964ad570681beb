# %% [markdown]
# # Judging a number
#
# *Question:* when is a measured number the paper's, when does a claim hold, and was every method given the same chance?\
# *Time:* seconds: this page reads records and draws random numbers. *Data:* none.
#
# A table of a paper has hundreds of numbers; a claim is what the reader should take from them. A single number that
# misses the paper's does not refute a claim, and a hundred that meet theirs do not prove one. So numbers and claims are
# judged apart.
#
# `draws` is the number of simulated experiments, `seed` that of their random numbers.

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
draws = 2000
seed = 0

# %%
import numpy as np
import pandas as pd
import torch

from core.data import with_validation
from core.rng import Rng
from lab.report import dots, expected_verdicts, lines, show, source
from lab.report.claims import claims, judge
from lab.report.intervals import interval, probability

# %% [markdown]
# ## A number
#
# What is compared depends on the budget of the runs:
#
# ```{figure} ../book/_static/verdicts.svg
# :alt: Budgets on the left, questions in the middle, verdicts on the right. At the budgets paper and reduced the interval of ours minus the paper's number gives equivalent, consistent, inconclusive or different. What is different at the reduced budget, with fewer steps than the paper's, is not enough budget. What is different, while another choice that the paper leaves open is not, or the other way round, depends on our choice. At the laptop budget, or on other data, only the order of pairs of methods is compared: direction agrees, disagrees or unsure. The quick budget compares nothing.
# :name: fig-verdicts
# :width: 680px
#
# Which budget gives which verdict.
# ```
#
# - **equivalent**: the 90% interval of ours minus the paper's is within a margin: two points for percentages, 0.02 for areas
#   under curves, else 2% of the paper's value.
# - **different**: the difference is larger than the margin, and its 95% interval leaves out 0.
# - **not enough budget**: the same, with fewer steps than the paper's.
# - **depends on our choice**: the same, but not with another choice that the paper leaves open.
# - **inconclusive**: neither, and the runs are too few or too noisy to find a difference of two and a half margins in about
#   three of four tries.
# - **consistent**: the rest.
# - **direction agrees** or **disagrees**: of the pairs of methods that the paper tells apart, more than half are ordered
#   as in the paper, or the other way round, by the 90% interval of their paired differences; else **unsure**.
# - **not compared**: nothing is reported for it, or the comparison is not fair. **pending**: not run, or with fewer seeds
#   than planned. **not testable here**: the table gives the reason.
#
# Intervals have the noise of both sides. The paper's number counts as a mean of three runs, with the deviation that it
# reports, or with ours where it reports none. Where results were looked at before seeds were added, each look takes an
# equal share of the error (Bonferroni).
#
# ### How often is a verdict wrong?
#
# By simulation: both sides are normal with the same standard deviation, here two points, ours over three seeds. The lines
# say how often each verdict is given when the true means are so many points apart. At 0 *different* is wrong; from two
# points, the margin, *equivalent* is.

# %%
rng = np.random.default_rng(seed)
gaps = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0)
shares = expected_verdicts(rng, stds=(0.5, 2.0), gaps=gaps, draws=draws)
some = shares.query("seeds == 3 and deviation == 2 and `with its deviation`")
verdicts = some.drop(columns=["deviation", "seeds", "with its deviation"])
long = verdicts.melt("true gap", var_name="label", value_name="share")
ends = {"xlabel": "true gap (points)", "ylabel": "share of experiments"}
show(lines(long, "true gap", "share", title="Verdicts by true gap", **ends))

# %% [markdown]
# With three noisy seeds most experiments decide nothing until the gap is large. The largest shares of wrong verdicts over
# all deviations and numbers of seeds (percent), for a paper with its deviation and without:

# %%
different = shares[shares["true gap"] == 0]
equal = shares[shares["true gap"] >= 2]
by = "with its deviation"
wrong = {
    "different, no gap": different.groupby(by)["different"].max(),
    "equivalent, a margin or more": equal.groupby(by)["equivalent"].max(),
}
(100 * pd.DataFrame(wrong)).round(1)

# %% [markdown]
# So a single verdict is no proof, and of many some are false: [claims and status](34_status) counts them. No paper says
# whether its deviations divide by the number of runs or by one less.
#
# ## A claim, worked out
#
# FedMK is said to lead its baselines on a split where each client has few classes. Runs with the same seed share split
# and first network, so the lead over each baseline is taken seed by seed:

# %%
worked = next(
    claim for claim in claims("fedmk") if "pathological" in claim.claim
)
finding = judge(worked)
gaps = {other: of for lead in finding.leads for other, of in lead.gaps.items()}
rows = [(other, *interval(of), len(of)) for other, of in gaps.items()]
names = ["name", "value", "low", "high", "seeds"]
leads = pd.DataFrame(rows, columns=names)
show(dots(leads, "lead of FedMK (points), 90% interval", worked.claim))

# %% [markdown]
# *p* is how often leads as low as these come out by chance if FedMK is in truth as good as the baseline, by the t
# distribution.
# *asked* is what the rule below asks of it, from the smallest on:

# %%
tested = pd.DataFrame(
    {
        "seeds": {other: len(of) for other, of in gaps.items()},
        "p": {other: probability(of) for other, of in gaps.items()},
    }
)
tested = tested[tested["seeds"] > 1].sort_values("p")
tested["asked"] = [0.05 * i / len(tested) for i in range(1, len(tested) + 1)]
tested.round(4)

# %%
finding.verdict

# %% [markdown]
# ## The rule for claims
#
# A claim that one method leads others
#
# 1. **holds** when the 90% interval of the lead is above zero against every baseline, in every column and measure;
# 2. **does not hold** when leads are below zero, further or more often than by chance;
# 3. else is **unclear**.
#
# *By chance.* Of many comparisons some are below zero although the claim is true. So their p-values are sorted, $p_1 \le
# \dots \le p_m$, and taken together (Simes' test): the claim does not hold where some $p_i \le 0.05 \, i / m$. A true
# claim fails so in at most one case of twenty.
#
# *Few seeds.* One seed, or the same lead in all, has no interval: it cannot refute a claim, but keeps it from holding.
# Three seeds refute little either. So *unclear* is no praise. Bytes are exact.
#
# *What no interval has.* They are over seeds only. Test images are the same for all seeds, and FedVCK's splits are one
# file. A verdict at a smaller budget is one on the method at that budget.
#
# *Other kinds.* A claim about the method itself *holds in a test* of this repository. Others *agree* with the paper's own
# numbers or *contradict* them ([errata](../book/errata)), are *examined on a page*, are *not measured* (their tables are
# no fair comparison), or *open*: what would have to be run is said beside them.
#
# ## The same chance for all
#
# A method can lose because its idea is worse, or because its learning rate is. Only the first is of interest. Each result
# is the true accuracy plus noise, and the best of several tries is one with much luck. If $k$ tries are equally good and
# noise has a standard deviation of 1, the best has an expected luck of
#
# $$
# E_k = \mathbb{E} \max(u_1, \dots, u_k), \qquad u_i \sim \mathcal{N}(0, 1).
# $$ (eq:tuning-luck)

# %%
noise = torch.randn(20000, 40, generator=Rng(seed).at("tries").generator())
luck = noise.cummax(1).values.mean(0)
frame = pd.DataFrame({"tries": range(1, 41), "luck": luck, "label": "best"})
title = "More tries look better without being better"
show(lines(frame, "tries", "luck", ylabel="luck (std)", title=title))

# %% [markdown]
# So at the laptop's budget all methods of FedVCK's comparison are tuned by one rule, FedVCK as well: four tries in the
# final grid, each a run with one seed, judged on validation data, and the highest geometric mean over data sets is
# chosen. The test set takes no part. At the reduced budget this does not hold: settings of FedVCK and FedDM were chosen
# on test images of one column of CIFAR-10 ([how many](12_fedvck_results)), and the baselines have default rates. Where a
# data set has no validation split, a tenth of the training set is held out:

# %%
source(with_validation)

# %% [markdown]
# The accuracy of the *last* round counts: the best round would be one more choice by looking. With two values of a
# hyper-parameter a choice is always at an edge of the grid. [Claims and status](34_status) has all tries. FedVCK's paper
# tuned "from 0.001 to 0.01" and says neither how many tries a method had nor on which data.
#
# ## Take away
#
# - Judge the claim, not the cell: the lead over the best baseline, seed by seed, with its interval.
# - A baseline that was not tuned is no baseline.
# - *Unclear* is a result: more seeds or a larger budget are needed. It does not say that both methods are equal.
#
# ## Exercises
#
# ```{exercise} Two honest methods
# :label: ex-tuning-two
#
# *Easy, 10 minutes.*
#
# Two methods are equally good. One is published with the best of 50 tries, the other is run as a baseline with the
# published values: one try. Noise has a standard deviation of 1 point. By how much does the first win on average?
# (To be checked: `points_ahead`.)
# ```
#
# ````{solution} ex-tuning-two
# :class: dropdown
#
# ```python
# noise = torch.randn(20000, 50, generator=Rng(0).at("fifty").generator())
# noise.max(1).values.mean()
# ```
#
# About 2.2 points on the data that it was chosen on. On fresh test data nothing of it remains, because the luck was
# with the validation data. If the test set was used to choose, it remains in the paper.
# ````

# %% tags=["solution", "remove-cell"]
points_ahead = (
    torch.randn(20000, 50, generator=Rng(0).at("fifty").generator())
    .max(1)
    .values.mean()
    .item()
)

# %% name="ex-tuning-two" tags=["check", "remove-cell"]
assert 2.19 < points_ahead < 2.31, "the mean of the largest of 50 draws"

# %% [markdown]
# ```{exercise} How fine can a choice be?
# :label: ex-tuning-size
#
# *Easy, 10 minutes.*
#
# The validation split of PneumoniaMNIST has 524 images. A method has an accuracy of 85%. How large is the standard
# error that comes from the number of images alone? (To be checked: `standard_error`, as a share, not in points.)
# ```
#
# ```{solution} ex-tuning-size
# :class: dropdown
#
# $\sqrt{0.85 \cdot 0.15 / 524} \approx 0.016$, which is 1.6 points. Two tries see the same images. If they err on mostly
# the same ones, their difference is known better than that. If they err independently, it is known worse:
# $\sqrt 2 \cdot 1.6 \approx 2.2$ points.
# ```

# %% tags=["solution", "remove-cell"]
standard_error = (0.85 * 0.15 / 524) ** 0.5

# %% name="ex-tuning-size" tags=["check", "remove-cell"]
drawn = torch.rand(4000, 524, generator=Rng(0).at("coins").generator()) < 0.85
spread = drawn.float().mean(1).std().item()
assert abs(standard_error / spread - 1) < 0.05, (
    "how far do 4,000 validation splits of this size scatter?"
)

# %% [markdown]
# ```{exercise} A grid is a belief
# :label: ex-tuning-grid
#
# *Easy, 5 minutes.*
#
# Take a method whose chosen value lies at an edge of its grid. Name its next try, and the try that every other method
# then gets. When do you stop?
# ```
#
# ```{solution} ex-tuning-grid
# :class: dropdown
#
# The next try lies beyond the edge, as far from it as the grid's values lie from each other; every other method gets one
# more try, too, beyond its own edge or between its two best values. One stops where the chosen values lie inside, or
# where the tries that were agreed on before are used up. A grid of two values has nothing but
# edges, as most in [claims and status](34_status).
# ```
