"""Random selection: a fair draw from the union of the clients' data."""

import torch

from core import algorithms
from core.baselines.random_selection import quotas
from core.federation import Message
from core.rng import Rng
from tests.algorithms.on_digits import after_rounds, on_digits

TINY = on_digits("random_selection", clients=4)


def test_quotas_are_a_draw_without_replacement_from_all():
    """Hypergeometric: mean n K_i / N and variance n K_i/N (1 - K_i/N) (N-n)/(N-1)."""
    counts, images = torch.tensor([[30, 2], [10, 0], [0, 1], [20, 0]]), 12
    drawn = torch.stack([quotas(counts, images, Rng(seed)) for seed in range(2000)]).double()
    assert (drawn[..., 0].sum(1) == 12).all() and (drawn <= counts).all()
    assert (drawn[..., 1] == counts[:, 1]).all()  # a class with fewer images gives all it has
    share = counts[:, 0].double() / 60
    variance = images * share * (1 - share) * (60 - images) / 59
    assert (drawn[..., 0].mean(0) - images * share).abs().max() < 0.15
    assert (drawn[..., 0].var(0) - variance).abs().max() < 0.25


def test_each_class_is_a_draw_of_its_own():
    """Who gives much of one class gives no more of another for it."""
    counts = torch.full((2, 2), 30)
    drawn = torch.stack([quotas(counts, 12, Rng(seed)) for seed in range(500)]).double()
    assert abs(float(torch.corrcoef(drawn[:, 0].T)[0, 1])) < 0.2


def pixels(images, labels):
    """Images beside their labels, as they can be compared."""
    return [(image.numpy().tobytes(), int(c)) for image, c in zip(images, labels, strict=True)]


def received(task, clients, images_per_class, seed=0):
    """Images, labels and owners that the server has after one round."""
    settings = {"images_per_class": images_per_class, "server_steps": 1}
    algorithm = algorithms.create("random_selection", settings)
    state, ledger = after_rounds(algorithm, task, clients, seed=seed)
    tensors = [state.tensors[f"uploaded/{name}"] for name in ("images", "labels", "client")]
    return *tensors, ledger.total("up")


def test_the_server_gets_so_many_real_images_of_every_class_in_all(task, clients):
    images, labels, owner, up = received(task, clients, 10)
    assert torch.bincount(labels, minlength=10).tolist() == [10] * 10
    for client in clients:
        sent = pixels(images[owner == client.id], labels[owner == client.id])
        assert set(sent) <= set(pixels(client.images, client.labels))
    # one upload of images and labels, beside the numbers of images that each client told
    assert up == {"images": 100 * 64, "labels": 100, "counts": 4 * 10 * 8}


def test_no_image_is_sent_twice_and_seeds_choose_others(task, clients):
    """A draw of all is all, each once."""
    images, labels, owner, _ = received(task, clients, 10**6)
    for client in clients:
        sent = pixels(images[owner == client.id], labels[owner == client.id])
        assert sorted(sent) == sorted(pixels(client.images, client.labels))
    first, other = (received(task, clients, 1, seed) for seed in (0, 1))
    assert not torch.equal(first[0], other[0]) and not torch.equal(first[2], other[2])


def test_the_first_images_of_a_class_are_taken_where_asked(clients):
    client = clients[0]
    wanted = client.class_counts.clamp(max=2)
    ask = Message({}, {"wanted": wanted.tolist()})
    first = algorithms.create("random_selection", {"choice": "first"})
    sent = first.client_updates([client], {client.id: ask}, [Rng(1)])[client.id].tensors
    for label in range(10):
        own = client.images[client.labels == label][: wanted[label]]
        assert torch.equal(sent["images"][sent["labels"] == label], own)
