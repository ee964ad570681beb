# %% [markdown]
# # FedIOD: scores of its images
#
# *Question:* how good are the images of FedIOD's {cite:p}`fediod` generator?\
# *Time:* about a quarter of a minute on one CPU core. *Data:* scikit-learn's digits for the run; records for Table 7.\
# *Learn first:* [FedIOD](41_fediod).
#
# The paper scores the synthetic images (Table 7). It also compares them with private ones (Figure 4), which is on the page
# about [attacks](09_attacks). The generator of the small run has the adversarial loss only, as in the authors' script for
# skewed data.

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
dataset = "digits"
alpha = 0.5
clients = 3
rounds = 4
steps = 12
student_steps = 4
seed = 0
profile = "quick"
shown = "best"

# %%
import pandas as pd
import torch

from core.metrics.image_quality import (
    adapted_inception_score,
    inception_score,
)
from core.rng import Rng
from lab.report import table
from lab.report.lesson import ADVERSARIAL, answers, small_lesson, trained

best = None if shown == "best" else shown
lesson = small_lesson(
    profile,
    {**ADVERSARIAL, "distill_steps": steps, "student_steps": student_steps},
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
)
task = lesson.task
train_set, test = task.dataset.train, task.dataset.test
run = lesson.run()

# %% [markdown]
# ## How good are the images?
#
# The *inception score* {cite:p}`inceptionscore` takes a classifier
# $p(y | x)$ and asks that each image be of one class, and all classes occur:
#
# $$
# \mathrm{IS} = \exp \mathbb{E}_x \bigl[ \mathrm{KL}\bigl(p(y | x) \,\Vert\, p(y)\bigr) \bigr]
# = \exp \bigl\{ H(\mathbb{E}_x \, p(y | x)) - \mathbb{E}_x H(p(y | x)) \bigr\} .
# $$ (eq:iop-inception)
#
# It is between 1 and the number of classes. Usually the classifier is Inception, trained on ImageNet; the paper's
# *adapted* score takes the local teachers, and the mean of their scores. Some sets of images, with a network that has
# learned from all data in place of Inception:

# %%
judge = trained(
    task,
    task.inputs(train_set.images),
    train_set.labels,
    150,
    Rng(seed).at("judge"),
).eval()
real = test.images[:300].float() / 255
noise = torch.rand(real.shape, generator=Rng(seed).at("uniform").generator())
sets = {
    "real test images": real,
    "one real image, repeated": real[:1].expand_as(real),
    "pairs of real images, averaged": (real + real.flip(0)) / 2,
    "uniform noise": noise,
    "generator, untrained": lesson.pictures(lesson.start(), 300),
    "generator, trained": lesson.pictures(run.state, 300),
}
scores = {}
for name, images in sets.items():
    inputs = task.dataset.standardise(images)
    p = answers([judge, *lesson.teachers], inputs).softmax(-1)
    scores[name] = {
        "one classifier": inception_score(p[0]),
        "adapted": adapted_inception_score(p[1:]),
    }
pd.DataFrame(scores).T.round(2)

# %% [markdown]
# A teacher that has seen few classes cannot score high, whatever the images. So adapted scores can be compared within
# one partition only. Table 7 has the scores of some rows of [Table 6](42_fediod_ablations); the weights of Inception are
# no part of this book, so its cells stay pending.

# %%
table("fediod", 7, best)

# %% [markdown]
# ## Take away
#
# - An adapted score is bounded by the classes that a teacher knows: compare within one partition only.
# - A high score needs images of one class each, and all classes over the set.
#
# ## Exercise
#
# ```{exercise} A thief
# :label: ex-iop-thief
#
# *Easy, 10 minutes.*
#
# A generator hands out private images. What does its score say, and what does that mean for privacy?
# ```
#
# ````{solution} ex-iop-thief
# :class: dropdown
#
# ```python
# stolen = run.clients[0].images[:100].float() / 255
# inception_score(answers([judge], task.dataset.standardise(stolen))[0].softmax(-1))
# ```
#
# The score praises it: it asks for quality, and never whose images they are.
# ````
