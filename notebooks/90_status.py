# %% [markdown]
# # Status
#
# *Question:* how far is the reproduction, and what was it computed with?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# All numbers on this page are computed when the book is built.

# %%
from core.data import available
from core.report import coverage, headline, records_summary, versions

# %%
covered = coverage()
print(headline(covered))

# %% [markdown]
# ## Coverage
#
# A cell is a method in a column of a table. [How a verdict is reached](../book/intro) is written on the first page.

# %%
covered.set_index(["paper", "table"])

# %% [markdown]
# ## Records
#
# What was run so far: number of runs, and mean minutes and MB sent (up and down, all clients) of one run.

# %%
records_summary().round(2).set_index(["method", "dataset", "profile"])

# %% [markdown]
# ## Data sets
#
# What the loaders know, how to get each set, and under which licence it comes.

# %%
import pandas as pd

pd.DataFrame([{"name": info.name, "sizes": ", ".join(map(str, info.sizes)), "source": info.source,
               "licence": info.licence, "how to get it": info.how_to_get} for info in available()]).set_index("name")

# %% [markdown]
# ## Versions

# %%
versions().set_index("package")
