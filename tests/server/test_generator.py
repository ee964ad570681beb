"""The training of a generator of features, against NumPy in float64 and a plain Adam loop."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_softmax

from core.models import FeatureGenerator, fresh
from core.rng import Rng
from core.server import (
    GeneratorTraining,
    Heads,
    diversity,
    draw_labels,
    draw_noise,
    ensemble_cross_entropy,
    label_shares,
    train_generator,
)
from tests.sentences import refused

K, N, C, D = 3, 7, 4, 5


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def heads():
    return Heads(torch.randn(K, C, D, generator=draws(1)), torch.randn(K, C, generator=draws(2)))


@pytest.fixture
def features():
    return torch.randn(N, D, generator=draws(3))


@pytest.fixture
def labels():
    return torch.randint(C, (N,), generator=draws(4))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["logits", "losses"])
def test_ensemble_against_numpy(heads, features, labels, form, weighted):
    counts = torch.tensor([[1, 0, 4, 9], [3, 2, 1, 5], [2, 8, 4, 5]])
    shares = label_shares(counts) if weighted else None
    found = ensemble_cross_entropy(heads.logits(features), labels, form, shares)
    z, w, b = (t.double().numpy() for t in (features, heads.weight, heads.bias))
    total = 0.0
    for n, y in enumerate(labels.tolist()):
        weight = counts[:, y].numpy() / counts[:, y].sum().item() if weighted else np.ones(K) / K
        each = np.stack([w[k] @ z[n] + b[k] for k in range(K)])
        if form == "logits":
            total -= log_softmax(weight @ each)[y]
        else:
            total -= weight @ log_softmax(each, 1)[:, y]
    assert float(found) == pytest.approx(total / N, rel=1e-5)


def test_diversity_against_numpy_and_finite_differences(features):
    """One for equal features, less for spread ones."""
    noise = torch.rand(N, 3, generator=draws(5))
    f, e = features.double().numpy(), noise.double().numpy()
    pairs = [
        ((e[i] - e[j]) ** 2).mean() * np.abs(f[i] - f[j]).mean() for i in range(N) for j in range(N)
    ]
    found = float(diversity(features, noise))
    assert found == pytest.approx(np.exp(-np.mean(pairs)), rel=1e-5) and found < 1
    assert float(diversity(torch.ones(N, D), noise)) == 1
    assert torch.autograd.gradcheck(
        lambda x: diversity(x, noise.double()), features.double().requires_grad_()
    )


def test_noise_and_labels_have_their_distributions():
    for kind, law in (("normal", "norm"), ("uniform", "uniform")):
        noise = draw_noise(kind, (40, 1000), draws())
        assert noise.shape == (40, 1000)
        assert stats.kstest(noise.flatten().numpy(), law).pvalue > 1e-3
    counts = torch.bincount(draw_labels(torch.tensor([1.0, 0.0, 3.0]), 4000, draws()), minlength=3)
    assert counts[1] == 0 and abs(int(counts[2]) - 3000) < 120


def generator(**options):
    return fresh(FeatureGenerator, C, D, rng=Rng(7), **{"noise": 3, "hidden": 8} | options)


def test_training_goes_on_where_adam_stopped(heads):
    """Two calls with one optimiser take the steps that one plain Adam takes on the same draws."""
    seen = []

    def loss(features, labels, noise):
        seen.append((noise, labels))
        return ensemble_cross_entropy(heads.logits(features), labels) + diversity(features, noise)

    options = GeneratorTraining(batch_size=8, steps=3, lr=0.01, momentum=0.5)
    ours, plain = generator(), generator().train()
    optimiser = options.optimiser(ours)
    for call in range(2):
        train_generator(ours, optimiser, loss, torch.ones(C), options, Rng(call))
    assert len(seen) == 6 and len({float(noise[0, 0]) for noise, _ in seen}) == 6
    adam = torch.optim.Adam(plain.parameters(), lr=0.01, betas=(0.5, 0.999), weight_decay=1e-2)
    for noise, labels in seen[:6]:
        adam.zero_grad()
        loss(plain(noise, labels), labels, noise).backward()
        adam.step()
    for (name, a), b in zip(ours.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_only_known_labels_are_asked_for_and_no_label_is_an_error():
    asked, ours, options = [], generator(), GeneratorTraining(batch_size=4, steps=2)
    adam = options.optimiser(ours)

    def ask(features, labels, noise):
        asked.append(labels)
        return features.sum()

    train_generator(ours, adam, ask, torch.tensor([0.0, 1.0, 0.0, 0.0]), options, Rng(0))
    assert torch.cat(asked).tolist() == [1] * 8
    train_generator(ours, adam, ask, torch.ones(C), GeneratorTraining(steps=0), Rng(0))
    assert len(asked) == 2
    refused("class to generate", train_generator, ours, adam, ask, torch.zeros(C), options, Rng(0))
