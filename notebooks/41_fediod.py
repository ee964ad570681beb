# %% [markdown]
# # FedIOD: the tables
#
# *Question:* which numbers of FedIOD {cite:p}`fediod` hold when they are measured again?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# In FedIOD only one way is used: every client trains a teacher to the end and never hears from the server. A
# generator on the server invents inputs that look real to the clients' discriminators, on which each teacher is
# confident, and on which the teachers disagree. A student imitates a mix of the teachers, weighted by sample and
# class with how well each knows it.
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
progress("fediod")

# %% [markdown]
# ## Classification
#
# CIFAR-10 and CIFAR-100, 20 clients.

# %%
table("fediod", 1, profile)

# %% [markdown]
# ## With differential privacy
#
# CIFAR-10 under several privacy budgets.

# %%
table("fediod", 5, profile)

# %% [markdown]
# ## Which loss helps
#
# Losses are added one by one.

# %%
table("fediod", 6, profile)

# %% [markdown]
# ## How the generated images score
#
# Inception score, and one adapted to the local models.

# %%
table("fediod", 7, profile)

# %% [markdown]
# ## Brain tumour segmentation
#
# BraTS 2018.

# %%
table("fediod", 2, profile)

# %% [markdown]
# ## Nuclei, across organs
#
# MoNuSeg (TCGA).

# %%
table("fediod", 3, profile)

# %% [markdown]
# ## Nuclei, across sites
#
# Three sites.

# %%
table("fediod", 4, profile)

# %% [markdown]
# ## Local models, across sites
#
# What each site reaches alone.

# %%
table("fediod", 8, profile)

# %% [markdown]
# ## Reconstruction of magnetic resonance images
#
# Four sources of images.

# %%
table("fediod", 9, profile)

# %% [markdown]
# ## Take away
#
# Several tables use data that cannot be had here; their cells say why.
