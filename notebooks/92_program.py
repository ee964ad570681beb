# %% [markdown]
# # The program: how fast, how exact
#
# *Question:* what does the program gain over plain loops, what does bfloat16 cost, and would old records come out
# again?\
# *Time:* seconds: this page only reads records. *Data:* none.

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

# %% tags=["hide-input"]
from lab.report import bars, show
from lab.report.speed import (
    held,
    held_in_words,
    precision_in_words,
    precisions,
    speed,
    whole_runs,
)
from lab.report.style import sentences
from lab.report.texts import Markdown

# %% [markdown]
# ## Speed
#
# Whole runs, training, condensation and tests together, beside a loop written the way released code is, in float32 by
# PyTorch's own kernels; in pairs, in one process (`benchmarks/runs.py`). The name says which vectors the processor
# has, and the precision: only some processors multiply in bfloat16, and those with AMX have units for matrices besides.
# Thin lines go from half of the spread of the pairs below to half of it above.

# %% tags=["hide-input"]
show(bars(whole_runs(), "times as fast as a plain loop"))

# %% [markdown]
# All of them, with runs beside other people's code. How to read the table:
#
# * `times`: how many times as fast as what stands in `beside`; below one, that was faster.
# * `share of the ceiling`: of what a large matrix product reaches on the same machine in that precision; `ceilings` has
#   both, in GFLOP/s. A 3x3 convolution of many channels takes a quarter of the multiplications of its definition, by
#   which the share counts (in bfloat16 only without AMX): it can exceed 100%.
# * `accuracy (beside)`: that of FedVCK beside the authors' code, over three seeds. "Same batches" has batches of real
#   images as that code has them, "exact means" the mean of all real images in their place, "a quarter of the epochs"
#   fewer epochs of the server at a larger rate. In the short run exact means are some points below it, so they are not
#   free there.

# %% tags=["hide-output"]
rates = speed()
rates["rate"] += " " + rates.pop("unit")
sentences(rates.drop(columns="precision"))

# %% [markdown]
# ## Precision
#
# Some records were computed in float32, others in bfloat16, where the processor multiplies it (each says which, and so
# does the list below a table that has both). May they stand in one table? Every method twice, on the same clients and
# with the same seeds: mean accuracy in percent, the deviation over seeds in float32,
# and the difference seed by seed with its 90% interval. The runs have two rounds: a method that is near a guess there,
# 10%, tells nothing.

# %%
precisions().round(1).replace(-0.0, 0.0)

# %%
Markdown(precision_in_words())

# %% [markdown]
# ## Records of older versions
#
# Records stay while the program goes on. Would it write them again? Of each method, variant, data set and profile the
# run on record that took least, where that is under two minutes of a core, once more by a later program
# (`benchmarks/records.py`); where it lies more than two points from its record, up to three seeds of those on
# record (a try of a tuning has one). Last digits differ with the kernels and from machine to machine; in a run that is
# barely stable, or whose classes are uneven, they grow to points. Compare with the deviation over seeds. Three single
# runs that lie far from their records, of FedVCK on PneumoniaMNIST, FedGen and FedDF on MNIST, were traced: the version
# that wrote such a record writes it again to the last digit, and the first later one that does not is the one that
# changed how networks are computed on CPUs (bf65cf8f).

# %%
Markdown(held_in_words())

# %% tags=["hide-output"]
held().round(2).replace(-0.0, 0.0)
