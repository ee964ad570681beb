"""The shared loop of local training."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.data.crops import PADDING, crop_and_flip
from core.federation.local_training import LocalTraining, train
from core.rng import Rng
from core.training import batches, sgd
from tests.sentences import refused

CPU = torch.device("cpu")


SIZES = {"samples": st.integers(1, 60), "batch_size": st.integers(1, 50)}


@given(**SIZES, epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_pass_gives_every_sample_once(samples, batch_size, epochs, seed):
    """The most that a client can see is what whole batches hold; passes differ, seeds repeat."""
    settings = LocalTraining(batch_size=batch_size, local_epochs=epochs)
    steps = settings.steps(samples)
    drawn = list(batches(samples, batch_size, steps, Rng(seed), CPU))
    each = -(-samples // batch_size)
    assert len(drawn) == epochs * each
    passes = [torch.cat(drawn[start : start + each]).tolist() for start in range(0, steps, each)]
    assert all(sorted(one) == list(range(samples)) for one in passes)
    assert samples < 20 or len({tuple(one) for one in passes}) == epochs
    again = list(batches(samples, batch_size, steps, Rng(seed), CPU))
    assert all(map(torch.equal, drawn, again))
    whole = samples <= batch_size or samples % batch_size == 0
    most = settings.views(samples)
    assert epochs * samples == most if whole else epochs * samples < most


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
    """Each way by draws of its own: most of the 81 shifts are among 100."""
    images = torch.randint(1, 256, (100, 1, 5, 5), dtype=torch.uint8)
    found = crop_and_flip(images, Rng(1).generator()).numpy()
    shifts, ways = range(2 * PADDING + 1), set()
    for image, made in zip(images.numpy(), found, strict=True):
        each = itertools.product(shifts, shifts, (False, True))
        fits = {way for way in each if np.array_equal(shifted(image, *way), made)}
        assert fits
        ways |= fits
    down, right, flips = (set(each) for each in zip(*ways, strict=True))
    assert down == right == set(shifts) and flips == {False, True}
    assert len({way[:2] for way in ways}) > 45


def test_local_training_sees_crops_only_where_it_is_told_to():
    images = torch.randint(1, 256, (8, 1, 6, 6), dtype=torch.uint8)

    def seen(**settings):
        shown, plan = [], LocalTraining(batch_size=8, **settings)

        def objective(model, x, y):
            shown.append(x)
            return model.weight.sum()

        train(torch.nn.Linear(1, 1), images, torch.arange(8), plan, objective, Rng(2), steps=3)
        return shown

    plain, *cropped = seen(), *(seen(local_augmentation="crop_flip") for _ in range(2))
    drawn = batches(8, 8, 3, Rng(2).at("batches"), CPU)
    for x, y, same, rows in zip(plain, *cropped, drawn, strict=True):
        assert torch.equal(x, images[rows]) and torch.equal(y, same) and not torch.equal(x, y)
    refused("local augmentation", seen, local_augmentation="mixup")
