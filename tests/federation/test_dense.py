"""Tasks whose answers are pixels."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from torch import nn

from core import data, metrics
from core.algorithms import create
from core.data.dense import Picture, whole
from core.federation import Runtime, Schedule, Segmentation, Task, distribute, rounds, task_of
from core.rng import Rng
from lab import Experiment, make_task, run
from tests.sentences import refused


@pytest.fixture(scope="module")
def task():
    return task_of(data.load("nuclei_drawn"), "unet", {"width": 4}, Runtime())


@pytest.fixture(scope="module")
def heads():
    return task_of(data.load("mri_drawn"), "unet", {"width": 4})


class Oracle(nn.Module):
    """Knows a pixel's class from its colour: the value of its one channel."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, images):
        levels = ((images[:, 0] + 1) * 255 / 2).round()
        return torch.stack([-(levels - c).abs() for c in range(self.classes)], 1)


@pytest.fixture(scope="module")
def easy(task):
    """Images that show their own masks."""
    dataset = task.dataset

    def shown(split):
        return attrs.evolve(split, images=split.masks[:, None].repeat(1, 3, 1, 1))

    parts = {name: shown(getattr(dataset, name)) for name in ("train", "test")}
    return task_of(attrs.evolve(dataset, **parts), "unet", {"width": 4})


def test_a_data_set_says_what_is_learned_from_it(task):
    assert isinstance(task, Segmentation) and task.kind == "segmentation"
    assert type(task_of(data.load("digits"))) is Task


def test_a_perfect_network_scores_perfectly(easy):
    found = easy.evaluate(Oracle(3))
    for name in ("dice", "sensitivity", "specificity", "dice@liver", "dice@average"):
        assert found[name] == 1
    # some touch, and small ones have no inside
    assert found["hd95"] == 0 and 0.4 < found["aji"] < 1


def test_what_pads_an_image_counts_for_nothing(easy):
    """Each test image cut to 40 by 56 pixels and alone, against all of them in one larger square."""
    test, network = easy.dataset.test, Oracle(3)
    images, maps = test.images.movedim(1, -1).numpy(), test.instances.numpy()
    sites = test.centre.tolist()
    cut = [Picture(images[k, :40, :56], maps[k, :40, :56], sites[k], "a piece") for k in range(4)]
    big = Picture(np.full((64, 64, 3), 2, np.uint8), np.ones((64, 64), np.int32), 0)
    padded = whole([*cut, big], easy.dataset.border)
    assert padded.images.shape == (5, 3, 64, 64) and (padded.instances[:4] == -1).any((1, 2)).all()
    for number, one in enumerate(cut):
        image = torch.from_numpy(one.image).movedim(-1, 0)[None]
        found = easy.measure(network, padded.rows(torch.tensor([number])))
        classes = easy.predict(easy.outputs(network, image))[0]
        wanted = metrics.objects(one.instances, easy.objects(classes))
        wanted["dice"] = metrics.regions(one.instances > 0, classes.numpy() > 0)["dice"]
        assert {name: found[name] for name in wanted} == wanted


class Ramp(nn.Module):
    """Answers with the number of a pixel's column in what it is shown."""

    def forward(self, images):
        return torch.arange(images.shape[3]).expand(len(images), 1, *images.shape[2:]).float()


def test_patches_overlap_only_where_an_image_is_no_multiple_of_them(easy):
    """Patches of 32 in 48 columns: 0 .. 31 and 16 .. 47, of which the mean is taken."""
    ramp, half = torch.arange(32.0), torch.arange(16.0)
    for width, row in ((64, [ramp, ramp]), (48, [half, half + 8, half + 16])):
        found = easy.outputs(Ramp(), torch.zeros(2, 3, 64, width, dtype=torch.uint8))
        torch.testing.assert_close(found, torch.cat(row).expand(2, 1, 64, width))


def test_the_average_of_sites_counts_each_site_once(easy):
    """Three images that are found at one site, one of which nothing is found at another."""
    test = easy.dataset.test.rows(torch.tensor([0, 0, 0, 1]))
    assert test.centre.tolist() == [0, 0, 0, 1]
    test.images[3] = 0
    found = easy.measure(Oracle(3), test)
    assert (found["dice"], found["dice@breast"], found["dice@liver"]) == (0.75, 1, 0)
    assert found["dice@average"] == 0.5


def test_images_of_a_patchs_size_are_tested_together_and_measured_one_by_one(heads):
    """As many images in one call, and the mean of what each of them gives alone."""
    test, network = heads.dataset.test, heads.new_model(Rng(0))
    assert test.images.shape[-1] == heads.dataset.size
    seen: list[int] = []
    network.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    found = heads.measure(network, test)
    assert sum(seen) == len(test) and len(seen) < len(test)
    alone = [heads.measure(network, test.rows(torch.tensor([k]))) for k in range(len(test))]
    for name in ("ssim", "psnr"):
        assert found[name] == pytest.approx(np.mean([one[name] for one in alone]), rel=1e-5)


