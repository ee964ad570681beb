# %% [markdown]
# # Judging a number
#
# *Question:* what do the four papers claim, and what is left of it when it is tested?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# A table of a paper has hundreds of numbers; a claim is what the reader should take from them. Here every claim is
# judged on its own: is the method the best, does each part help, does it cost less? A single number that misses its
# printed value does not refute a claim, and a hundred that meet theirs do not prove one.

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
table_number = 11
column = "cifar10-0.05"

# %%
import pandas as pd

from lab.report import dots, scatter, show
from lab.report.claims import (
    claims,
    claims_count,
    claims_figure,
    claims_table,
    judge,
)
from lab.report.frames import table_runs
from lab.report.intervals import interval, probability
from lab.report.texts import Markdown
from lab.report.verdict import MB

# %%
counts = claims_count()
show(claims_figure(counts))

# %% [markdown]
# ## The verdict on a number
#
# Each number of a table is judged by itself, from the runs at the budget that is shown beside it.
#
# - **equivalent**: at the paper's budget or the reduced one (profile `converged`), with all planned seeds and at least
#   three, the 90% interval of ours minus the paper's lies within a margin: two points for percentages, 0.02 for areas
#   under curves, else two hundredths of the paper's value.
# - **different**: it is farther away than the margin, and the 95% interval leaves out 0.
# - **inconclusive**: neither, and a difference of two and a half margins could have been missed. The cell says how many
#   seeds would decide.
# - **depends on our choice**: different or not by something that the paper does not say, such as the network for
#   CIFAR-10, where both choices were run.
# - **not enough budget**: it would be different, but with fewer steps than the paper's, and no sweep of its own shows
#   that more change nothing.
# - **consistent**: the rest.
# - **direction agrees**, **disagrees** or **unsure**: at a smaller budget, or on other data, only the order of methods is
#   judged: of the pairs that the paper tells apart, are more than half ordered as in the paper, or the other way round?
#   A pair is ordered when the 90% interval of its paired differences, seed by seed, leaves out 0.
# - **not compared**: nothing is reported for it, there is no other method to compare it with, or the table is no fair
#   comparison, as it says.
# - **pending**: not run yet, or with fewer seeds than planned. **not testable here**: the table gives the reason.
#
# Both intervals have the noise of both sides. The paper's number counts as a mean of three runs, with the deviation that
# it reports, or with ours where it reports none. Where results were looked at before seeds were added, each look takes
# an equal share of the error (Bonferroni). The [status page](90_status) simulates how often these rules are wrong, and
# counts the numbers of each paper by verdict.

# %% [markdown]
# ## One claim, worked out
#
# FedMK is said to lead its rivals on a split where each client has few classes. Runs with the same seed share split and
# first network. So the lead over each rival is taken seed by seed:

# %%
worked = next(one for one in claims("fedmk") if "pathological" in one.claim)
found = judge(worked)
gaps = {rival: of for one in found.leads for rival, of in one.gaps.items()}
leads = pd.DataFrame(
    [(rival, *interval(of)) for rival, of in gaps.items()],
    columns=["name", "value", "low", "high"],
)
show(dots(leads, "lead of FedMK (points), 90% interval", worked.claim))

# %% [markdown]
# The same in numbers. *p* is the p-value: how often leads as low as these come out by chance if FedMK is in truth as good
# as the rival. It comes from the t distribution with one degree of freedom less than there are seeds. *asked* is what the
# rule below asks of it.

# %% tags=["hide-input"]
tested = pd.DataFrame(
    {
        rival: {
            "seeds": len(of),
            **dict(zip(("lead", "from", "to"), interval(of), strict=True)),
            "p": probability(of),
        }
        for rival, of in gaps.items()
        if len(of) > 1
    }
).T.sort_values("p")
tested["seeds"] = tested["seeds"].astype(int)
tested["asked"] = [0.05 * i / len(tested) for i in range(1, len(tested) + 1)]
ahead, behind = (
    tested.index[of] for of in (tested["from"] > 0, tested["to"] < 0)
)
low = tested[tested["p"] <= tested["asked"]].index
tested.round({"lead": 1, "from": 1, "to": 1, "p": 3, "asked": 3})

# %% tags=["hide-input"]
said = (
    "So FedMK does not lead every rival. Is the claim refuted? The smallest p, "
    f"against {tested.index[0]}, is {tested['p'].min():.2g}. Among "
    f"{len(tested)} comparisons {tested['asked'].min():.2g} is asked of it. "
    + ("That is enough" if len(low) else "No p is as low as asked")
    if len(ahead) < len(tested)
    else "So FedMK leads every rival"
)
Markdown(
    f"The interval lies above zero against {', '.join(ahead) or 'no rival'}, "
    f"and below zero against {', '.join(behind) or 'none'}. {said}. The "
    f"verdict: **{found.verdict}**."
)

