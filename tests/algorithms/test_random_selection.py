"""Random selection: a fair draw from the union of the clients' data, and what crosses the
network.
"""

import attrs
import torch

from core import algorithms
from core.baselines.random_selection import quotas
from core.federation import Ledger, Message, Runtime
from core.rng import Rng
from lab import make_clients, make_task, rounds
from tests.algorithms.on_digits import on_digits

TINY = on_digits(
    "random_selection",
    {"images_per_class": 10, "server_steps": 150},
    model_options={"width": 16},
    clients=4,
    rounds=1,
)


def test_quotas_are_a_draw_without_replacement_from_all():
    """The multivariate hypergeometric distribution: its mean n K_i / N and variance n K_i/N (1 -
    K_i/N) (N-n)/(N-1).
    """
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


def test_a_client_sends_other_images_with_another_stream():
    task = make_task(TINY, Runtime())
    method, client = algorithms.create("random_selection"), make_clients(TINY, task)[0]
    wanted = {client.id: Message({}, {"wanted": client.class_counts.clamp(max=2).tolist()})}
    first, other = (
        method.client_updates([client], wanted, [Rng(seed)])[client.id].tensors["images"]
        for seed in (0, 1)
    )
    assert first.shape == other.shape and not torch.equal(first, other)


def test_the_server_gets_so_many_real_images_of_every_class_in_all():
    task = make_task(TINY, Runtime())
    clients = make_clients(TINY, task)
    (result,) = rounds(TINY, task=task, clients=clients)
    images, labels, owner = (
        result.state.tensors[f"uploaded/{name}"] for name in ("images", "labels", "client")
    )
    assert torch.bincount(labels, minlength=10).tolist() == [10] * 10
    for client in clients:
        mine = {
            (image.numpy().tobytes(), int(label))
            for image, label in zip(client.images, client.labels, strict=True)
        }
        sent = [
            (image.numpy().tobytes(), int(label))
            for image, label in zip(
                images[owner == client.id], labels[owner == client.id], strict=True
            )
        ]
        assert set(sent) <= mine
    # one upload of images and labels, beside the numbers of images that each client told
    assert result.ledger.total("up") == {"images": 100 * 64, "labels": 100, "counts": 4 * 10 * 8}
    assert result.metrics["accuracy"] > 0.5  # chance is 0.10


def test_no_image_is_sent_twice_and_seeds_choose_others():
    task = make_task(TINY, Runtime())
    clients = make_clients(TINY, task)
    algorithm = algorithms.create(
        "random_selection", {"images_per_class": 10**6, "server_steps": 1}
    )
    everything = _after(algorithm, task, clients, 0)
    assert len(everything["uploaded/labels"]) == sum(
        map(len, clients)
    )  # a draw of all is all, each once
    for client in clients:
        sent = everything["uploaded/images"][everything["uploaded/client"] == client.id].flatten(1)
        assert torch.equal(
            torch.sort(sent.long().sum(1)).values,
            torch.sort(client.images.flatten(1).long().sum(1)).values,
        )
    few = algorithms.create("random_selection", {"images_per_class": 1, "server_steps": 1})
    one, other = (_after(few, task, clients, seed) for seed in (0, 1))
    assert not torch.equal(one["uploaded/images"], other["uploaded/images"])
    assert not torch.equal(one["uploaded/client"], other["uploaded/client"])  # from others, too


def _after(algorithm, task, clients, seed):
    ledger = Ledger()
    ledger.open_round()
    state = algorithm.initialise(task, Rng(0))
    return algorithm.round(attrs.evolve(state), clients, ledger, Rng(seed)).tensors


def test_the_first_images_of_a_class_are_taken_where_asked():
    task = make_task(TINY, Runtime())
    client = make_clients(TINY, task)[0]
    wanted = torch.bincount(client.labels, minlength=10).clamp(max=2)
    ask = Message({}, {"wanted": wanted.tolist()})
    first = algorithms.create("random_selection", {"choice": "first"})
    sent = first.client_updates([client], {client.id: ask}, [Rng(1)])[client.id].tensors
    for label in range(10):
        mine = client.images[client.labels == label][: wanted[label]]
        assert torch.equal(sent["images"][sent["labels"] == label], mine)
