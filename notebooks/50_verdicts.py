# %% [markdown]
# # Verdicts
#
# *Question:* what do the four papers claim, and what is left of it when it is tested?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# A table of a paper has hundreds of numbers; a claim is what the reader should take from them. Here every claim is
# judged on its own: is the method the best, does each part help, does it cost less? A single number that misses its
# printed value does not refute a claim, and a hundred that meet theirs do not prove one.

# %% tags=["parameters"]
table_number = 11
column = "cifar10-0.05"

# %%
import pandas as pd

from core.report import scatter, show
from core.report.claim_views import claims_figure, claims_table
from core.report.claims import claims_count, claims_frame, papers
from core.report.frames import runs_frame
from core.report.texts import Markdown

# %%
counts = claims_count()
show(claims_figure(counts))

# %% [markdown]
# ## The rule
#
# A claim that one method leads others is computed from records. Runs with the same seed share split and first network,
# so the lead is taken seed by seed, with its 90% interval. The claim **holds** when the interval lies above zero in
# every column and measure that is there, against every rival, it **does not hold** when leads lie below zero, and else
# it is **unclear**. Of many comparisons one lies below zero by chance. So the p-values $p_1 \le \dots \le p_m$, the
# chances of leads that low if the claim is true, are taken together: the claim does not hold where some $p_i \le 0.05
# \, i / m$ (Simes' test), that is, where one lead is far below zero or many are a little below. A claim that is true
# fails so in at most one case of twenty. Where a method is to lead several rivals, each of them is a comparison of this
# test. The tables below count columns and measures, *behind* being those where the interval of some rival, taken by
# itself, lies above zero, and show the lead over the best rival of each. Of many such intervals some do by chance, so a
# claim may be behind in all columns and still be unclear. With one seed there is no interval: such a comparison cannot
# refute a claim, but it keeps one from holding. Three seeds do not refute much either: of some 25 comparisons one has to have
# $p < 0.002$, and with two degrees of freedom that is a lead sixteen standard errors below zero. So *unclear* is no
# praise. Rows and columns that the paper does not have do not count, unless the claim is ours; of GDD-FL, whose data are
# not at hand, those of both stand-ins count. A claim to be *competitive* may be as far behind as the paper's own
# numbers; where it claims a lead in *most* cases, more than half of the comparisons decide. Each verdict says with which
# budget. *As printed*: the paper's data, clients and rounds; what it does not print, as FedMK's iterations and steps, is
# ours. Else it is a verdict on the method at that budget and no more, and a method that is near a guess there refutes
# nothing.
#
# A claim about the method itself *holds in a test* when a test of this repository would fail otherwise. Some claims
# can be held against the paper's own numbers: they *agree* or *contradict*; the [errata](../book/errata) has the
# details. What is *examined on its page* has no single number. *Not measured* is a claim of the first kind for which no
# run of both sides exists yet. The rest is *open*, with what would have to be run, or *not testable here*, with the
# reason.
#
# ## The main claims

# %%
main = pd.concat(claims_frame(paper, main=True) for paper in papers())
said = main["verdict"].value_counts()
full = main[main["budget"] == "as printed"]["verdict"].value_counts()
Markdown(
    f"The papers rest on {len(main)} claims of the list below: "
    + ", ".join(f"{word} {count}" for word, count in said.items())
    + ". With the data, clients and rounds that the paper prints: "
    + (", ".join(f"{word} {count}" for word, count in full.items()) or "none")
    + "."
)

# %% [markdown]
# ### FedVCK

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
runs = runs_frame("fedvck", table_number, column)
figure = scatter(
    runs,
    x="MB sent",
    y="accuracy",
    by="method",
    xlabel="MB sent, both directions",
    ylabel="accuracy (%)",
    log="x",
    title=f"{column}, profile {runs['profile'].iloc[0]}",
)
show(figure)

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
# a ratio of variances with its F interval would do. With three seeds the ends of its 90% interval lie a factor of 19
# below and above the ratio, so the honest entry today is `open`, with the number of seeds that it needs.
# ```
