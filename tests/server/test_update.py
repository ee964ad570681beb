"""The server's training on condensed images (FedVCK, Eq. 16), against NumPy with gradients by
finite differences.
"""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from core import models
from core.errors import InputError
from core.rng import Rng
from core.server import (
    Contrast,
    Projector,
    ServerTraining,
    feature_prototypes,
    hard_negatives,
    relational_contrastive_loss,
    update,
    update_model,
)
from core.training import batches, train

CPU = torch.device("cpu")
CLASSES, WIDTH, HIDDEN, SAMPLES = 3, 3, 4, 7
TAU = 0.5


class Tiny(models.Classifier):
    """A linear encoder of images of four pixels."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.encoder, self.classifier = (
            nn.Linear(4, WIDTH, bias=False),
            nn.Linear(WIDTH, CLASSES, bias=False),
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=draw)
        self.double()

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        return self.encoder(images.flatten(1))


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (N, 1, 2, 2), labels, prototypes (C, D), negatives (C, 2)."""
    draw = np.random.default_rng(3)
    images, labels = (
        torch.tensor(draw.normal(size=(SAMPLES, 1, 2, 2))),
        torch.tensor([0, 1, 2, 0, 1, 2, 2]),
    )
    return (
        images,
        labels,
        torch.tensor(draw.normal(size=(CLASSES, WIDTH))),
        torch.tensor([[1, 2], [0, 2], [1, 0]]),
    )


def numpy_loss(w, x, y, f, negatives, weight, sign):
    """L_ce + weight * L_rc, means over the batch, from Eq. 15 and 16; `sign` is the augmentation of
    the first term.
    """
    logits = sign * x @ w["encoder"].T @ w["classifier"].T
    total = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y])
    if weight:
        hidden = x @ w["encoder"].T @ w["first.weight"].T + w["first.bias"]
        hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5) * w["norm.weight"] + w[
            "norm.bias"
        ]
        z = np.maximum(hidden, 0) @ w["last.weight"].T + w["last.bias"]
        e = np.exp(z @ f.T / TAU)
        total += weight * np.mean(
            [-np.log(e[i, c] / e[i, negatives[c]].sum()) for i, c in enumerate(y)]
        )
    return total


def slopes(loss, w):
    """Gradient of `loss(w)` by central differences."""
    gradient = {name: np.zeros_like(value) for name, value in w.items()}
    for name, value in w.items():
        for index in np.ndindex(value.shape):
            kept = value[index]
            value[index] = kept + 1e-6
            above = loss(w)
            value[index] = kept - 1e-6
            gradient[name][index] = (above - loss(w)) / 2e-6
            value[index] = kept
    return gradient


def numpy_update(w, settings, weight, fade, sign, accumulated, rng):
    """The whole round in float64: SGD with momentum for the model, SGD or the accumulating Adam for
    the projector.
    """
    images, labels, f, negatives = (tensor.numpy() for tensor in problem())
    x = images.reshape(SAMPLES, 4)
    velocity = {name: np.zeros_like(value) for name, value in w.items()}
    total, first, second = (
        {name: np.zeros_like(value) for name, value in w.items()} for _ in range(3)
    )
    rate = 1.0
    for t, rows in enumerate(
        batches(SAMPLES, settings.batch_size, settings.steps, rng.at("batches"), CPU)
    ):
        if t == settings.steps // 2:
            rate, weight = rate * settings.decay, weight * fade
        rows = rows.numpy()

        def loss(v: dict, x=x[rows], y=labels[rows], weight: float = weight) -> float:
            return numpy_loss(v, x, y, f, negatives, weight, sign)

        gradient = slopes(loss, w)
        for name in w:
            if accumulated and "." in name:
                total[name] += gradient[name]
                first[name] = 0.9 * first[name] + 0.1 * total[name]
                second[name] = 0.999 * second[name] + 0.001 * total[name] ** 2
                step = (
                    first[name]
                    / (1 - 0.9 ** (t + 1))
                    / (np.sqrt(second[name] / (1 - 0.999 ** (t + 1))) + 1e-8)
                )
                w[name] -= 0.01 * rate * step
            else:
                velocity[name] = (
                    0.9 * velocity[name] + gradient[name] + settings.weight_decay * w[name]
                )
                w[name] -= settings.lr * rate * velocity[name]
    return w


