"""What GDD-FL, DM, DC, DSA and random selection share: one upload, its bytes, one batch, resuming,
odd clients.
"""

import attrs
import pytest
import torch

from core import algorithms
from core.errors import InputError
from core.experiments import Experiment, make_clients, make_task, rounds
from core.families import condensing
from core.federation import Client, Ledger, Message, Runtime
from core.federation.uploads import UploadError, check_upload
from core.rng import Rng

CONDENSING = ["gddfl", "dm", "dc", "dsa"]
ALL = [*CONDENSING, "random_selection"]
FAST = {"images_per_class": 2, "server_steps": 4}
FEW = FAST | {"iterations": 2, "real_batch": 4, "encoder_width": 4, "encoder_depth": 2}
LOOPS = {"iterations": 1, "matches": 2, "network_steps": 2}
TINY = Experiment(
    algorithm="dm",
    dataset="digits",
    model_options={"width": 8},
    clients=3,
    rounds=2,
    partition={"name": "dirichlet", "alpha": 0.5},
)


def settings_of(name, **more):
    base = FAST if name == "random_selection" else FEW | (LOOPS if name in ("dc", "dsa") else {})
    return base | more


def create(name, **more):
    return algorithms.create(name, settings_of(name, **more))


@pytest.fixture(scope="module")
def task():
    return make_task(TINY, Runtime())


@pytest.fixture
def clients(task):
    return make_clients(TINY, task)


def run(name, task, **more):
    return list(
        rounds(attrs.evolve(TINY, algorithm=name, settings=settings_of(name)), task=task, **more)
    )


@pytest.mark.parametrize("name", CONDENSING)
def test_one_upload_of_pixels_and_labels(name, task, clients):
    """One byte a pixel and channel, one a label; so many images of every class that a client
    holds.
    """
    first, second = run(name, task)
    held = sum(int((client.class_counts > 0).sum()) for client in clients)
    assert first.ledger.total("up") == {"images": held * 2 * 64, "labels": held * 2}
    assert set(first.ledger.total("down")) == {"meta"} and first.down < 3 * 40  # a seed, no model
    assert (second.up, second.down) == (0, 0)


@pytest.mark.parametrize("name", ALL)
def test_later_rounds_change_nothing(name, task):
    first, second = run(name, task)
    assert first.state.meta["spoken"] and second.metrics == first.metrics
    assert all(
        torch.equal(value, second.state.tensors[key]) for key, value in first.state.tensors.items()
    )


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gddfl", {}),
        ("gddfl", {"shift_layer": 1, "shift": "as_printed", "shift_probability": 1.0}),
        ("dm", {}),
        ("dm", {"init": "real_average"}),
        ("dc", {}),
        ("dsa", {"init": "real"}),
    ],
    ids=str,
)
def test_clients_upload_the_same_in_one_batch_and_one_by_one(name, more, task, clients):
    algorithm, rng = create(name, **more), Rng(3)
    state = algorithm.initialise(task, Rng(0))
    messages = {client.id: algorithm.broadcast(state, client.id) for client in clients}
    batched = algorithm.clients_update(clients, messages, rng)
    for client in clients:
        alone = algorithm.client_update(
            client, messages[client.id], rng.at("client", client.id)
        ).tensors
        together = batched[client.id].tensors
        assert alone["labels"].equal(together["labels"])
        assert alone["labels"].tolist() == [
            label for label in range(10) for _ in range(2) if client.class_counts[label]
        ]
        apart = (alone["images"].int() - together["images"].int()).abs()
        assert apart.max() <= 1 and (apart > 0).float().mean() < 0.02
    assert not any(client.memory for client in clients)


@pytest.mark.parametrize("name", ALL)
def test_a_resumed_run_equals_an_uninterrupted_one(name, task, tmp_path):
    whole = run(name, task)
    broken = rounds(
        attrs.evolve(TINY, algorithm=name, settings=settings_of(name)),
        task=task,
        checkpoint=tmp_path / "c.safetensors",
    )
    next(broken)
    broken.close()
    resumed = run(name, task, checkpoint=tmp_path / "c.safetensors")
    assert [r.row() | {"seconds": 0} for r in resumed] == [r.row() | {"seconds": 0} for r in whole]
    assert whole[-1].state.meta == resumed[-1].state.meta
    assert all(
        torch.equal(value, resumed[-1].state.tensors[name])
        for name, value in whole[-1].state.tensors.items()
    )


