"""The server's training (FedVCK, Eq. 16), against NumPy with gradients by finite differences."""

import copy
from contextlib import nullcontext

import attrs
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from core import models
from core.rng import Rng
from core.server import Contrast, Projector, ServerTraining, update, update_by_epochs, update_model
from core.training import batches, cosine, train
from tests.sentences import refused

CPU = torch.device("cpu")
CLASSES, WIDTH, HIDDEN, SAMPLES = 3, 3, 4, 7
TAU = 0.5


class Tiny(models.Classifier):
    """A linear encoder of images of four pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, WIDTH, bias=False)
        self.classifier = nn.Linear(WIDTH, CLASSES, bias=False)
        draw = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=draw)
        self.double()

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        return self.encoder(images.flatten(1))


def problem() -> tuple[torch.Tensor, ...]:
    """Images (N, 1, 2, 2), labels, prototypes (C, D), negatives (C, 2)."""
    draw = np.random.default_rng(3)
    images = torch.tensor(draw.normal(size=(SAMPLES, 1, 2, 2)))
    prototypes = torch.tensor(draw.normal(size=(CLASSES, WIDTH)))
    labels, negatives = torch.tensor([0, 1, 2, 0, 1, 2, 2]), torch.tensor([[1, 2], [0, 2], [1, 0]])
    return images, labels, prototypes, negatives


def numpy_loss(w, x, y, f, negatives, weight, sign):
    """L_ce + weight * L_rc, Eq. 15 and 16; `sign` is the augmentation of the first term."""
    logits = sign * x @ w["encoder"].T @ w["classifier"].T
    total = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y])
    if weight:
        hidden = x @ w["encoder"].T @ w["first.weight"].T + w["first.bias"]
        hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
        hidden = hidden * w["norm.weight"] + w["norm.bias"]
        e = np.exp((np.maximum(hidden, 0) @ w["last.weight"].T + w["last.bias"]) @ f.T / TAU)
        terms = [-np.log(e[i, c] / e[i, negatives[c]].sum()) for i, c in enumerate(y)]
        total += weight * np.mean(terms)
    return total


def slopes(loss, w):
    """Central differences of a loss with respect to each number of some arrays."""
    gradient = {name: np.zeros_like(value) for name, value in w.items()}
    for name, value in w.items():
        for index in np.ndindex(value.shape):
            centre, sides = value[index], []
            for step in (1e-6, -1e-6):
                value[index] = centre + step
                sides.append(loss(w))
            value[index] = centre
            gradient[name][index] = (sides[0] - sides[1]) / 2e-6
    return gradient


def numpy_update(w, settings, weight, fade, sign, rng):
    """The whole round in float64, by SGD with momentum, in place."""
    images, labels, f, negatives = (tensor.numpy() for tensor in problem())
    x, velocity = images.reshape(SAMPLES, 4), {name: np.zeros_like(v) for name, v in w.items()}
    drawn = batches(SAMPLES, settings.batch_size, settings.steps, rng.at("batches"), CPU)
    rate = settings.lr
    for t, rows in enumerate(drawn):
        if t == settings.steps // 2:
            rate, weight = rate * settings.decay, weight * fade
        some = x[rows.numpy()], labels[rows.numpy()], f, negatives, weight, sign
        gradient = slopes(lambda v, some=some: numpy_loss(v, *some), w)
        for name in w:
            step = gradient[name] + settings.weight_decay * w[name]
            velocity[name] = 0.9 * velocity[name] + step
            w[name] -= rate * velocity[name]


@pytest.mark.parametrize(("weight", "fade", "sign"), [(0, 1, -1), (1, 1, 1), (0.5, 0.1, -1)])
def test_a_round_equals_numpy(weight, fade, sign):
    images, labels, prototypes, negatives = problem()
    settings = ServerTraining(lr=0.05, batch_size=4, steps=5, weight_decay=0.01)
    model, projector = Tiny(), Projector(WIDTH, Rng(1), hidden=HIDDEN).double()
    w = {"encoder": model.encoder.weight, "classifier": model.classifier.weight}
    w |= dict(projector.named_parameters()) if weight else {}
    before = {name: value.detach().numpy().copy() for name, value in w.items()}
    terms = {"temperature": TAU, "weight": weight, "fade": fade}
    contrast = Contrast(projector=projector, prototypes=prototypes, negatives=negatives, **terms)
    more = {
        "contrast": contrast if weight else None,
        "augment": None if sign == 1 else torch.neg,
        "loss": F.cross_entropy,
    }
    update_model(model, images, labels, settings, Rng(7), **more)
    expected = {name: value.copy() for name, value in before.items()}
    numpy_update(expected, settings, weight, fade, sign, Rng(7))
    w.pop("first.bias", None)  # batch norm cancels it: its true gradient is 0
    for name, value in w.items():
        assert np.abs(expected[name] - before[name]).max() > 1e-4
        found = value.detach().numpy()
        np.testing.assert_allclose(found, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(("steps", "calls"), [(1, []), (2, [1]), (5, [2])])
def test_half_way_comes_once(steps, calls):
    images, labels, _, _ = problem()
    done, seen = [], []

    def objective(model, images, labels):
        done.append(1)
        return F.cross_entropy(model(images), labels)

    more = {"halfway": lambda: seen.append(len(done))}
    train(Tiny(), images, labels, ServerTraining(), steps, objective, Rng(0), **more)
    assert seen == calls


def test_number_of_batches():
    assert ServerTraining(batch_size=4, epochs=3).total(7) == 6
    assert ServerTraining(batch_size=4, epochs=3, steps=5).total(7) == 5
    assert ServerTraining().total(1000) == 4000


def test_bytes_are_prepared_batch_by_batch_and_networks_run_in_the_context():
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 1, 8, 8), generator=draw, dtype=torch.uint8)
    labels, entered, shapes = torch.arange(6) % 3, [], []

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
    refused("no condensed images", update_model, one, images[:0], labels[:0], settings, Rng(0))


@pytest.mark.parametrize("contrastive", [False, True])
def test_the_released_step_written_out(contrastive):
    """Ten full batches: both passes in train mode, plain images first; Adam's slopes add up."""
    draw, rate, tau, steps = torch.Generator().manual_seed(0), 0.05, 0.5, 10
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    images = torch.randn(7, 1, 8, 8, generator=draw, dtype=torch.float64)
    model = models.build("convnet", 1, 8, 3, Rng(0), width=4).double()
    projector = Projector(model.feature_size, Rng(1)).double()
    prototypes = F.normalize(torch.randn(3, model.feature_size, generator=draw).double(), dim=1)
    hand, head = copy.deepcopy(model).train(), copy.deepcopy(projector).train()
    for parameter in projector.parameters():  # left by a round before; it must not count
        parameter.grad = torch.ones_like(parameter)
    velocity, summed, first, second = (
        [torch.zeros_like(value) for value in of.parameters()] for of in (hand, head, head, head)
    )
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
        of_hand, of_head = list(hand.parameters()), list(head.parameters()) if contrastive else []
        slopes = torch.autograd.grad(loss, [*of_hand, *of_head])
        with torch.no_grad():
            for i, weight in enumerate(of_hand):
                velocity[i] = 0.9 * velocity[i] + slopes[i]
                weight -= lr * rate * velocity[i]
            for i, weight in enumerate(of_head):
                summed[i] += slopes[len(of_hand) + i]
                first[i] = 0.9 * first[i] + 0.1 * summed[i]
                second[i] = 0.999 * second[i] + 0.001 * summed[i] ** 2
                scale = (second[i] / (1 - 0.999**step)).sqrt() + 1e-8
                weight -= lr * 0.01 * first[i] / (1 - 0.9**step) / scale
    contrast = Contrast(
        projector=projector,
        prototypes=prototypes,
        temperature=tau,
        weight=0.3,
        negatives=torch.tensor([[0, 1, 2]] * 3),
        form="released",
        similarity="cosine",
        projector_training="accumulated",
    )
    plan = ServerTraining(lr=rate, batch_size=7, steps=steps, decay=0.1, weight_decay=0.0)
    more = {"augment": lambda x: x.flip(3), "contrast": contrast if contrastive else None}
    more |= {"loss": F.cross_entropy, "plain_pass": True}
    update_model(model, images, labels, plan, Rng(2), **more)
    for made, wanted in ((model, hand), (projector, head)):
        for name, value in wanted.state_dict().items():
            if contrastive or made is model:
                torch.testing.assert_close(made.state_dict()[name], value, rtol=1e-6, atol=1e-8)


