"""The shared loop of local training."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.data.crops import PADDING, crop_and_flip
from core.errors import InputError
from core.federation.local_training import LocalTraining, train
from core.rng import Rng
from core.training import batches, sgd

CPU = torch.device("cpu")


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_pass_gives_every_sample_once(samples, batch_size, epochs, seed):
    settings = LocalTraining(batch_size=batch_size, local_epochs=epochs)
    drawn = list(batches(samples, batch_size, settings.steps(samples), Rng(seed), CPU))
    per_epoch = -(-samples // batch_size)
    assert len(drawn) == epochs * per_epoch
    for start in range(0, len(drawn), per_epoch):
        assert sorted(torch.cat(drawn[start : start + per_epoch]).tolist()) == list(range(samples))


@given(samples=st.integers(1, 40), batch_size=st.integers(1, 20), steps=st.integers(1, 30))
def test_steps_override_epochs(samples, batch_size, steps):
    settings = LocalTraining(batch_size=batch_size, local_steps=steps)
    assert settings.steps(samples) == steps
    assert len(list(batches(samples, batch_size, steps, Rng(0), CPU))) == steps


@given(samples=st.integers(1, 40), batch_size=st.integers(1, 50), epochs=st.integers(1, 3))
def test_the_most_that_a_client_can_see_is_what_whole_batches_hold(samples, batch_size, epochs):
    settings = LocalTraining(batch_size=batch_size, local_epochs=epochs)
    drawn = batches(samples, batch_size, settings.steps(samples), Rng(0), CPU)
    seen, most = sum(map(len, drawn)), settings.views(samples)
    whole = samples <= batch_size or samples % batch_size == 0
    assert seen == most if whole else seen < most


def test_passes_differ_and_seeds_repeat():
    one = [b.tolist() for b in batches(50, 50, 2, Rng(0), CPU)]
    assert one[0] != one[1]
    assert one == [b.tolist() for b in batches(50, 50, 2, Rng(0), CPU)]
    assert one != [b.tolist() for b in batches(50, 50, 2, Rng(1), CPU)]


def test_sgd_with_momentum_and_decay_matches_float64_numpy():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, bias=False)
    w, v = model.weight.detach().double().numpy().copy().ravel(), np.zeros(3)
    images, labels = torch.randn(6, 3), torch.randn(6)
    settings = LocalTraining(lr=0.1, batch_size=4, momentum=0.9, weight_decay=0.01)

    def objective(model, x, y):
        return (model(x).ravel() - y).square().mean()

    train(model, images, labels, settings, objective, Rng(5), steps=7)
    x, y = images.double().numpy(), labels.double().numpy()
    for batch in batches(6, 4, 7, Rng(5).at("batches"), CPU):
        rows = batch.numpy()
        gradient = 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows) + 0.01 * w
        v = 0.9 * v + gradient
        w = w - 0.1 * v
    np.testing.assert_allclose(model.weight.detach().numpy().ravel(), w, rtol=1e-4, atol=1e-6)


def test_a_step_does_not_depend_on_how_weights_and_gradients_lie_in_memory():
    weight = torch.arange(54.0).view(2, 3, 3, 3)
    slope = weight.flip(0, 1, 2, 3).square()
    for memory in (torch.channels_last, torch.contiguous_format):
        parameter = torch.nn.Parameter(weight.to(memory_format=torch.channels_last, copy=True))
        parameter.grad = slope.to(memory_format=memory, copy=True)
        sgd([parameter], LocalTraining(lr=0.5, momentum=0.9, weight_decay=0)).step()
        assert torch.equal(parameter.detach(), weight - 0.5 * slope)


def shifted(image, down, right, flip):
    """One image (C, H, W) cropped from its padded self, by slices."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    crop = padded[:, down : down + height, right : right + width]
    return crop[:, :, ::-1] if flip else crop


def test_crops_and_flips_are_slices_of_the_padded_image():
    images = torch.randint(1, 256, (200, 2, 5, 7), dtype=torch.uint8)
    found = crop_and_flip(images, Rng(1).generator()).numpy()
    ways = set()
    for image, made in zip(images.numpy(), found, strict=True):
        fits = [
            (down, right, flip)
            for down in range(2 * PADDING + 1)
            for right in range(2 * PADDING + 1)
            for flip in (False, True)
            if np.array_equal(shifted(image, down, right, flip), made)
        ]
        assert fits
        ways |= set(fits)
    assert {down for down, _, _ in ways} == set(range(2 * PADDING + 1))
    assert {right for _, right, _ in ways} == set(range(2 * PADDING + 1))
    assert {flip for _, _, flip in ways} == {False, True}
    # both ways by draws of their own: most of the 81 pairs are among 200
    assert len({(down, right) for down, right, _ in ways}) > 60


def test_local_training_sees_crops_only_where_it_is_told_to():
    images = torch.randint(1, 256, (8, 1, 6, 6), dtype=torch.uint8)
    labels = torch.arange(8)

    def seen(**settings):
        batches_ = []

        def objective(model, x, y):
            batches_.append(x)
            return model.weight.sum()

        plan = LocalTraining(batch_size=8, **settings)
        train(torch.nn.Linear(1, 1), images, labels, plan, objective, Rng(2), steps=3)
        return batches_

    plain, cropped = seen(), seen(local_augmentation="crop_flip")
    for x, y, rows in zip(plain, cropped, batches(8, 8, 3, Rng(2).at("batches"), CPU), strict=True):
        assert torch.equal(x, images[rows]) and not torch.equal(x, y)
    assert all(
        torch.equal(x, y)
        for x, y in zip(cropped, seen(local_augmentation="crop_flip"), strict=True)
    )
    with pytest.raises(InputError, match="local augmentation"):
        seen(local_augmentation="mixup")
