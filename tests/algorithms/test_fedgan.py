"""FedGAN: the adversarial losses, the simultaneous step, synthetic images, and sizes of uploads."""

import attrs
import pytest
import torch
from torch.nn import functional as F

from core import algorithms
from core.baselines import fedgan as module
from core.baselines.fedgan import labelled
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


def test_an_image_gets_a_plane_for_its_class():
    images = torch.rand(3, 2, 4, 4)
    found = labelled(images, torch.tensor([2, 0, 2]), 3)
    assert found.shape == (3, 5, 4, 4) and found[:, :2].equal(images)
    assert found[:, 2:].sum((2, 3)).tolist() == [[0, 0, 16], [16, 0, 0], [0, 0, 16]]


@pytest.mark.parametrize("momentum", [{}, {"gan_momentum": 0.9}])
def test_both_networks_step_at_once_from_the_weights_before(task, clients, momentum):
    """Two steps of Adam down plain cross-entropies, where slopes are no rounding errors."""
    algorithm, client = fedgan(local_steps=2, batch_size=500, gan_lr=1e-3, **momentum), clients[0]
    state = algorithm.initialise(task, Rng(0))
    upload = algorithm.client_update(client, algorithm.broadcast(state, 0), Rng(1)).tensors

    generator = unpack(algorithm._fresh_generator(task, Rng(0)), state.tensors, "generator/")
    judge = unpack(algorithm._discriminator(task, Rng(0)), state.tensors, "discriminator/")
    betas, draws = (momentum.get("gan_momentum", 0.5), 0.999), Rng(1).at("gan", "noise").generator()
    networks = {"generator": generator, "discriminator": judge}
    optimisers = [torch.optim.Adam(n.parameters(), 1e-3, betas) for n in networks.values()]
    clear = {}
    for step in range(2):
        order = torch.randperm(len(client), generator=Rng(1).at("gan", "epoch", step).generator())
        labels = client.labels[order]
        noise = torch.randn(len(client), 8, generator=draws)
        fake = labelled(task.dataset.standardise(generator(noise, labels)), labels, 10)
        real = labelled(task.inputs(client.images[order]), labels, 10)
        yes, no = torch.ones(len(labels), 1, 2, 2), torch.zeros(len(labels), 1, 2, 2)
        loss = F.binary_cross_entropy_with_logits
        judged, fooled = loss(judge(real), yes) + loss(judge(fake), no), loss(judge(fake), yes)
        for (kind, network), value in zip(networks.items(), (fooled, judged), strict=True):
            names, weights = zip(*network.named_parameters(), strict=True)
            slopes = torch.autograd.grad(value, weights, retain_graph=True)
            for name, w, slope in zip(names, weights, slopes, strict=True):
                w.grad, key = slope, f"{kind}/parameters/{name}"
                clear[key] = (slope.abs() > 1e-4) & clear.get(key, torch.tensor(True))
        for optimiser in optimisers:
            optimiser.step()
    for kind, network in networks.items():
        for name, w in network.named_parameters():
            key = f"{kind}/parameters/{name}"
            found, wanted = (one.detach() - state.tensors[key] for one in (upload[key], w))
            torch.testing.assert_close(
                found[clear[key]], wanted[clear[key]], rtol=0.02, atol=1e-5, msg=key
            )


@pytest.mark.parametrize(("t", "share", "amount"), [(0, 0.5, 0), (1, 0.5, 10), (1, 1.3, 26)])
def test_a_client_learns_beside_its_images_what_the_generator_it_received_makes(
    task, clients, monkeypatch, t, share, amount
):
    """After the first round, so many times its 20 images, each with the label that it was made for."""
    seen = []
    monkeypatch.setattr(module, "train", lambda *given: seen.extend(given[1:3]))
    largest, algorithm = max(clients, key=len), fedgan(share=share)
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
