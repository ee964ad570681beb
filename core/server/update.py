"""The server of FedVCK (AAAI 2025): prototypes, hard negatives, and training on condensed images with
relational contrastive learning (Eq. 11-16). FedDM and the one-shot methods train by it without the
contrast.

The two copies of the paper's text differ in Eq. 14-16: one writes S^t, the other S^{:t}. Below Eq. 14
both define S^{t-1} (or S^{:t-1}) as the accumulated set, and both sum over S^{0..t-1}, so feature
prototypes are means over all earlier rounds, and Eq. 15 and 16 most likely mean the images of all
rounds so far (page Errata); the released code takes the last max(10, rounds / 2) rounds. The functions
here take what they are given and leave the choice to the caller.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.checks import check_whole, number, one_of, whole
from core.errors import InputError, unknown
from core.models import initialise
from core.progress import counted
from core.rng import Rng
from core.training import Objective, cosine, cross_entropy, scale_rates, sgd, train

OWN = ("never", "forced")
FORMS = ("printed", "released")
SIMILARITIES = ("dot", "cosine")
#: values of `Contrast.projector_training`
TRAININGS = ("together", "accumulated")
#: a weight of the contrastive term below float32's rounding of the cross-entropy's weight, 1
NEGLIGIBLE = 2.0**-24
#: share of the first rate that a cosine ends at
LEFT = 0.01

#: a function of a batch of images (N, C, H, W)
Transform = Callable[[torch.Tensor], torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def logit_prototypes(
    logits: torch.Tensor, labels: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's mean logits per class, p_c^{k,t} = 1/N_{c,k} sum_i f_{M_{t-1}}(x_{i,c,k}) (Eq. 11).

    Args:
        logits: (N, D) outputs of the received model, without softmax; N may be 0.
        labels: (N,) int64 in [0, classes).

    Returns: prototypes (classes, D) float32 or wider, with zero rows for classes without a sample,
    and counts (classes,) int64; sums run in float64.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise InputError(
            f"prototypes need values (samples, D) and as many labels, "
            f"not {tuple(logits.shape)} with {tuple(labels.shape)}"
        )
    counts = torch.zeros(classes, dtype=torch.int64, device=labels.device)
    counts.index_add_(0, labels, torch.ones_like(labels))
    sums = torch.zeros(classes, logits.shape[1], dtype=torch.float64, device=logits.device)
    sums.index_add_(0, labels, logits.double())
    means = sums / counts.clamp(min=1).unsqueeze(1)
    return means.to(torch.promote_types(logits.dtype, torch.float32)), counts


def aggregate_prototypes(prototypes: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Global logit prototypes, p_c^t = sum_k |T_{c,k}| p_c^{k,t} / |T_c| (Eq. 12).

    Args:
        prototypes: (K, C, C'), one slice per client; counts: (K, C), samples of each class on each
            client.

    Returns: (C, C') float32 or wider. A class without a sample gets a row of zeros; `counts.sum(0) >
    0` tells it from the others and is the mask that `hard_negatives` takes.

    Raises InputError when the shapes do not fit or a count is negative.
    """
    if prototypes.ndim != 3 or counts.shape != prototypes.shape[:2]:
        raise InputError(
            f"prototypes of shape (clients, classes, classes) need counts of shape (clients, classes), "
            f"not {tuple(prototypes.shape)} with {tuple(counts.shape)}"
        )
    if bool((counts < 0).any()):
        raise InputError("the numbers of samples behind prototypes must not be negative")
    # float64, because a sum of many clients' products would lose digits that one client's mean
    # still has
    weights = counts.double()
    total = torch.einsum("kc,kcd->cd", weights, prototypes.double())
    mean = total / weights.sum(0).clamp(min=1).unsqueeze(1)
    return mean.to(torch.promote_types(prototypes.dtype, torch.float32))


