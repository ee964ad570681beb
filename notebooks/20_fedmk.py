# %% [markdown]
# # FedMK: the tables
#
# *Question:* which numbers of FedMK {cite:p}`fedmk` hold when they are measured again?\
# *Time:* seconds: this page only reads records. *Data:* none.
#
# In FedMK each client condenses its data into "meta knowledge", made-up images on which a network learns almost what
# it learns from the real ones. Samples that the model finds hard weigh more. The images go to the server and from
# there to the other clients, which start from them in the next round. The server trains on all of it and on the
# output of a small generator.
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
progress("fedmk")

# %% [markdown]
# ## Accuracy within ten rounds
#
# Four data sets, three Dirichlet concentrations, 20 clients of which 10 take part in a round.

# %%
table("fedmk", 1, profile)

# %% [markdown]
# ## Stronger heterogeneity
#
# The same with smaller concentrations.

# %%
table("fedmk", 4, profile)

# %% [markdown]
# ## A pathological split
#
# MNIST, five classes per client.

# %%
table("fedmk", 3, profile)

# %% [markdown]
# ## Which part helps
#
# One part of the method is taken away at a time.

# %%
table("fedmk", 2, profile)

# %% [markdown]
# ## How sharp the weights are
#
# The smoothing $\tau$ of the dynamic weights.

# %%
table("fedmk", 5, profile)

# %% [markdown]
# ## Which weights
#
# Class-balanced against dynamic weights, on MNIST.

# %%
table("fedmk", 6, profile)

# %% [markdown]
# ## How much the condensed set changes with its size
#
# Earth mover's distance to the set of size 10: smaller means more alike.

# %%
table("fedmk", 7, profile)

# %% [markdown]
# ## Take away
#
# FedMK leads in every printed column after ten rounds; its baselines take 20 local steps in a
# round. Whether the lead holds when they are tuned is what these runs are for.
