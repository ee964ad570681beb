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

# %%
import json

import numpy as np
import pandas as pd

from lab.record import REPOSITORY
from lab.report import dots, method_name, show
from lab.report.intervals import interval
from lab.report.style import sentences
from lab.report.texts import Markdown

bench = {
    path.stem: json.loads(path.read_text())
    for path in sorted((REPOSITORY / "book" / "bench").glob("*.json"))
}

# %% [markdown]
# ## Speed
#
# Whole runs, training, condensation and tests together, beside a loop written the way released code is, in float32 by
# PyTorch's own kernels, or beside other people's code; in pairs, in one process (`benchmarks/`). `times` is how many
# times as fast as what is in `beside`: below one, that was faster. The name of a bench says which vectors the processor
# has, and the precision: only some processors multiply in bfloat16, and those with AMX have units for matrices besides.
# Of FedVCK beside the authors' code, "same batches" has batches of real images as that code has them, "exact means" the
# mean of all real images in their place.

# %%
rates = pd.DataFrame(
    [
        {"bench": name, "run": run, "beside": one.get("beside", "plain")}
        | {"rate": f"{one['rate']:,.0f} {found['unit']}", **one["ratio"]}
        for name, found in bench.items()
        for run, one in found["contestants"].items()
        if "ratio" in one
    ]
)
whole = rates[rates["beside"] == "plain"]
show(
    dots(
        whole.rename(
            columns={"median": "value", "lowest": "low", "highest": "high"}
        ).assign(name=whole["run"] + ", " + whole["bench"].str[4:]),
        "times as fast as a plain loop, median of the pairs and range",
    )
)

# %% tags=["hide-output"]
sentences(rates.rename(columns={"median": "times"}).round(2))

# %% [markdown]
# ## Precision
#
# Some records were computed in float32, others in bfloat16, where the processor multiplies it (each says which, and so
# does the list below a table that has both). May they stand in one table? Every method twice, on the same clients and
# with the same seeds: mean accuracy in percent, the deviation over seeds in float32,
# and the difference seed by seed with its 90% interval. The runs have two rounds: a method that is near a guess there,
# 10%, tells nothing.

# %%
pairs = bench["precision-avx512-bfloat16"]["contestants"]
precision = {}
for name, one in pairs.items():
    plain, fast = one["accuracy"]["theirs"], one["accuracy"]["ours"]
    means = len(plain), np.mean(plain), np.mean(fast), np.std(plain, ddof=1)
    gap = interval(np.subtract(fast, plain))
    precision[method_name(name)] = [*means, *gap]
columns = ["seeds", "float32", "bfloat16", "std", "difference", "low", "high"]
pd.DataFrame(precision, columns).T.round(1)

# %% [markdown]
# ## Records of older versions
#
# Records stay while the program goes on. Would it write them again? Of each method, variant, data set and profile the
# run on record that took least, where that is under two minutes of a core, once more by a later program
# (as `fedcon check` does); where it lies more than two points from its record, up to three seeds of those on
# record (a try of a tuning has one). Last digits differ with the kernels and from machine to machine; in a run that is
# barely stable, or whose classes are uneven, they grow to points. Compare with the deviation over seeds. Three single
# runs that lie far from their records, of FedVCK on PneumoniaMNIST, FedGen and FedDF on MNIST, were traced: the version
# that wrote such a record writes it again to the last digit, and the first later one that does not is the one that
# changed how networks are computed on CPUs (bf65cf8f).

# %%
again = bench["records-avx512-bfloat16"]["contestants"]
held = pd.DataFrame(
    {
        name: {
            "seeds": len(one["accuracy"]["ours"]),
            "record": np.mean(one["accuracy"]["theirs"]),
            "again": np.mean(one["accuracy"]["ours"]),
            "std": one["std"],
            "same bytes": one["same_bytes"],
        }
        for name, one in again.items()
    }
).T
held.insert(3, "difference", held["again"] - held["record"])
held = held.sort_values("difference", key=abs, ascending=False)
Markdown(
    f"{(held['difference'].abs() <= 2).sum()} of {len(held)} lie within two "
    f"points of their record, {(held['difference'].abs() <= 0.05).sum()} have "
    f"it to a decimal; {held['same bytes'].sum()} sent the same bytes."
)
held[held["difference"].abs() > 2].infer_objects().round(2)

# %% tags=["hide-output"]
held.infer_objects().round(2)
