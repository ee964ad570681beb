# %% [markdown]
# # Your own view of the tables
#
# *Question:* which numbers are there at a profile, and which are missing?\
# *Time:* seconds to a minute: this page only reads records. *Data:* none.
#
# The chapters show each table at the budget at which most is measured. Here are all tables of a paper at a profile of
# your choice, from records alone: nothing is trained.
#
# ```bash
# fedcon notebook 51_results -p paper fedmk -p shown laptop
# fedcon notebook 51_results -p paper all -p shown paper
# ```
#
# This page shows the book's own tables of reference methods.

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
paper = "reference"
shown = "best"

# %%
from IPython.display import display

from lab import TableSpec
from lab.forms import TABLES
from lab.report import table
from lab.report.claims import papers

best = None if shown == "best" else shown
folders = sorted(path.name for path in TABLES.iterdir() if path.is_dir())
others = [name for name in folders if name not in papers()]
chosen = [*papers(), *others] if paper == "all" else [paper]

# %%
for name in chosen:
    for spec in TableSpec.of_paper(name):
        display(table(name, spec.table, best))
