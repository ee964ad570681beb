# %% [markdown]
# # Status
#
# *Question:* how far is the reproduction, and what was it computed with?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# All numbers on this page are computed when the book is built.

# %%
import pandas as pd
from IPython.display import Markdown

from core.data import available
from core.report import (
    headline,
    progress,
    records_apart,
    records_summary,
    versions,
)

# %%
Markdown(headline())

# %% [markdown]
# ## Coverage
#
# A cell is a method in a column of a table. [How a verdict is reached](../book/intro) is written on the first page.

# %%
progress()

# %% [markdown]
# ## Records
#
# What was run so far: number of runs, and mean minutes and MB sent (up and down, all clients) of one run.

# %%
records_summary().round(2).set_index(["method", "dataset", "profile"])

# %% [markdown]
# Records are never deleted. Those below are shown by no table, and no total counts them: tries of hyper-parameters that gave
# way to others, and runs from before a table or a profile was changed.

# %%
apart = records_apart()
records_summary(apart).round(2).set_index(["method", "dataset", "profile"])

# %% [markdown]
# ## Data sets
#
# What the loaders know, how to get each set, and under which licence it comes.

# %%
sets = pd.DataFrame(
    [
        {
            "name": info.name,
            "sizes": ", ".join(map(str, info.sizes)),
            "source": info.source,
            "licence": info.licence,
            "how to get it": info.how_to_get,
        }
        for info in available()
    ]
)
sets.set_index("name").style.set_table_attributes('class="dataframe"')

# %% [markdown]
# ## Versions

# %%
versions().set_index("package")