@pytest.mark.parametrize(
    ("weight", "fade", "sign", "kind"),
    [
        (0.0, 1.0, 1, None),
        (0.0, 1.0, -1, None),
        (1.0, 1.0, 1, "together"),
        (0.5, 0.1, 1, "together"),
        (0.5, 0.1, -1, "accumulated"),
    ],
)
def test_a_round_equals_numpy(weight, fade, sign, kind):
    images, labels, prototypes, negatives = problem()
    settings = ServerTraining(lr=0.05, batch_size=4, steps=5, weight_decay=0.01)
    model, projector = Tiny(), Projector(WIDTH, Rng(1), hidden=HIDDEN).double()
    w = {"encoder": model.encoder.weight, "classifier": model.classifier.weight}
    if kind:
        w |= dict(projector.named_parameters())
    before = {name: value.detach().numpy().copy() for name, value in w.items()}
    for parameter in projector.parameters():  # what a round before left behind counts for nothing
        parameter.grad = torch.ones_like(parameter)
    contrast = (
        Contrast(
            projector=projector,
            prototypes=prototypes,
            negatives=negatives,
            temperature=TAU,
            weight=weight,
            fade=fade,
            projector_training=kind,
        )
        if kind
        else None
    )
    update_model(
        model,
        images,
        labels,
        settings,
        Rng(7),
        loss=F.cross_entropy,
        contrast=contrast,
        augment=None if sign == 1 else torch.neg,
    )
    expected = numpy_update(
        {name: value.copy() for name, value in before.items()},
        settings,
        weight,
        fade,
        sign,
        kind == "accumulated",
        Rng(7),
    )
    for name, value in w.items():
        if (
            name != "first.bias"
        ):  # batch norm cancels it: its true gradient is 0, and Adam divides rounding by rounding
            assert np.abs(expected[name] - before[name]).max() > 1e-4
            np.testing.assert_allclose(
                value.detach().numpy(), expected[name], rtol=1e-6, atol=1e-7, err_msg=name
            )


@pytest.mark.parametrize(("steps", "calls"), [(1, []), (2, [1]), (5, [2])])
def test_half_way_comes_once(steps, calls):
    images, labels, _, _ = problem()
    done, seen = [], []

    def objective(model, images, labels):
        done.append(1)
        return F.cross_entropy(model(images), labels)

    train(
        Tiny(),
        images,
        labels,
        ServerTraining(),
        steps,
        objective,
        Rng(0),
        halfway=lambda: seen.append(len(done)),
    )
    assert seen == calls


def test_number_of_batches():
    assert ServerTraining(batch_size=4, epochs=3).total(7) == 6
    assert ServerTraining(batch_size=4, epochs=3, steps=5).total(7) == 5
    assert ServerTraining().total(1000) == 4000