@pytest.mark.parametrize("name", ALL)
def test_odd_clients(name, task, clients):
    """A client without data takes no part; one with a single image or a single class does."""
    images, labels = clients[0].images, clients[0].labels
    one_class = labels == labels[0]
    odd = [
        Client(0, task, images[:0], labels[:0]),
        Client(1, task, images[:1], labels[:1]),
        Client(2, task, images[one_class], labels[one_class]),
        Client(3, task, clients[1].images, clients[1].labels),
    ]
    experiment = attrs.evolve(TINY, algorithm=name, settings=settings_of(name), rounds=1)
    (result,) = rounds(experiment, task=task, clients=odd)
    owners = result.state.tensors["uploaded/client"]
    assert 0 not in owners and 3 in owners
    if name in CONDENSING:
        assert (owners == 1).sum() == (owners == 2).sum() == 2


@pytest.mark.parametrize("name", ALL)
def test_the_server_trains_the_first_model_on_what_it_received(name, task):
    """The images stay in the state, with their clients; the model is that of a training on them."""
    algorithm = create(name)
    state, ledger = algorithm.initialise(task, Rng(0)), Ledger()
    ledger.open_round()
    new = algorithm.round(state, make_clients(TINY, task), ledger, Rng(5))
    images, labels = new.tensors["uploaded/images"], new.tensors["uploaded/labels"]
    assert images.dtype == torch.uint8 and len(images) == len(labels) == len(
        new.tensors["uploaded/client"]
    )
    knowledge = condensing.Knowledge(images, labels, torch.zeros_like(labels))
    again = condensing.learn(task, state, knowledge, algorithm.settings, Rng(5).at("server"))
    for key, value in again.named_parameters():
        assert torch.equal(new.tensors[f"parameters/{key}"], value)


@pytest.mark.parametrize("name", ALL)
def test_a_swollen_upload_is_refused(name, task):
    algorithm = create(name)
    tensors, meta = algorithm.upload_format(algorithm.initialise(task, Rng(0)))
    fields = {
        key: torch.zeros(*(21 if side is None else side for side in field.shape), dtype=field.dtype)
        for key, field in tensors.items()
    }
    with pytest.raises(UploadError, match="at most 20"):
        check_upload(Message(fields), tensors, meta, 0)
    fields = {key: value[:20] for key, value in fields.items()}
    check_upload(Message(fields), tensors, meta, 0)
    with pytest.raises(UploadError, match="out of range"):
        check_upload(
            Message(fields | {"labels": torch.full((20,), 10, dtype=torch.uint8)}), tensors, meta, 0
        )


def test_the_servers_settings_are_those_of_the_paper():
    """MICCAI 2023, Sec. 3.2."""
    for name in ALL:
        settings = algorithms.create(name, {"images_per_class": 10}).settings
        training = settings.training
        assert (training.lr, training.batch_size, training.epochs, training.decay) == (
            0.01,
            64,
            50,
            1.0,
        )
        assert training.total(200) == 50 * 4


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dm", {"images_per_class": 0}),
        ("dm", {"init": "noisy"}),
        ("dm", {"augmentation": "colour"}),
        ("gddfl", {"shift": "printed"}),
        ("gddfl", {"shift_probability": 1.5}),
        ("gddfl", {"shift_layer": 4}),
        ("gddfl", {"shift_layer": -1}),
        ("dc", {"images_per_class": 7}),
        ("dsa", {"network_lr": 0}),
        ("random_selection", {"images_per_class": -1}),
        ("random_selection", {"iterations": 3}),
        ("dc", {"matches": 0}),
    ],
    ids=str,
)
def test_bad_values_are_refused(name, more):
    with pytest.raises(InputError):
        algorithms.create(name, more)


def test_an_encoder_that_is_too_deep_for_the_images(task, clients):
    with pytest.raises(InputError, match="depth 4 needs images of at least 16x16"):
        algorithm = create("dm", encoder_depth=4)
        algorithm.client_update(
            clients[0], algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0), Rng(0)
        )


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gddfl", {"iterations": 40, "image_lr": 10.0}),
        ("dm", {"iterations": 40, "image_lr": 10.0}),
        ("dc", {"iterations": 15, "image_lr": 2.0}),
        ("dsa", {"iterations": 15, "image_lr": 2.0, "augmentation": "crop"}),
    ],
    ids=str,
)
def test_each_beats_chance_on_digits(name, more):
    settings = {
        "images_per_class": 1,
        "real_batch": 8,
        "encoder_width": 8,
        "encoder_depth": 2,
        "server_steps": 100,
    }
    if name in ("gddfl", "dm"):
        settings["augmentation"] = "none"
    experiment = Experiment(
        algorithm=name,
        dataset="digits",
        model_options={"width": 16},
        clients=3,
        rounds=1,
        settings=settings | more,
    )
    *_, last = rounds(experiment, task=make_task(experiment, Runtime()))
    assert last.metrics["accuracy"] > 0.3  # chance is 0.10


def test_images_far_from_any_image_are_not_sent(task):
    with pytest.raises(InputError, match="condensation has diverged"):
        list(rounds(attrs.evolve(TINY, settings=settings_of("dm", image_lr=1e38)), task=task))