# %% [markdown]
# ## The rule
#
# A claim that one method leads others is computed from records in this way. It
#
# 1. **holds** when the 90% interval of the lead lies above zero against every rival, in every column and measure that is
#    there;
# 2. **does not hold** when leads lie below zero, further or more often than by chance;
# 3. else is **unclear**.
#
# *By chance.* Of many comparisons some lie below zero although the claim is true. So their p-values are sorted, $p_1 \le
# \dots \le p_m$, and taken together (Simes' test): the claim does not hold where some $p_i \le 0.05 \, i / m$. That is
# where one lead is far below zero, or many are a little below. A true claim fails so in at most one case of twenty. Each
# rival is a comparison of its own.
#
# *Few seeds.* With one seed, or the same lead in all, nothing is known of the spread, and there is no interval. Such a
# comparison cannot refute a claim, but it keeps one from holding. Bytes are exact: there the same lead in all seeds is
# the true one. Three seeds do not refute much either. Of some 25 comparisons one would have to have $p < 0.002$. With
# two degrees of freedom that is a lead sixteen standard errors below zero. So *unclear* is no praise.
#
# *In the tables below.* They count columns and measures, and show the lead over the best rival of each. *Behind* are those
# where the interval of some rival, taken by itself, lies on the wrong side of zero. A claim may be behind in all columns
# and still be unclear. The interval beside the best rival is that of a rival named beforehand; the best of several on
# the same runs looks better than it is. The rule allows for that choice, the interval does not.
#
# *What no interval has.* They are over seeds only. The test images are the same for all seeds, 156 of them in BreastMNIST,
# too few for an area under the curve to be known to a point, and FedVCK's splits of CIFAR-10 are one file. So a verdict
# that rests on BreastMNIST is one on these images.
#
# *What counts.* Rows and columns that the paper does not have do not count, unless the claim is ours. Of GDD-FL, whose
# data are not at hand, those of both stand-ins count. A claim to be *competitive* may be as far behind as the paper's own
# numbers. Where a paper claims a lead in *most* cases, more than half of the comparisons decide.
#
# *With which budget.* Each verdict says it. *As printed*: the paper's data, clients and rounds. What it does not print, as
# FedMK's iterations and steps, is ours. Else it is a verdict on the method at that budget and no more. A method that is
# near a guess there refutes nothing.
#
# A claim about the method itself *holds in a test* when a test of this repository would fail otherwise. Some claims
# can be held against the paper's own numbers: they *agree* or *contradict*; the [errata](../book/errata) has the
# details. What is *examined on its page* has no single number. *Not measured* is a claim of the first kind for which no
# run of both sides exists yet. The rest is *open*, with what would have to be run, or *not testable here*, with the
# reason.
#
# ## The main claims

# %%
claims_count(main=True)

# %% [markdown]
# ### FedVCK
#
# These verdicts use the rows that the paper has; of FedVCK's accuracies these are runs at a laptop's budget. Runs at
# the paper's size exist only in readings of ours, which do not count here. They say more: [who leads at the paper's
# size](17_fedvck_results).

# %%
claims_table("fedvck", main=True)

# %% [markdown]
# ### FedMK

# %%
claims_table("fedmk", main=True)

# %% [markdown]
# ### GDD-FL

# %%
claims_table("gddfl", main=True)

# %% [markdown]
# ### FedIOD

# %%
claims_table("fediod", main=True)

# %% [markdown]
# ## Accuracy, and what it costs
#
# All methods of one table on the same data, at the budget that the table shows (the title names it): each point is a
# run. Bytes count both directions and all clients.

# %%
runs = table_runs("fedvck", table_number, None).query("column == @column")
runs = runs.drop_duplicates("id")
runs = runs.assign(
    sent=[record.sent() / MB for record in runs["record"]],
    accuracy=[100 * record.metrics["accuracy"] for record in runs["record"]],
)
show(
    scatter(
        runs,
        x="sent",
        y="accuracy",
        by="row",
        xlabel="MB sent, both directions",
        ylabel="accuracy (%)",
        log="x",
        title=f"{column}, profile {runs['profile'].iloc[0]}",
    )
)

# %% [markdown]
# ## All claims
#
# In the order of each paper. Behind a question that this book asks and no paper does the brackets say so.
#
# ### FedVCK

# %% tags=["hide-output"]
claims_table("fedvck")

# %% [markdown]
# ### FedMK

# %% tags=["hide-output"]
claims_table("fedmk")

# %% [markdown]
# ### GDD-FL

# %% tags=["hide-output"]
claims_table("gddfl")

# %% [markdown]
# ### FedIOD

# %% tags=["hide-output"]
claims_table("fediod")

# %% [markdown]
# ## Take away
#
# - Judge the claim, not the cell: the lead over the best rival, seed by seed, with its interval.
# - A rival that was not tuned is no rival. FedMK's list has its lead over rivals as in print and over tuned ones: the
#   second claim fails where the first is unclear.
# - *Unclear* is a result. It says that more seeds or a larger budget are needed, not that both methods are equal.
#
# ```{exercise} A claim of your own
# :label: ex-verdicts-own
#
# *Hard, 45 minutes.*
#
# Add a claim to `book/claims/fedmk.yaml`: with class-balanced weights FedMK has a smaller spread over seeds than with
# dynamic ones. Which of the ways to judge fits it, and what is missing?
# ```
#
# ```{solution} ex-verdicts-own
# :class: dropdown
#
# None fits as it is: `ahead` compares means, not spreads. The values are there (`values` of the two rows, Table 6), so
# a ratio of variances with its F interval would do, a little too wide because the runs share seeds. The ends of its 90%
# interval lie a factor below and above the ratio, the 95% quantile of F, which depends on the seeds alone: 19 with three
# of each row, 6.4 with five, 3.2 with ten. Unless the measured ratio is further from 1 than that, the honest entry is
# `open`, with the number of seeds that it needs.
# ```