def test_bytes_are_prepared_batch_by_batch_and_networks_run_in_the_context():
    draw = torch.Generator().manual_seed(0)
    images, labels = (
        torch.randint(0, 256, (6, 1, 8, 8), generator=draw, dtype=torch.uint8),
        torch.arange(6) % 3,
    )
    entered, shapes = [], []

    def prepare(batch: torch.Tensor) -> torch.Tensor:
        shapes.append(len(batch))
        return batch.float() / 255

    def context():
        entered.append(1)
        return nullcontext()

    settings = ServerTraining(batch_size=4, epochs=2)
    one, other = (models.build("convnet", 1, 8, 3, Rng(0), width=4) for _ in range(2))
    update_model(one, images, labels, settings, Rng(1), prepare=prepare, autocast=context)
    update_model(other, images.float() / 255, labels, settings, Rng(1))
    assert shapes == [4, 2, 4, 2] and len(entered) == 4
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_released_settings_with_classes_that_are_missing_stay_finite_and_lower_the_loss():
    """Class 2 has images but no prototype, class 3 nothing at all; a batch of one image is left
    over.
    """
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0])
    images = torch.randn(9, 1, 8, 8, generator=draw) + labels[:, None, None, None]
    model = models.build("convnet", 1, 8, 4, Rng(0), width=4)
    with torch.no_grad():
        prototypes, present = feature_prototypes(
            model.eval().embed(images[labels < 2]), labels[labels < 2], 4, True
        )
    assert present.tolist() == [True, True, False, False]
    logits = torch.randn(4, 4, generator=draw)
    projector = Projector(model.feature_size, Rng(1))
    contrast = Contrast(
        projector=projector,
        prototypes=prototypes,
        present=present,
        temperature=0.1,
        weight=0.1,
        fade=0.1,
        negatives=hard_negatives(logits, 5, own="forced"),
        form="released",
        projector_training="accumulated",
    )

    def terms() -> tuple[float, float]:
        model.eval(), projector.eval()
        with torch.no_grad():
            features = model.embed(images)
            return (
                F.cross_entropy(model.classifier(features), labels).item(),
                relational_contrastive_loss(
                    projector(features),
                    labels,
                    prototypes,
                    contrast.negatives,
                    0.1,
                    "released",
                    present=present,
                ).item(),
            )

    before = terms()
    update_model(
        model,
        images,
        labels,
        ServerTraining(lr=0.01, batch_size=8, epochs=20),
        Rng(2),
        augment=lambda x: x.flip(3),
        contrast=contrast,
    )
    after = terms()
    assert after[0] < before[0] and after[1] < before[1]


@pytest.mark.parametrize("contrastive", [False, True])
def test_the_released_step_written_out(contrastive):
    """Ten full batches of the released server by hand: both passes in train mode, plain images
    first, so that both move the running statistics; cross-entropy of the second, contrast of the
    first, Adam for the projector with gradients that add up.
    """
    draw, rate, tau, steps = torch.Generator().manual_seed(0), 0.05, 0.5, 10
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    images = torch.randn(7, 1, 8, 8, generator=draw, dtype=torch.float64)
    model = models.build("convnet", 1, 8, 3, Rng(0), width=4).double()
    projector = Projector(model.feature_size, Rng(1)).double()
    prototypes = F.normalize(torch.randn(3, model.feature_size, generator=draw).double(), dim=1)
    hand, head = copy.deepcopy(model).train(), copy.deepcopy(projector).train()
    velocity = {name: torch.zeros_like(value) for name, value in hand.named_parameters()}
    kept = [torch.zeros_like(value) for value in head.parameters()]
    first, second = ([torch.zeros_like(value) for value in kept] for _ in range(2))
    for step in range(1, steps + 1):
        lr = 1.0 if step <= steps // 2 else 0.1
        features = hand.embed(images)
        loss = F.cross_entropy(hand.classifier(hand.embed(images.flip(3))), labels)
        if contrastive:
            z = F.normalize(head(features), dim=1)
            near = (z @ prototypes[labels].T / tau).exp()
            mine = (labels[:, None] == labels[None]).double()
            # the hard negatives of each class are all classes, so that every image is compared
            loss = loss - 0.3 * ((mine * near).sum(1) / near.sum(1)).log().mean()
        slopes = torch.autograd.grad(
            loss, [*hand.parameters(), *(head.parameters() if contrastive else ())]
        )
        with torch.no_grad():
            for (name, weight), slope in zip(hand.named_parameters(), slopes, strict=False):
                velocity[name] = 0.9 * velocity[name] + slope
                weight -= lr * rate * velocity[name]
            for i, (weight, slope) in enumerate(
                zip(head.parameters(), slopes[len(velocity) :], strict=False)
            ):
                kept[i] += slope
                first[i] = 0.9 * first[i] + 0.1 * kept[i]
                second[i] = 0.999 * second[i] + 0.001 * kept[i] ** 2
                scale = (second[i] / (1 - 0.999**step)).sqrt() + 1e-8
                weight -= lr * 0.01 * first[i] / (1 - 0.9**step) / scale
    contrast = Contrast(
        projector=projector,
        prototypes=prototypes,
        temperature=tau,
        weight=0.3,
        negatives=torch.tensor([[0, 1, 2]] * 3),
        form="released",
        projector_training="accumulated",
    )
    update_model(
        model,
        images,
        labels,
        ServerTraining(lr=rate, batch_size=7, steps=steps, decay=0.1, weight_decay=0.0),
        Rng(2),
        loss=F.cross_entropy,
        augment=lambda x: x.flip(3),
        contrast=contrast if contrastive else None,
        plain_pass=True,
    )
    for name, value in hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-7, atol=1e-9)
    if contrastive:
        for name, value in head.state_dict().items():
            torch.testing.assert_close(projector.state_dict()[name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ServerTraining, "lr", 0),
        (ServerTraining, "momentum", 1.5),
        (ServerTraining, "batch_size", 0),
        (ServerTraining, "epochs", 0),
        (ServerTraining, "steps", 0),
        (ServerTraining, "decay", 0),
        (ServerTraining, "weight_decay", -1),
        (Contrast, "weight", -1),
        (Contrast, "fade", float("nan")),
        (Contrast, "projector_training", "alone"),
    ],
)
def test_bad_settings_are_answered_with_one_sentence(kind, name, value):
    _, _, prototypes, negatives = problem()
    needed = (
        {}
        if kind is ServerTraining
        else {
            "projector": Projector(WIDTH, Rng(0)),
            "prototypes": prototypes,
            "negatives": negatives,
            "temperature": 1.0,
        }
    )
    with pytest.raises(InputError, match=name.split("_")[0]):
        kind(**(needed | {name: value}))


