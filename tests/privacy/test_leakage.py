"""Deep leakage: a small image comes back from its gradient, and what cannot be known does not."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

from core import models
from core.errors import InputError
from core.privacy import leakage
from core.privacy.leakage import (
    DeepLeakage,
    best_matches,
    deep_leakage,
    gradients,
    gradients_of_step,
    revealed_labels,
    search_images,
)
from core.rng import Rng
from tests.sentences import refused


class Smooth(nn.Module):
    """A small network that is twice differentiable, as the attack asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.out = nn.Linear(64, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(images).sigmoid().flatten(1))


@pytest.fixture(scope="module")
def victim():
    network = models.fresh(Smooth, rng=Rng(3))
    with torch.no_grad():
        for weight in network.parameters():
            weight *= 3  # far enough from linear for the gradient to tell images apart
    return network


def attack(victim, leak, *known, **plan):
    return deep_leakage(
        victim, leak, (1, 1, 8, 8), 3, DeepLeakage(**{"iterations": 25} | plan), Rng(0), *known
    )


def image(seed=0, number=1):
    return torch.rand(number, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_an_image_and_its_label_come_back_from_their_gradient(victim):
    secret = image()
    found = attack(victim, gradients(victim, secret, torch.tensor([2])))
    assert float(best_matches(found.images, secret).psnr) > 30
    assert int(found.labels.argmax(1)) == 2 and float(found.labels.max()) > 0.9
    assert float(found.distance.min()) < 1e-5


def test_another_gradient_gives_another_image(victim):
    """A control: the attack does not just settle somewhere near every image."""
    label = torch.tensor([2])
    found = attack(victim, gradients(victim, image(1), label), label)
    assert float(best_matches(found.images, image(1)).psnr) > 30
    assert float(best_matches(found.images, image(0)).psnr) < 15
    assert torch.equal(found.labels, torch.tensor([[0.0, 0.0, 1.0]]))


def test_the_gradient_of_a_linear_layer_is_that_of_the_formula():
    """d/dW mean_i l(W x_i, y_i) = (softmax - onehot)^T x / N, in NumPy."""
    network, y = models.fresh(nn.Linear, 5, 3, rng=Rng(0)).double(), [0, 2, 2, 1]
    x = torch.randn(4, 5, generator=Rng(1).generator(), dtype=torch.float64)
    leak, w = gradients(network, x, torch.tensor(y)), network.weight.detach().numpy()
    error = special.softmax(x.numpy() @ w.T + network.bias.detach().numpy(), 1)
    error[range(4), y] -= 1
    np.testing.assert_allclose(leak["weight"], error.T @ x.numpy() / 4)
    np.testing.assert_allclose(leak["bias"], error.mean(0))


def test_the_model_is_left_as_it_was():
    network = models.build("lenet", 1, 8, 10, Rng(0))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    leak = gradients(network, image(0, 3), torch.tensor([1, 2, 3]))
    deep_leakage(network, leak, (3, 1, 8, 8), 10, DeepLeakage(iterations=1, inner=2), Rng(0))
    assert network.training and all(p.grad is None for p in network.parameters())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_foreign_gradient_and_an_attack_that_diverges_are_refused(victim):
    leak = gradients(victim, image(), torch.tensor([0]))
    with pytest.raises(InputError, match="diverged"):
        attack(victim, {name: value + torch.inf for name, value in leak.items()}, iterations=2)
    del leak["out.bias"]
    refused("does not belong", attack, victim, leak)


def test_matches_in_closed_form():
    """A uniform error e has the ratio 20 log10(1 / e)."""
    originals = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    restored = torch.full((1, 1, 2, 2), 0.9)
    assert best_matches(restored, originals).row.tolist() == [1]
    assert float(best_matches(restored, originals).psnr) == pytest.approx(20, rel=1e-5)
    assert float(best_matches(originals, originals).psnr.min()) == math.inf


def test_a_gradient_reveals_the_label_of_one_image_and_no_other_of_a_batch(victim):
    for label in range(3):
        leak = gradients(victim, image(label), torch.tensor([label]))
        assert revealed_labels(leak["out.bias"]).tolist() == [label]
    leak = gradients(victim, image(0, 5), torch.tensor([0, 0, 2, 2, 2]))
    assert set(revealed_labels(leak["out.bias"]).tolist()) <= {0, 2}


def test_one_local_step_gives_the_gradient_away(victim):
    """So the weights after it restore the image as the gradient does."""
    secret, label = image(5), torch.tensor([1])
    model = copy.deepcopy(victim)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    step = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    nn.functional.cross_entropy(model(secret), label).backward()
    step.step()
    after = {name: value.detach() for name, value in model.named_parameters()}
    leak = gradients_of_step(before, after, 0.05, 1e-3)
    for name, value in gradients(victim, secret, label).items():
        assert torch.allclose(leak[name], value, atol=1e-4)
    known = revealed_labels(leak["out.bias"])
    found = attack(victim, leak, known)
    assert float(best_matches(found.images, secret).psnr) > 25


def test_the_nearest_upload_against_numpy():
    draws, labels = np.random.default_rng(0), torch.tensor([0, 0, 1, 1, 2])
    own, sent = draws.normal(size=(5, 1, 3, 3)), draws.normal(size=(4, 1, 3, 3))
    sent[1] = own[0]
    classes = torch.tensor([0, 0, 1, 1])
    near = leakage.nearest_upload(
        (torch.from_numpy(own), labels), (torch.from_numpy(sent), classes)
    )
    for i, score in enumerate(near[:4]):
        of = sent[(classes == labels[i]).numpy()]
        assert float(score) == pytest.approx(-((of - own[i]) ** 2).mean((1, 2, 3)).min(), abs=1e-12)
    assert near[0] == 0 and near[4] == near.min() < -1e300  # nothing of its class was sent


def test_the_best_iteration_is_kept_not_the_last():
    """A distance that grows with every look at it."""
    sought, looks = [torch.tensor([3.0], requires_grad=True)], []

    def distance():
        looks.append(1)
        return (sought[0] - 1).square().sum() + 100.0 * len(looks)

    best, history = search_images(distance, sought, DeepLeakage(iterations=4, inner=1, lr=0.1))
    assert history.argmin() == 0 and len(history) == 4
    # the first step of L-BFGS is min(1, 1 / |g|) lr along -g, with g = 2 (3 - 1)
    assert float(best[0]) == pytest.approx(3 - min(1, 1 / 4) * 0.1 * 4, abs=1e-5)
    assert float(best[0]) != pytest.approx(float(sought[0].detach()))
