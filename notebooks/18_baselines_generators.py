# %% [markdown]
# # Rivals that generate or condense
#
# *Question:* five rivals of FedVCK {cite:p}`fedvck` make features or images of their own. How, and what for?\
# *Time:* under half a minute on two CPU cores. *Data:* scikit-learn's digits.
#
# [The page before](15_baselines) has FedAvg and three rivals that change a client's loss or data, and says where each acts.
# FedGen {cite:p}`fedgen`, FedGAN {cite:p}`fedganrasouli,fedgan` and DFRD {cite:p}`dfrd` train a generator; FedDM
# {cite:p}`feddm` and DESA {cite:p}`desa` condense images. How far they come stands among the
# [results](19_baselines_results).

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
clients = 5
rounds = 3
local_steps = 10
lr = 0.05
iterations = 40
seed = 0
profile = "quick"

# %% tags=["hide-input"]
from functools import partial

import pandas as pd
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from core import server
from core.baselines import desa, dfrd, feddm, fedgan
from core.rng import Rng
from lab.report import condensed_images, lines, method_name, show, source
from lab.report.lesson import SMALL, Lesson

same = partial(assert_close, rtol=0, atol=1e-12)  # to twelve digits
own = {
    "fedgen": {"generator_steps": 30},
    "dfrd": {"iterations": 4, "server_batch": 32},
    "desa": {"batch_size": 64, "ipc": 5, "iterations": iterations // 2},
}
local = {"local_steps": local_steps, "lr": lr}
own = {
    name: {**local, **own.get(name, {})}
    for name in ("fedavg", "fedgen", "fedgan", "dfrd", "desa")
}
own["feddm"] = {**SMALL["fedvck"], "server_steps": 60}
own["feddm"]["iterations"] = iterations
lesson = Lesson(
    profile,
    "fedavg",
    dataset=dataset,
    alpha=alpha,
    clients=clients,
    rounds=rounds,
    seed=seed,
    own=own,
)
task, members = lesson.task, lesson.members()
largest = max(members, key=len)

# %% [markdown]
# ## One run of each
#
# Same data, same split, same first network as on the page before. The budgets of methods that generate or condense
# images are cut most: they learn little here, and Tables 3 and 11 are the place to compare.

# %%
runs = {
    name: lesson.run(name)
    for name in ("fedgen", "fedgan", "dfrd", "feddm", "desa")
}
accuracy = {
    method_name(name): run.per_round()["accuracy (%)"]
    for name, run in runs.items()
}
pd.DataFrame(accuracy).round(1)

# %% [markdown]
# ## FedGen: generated features
#
# The server cannot see data, but it has the last layers $g_k$ of all clients. It trains a generator $G(y, \xi)$
# of *features* $z$, with noise $\xi$ drawn anew for each, that they together take for class $y$,
#
# $$
# \min_G \; \mathbb{E}_{y, \xi} \; \ell\Bigl(\sigma\Bigl(\sum_k \omega_{k,y} \, g_k(z)\Bigr), y\Bigr) , \qquad
# z = G(y, \xi) ,
# $$ (eq:base-fedgen)
#
# with the softmax $\sigma$ and weights $\omega_{k,y}$ of the clients, and sends it out. Clients train their own last
# layer on features of all classes, those that they lack included. The paper weights all clients alike, $\omega = 1/K$;
# its code means to weight them by their share of the class (by a slip of shapes every image has the mean weight there),
# and this is the default here: a client without the class has nothing to say on it. (The code also takes the mean of
# the clients' losses in place of the loss of their mean logits: the setting `ensemble`.) Two terms stand in the code
# only, and are on by default: the generator's loss has a diversity term (`eta`), and a client's outputs on its own
# images are kept near those on features generated for the same labels (`beta`).

# %%
draws = Rng(seed).at("heads").generator()
logits = torch.randn(3, 8, 10, generator=draws).double()  # three clients
shares = torch.rand(3, 10, generator=draws).double().softmax(0)
y = torch.arange(8)

together = sum(shares[k, y][:, None] * logits[k] for k in range(3))
mine = F.cross_entropy(together, y)
same(mine, server.ensemble_cross_entropy(logits, y, "logits", shares))


# %% tags=["hide-input"]
@torch.no_grad()
def recognised(state, samples=50):
    """Of generated features, how many the global model takes for the wanted
    class, in percent.
    """
    generator = (
        lesson.experiment("fedgen")
        .new_algorithm()
        .generator(task, state.tensors)
        .eval()
    )
    device = task.runtime.device
    wanted = torch.arange(
        task.dataset.num_classes, device=device
    ).repeat_interleave(samples)
    draws = Rng(seed).at("look").generator(device)
    noise = torch.randn(
        len(wanted), generator.noise, generator=draws, device=device
    )
    taken = (
        task.model_from(state.tensors)
        .eval()
        .classifier(generator(noise, wanted))
        .argmax(1)
    )
    return 100 * (taken == wanted).float().mean().item()


seen = [
    {"round": number, "share": recognised(state), "label": "FedGen"}
    for number, state in enumerate(runs["fedgen"].states, 1)
]
show(
    lines(
        pd.DataFrame(seen),
        "round",
        "share",
        xlabel="communication round",
        ylabel="seen as wanted (%)",
        title="Generated features in the global model",
    )
)

# %% [markdown]
# The generator learns from the clients, and they learn from it. In early rounds the clients know little, and features
# that agree with them need not look like features of real images: FedGen may start slower than FedAvg.

# %% [markdown]
# ## FedGAN: generated images
#
# Every client trains a generator $G$ and a discriminator $D$ on its own images; the server averages both as it
# averages the classifier. With the class known to both,
#
# $$
# \begin{aligned}
# L_D &= -\,\mathbb{E} \log D(x \mid y) - \mathbb{E} \log\bigl(1 - D(G(\xi, y) \mid y)\bigr), \\
# L_G &= -\,\mathbb{E} \log D(G(\xi, y) \mid y).
# \end{aligned}
# $$ (eq:base-gan)
#
# From the second round on a client adds images of *all* classes from the averaged generator to its own.

# %%
real, fake = torch.randn(2, 64, generator=draws).double()  # logits of D
D = torch.sigmoid
mine = -D(real).log().mean() - (1 - D(fake)).log().mean(), -D(fake).log().mean()
same(mine, fedgan.adversarial_losses(real, fake))

# %% tags=["hide-input"]
method = lesson.experiment("fedgan").new_algorithm()
generator = method.generator(task, runs["fedgan"].state.tensors)
images, labels = fedgan.draw(
    task, generator, 10 * task.dataset.num_classes, Rng(seed).at("draw")
)
show(
    condensed_images(
        images,
        labels,
        task.dataset.classes,
        columns=8,
        title=f"Images of FedGAN's generator after {rounds} rounds",
    )
)

# %% [markdown]
# Such generators are usually trained for many thousands of steps. Here it had `rounds` times `local_steps`, and images
# that are not like their class yet are wrong examples. So these runs judge a small budget, and not the method.

# %% [markdown]
# ## DFRD: distilling without data
#
# The server keeps all models of the round and plays a game with images from a generator. The images $s$ shall look
# like their class $y$ to the ensemble (fidelity), lie where the ensemble is right and the global model $f$ is wrong
# (transferability), and differ (diversity). Then $f$ learns from the ensemble on them:
#
# $$
# \begin{aligned}
# L_{gen} &= \mathrm{CE}\Bigl(\sum_i \pi_i^y f_i(s), y\Bigr) + \beta_{tran} L_{tran} + \beta_{div} L_{div}, \\
# L_{md} &= \mathrm{KL}\Bigl(f(s), \sum_i \pi_i^y f_i(s)\Bigr)
# + \beta_{old} \, \mathrm{KL}\Bigl(f(\tilde s), \sum_i \pi_i^{\tilde y} f_i(\tilde s)\Bigr) .
# \end{aligned}
# $$ (eq:base-dfrd)
#
# $\pi_i^y$ is the share of client $i$ in the samples of class $y$ (the paper writes $\tau_{i,y}$, and $\alpha$ for
# $\beta_{old}$), and $\tilde s$ comes from a moving average of the generator, so that old lessons are not forgotten.
# $\mathrm{KL}(a, b)$ is $\sum b \log(b / a)$ here, as in a public copy of the authors' code (`variant: released` has
# its values, such as a temperature of 10): the student learns from the ensemble.
# $L_{tran}$ is minus the divergence of $f(s)$ from the ensemble's answer on the images that the ensemble names rightly
# and $f$ does not, and 0 on all others; $L_{div}$ follows below.

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(dfrd.DFRD.generator_loss)

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(dfrd.DFRD.student_loss)

# %% [markdown]
# The diversity loss is printed as $\exp(-\frac{1}{Q^2} \sum_{i,j} \lVert s_i - s_j \rVert \, \lVert h_i - h_j \rVert)$,
# $h$ being what enters the generator and $Q$ the number of images. We compute it for random images of growing side:

# %% tags=["hide-input"]
sides, merged = (
    (2, 3, 4, 6, 8, 12, 16),
    torch.randn(64, 64, generator=Rng(seed).at("h").generator()),
)
pictures = {
    side: torch.rand(
        64,
        task.dataset.channels,
        side,
        side,
        generator=Rng(seed).at("s", side).generator(),
    )
    for side in sides
}
values = [
    {
        "side": side,
        "loss": dfrd.diversity_loss(pictures[side], merged, kind).item(),
        "label": label,
    }
    for side in sides
    for kind, label in (
        ("norm", "2-norm, as printed"),
        ("mean_square", "mean square, here"),
    )
]
show(
    lines(
        pd.DataFrame(values),
        "side",
        "loss",
        xlabel="side of the image (pixels)",
        ylabel="diversity loss",
        log="y",
        title="DFRD's diversity loss of random images",
    )
)

# %% [markdown]
# The norm grows with the number of pixels. A loss that is zero everywhere has no gradient, so the default is the mean
# of squared differences, as in that copy; `distance: norm` is the printed form.

# %% [markdown]
# ## FedDM: send images, not models
#
# FedDM is the nearest relative of FedVCK. A client condenses images $S_c$ of every class whose mean features and
# logits match those of its data {eq}`eq:dc-means`, not at the global model alone but at weights around it,
#
# $$
# w = w_t + \min\Bigl(1, \frac{\rho}{\lVert g \rVert}\Bigr) g, \qquad g \sim \mathcal{N}(0, I) ,
# $$ (eq:base-feddm)
#
# so that the images remain useful while the server moves; $\rho$ is the largest distance from $w_t$, 5 here. The server
# trains the global model on the images of this round.

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(feddm.disturbance)

# %% tags=["hide-input"]
method, client = lesson.experiment("feddm").new_algorithm(), largest
answer = method.client_update(
    client, method.broadcast(runs["feddm"].state, client.id), Rng(seed)
)
show(
    condensed_images(
        answer.tensors["images"],
        answer.tensors["labels"].long(),
        task.dataset.classes,
        columns=5,
        title="What FedDM's largest client uploads",
    )
)

# %% [markdown]
# There is no FedAvg in FedDM: nothing is averaged. What it lacks beside FedVCK are the latent constraints, the
# selection and the contrastive loss ([ablations](12_fedvck_ablations)). What its images start from, noise here, decides
# [much of its accuracy](03_fedvck_starts).
#
# ## DESA: common anchors
#
# Before training every client condenses a few images per class, once, at random networks. Averaged over the clients
# they are anchors $D_{syn}$ that everybody has. A client then minimises
#
# $$
# \begin{aligned}
# L &= L_{CE}(D_i \cup D_{syn}) + \beta_{REG} L_{REG}(D_i, D_{syn}) \\
# &\quad + \beta_{KD} \, \tau^2 \, \mathrm{KL}\bigl(Z_i \,\Vert\, f_i(D_{syn})\bigr) .
# \end{aligned}
# $$ (eq:base-desa)
#
# $D_i$ are client $i$'s data, $f_i$ is its model, and $\mathrm{KL}$ is taken at temperature $\tau$. (DESA's paper
# writes $\lambda$ for the weights $\beta$; the factor $\tau^2$ is its code's, which also divides by the number of
# classes and multiplies by 0.9: with ten classes $\beta_{KD} = 0.09$ here is its weight, and the default is 1.)
# $L_{REG}$ pulls features of a class towards those of its anchors. $Z_i$ is what the *other* clients' models say of the
# anchors. DESA's paper has no server; FedVCK's comparison has a global model, so models are averaged here.

# %% mystnb={"code_prompt_show": "Show it in core"} tags=["hide-cell"]
source(desa.DESA.objective)

# %% tags=["hide-input"]
anchors = desa.anchors(runs["desa"].state)
show(
    condensed_images(
        anchors["anchors/images"],
        anchors["anchors/labels"].long(),
        task.dataset.classes,
        title="The anchors that all clients share",
    )
)

# %% [markdown]
# An anchor is an average over clients, pixel by pixel, of images that were condensed apart: it is greyer where a class
# has several owners. So few iterations leave much of the noise that the images start from.
#
# That all of them but FedDM are FedAvg when their own terms are off is shown on [the page before](15_baselines).
# FedVCK's Table 8 lists what each rival makes: features (FedGen), images (FedGAN, DFRD, and FedMix on the page before),
# condensed images (FedDM, DESA). That agrees. By its Table 1 FedDM matches final features only; it matches logits too.
#
# ## Take away
#
# - A generator has only the steps that the rounds give it; a budget in rounds decides how good it can become.
# - An ensemble teaches what it knows: where a class has few owners, it knows little.
# - FedDM sends images in place of models, DESA beside them.
#
# ## Exercises
#
# ```{exercise} Break one
# :label: ex-base-break
#
# *Medium, 30 minutes.*
#
# Choose a method, say before you run it at which `alpha` it will fall behind FedAvg or down to chance, and why. Then
# raise heterogeneity: `alpha` of 10, 0.5 and 0.02.
# ```
#
# ````{solution} ex-base-break
# :class: dropdown
#
# ```python
# for name in ("fedavg", "fedgen", "dfrd"):
#     print(name, [round(lesson.but(alpha=a).run(name).accuracy, 1)
#                  for a in (10, 0.5, 0.02)])
# ```
#
# When we tried this, with the defaults and three seeds, DFRD was close to FedAvg at 10, and at 0.02 it fell to about
# chance while FedAvg stayed far above. A likely reason is the ensemble that teaches it: at 0.02 a class has few owners,
# and an owner of a single class takes *anything* for its class. A generator that asks it reaches its goal with any
# image, and the lesson is empty. FedVCK's paper speaks of a vicious circle of poor synthesis and a poor global model
# (its text on Table 2). FedGen was below FedAvg at every `alpha`, at 10 as well: that is no effect of heterogeneity.
# One seed is one draw of clients: FedAvg itself was better at 0.02 than at 0.5 with one of the three.
# ````
#
# ```{exercise} Why the printed form is zero
# :label: ex-base-norm
#
# *Medium, 20 minutes.*
#
# Let the pixels of $s$ be uniform in $[0, 1]$, $d$ in number, and let the 64 numbers of $h$ have variance 1. How large
# is the exponent of DFRD's printed diversity loss for $28 \times 28$ pixels?
# ```
#
# ```{solution} ex-base-norm
# :class: dropdown
#
# The difference of two uniform numbers has mean square $1/6$, that of two numbers of variance 1 has $2$. So
# $\lVert s_i - s_j \rVert \approx \sqrt{d / 6} = \sqrt{784 / 6} \approx 11$ and $\lVert h_i - h_j \rVert \approx
# \sqrt{128} \approx 11$. Their product is near 129, and $e^{-129}$ is smaller than any float32. With means of squares
# it is $-\frac{1}{6} \cdot 2$, whatever the size.
# ```