def test_the_loss_by_hand(task):
    """Weighted cross-entropy: sum_i w_i l_i / sum_i w_i."""
    logits = torch.tensor([[[[2.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]])
    labels = torch.tensor([[[0, 2]]], dtype=torch.uint8)
    first, second = torch.tensor([2.0, 0, 0]).logsumexp(0) - 2, torch.tensor(3.0).log()
    w = task.dataset.weights
    wanted = (w[0] * first + w[2] * second) / (w[0] + w[2])
    assert task.loss(logits, labels).item() == pytest.approx(wanted.item())


def test_without_weights_a_dice_loss_of_all_classes_is_added_to_the_entropy(task):
    """1 - the mean over images and classes of 2 sum p t / (sum p + sum t)."""
    plain = task_of(attrs.evolve(task.dataset, weights=()), "unet", {"width": 4})
    draws = np.random.default_rng(0)
    logits, labels = draws.normal(size=(2, 3, 4, 4)), draws.integers(0, 3, (2, 4, 4))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    t = np.eye(3)[labels].transpose(0, 3, 1, 2)
    dice = 2 * (p * t).sum((2, 3)) / (p.sum((2, 3)) + t.sum((2, 3)))
    wanted = -np.log((p * t).sum(1)).mean() + 1 - dice.mean()
    found = plain.loss(torch.from_numpy(logits).float(), torch.from_numpy(labels).byte())
    assert found.item() == pytest.approx(wanted, abs=1e-5)


def test_the_loss_and_the_contour_of_a_reconstruction(heads):
    """The mean absolute error in [0, 1]; what has a tenth of white or less is background."""
    labels = torch.tensor([[[[0, 51], [255, 102]]]], dtype=torch.uint8)
    outputs = torch.tensor([[[[0.5, 0.2], [1.5, 0.0]]]])
    assert heads.loss(outputs, labels).item() == pytest.approx((0.5 + 0 + 0.5 + 0.4) / 4)
    assert heads.predict(outputs)[0, 0, 1].tolist() == [1, 0]
    inside = torch.zeros(9, 9)
    inside[2:7, 2:7] = 1
    rim = inside.clone()
    rim[3:6, 3:6] = 0
    shown = (25 + inside).byte()[None, None]
    assert torch.equal(heads.condition(shown)[0], rim.byte())


def test_an_image_that_is_found_again_is_perfect(heads):
    test = heads.dataset.test
    shown = attrs.evolve(heads.dataset, test=attrs.evolve(test, images=test.masks))

    class Same(nn.Module):
        def forward(self, images):
            return (images + 1) / 2

    found = task_of(shown, "unet", {"width": 4}).measure(Same(), shown.test)
    assert found["psnr"] == found["psnr@ixi"] == 100 and found["ssim"] == pytest.approx(1)


def test_clients_are_sites_and_hold_masks(task):
    train = task.dataset.train
    for number, client in enumerate(distribute(task, {"name": "natural"}, 4, 0)):
        assert client.labels.shape == (len(client), 32, 32) and client.labels.dtype == torch.uint8
        assert torch.equal(client.images, train.images[train.centre == number])
        assert client.class_counts.sum() == client.labels.numel()
        assert task.counts().total(len(client)) == client.labels.numel()


@pytest.mark.parametrize("name", ["fedavg", "centralized"])
def test_methods_for_any_task_learn_to_segment(task, name):
    settings = {"local_steps": 12, "batch_size": 8, "lr": 0.1}
    algorithm = create(name, settings, schedule=Schedule(clients=4, rounds=2, evaluate_every=2))
    clients = distribute(task, {"name": "natural"}, 4, 0)
    *_, last = rounds(algorithm, task, clients, 0)
    assert last.metrics["dice"] > 0.6


def test_clients_are_named_after_sites_only_where_they_are_sites():
    experiment = Experiment(
        algorithm="standalone",
        dataset="nuclei_drawn",
        model="unet",
        model_options={"width": 4},
        partition={"name": "natural"},
        clients=4,
        rounds=1,
        settings={"local_steps": 1},
    )
    found = run(experiment, runtime=Runtime()).metrics
    own = [found[f"dice:{site}"] for site in ("breast", "liver", "kidney", "prostate")]
    assert found["dice"] == pytest.approx(sum(own) / 4) and found["dice_std"] >= 0
    assert "aji:liver@kidney" not in found and "aji@kidney:liver" in found
    mixed = attrs.evolve(experiment, partition={"name": "iid"})
    assert make_task(mixed, Runtime()).parties == ()


def test_what_does_not_serve_a_task_says_so(task):
    """Cropping would move images and not their masks."""
    clients = distribute(task, {"name": "natural"}, 4, 0)
    words = "FedVCK is a method for classification, but nuclei_drawn"
    refused(words, next, rounds(create("fedvck"), task, clients, 0))
    settings = {"local_steps": 1, "local_augmentation": "crop_flip"}
    results = rounds(create("fedavg", settings), task, clients, 0)
    refused("moves images and not their masks", next, results)