# --- a contrastive term that has faded


def faded(monkeypatch, negligible: float, weight: float | None, fade: float = 1.0) -> dict:
    """The state of a small network after a round with a contrastive term of this weight, or without."""
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
        similarity="cosine",
    )
    settings = ServerTraining(lr=0.05, batch_size=5, steps=12)
    terms = {"contrast": contrast} if weight else {"plain_pass": True}
    update_model(model, images, labels, settings, Rng(2), augment=lambda x: x.flip(3), **terms)
    return {name: value.double() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(("weight", "fade"), [(2e-8, 1.0), (0.1, 1e-8)])
def test_a_faded_contrastive_term_is_left_out_and_changes_nothing(monkeypatch, weight, fade):
    """From the start, or half way: the plain pass is still made."""
    in_full, left_out = (faded(monkeypatch, most, weight, fade) for most in (0, 2.0**-24))
    without = faded(monkeypatch, 0, None)
    for name, value in in_full.items():
        torch.testing.assert_close(left_out[name], value, rtol=1e-5, atol=1e-6)
    assert all(value.equal(without[name]) for name, value in left_out.items()) == (fade == 1)


# --- epoch by epoch


PLAN = ServerTraining(lr=0.5, momentum=0.0, weight_decay=0.0, batch_size=2, epochs=4, decay=1.0)


def test_a_cosine_goes_from_one_to_a_hundredth():
    """As the released line: ((1 + cos(x pi / E)) / 2) (1 - 0.01) + 0.01."""
    assert [cosine(1, 0.01, e, 2) for e in (0, 1, 2)] == pytest.approx([1.0, 0.505, 0.01])
    assert cosine(1, 0.01, 1, 4) == pytest.approx(0.01 + 0.99 * (1 + 0.5**0.5) / 2)


def summed_rates(plan, **more):
    """A weight whose gradient is -1 wherever it is: after training the sum of all rates."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)
    update_by_epochs(model, *data, plan, lambda model, *_: -model.weight.sum(), Rng(0), **more)
    return model.weight.item()


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.1])
def test_every_epoch_has_its_rate(falling, decay):
    """Batches of 2 and of 1 in four epochs, the second half at the decayed rate."""
    plan = attrs.evolve(PLAN, decay=decay)
    shares = [cosine(1, 0.01, e, 4) if falling else 1.0 for e in range(4)]
    total = sum(2 * 0.5 * share * (decay if e >= 2 else 1) for e, share in enumerate(shares))
    assert summed_rates(plan, falling=falling) == pytest.approx(total)
    assert summed_rates(attrs.evolve(PLAN, steps=3)) == pytest.approx(2)


def test_the_last_of_the_best_epochs_is_kept():
    scores = {1.0: 0.2, 2.0: 0.7, 3.0: 0.7, 4.0: 0.1}
    best = summed_rates(PLAN, score=lambda model: scores.pop(round(model.weight.item(), 3)))
    assert best == pytest.approx(3) and not scores