def hard_negatives(
    prototypes: torch.Tensor, k: int, present: torch.Tensor | None = None, own: str = "never"
) -> torch.Tensor:
    """The classes each class is most confused with, HN(c) = argtopK_{j != c} p_c[j] (Eq. 13).

    Args:
        prototypes: (C, C) global logit prototypes.
        k: K, at least 1. It is capped at the number of classes there are to choose from, C - 1 (C
            where `own` is "forced"): the paper's Table 13 goes up to K = 9 on 9 classes.
        present: (C,) bool, the classes of which some client has a sample; the others are never
            chosen and have no negatives.
        own: "never" chooses among the other classes, as in the paper. From round 1 on the released
            code puts c itself in the place of the K-th of all classes unless it is among them
            ("forced"; here c then is first), which leaves K - 1 negatives. In round 0, which has no
            contrastive term, it takes the first K of all classes.

    Returns: (C, min(k, C - 1 or C)) int64, hardest first; of equal logits the lower class first.
    Where fewer classes are left to choose from, the row ends in -1, which
    `relational_contrastive_loss` skips.

    Raises InputError for k below 1, prototypes that are not square and an unknown `own`.
    """
    if prototypes.ndim != 2 or prototypes.shape[0] != prototypes.shape[1]:
        raise InputError(
            f"hard negatives need square prototypes (classes, classes), not {tuple(prototypes.shape)}"
        )
    check_whole("the number of hard negatives", k, 1)
    if own not in OWN:
        raise unknown("treatment of the own class", own, OWN)
    classes = len(prototypes)
    diagonal = torch.eye(classes, dtype=torch.bool, device=prototypes.device)
    barred = diagonal if own == "never" else torch.zeros_like(diagonal)
    if present is not None:
        barred = barred | ~present.unsqueeze(0) | ~present.unsqueeze(1)
    scores = prototypes.masked_fill(diagonal, math.inf) if own == "forced" else prototypes
    # a stable sort, because topk leaves the order of equal values open
    order = scores.masked_fill(barred, -math.inf).argsort(dim=1, descending=True, stable=True)
    chosen = order[:, : min(k, classes - 1 if own == "never" else classes)]
    return chosen.masked_fill(barred.gather(1, chosen), -1)


