# %% [markdown]
# # FedVCK: the tables
#
# *Question:* which numbers of FedVCK {cite:p}`fedvck` hold when they are measured again?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# In FedVCK clients send no models. Each condenses its images into a few made-up ones per class, and tries to put into
# them what the global model does not know yet: images on which it errs are drawn more often, and the condensed images
# must match the real ones in feature space under the statistics of every layer. The server trains on what it
# received, with an extra loss that pushes apart the classes that are confused most. [Notation](../book/notation) has
# the equations {eq}`eq:mmd` and {eq}`eq:importance`.
#
# `shown` is the profile that the tables show: "quick", "laptop", "paper", or "best" for the fullest that is measured.

# %% tags=["parameters"]
shown = "best"

# %%
from core.report import progress, table

profile = None if shown == "best" else shown

# %% [markdown]
# ## How far we are

# %%
progress("fedvck")

# %% [markdown]
# ## Accuracy: medical data
#
# Table 2 gives the methods 100 rounds, Table 3 ten. $\beta$ in the columns is the Dirichlet concentration ($\alpha$
# elsewhere in this book). The question behind both: does FedVCK lead in every column, and does it lose less than the
# others when rounds are few?

# %%
table("fedvck", 2, profile)

# %%
table("fedvck", 3, profile)

# %% [markdown]
# ## Accuracy: natural images
#
# Tables 7 (100 rounds) and 11 (10 rounds).

# %%
table("fedvck", 7, profile)

# %%
table("fedvck", 11, profile)

# %% [markdown]
# ## Which part helps
#
# Tables 4 and 14 take parts away: the relational contrastive loss $L_{rc}$, the importance sampling $P_w$, and the
# latent constraints. Every part should add something. "w.o. all" equals FedDM's number to the digit in every column.

# %%
table("fedvck", 4, profile)

# %%
table("fedvck", 14, profile)

# %% [markdown]
# Table 13 varies the number $K$ of hard negative classes.

# %%
table("fedvck", 13, profile)

# %% [markdown]
# ## What is sent
#
# Tables 5 and 9: MB that all clients together upload in one round, read from the ledger and not computed from a
# formula. One MB is $2^{20}$
# bytes: read so, the printed costs of model-centric methods are those of their networks.

# %%
table("fedvck", 5, profile)

# %%
table("fedvck", 9, profile)

# %% [markdown]
# Table 10 has words only: which kind of message each method sends. The ledger counts by kind, so a record of a run
# answers it.
#
# ## Privacy
#
# Tables 6 and 12: how well an attack (LiRA) tells members of the training set from others.

# %%
table("fedvck", 6, profile)

# %%
table("fedvck", 12, profile)

# %% [markdown]
# ## Take away
#
# - Every printed number has a cell, every cell a command: unfold the list below a table.
# - `pending` means that nobody has run it with this book's code. The command below works through what is missing,
#   most   urgent first, and can be stopped at any time.
# - What is odd in the paper as printed stands on a page of its own.
#
# ```bash
# python -m core run --pending --profile paper --minutes 60 --out DIR
# ```
