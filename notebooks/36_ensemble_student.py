# %% [markdown]
# # A student of many teachers
#
# *Question:* what can a student learn from an ensemble, and which inputs should it ask about?\
# *Time:* under half a minute on one CPU core. *Data:* scikit-learn's digits; any other data set by a parameter.
#
# [The chapter before](47_many_teachers) mixed the answers of clients' networks, each of which has seen other classes.
# Here a student learns to give the mixed answers. It needs inputs to ask about, but no labels.

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
width = 16
alpha = 0.1
clients = 8
steps = 50
student_steps = 150
questions = 1000
seed = 0

# %% tags=["hide-input"]
import pandas as pd
import torch

from core import data, distillation
from core.data.auxiliary import PHOTOGRAPHS, auxiliary
from core.federation import Task
from core.models import Stacked
from core.rng import Rng
from lab.report import image_rows, show, source
from lab.report.lesson import (
    answers,
    distilled,
    ensembles,
    panel,
    share_right,
    teacher,
)
from lab.report.texts import Markdown

rng = Rng(seed)
task = Task(data.load(dataset), "convnet", {"depth": 2, "width": width})
train_set, test = task.dataset.train, task.dataset.test
images = task.inputs(train_set.images)
some = panel(task, clients, alpha, steps, seed)
counts, teachers = some.counts, some.networks

# %% [markdown]
# ## Which ensemble?
#
# First the student asks about the clients' own images, which in truth nobody may collect: then the inputs are the
# same for all rows. The student of the mean of probabilities learns by the divergence at $\tau = 1$, as there are no
# logits to meet; the others learn by the squared error of logits. The last row has one teacher with all data,
# trained for three times as many steps, and its student: it says what imitation itself costs in so few steps.

# %% tags=["hide-input"]
order = torch.randperm(
    len(train_set.labels), generator=rng.at("questions").generator()
)[:questions]
asked = images[order]
expert = teacher(task, torch.arange(len(images)), 3 * steps, rng.at("all"))


def right(scores):
    """Accuracy (%) of scores for the test images."""
    return share_right(scores, test.labels)


def heir(inputs, target, loss=distillation.mimic_loss):
    """Accuracy (%) of a student of these answers."""
    net = distilled(task, inputs, target, loss, student_steps, rng.at("heir"))
    return right(task.outputs(net, test.images))


def of_probabilities(scores, target):
    return distillation.mimic_loss(scores, target, 1.0)


losses = {"mean of probabilities": of_probabilities}
learned = {
    name: heir(asked, target, losses.get(name, distillation.mimic_loss))
    for name, target in ensembles(answers(teachers, asked), counts).items()
}
on_test = ensembles(answers(teachers, task.inputs(test.images)), counts)
scores = {name: right(one) for name, one in on_test.items()}
everything = "one teacher with all data"
scores[everything] = right(task.outputs(expert, test.images))
learned[everything] = heir(asked, answers([expert], asked)[0])
pd.DataFrame(
    {
        "teacher": {name: scores[name] for name in learned},
        "its student": learned,
    }
).round(1)

# %% [markdown]
# ## Which inputs?
#
# Now the ensemble stays the same, with class-wise weights, and the inputs change: the clients' images; windows of two
# photographs, which stand for public data of another kind; and noise. The last column says how many classes the ensemble
# sees in the inputs: the exponential of the entropy of the ensemble's mean answer.

# %% tags=["hide-input"]
shape = train_set.images[order].shape
noise = torch.randint(
    256, shape, generator=rng.at("noise").generator(), dtype=torch.uint8
)
photographs = auxiliary(PHOTOGRAPHS, task.dataset)[: len(asked)]
kinds = {
    "the clients' images": train_set.images[order],
    "photographs": photographs,
    "noise": noise,
}
some_of_each = {name: pictures[:12] for name, pictures in kinds.items()}
show(image_rows(some_of_each, "What the student asks about", inches=0.5))

# %% tags=["hide-input"]
rows = {}
for name, pictures in kinds.items():
    inputs = task.inputs(pictures)
    z_there = answers(teachers, inputs)
    target = ensembles(z_there, counts)["class-wise weights"]
    looks = distillation.entropy(target.softmax(1).mean(0)).exp().item()
    rows[name] = {
        "student (%)": learned["class-wise weights"]
        if pictures is kinds["the clients' images"]
        else heir(inputs, target),
        "classes": looks,
    }
pd.DataFrame(rows).T.round(1)

# %% tags=["hide-input"]
own, foreign, _ = rows.values()
Markdown(
    f"To the ensemble photographs look like {foreign['classes']:.1f} of "
    f"{len(task.dataset.classes)} classes, the clients' images like "
    f"{own['classes']:.1f}; their students have {foreign['student (%)']:.1f}% "
    f"and {own['student (%)']:.1f}%."
)

# %% [markdown]
# FedDF {cite:p}`feddf`, FedMD {cite:p}`fedmd` and FedKD {cite:p}`fedkdgong` ask about public images, and depend on how
# much these resemble the clients'. FedIOD *learns* its inputs: a generator makes images that look real to the clients,
# on which teachers are sure, yet differ. That is [the next chapter](41_fediod).
#
# ## Many networks in one program
#
# Many small networks on one batch keep a processor waiting for many small kernels. Networks of one architecture can
# run as one: side by side, as one network with as many times the channels; others run one by one.

# %% mystnb={"code_prompt_show": "Show how core runs them together"} tags=["hide-cell"]
source(Stacked.run_together)

# %% tags=["hide-input"]
batch = task.inputs(test.images[:50])
with torch.no_grad():
    one_by_one, together = (
        Stacked(teachers, batched=way)(batch) for way in (False, True)
    )
apart = (one_by_one - together).abs().max()
Markdown(f"Largest difference of the logits: {apart:.1e}.")

# %% [markdown]
# ## Take away
#
# - The student inherits what the ensemble knows, and what it does not.
# - It needs inputs that look to the teachers like what they know. Where all inputs look to them like few classes, it
#   learns few. To look like many classes is needed, but not enough: photographs do, and their student is far below that
#   of the clients' images.
#
# ## Exercise
#
# ```{exercise} How many questions?
# :label: ex-kd-questions
#
# *Easy, 10 minutes.*
#
# Train the student on the first half of the clients' images, `asked`, then on a quarter, and so on, with the steps
# unchanged. (Not by the parameter `questions`, which cuts the photographs as well.) When does it get worse than the
# student of all photographs?
# ```
#
# ````{solution} ex-kd-questions
# :class: dropdown
#
# ```python
# target = ensembles(answers(teachers, asked), counts)["class-wise weights"]
# halved = [len(asked) >> k for k in range(len(asked).bit_length() - 1)]
# found = {n: heir(asked[:n], target[:n]) for n in halved}
# bar = rows["photographs"]["student (%)"]
# found, bar, next((n for n in halved if found[n] < bar), None)
# ```
#
# The last number is the first with which the student is below that of the photographs: at the defaults seven images.
# With fifteen it is still above: fifteen of the clients' images teach more than a thousand windows of photographs. What
# a question is worth depends on how near it is to what the teachers know, more than on how many there are.
# ````
