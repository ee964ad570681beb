"""Deep leakage: a small image comes back from its gradient, and what cannot be known does not."""

import math

import pytest
import torch
from torch import nn

from core import models
from core.errors import InputError
from core.privacy.leakage import DeepLeakage, best_matches, deep_leakage, gradients
from core.rng import Rng


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


def image(seed=0, number=1):
    return torch.rand(number, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_an_image_and_its_label_come_back_from_their_gradient(victim):
    secret, label = image(), torch.tensor([2])
    found = deep_leakage(
        victim,
        gradients(victim, secret, label),
        (1, 1, 8, 8),
        3,
        DeepLeakage(iterations=25),
        Rng(0),
    )
    assert float(best_matches(found.images, secret).psnr) > 30
    assert int(found.labels.argmax(1)) == 2 and float(found.labels.max()) > 0.9
    assert float(found.distance.min()) < 1e-5


def test_another_gradient_gives_another_image(victim):
    """A control: the attack reads the gradient, and does not just settle somewhere near every
    image.
    """
    leak = gradients(victim, image(1), torch.tensor([2]))
    found = deep_leakage(
        victim, leak, (1, 1, 8, 8), 3, DeepLeakage(iterations=25), Rng(0), torch.tensor([2])
    )
    assert float(best_matches(found.images, image(1)).psnr) > 30
    assert float(best_matches(found.images, image(0)).psnr) < 15
    assert torch.equal(found.labels, torch.tensor([[0.0, 0.0, 1.0]]))


def test_the_gradient_of_a_linear_layer_is_that_of_the_formula():
    """d/dW mean_i l(W x_i, y_i) = (softmax - onehot)^T x / N, in NumPy."""
    network = models.fresh(nn.Linear, 5, 3, rng=Rng(0)).double()
    x, y = (
        torch.randn(4, 5, generator=Rng(1).generator(), dtype=torch.float64),
        torch.tensor([0, 2, 2, 1]),
    )
    w, b = network.weight.detach().numpy(), network.bias.detach().numpy()
    scores = x.numpy() @ w.T + b
    error = torch.from_numpy(scores).exp().numpy()
    error = error / error.sum(1, keepdims=True)
    error[range(4), y.numpy()] -= 1
    leak = gradients(network, x, y)
    assert torch.allclose(leak["weight"], torch.from_numpy(error.T @ x.numpy() / 4))
    assert torch.allclose(leak["bias"], torch.from_numpy(error.mean(0)))


def test_the_model_is_left_as_it_was():
    network = models.build("lenet", 1, 8, 10, Rng(0))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    leak = gradients(network, image(0, 3), torch.tensor([1, 2, 3]))
    deep_leakage(network, leak, (3, 1, 8, 8), 10, DeepLeakage(iterations=1, inner=2), Rng(0))
    assert network.training and all(p.grad is None for p in network.parameters())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_foreign_gradient_is_refused(victim):
    leak = gradients(victim, image(), torch.tensor([0]))
    del leak["out.bias"]
    with pytest.raises(InputError, match="does not belong"):
        deep_leakage(victim, leak, (1, 1, 8, 8), 3, DeepLeakage(), Rng(0))


def test_an_attack_that_diverges_says_so(victim):
    leak = {
        name: torch.full_like(value, torch.inf)
        for name, value in gradients(victim, image(), torch.tensor([0])).items()
    }
    with pytest.raises(InputError, match="diverged"):
        deep_leakage(victim, leak, (1, 1, 8, 8), 3, DeepLeakage(iterations=2), Rng(0))


def test_matches_in_closed_form():
    """A uniform error e has the ratio 20 log10(span / e)."""
    originals = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    found = best_matches(torch.full((1, 1, 2, 2), 0.9), originals)
    assert found.row.tolist() == [1] and float(found.psnr) == pytest.approx(
        20 * math.log10(1 / 0.1), rel=1e-5
    )
    assert float(best_matches(originals, originals).psnr.min()) == math.inf
    assert float(best_matches(torch.full((1, 1, 2, 2), 0.9), originals, 2.0).psnr) == pytest.approx(
        26.02, abs=0.01
    )
    with pytest.raises(InputError):
        best_matches(originals[:0], originals)
