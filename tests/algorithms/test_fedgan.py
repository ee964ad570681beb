"""FedGAN: the adversarial losses, the simultaneous step, synthetic images, and sizes of uploads."""

import attrs
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from core import algorithms
from core.baselines import fedgan as module
from core.baselines.fedgan import adversarial_losses, draw, labelled
from core.federation.tensors import unpack
from core.models import ImageGenerator, PatchDiscriminator, build, count_parameters
from core.rng import Rng
from lab.forms import TABLES
from lab.published import read_published
from tests.algorithms.on_digits import on_digits

NARROW = {"generator_width": 4, "discriminator_width": 8, "noise": 8}
TINY = on_digits(
    "fedgan", {"local_steps": 2, "batch_size": 16, **NARROW}, rounds=3, evaluate_every=9
)


def fedgan(**settings):
    return algorithms.create("fedgan", TINY.settings | settings)


def test_the_losses_are_the_logarithms_of_the_papers():
    """-log D(x) - log(1 - D(G(z))) and -log D(G(z)) in float64, D being the sigmoid of the
    logits.
    """
    real, fake = torch.randn(2, 5, 1, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    d_real, d_fake = (1 / (1 + np.exp(-each.numpy())) for each in (real, fake))
    judge, maker = adversarial_losses(real, fake)
    assert float(judge) == pytest.approx(
        -np.log(d_real).mean() - np.log(1 - d_fake).mean(), rel=1e-12
    )
    assert float(maker) == pytest.approx(-np.log(d_fake).mean(), rel=1e-12)


def test_an_image_gets_a_plane_for_its_class():
    images = torch.rand(3, 2, 4, 4)
    found = labelled(images, torch.tensor([2, 0, 2]), 3)
    assert found.shape == (3, 5, 4, 4) and found[:, :2].equal(images)
    assert found[:, 2:].sum((2, 3)).tolist() == [[0, 0, 16], [16, 0, 0], [0, 0, 16]]


def test_both_networks_step_at_once_from_the_weights_before(task, clients):
    """Adam's first step is -lr g / (|g| + eps): with g of plain cross-entropies, both at the
    weights received.
    """
    lr, algorithm, client = 1e-3, fedgan(local_steps=1, batch_size=500, gan_lr=1e-3), clients[0]
    state = algorithm.initialise(task, Rng(0))
    upload = algorithm.client_update(client, algorithm.broadcast(state, 0), Rng(1)).tensors

    generator = algorithm._fresh_generator(task, Rng(0))
    judge = algorithm._discriminator(task, Rng(0))
    unpack(generator, state.tensors, "generator/")
    unpack(judge, state.tensors, "discriminator/")
    order = torch.randperm(len(client), generator=Rng(1).at("gan", "epoch", 0).generator())
    noise = torch.randn(len(client), 8, generator=Rng(1).at("gan", "noise").generator())
    labels = client.labels[order]
    fake = labelled(task.dataset.standardise(generator(noise, labels)), labels, 10)
    real = labelled(task.inputs(client.images[order]), labels, 10)
    yes, no = torch.ones(len(labels), 1, 2, 2), torch.zeros(len(labels), 1, 2, 2)
    loss = F.binary_cross_entropy_with_logits
    judged, fooled = loss(judge(real), yes) + loss(judge(fake), no), loss(judge(fake), yes)
    for kind, network, value in (
        ("generator", generator, fooled),
        ("discriminator", judge, judged),
    ):
        names, weights = zip(*network.named_parameters(), strict=True)
        slopes = torch.autograd.grad(value, weights, retain_graph=True)
        for name, w, g in zip(names, weights, slopes, strict=True):
            moved, clear = upload[f"{kind}/parameters/{name}"] - w.detach(), g.abs() > 1e-5
            torch.testing.assert_close(moved[clear], -lr * g[clear].sign(), rtol=0.02, atol=1e-6)


def test_adam_of_both_networks_has_the_momentum_of_the_settings(task, clients):
    """It shows in the second step, and by default is a half, as in the code."""
    state = fedgan().initialise(task, Rng(0))
    default, half, other = (
        fedgan(local_steps=2, gan_lr=1e-3, **beta)
        .client_update(clients[0], fedgan().broadcast(state, 0), Rng(1))
        .tensors
        for beta in ({}, {"gan_momentum": 0.5}, {"gan_momentum": 0.9})
    )
    for name in ("generator/parameters/seed.weight", "discriminator/parameters/out.weight"):
        assert torch.equal(default[name], half[name])
        assert float((default[name] - other[name]).abs().median()) > 1e-5, name


def test_synthetic_images_are_of_all_classes_and_depend_on_the_draw_only(task):
    algorithm = fedgan()
    generator = algorithm._fresh_generator(task, Rng(0))
    images, labels = draw(task, generator, 601, Rng(1))
    again, _ = draw(task, generator, 601, Rng(1))
    assert images.shape == (601, 1, 8, 8) and images.dtype == torch.uint8 and images.equal(again)
    assert torch.bincount(labels, minlength=10).min() > 30 and not images.equal(
        draw(task, generator, 601, Rng(2))[0]
    )


@pytest.mark.parametrize(("t", "share", "amount"), [(1, 0.5, 0), (2, 0.5, 10), (2, 1.3, 26)])
def test_a_client_learns_beside_its_images_what_the_generator_it_received_makes(
    task, clients, monkeypatch, t, share, amount
):
    """After two rounds of warm-up, so many times its 20 images, each with the label that it was made for."""
    seen = []
    monkeypatch.setattr(module, "train", lambda *given: seen.extend(given[1:3]))
    largest, algorithm = max(clients, key=len), fedgan(share=share, warm_up=2)
    client = attrs.evolve(largest, images=largest.images[:20], labels=largest.labels[:20])
    state = attrs.evolve(algorithm.initialise(task, Rng(0)), meta={"round": t})
    algorithm.client_update(client, algorithm.broadcast(state, 0), Rng(1))
    (images, labels), draws = seen, Rng(1).at("synthetic").generator()
    wanted = torch.randint(10, (amount,), generator=draws)
    with torch.no_grad():
        noise = torch.randn(amount, 8, generator=draws)
        made = 255 * algorithm.generator(task, state.tensors)(noise, wanted).double()
    assert images[:20].equal(client.images) and labels.equal(torch.cat([client.labels, wanted]))
    assert images.dtype == torch.uint8  # the nearest of 256 levels
    assert ((images[20:] - made).abs() <= 0.5 + 1e-3).all()


def test_the_networks_take_as_many_steps_as_the_classifier_each_with_noise_of_its_own(
    task, clients, monkeypatch
):
    """Two passes over 20 images in batches of 8: three steps a pass."""
    seen, forward = [], ImageGenerator.forward
    monkeypatch.setattr(
        ImageGenerator,
        "forward",
        lambda self, noise, labels: seen.append(noise) or forward(self, noise, labels),
    )
    algorithm, largest = (
        fedgan(local_steps=None, local_epochs=2, batch_size=8),
        max(clients, key=len),
    )
    client = attrs.evolve(largest, images=largest.images[:20], labels=largest.labels[:20])
    state = algorithm.initialise(task, Rng(0))
    algorithm.client_update(client, algorithm.broadcast(state, 0), Rng(1))
    assert [len(noise) for noise in seen] == 2 * [8, 8, 4]
    assert len(torch.cat(seen).unique(dim=0)) == 40


#: channels, size, classes and network behind each column of FedVCK's Table 9
COLUMNS = {
    "pathmnist": (3, 28, 9, "convnet"),
    "octmnist": (1, 28, 4, "convnet"),
    "organsmnist": (1, 28, 11, "convnet"),
    "organcmnist_224": (1, 224, 11, "resnet18"),
    "pneumoniamnist_224": (1, 224, 2, "resnet18"),
    "cifar10": (3, 32, 10, "convnet"),
    "stl10": (3, 32, 10, "convnet"),
    "imagenette": (3, 64, 10, "convnet"),
}


def test_the_default_networks_cost_within_nine_percent_of_every_printed_upload():
    printed = {
        row["dataset"]: float(row["value"])
        for row in read_published(TABLES / "fedvck" / "published.csv")
        if (row["table"], row["method"], row["metric"]) == ("9", "fedgan", "upload_mb_per_round")
    }
    assert printed.keys() == COLUMNS.keys()
    given = algorithms.create("fedgan").settings
    form = {"noise": given.noise, "width": given.generator_width}
    for dataset, (channels, size, classes, name) in COLUMNS.items():
        with torch.device("meta"):
            networks = (
                ImageGenerator(channels, size, classes=classes, **form),
                PatchDiscriminator(channels + classes, width=given.discriminator_width),
            )
        classifier = build(name, channels, size, classes, Rng(0))
        numbers = sum(map(count_parameters, (*networks, classifier)))
        assert abs(10 * 4 * numbers / 2**20 / printed[dataset] - 1) < 0.092, dataset
