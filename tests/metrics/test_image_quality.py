"""Inception score and Fréchet distance against closed forms and SciPy."""

import hashlib
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from core.data import load
from core.metrics import image_quality
from core.metrics.image_quality import (
    INCEPTION_FILE,
    RandomFeatures,
    adapted_inception_score,
    fid,
    frechet_distance,
    inception,
    inception_probabilities,
    inception_score,
)
from core.rng import Rng
from tests.sentences import refused


def draw(*shape, key="x") -> np.ndarray:
    return Rng(0).at("quality", key).numpy().standard_normal(shape)


def test_the_score_is_the_exponential_of_the_mutual_information():
    """Of two classes with the joint law p(x, y): I(x; y) = H(x) + H(y) - H(x, y)."""
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    joint = p / 3

    def entropy(q):
        return -(q * np.log(q)).sum()

    information = entropy(joint.sum(1)) + entropy(joint.sum(0)) - entropy(joint)
    assert inception_score(torch.tensor(p)) == pytest.approx(math.exp(information), rel=1e-12)


def test_the_adapted_score_is_the_mean_over_local_models():
    local = torch.stack([torch.eye(4), torch.full((4, 4), 0.25), torch.eye(4)[[0, 1, 0, 1]]])
    assert adapted_inception_score(local) == pytest.approx((4 + 1 + 2) / 3)


@pytest.mark.parametrize("rank", [12, 3])
def test_the_distance_is_that_of_scipys_root(rank):
    """Also where the covariances are singular, as of fewer images than features."""
    a, b = (np.cov(draw(rank + 1, 12, key=key), rowvar=False) for key in "ab")
    one, other = (draw(12, key="m"), a), (draw(12, key="w"), b)
    root = np.trace(np.real(sqrtm(a @ b + 1e-13 * np.eye(12))))
    theirs = ((one[0] - other[0]) ** 2).sum() + np.trace(a) + np.trace(b) - 2 * root
    found = frechet_distance(one, other)
    assert found == pytest.approx(theirs, rel=1e-4)
    assert found == pytest.approx(frechet_distance(other, one), rel=1e-9)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-6)


def test_fid_takes_the_moments_of_the_features():
    draws = torch.Generator().manual_seed(0)
    real = torch.rand(40, 1, 2, 2, dtype=torch.float64, generator=draws)
    synthetic = torch.rand(30, 1, 2, 2, dtype=torch.float64, generator=draws) / 2
    rows = [x.flatten(1).numpy() for x in (real, synthetic)]
    expected = frechet_distance(*[(of.mean(0), np.cov(of.T)) for of in rows])
    found = fid(real, synthetic, lambda x: x.flatten(1), batch_size=7)
    assert found == pytest.approx(expected)
    bytes_ = (255 * real).round().to(torch.uint8)
    assert fid(bytes_, bytes_.float() / 255, lambda x: x.flatten(1)) == pytest.approx(0, abs=1e-6)


def test_random_features_are_fixed_and_put_worse_images_further_away():
    digits, before = load("digits").train.images, torch.random.get_rng_state()
    features, few = RandomFeatures(1), digits[:5].float() / 255
    assert torch.equal(RandomFeatures(1)(few), features(few))
    assert torch.equal(before, torch.random.get_rng_state())
    half, other = digits[:600:2], digits[1:600:2]
    noise = torch.randint(0, 256, half.shape, generator=Rng(0).generator(), dtype=torch.uint8)
    mixed = (half.float() * 0.7 + noise.float() * 0.3).to(torch.uint8)
    distances = [fid(half, images, features) for images in (other, mixed, noise)]
    assert distances == sorted(distances) and distances[2] > 5 * distances[0]


def test_inception_runs_where_its_weights_are(monkeypatch, tmp_path):
    """Weights of zeros: then probabilities are uniform and features zero."""
    models = pytest.importorskip("torchvision.models")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    refused(INCEPTION_FILE, inception)  # it says where they belong
    with torch.random.fork_rng():
        network = models.inception_v3(weights=None, init_weights=False)
    (tmp_path / "checkpoints").mkdir()
    torch.save(Payload(), tmp_path / "checkpoints" / INCEPTION_FILE)
    monkeypatch.setattr(image_quality, "INCEPTION_SHA256", sha256(tmp_path))
    refused("cannot be read as weights", inception)  # nor is anything in them run
    zeros = {name: torch.zeros_like(value) for name, value in network.state_dict().items()}
    torch.save(zeros, tmp_path / "checkpoints" / INCEPTION_FILE)
    monkeypatch.setattr(image_quality, "INCEPTION_SHA256", sha256(tmp_path))
    images, before = torch.rand(1, 1, 8, 8), torch.random.get_rng_state()
    with torch.no_grad():
        features, probabilities = inception()(images), inception_probabilities()(images)
    assert features.shape == (1, 2048) and bool((features == 0).all())
    torch.testing.assert_close(probabilities, torch.full((1, 1000), 1e-3))
    assert torch.equal(before, torch.random.get_rng_state())


def sha256(hub: Path) -> str:
    return hashlib.sha256((hub / "checkpoints" / INCEPTION_FILE).read_bytes()).hexdigest()


class Payload:
    """Unpickling it ends the process."""

    def __reduce__(self):
        return os._exit, (1,)
