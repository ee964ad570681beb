"""The server's training on condensed images (FedVCK, Eq. 16), against NumPy with gradients by
finite differences.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from core import models
from core.errors import InputError
from core.rng import Rng
from core.server import Contrast, Projector, ServerTraining, update_model
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
