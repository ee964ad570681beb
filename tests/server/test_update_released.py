"""The server's training as released with FedVCK: its step by hand, and a term that has faded."""

import copy

import pytest
import torch
from torch.nn import functional as F

from core import models
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
        similarity="cosine",
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
                    "cosine",
                    present,
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
        similarity="cosine",
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
        similarity="cosine",
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