def test_no_images_at_all():
    with pytest.raises(InputError, match="no condensed images"):
        update_model(
            Tiny(),
            torch.zeros(0, 1, 2, 2),
            torch.zeros(0, dtype=torch.int64),
            ServerTraining(),
            Rng(0),
        )


def faded(
    weight: float | None, monkeypatch: pytest.MonkeyPatch, negligible: float, fade: float = 1.0
) -> dict:
    """What a small network holds after a round with a contrastive term of this weight, or without."""
    monkeypatch.setattr(update, "NEGLIGIBLE", negligible)
    draw = torch.Generator().manual_seed(0)
    images, labels = torch.randn(9, 1, 8, 8, generator=draw), torch.arange(9) % 3
    model = models.build("convnet", 1, 8, 3, Rng(0), width=4)
    contrast = Contrast(
        projector=Projector(model.feature_size, Rng(1)),
        prototypes=torch.randn(3, model.feature_size, generator=draw),
        negatives=torch.tensor([[1, 2], [0, 2], [0, 1]]),
        temperature=0.1,
        weight=weight or 0.0,
        fade=fade,
        form="released",
    )
    update_model(
        model,
        images,
        labels,
        ServerTraining(lr=0.05, batch_size=5, steps=12),
        Rng(2),
        augment=lambda x: x.flip(3),
        contrast=None if weight is None else contrast,
        plain_pass=weight is None,
    )
    return {name: value.double() for name, value in model.state_dict().items()}


def test_a_faded_contrastive_term_is_left_out_and_nothing_moves(monkeypatch):
    in_full = faded(2e-8, monkeypatch, negligible=0)
    left_out = faded(2e-8, monkeypatch, negligible=2.0**-24)
    without = faded(None, monkeypatch, negligible=0)
    counted = faded(0.1, monkeypatch, negligible=2.0**-24)
    for name, value in in_full.items():
        torch.testing.assert_close(left_out[name], value, rtol=1e-5, atol=1e-6)
        assert left_out[name].equal(without[name])  # the plain pass is still made
    weight = next(iter(without))
    assert not torch.allclose(counted[weight], without[weight], rtol=1e-3, atol=1e-4)


def test_a_term_that_fades_half_way_counts_until_then(monkeypatch):
    in_full = faded(0.1, monkeypatch, negligible=0, fade=1e-8)
    left_out = faded(0.1, monkeypatch, negligible=2.0**-24, fade=1e-8)
    without = faded(None, monkeypatch, negligible=0)
    for name, value in in_full.items():
        torch.testing.assert_close(left_out[name], value, rtol=1e-5, atol=1e-6)
    weight = next(iter(without))
    assert not torch.allclose(left_out[weight], without[weight], rtol=1e-3, atol=1e-4)