def feature_prototypes(
    features: torch.Tensor, labels: torch.Tensor, classes: int, normalise: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean features per class, f_c^t = 1/|S_c| sum_{s in S_c^{0..t-1}} psi^{t-1}(s) (Eq. 14).

    Args:
        features: (N, D) of the condensed images of all rounds before this one, embedded by the
            global model as it is at the start of the round, in evaluation mode.
        labels: (N,) int64 in [0, classes).
        normalise: scale each prototype to length 1, as the released code does.

    Returns: prototypes (classes, D) float32 or wider, with zero rows for classes without images,
    and the mask (classes,) bool of the classes that have some.
    """
    prototypes, counts = logit_prototypes(features, labels, classes)
    return F.normalize(prototypes, dim=1) if normalise else prototypes, counts > 0


def relational_contrastive_loss(
    z: torch.Tensor,
    labels: torch.Tensor,
    prototypes: torch.Tensor,
    negatives: torch.Tensor,
    temperature: float,
    form: str = "printed",
    similarity: str = "dot",
    present: torch.Tensor | None = None,
) -> torch.Tensor:
    """L_rc, which draws features to the prototype of their class and pushes them off those of its
    hard negatives (Eq. 15).

    In the paper l_i = -log exp(z_i . f_{c_i} / tau) / sum_{j in HN(c_i)} exp(z_i . f_j / tau): the
    positive is not in the denominator, so l_i can be negative. With similarity "dot" it has no lower
    bound in z_i, unless f_{c_i} is a convex combination of its negatives' prototypes: once z_i's
    product with f_{c_i} is larger than those with the others, l_i falls without end as z_i grows,
    and training can diverge. SimSiam, which the paper follows, takes the cosine, which bounds l_i.

    The released code takes the cosine, adds the positive to the denominator, and repeats a
    prototype for every sample of its class in the batch: l_i = -log n_{c_i} e_{c_i} / sum_{j in
    HN(c_i) or j = c_i} n_j e_j, with e_j the exponentials above and n_j the samples of class j in
    this batch.

    Eq. 15 has the sum over the images. Eq. 16 adds it to the cross-entropy, a mean in every
    implementation. With the sum the weight between the two terms would grow with the size of the
    batch; the mean divides both sums by the same number, keeps the paper's weight of 1 for any batch,
    and is what the released code does. So this is the mean over the samples that count: a sample does
    not when its class has no prototype or, in the paper's form, none of its negatives has one. In the
    released form such a sample counts with 0, for its own class is in the denominator.

    Args:
        z: (N, D) projected features h(psi(s_i)); labels: (N,) int64.
        prototypes: (C, D) feature prototypes; no gradient flows into them.
        negatives: (C, k) int64 from `hard_negatives`; -1 means none.
        temperature: tau, above 0.
        form: "printed" (the paper's) or "released"; similarity: "dot" or "cosine".
        present: (C,) bool, classes that have a prototype; without it all have.

    Returns: a scalar in float32 or wider, also under autocast; 0 when no sample counts. Raises
    InputError for a bad temperature and an unknown form or similarity.
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"the temperature must be a number above 0, not {temperature!r}")
    if form not in FORMS:
        raise unknown("form of the contrastive loss", form, FORMS)
    if similarity not in SIMILARITIES:
        raise unknown("similarity", similarity, SIMILARITIES)
    with torch.autocast(z.device.type, enabled=False):
        wide = torch.promote_types(z.dtype, torch.float32)
        z, prototypes = z.to(wide), prototypes.detach().to(wide)
        if similarity == "cosine":
            z, prototypes = F.normalize(z, dim=1), F.normalize(prototypes, dim=1)
        scores = z @ prototypes.T / temperature
        if form == "released":
            # n_j exp(s_j) = exp(s_j + log n_j); a class that is not in the batch drops out with log 0
            counts = scores.new_zeros(len(prototypes))
            scores = scores + counts.index_add(0, labels, scores.new_ones(len(labels))).log()
        mask = _denominators(negatives, present, own=form == "released")[labels]
        mask = mask & ~scores.isneginf()
        counted = mask.any(1) if present is None else mask.any(1) & present[labels]
        # rows without any term would give -inf and a gradient of nan, so they are made harmless
        # before the logarithm
        terms = scores.masked_fill(~mask, -math.inf).masked_fill(~counted[:, None], 0)
        positive = scores.gather(1, labels[:, None]).squeeze(1)
        # l_i = log sum_j exp(s_ij) - s_{i, c_i}
        losses = (terms.logsumexp(1) - positive).masked_fill(~counted, 0)
        return losses.sum() / counted.sum().clamp(min=1)


def _denominators(negatives: torch.Tensor, present: torch.Tensor | None, own: bool) -> torch.Tensor:
    """The mask (C, C) of the classes in the denominator of each class."""
    classes = len(negatives)
    mask = torch.zeros(classes, classes + 1, dtype=torch.bool, device=negatives.device)
    # -1 goes to a spare column, which is cut off
    mask = mask.scatter(1, negatives.where(negatives >= 0, classes), True)[:, :classes]
    if own:
        mask = mask | torch.eye(classes, dtype=torch.bool, device=mask.device)
    return mask if present is None else mask & present


class Projector(nn.Module):
    """The learnable projector h of Eq. 15: linear, batch norm, ReLU, linear, from features (N, D)
    to (N, D).

    This is the predictor of SimSiam (Chen and He 2021) and BYOL (Grill et al. 2020). FedVCK does
    not state its size; 128 hidden units are those of its released code. A batch of one image has no
    statistics of its own, so it is normalised with the running ones.

    Args:
        dimension: D; rng: where the initial weights are drawn from; hidden: units of the hidden
            layer.
    """

    def __init__(self, dimension: int, rng: Rng, hidden: int = 128) -> None:
        super().__init__()
        self.first = _linear(dimension, hidden, rng.at("first"))
        self.norm = nn.BatchNorm1d(hidden)
        self.last = _linear(hidden, dimension, rng.at("last"))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Projected features (N, D)."""
        hidden, norm = self.first(features), self.norm
        if len(hidden) == 1:
            hidden = F.batch_norm(
                hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        else:
            hidden = norm(hidden)
        return self.last(hidden.relu())


def _linear(inputs: int, outputs: int, rng: Rng) -> nn.Linear:
    """A linear layer that is made without the global random numbers."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    initialise(layer, rng)
    return layer


@attrs.frozen(kw_only=True, eq=False)
class Contrast:
    """Projector, prototypes and settings of the contrastive term of Eq. 15 in one round. Three
    differences of the released code are settings; a fresh projector is the caller's.
    """

    #: h; it is trained along with the model
    projector: Projector
    #: (C, D) from `feature_prototypes`
    prototypes: torch.Tensor
    #: (C, k) from `hard_negatives`
    negatives: torch.Tensor
    #: (C,) bool, classes that have a prototype
    present: torch.Tensor | None = None
    #: see `relational_contrastive_loss`, which checks them
    temperature: float
    form: str = "printed"
    similarity: str = "dot"
    #: factor of L_rc in Eq. 16: 1 in the paper
    weight: float = attrs.field(default=1.0, validator=number(0))
    #: factor of the weight half way through the round. The released code has 0.1 and never restores
    #: the weight, so its round r (from 0) starts with `weight * 0.1**r`
    fade: float = attrs.field(default=1.0, validator=number(0))
    #: "together": by the model's SGD; "accumulated": as released, by an Adam of its own with
    #: learning rate 0.01, whose gradients are never set back to zero within a round, so that each
    #: step follows the sum of all gradients so far
    projector_training: str = attrs.field(
        default="together", validator=one_of("training of the projector", *TRAININGS)
    )

    def loss(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """L_rc of projected features (N, D), not yet weighted."""
        return relational_contrastive_loss(
            features,
            labels,
            self.prototypes,
            self.negatives,
            self.temperature,
            self.form,
            self.similarity,
            self.present,
        )


@attrs.frozen(kw_only=True)
class ServerTraining:
    """Hyper-parameters of the server's training in a round.

    FedVCK states a range of learning rates (0.001 to 0.01) and no more; the defaults are its
    released values, those for CIFAR10 where they differ. The released loop counts from 0 to 1,000
    and so takes 1,001 passes.
    """

    lr: float = attrs.field(default=0.005, validator=number(0, above=True))
    momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    weight_decay: float = attrs.field(default=1e-6, validator=number(0))
    batch_size: int = attrs.field(default=256, validator=whole(1))
    #: passes over the condensed images in a round
    epochs: int = attrs.field(default=1000, validator=whole(1))
    #: batches in a round; when given it takes the place of `epochs`
    steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: factor of the learning rates in the second half of a round
    decay: float = attrs.field(default=0.1, validator=number(0, above=True))

    def total(self, samples: int) -> int:
        """Batches that the server takes in a round with so many condensed images."""
        return self.steps or self.epochs * -(-samples // self.batch_size)


def update_model(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    settings: ServerTraining,
    rng: Rng,
    *,
    prepare: Transform | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    loss: Loss = cross_entropy,
    augment: Transform | None = None,
    contrast: Contrast | None = None,
    plain_pass: bool = False,
) -> None:
    """Train a model, and the projector of `contrast`, in place on condensed images: L_update = L_ce
    + L_rc (Eq. 16).

    Args:
        model: a network of `core.models`.
        images: (N, C, H, W) on the model's device; labels: (N,) int64; N >= 1.
        rng: where the order of the images is drawn from.
        prepare: from a batch of `images` to float32 input of the network; without it they are
            normalised already.
        autocast: makes the context in which networks are applied; losses are always float32.
        loss: from logits and labels to a scalar.
        augment: applied, as in the released code, to the prepared input of `loss` only. The
            contrastive term then embeds the images a second time, without augmentation; else both
            terms share one pass.
        contrast: the contrastive term; without it this is FedDM's update. Where its weight has faded
            below what float32 resolves beside 1 it is left out.
        plain_pass: with `augment`, embed the images without augmentation also where no contrastive
            term needs it. The released code does: such a pass changes the running statistics of batch
            normalisation, and nothing else.

    Raises InputError when there are no images.
    """
    if not len(labels):
        raise InputError(
            "the server has no condensed images to train on: did any client upload some?"
        )
    weight = 0.0 if contrast is None else contrast.weight
    optimisers, steps = optimisers_of(model, contrast, settings), settings.total(len(labels))

    def halfway() -> None:
        nonlocal weight
        weight *= 1.0 if contrast is None else contrast.fade
        scale_rates(optimisers, settings.decay)

    def objective(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        term = contrast if weight > NEGLIGIBLE else None
        plain = plain_pass or contrast is not None
        with autocast():
            inputs = images if prepare is None else prepare(images)
            logits, projected = outputs_of(model, inputs, augment, term, plain)
        total = loss(logits, labels)
        return total if term is None else total + weight * term.loss(projected, labels)

    train(model, images, labels, settings, steps, objective, rng, optimisers, halfway)


class _AccumulatingAdam(torch.optim.Adam):
    """The released code clears the projector's gradients before the first step of a round only."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Keep the gradients."""


def optimisers_of(
    model: nn.Module, contrast: Contrast | None, settings: ServerTraining
) -> list[torch.optim.Optimizer]:
    """Optimisers of the model and of the projector, which is put into training mode."""
    optimisers: list[torch.optim.Optimizer] = [sgd(model.parameters(), settings)]
    if contrast is None:
        return optimisers
    projector = contrast.projector.train()
    parameters = list(projector.parameters())
    if contrast.projector_training == "together":
        return [*optimisers, sgd(parameters, settings)]
    projector.zero_grad(set_to_none=True)
    # on a GPU the count of steps, which changes the rate, must be there too: see `core.replay`
    capturable = parameters[0].is_cuda
    return [*optimisers, _AccumulatingAdam(parameters, lr=0.01, capturable=capturable)]


def outputs_of(
    model: nn.Module,
    inputs: torch.Tensor,
    augment: Transform | None,
    contrast: Contrast | None,
    plain_pass: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, C) for the loss, and projected features (N, D) for the contrast, if any. Plain and
    augmented images take a pass each: batch normalisation keeps them apart.
    """
    if contrast is None:
        if plain_pass and augment is not None:
            with torch.no_grad():
                model.embed(inputs)  # type: ignore[operator]
        return model(inputs if augment is None else augment(inputs)), inputs.new_empty(0)
    features = model.embed(inputs)  # type: ignore[operator]
    logits = model.classifier(features) if augment is None else model(augment(inputs))  # type: ignore[operator]
    return logits, contrast.projector(features)


def update_by_epochs(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    settings: ServerTraining,
    objective: Objective,
    rng: Rng,
    *,
    falling: bool = False,
    score: Callable[[nn.Module], float] | None = None,
) -> None:
    """Train a model in place on labelled images epoch by epoch, as in the code of GDD-FL.

    Steps that are no multiple of an epoch are rounded up to one: only whole epochs are scored.

    Args:
        images: (N, C, H, W) on the model's device, as `objective` takes them; labels: (N,) int64.
        falling: the rate falls along a cosine to `LEFT` of the first.
        score: of the model after an epoch, on other images. The last of the best epochs is taken;
            without a score the last epoch.
    """
    optimiser = sgd(model.parameters(), settings)
    steps = -(-len(labels) // settings.batch_size)
    epochs = -(-settings.total(len(labels)) // steps)
    best, best_state = -math.inf, None
    for epoch in counted(range(epochs), "epochs", epochs):
        share = cosine(1.0, LEFT, epoch, epochs) if falling else 1.0
        share *= settings.decay if 2 * epoch >= epochs else 1.0
        for group in optimiser.param_groups:
            group["lr"] = settings.lr * share
        draws = rng.at("epoch", epoch)
        train(model, images, labels, settings, steps, objective, draws, [optimiser])
        if score is not None and (value := score(model)) >= best:
            best, best_state = value, copy.deepcopy(model.state_dict())
    if best_state is not None:
        model.load_state_dict(best_state)
