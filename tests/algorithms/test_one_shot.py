"""What GDD-FL, DM, DC, DSA and random selection share: one upload, its bytes, one batch, resuming,
odd clients.
"""

import attrs
import pytest
import torch
from sklearn.metrics import roc_auc_score

from core import algorithms, server
from core.errors import Diverged, InputError
from core.families import condensing, one_shot
from core.federation import Ledger, Message, Runtime, Schedule
from core.rng import Rng
from lab import Experiment, make_clients, make_task, rounds
from tests.algorithms.on_digits import on_digits

CONDENSING = ["gddfl", "dm", "dc", "dsa"]
ALL = [*CONDENSING, "random_selection"]
FAST = {"images_per_class": 2, "server_steps": 4}
FEW = FAST | {"iterations": 2, "real_batch": 4, "encoder_width": 4, "encoder_depth": 2}
LOOPS = {"iterations": 1, "matches": 2, "network_steps": 2}
TINY = on_digits("dm")


def settings_of(name, **more):
    base = FAST if name == "random_selection" else FEW | (LOOPS if name in ("dc", "dsa") else {})
    return base | more


def create(name, **more):
    return algorithms.create(name, settings_of(name, **more))


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
    with pytest.raises(Diverged, match="condensation has diverged"):
        list(rounds(attrs.evolve(TINY, settings=settings_of("dm", image_lr=1e38)), task=task))


def uploaded(task, clients, name="dm", **more):
    """An algorithm, its first state, and what the clients send."""
    algorithm = create(name, **more)
    state = algorithm.initialise(task, Rng(0))
    messages = {client.id: algorithm.broadcast(state, client.id) for client in clients}
    return (
        algorithm,
        state,
        algorithm.at_clients("client_update", clients, messages, Rng(3).at("client")),
    )


@pytest.mark.parametrize("falling", [False, True])
def test_the_last_client_chooses_the_epoch_and_is_not_trained_on(
    task, clients, falling, monkeypatch
):
    given = {"last_client_chooses": True, "server_cosine": falling, "server_lr": 0.05}
    algorithm, state, uploads = uploaded(task, clients, **given)
    seen, update = [], server.update_by_epochs

    def noting(model, images, labels, *rest, score, **more):
        scores = []

        def scored(model):
            scores.append(score(model))
            return scores[-1]

        update(model, images, labels, *rest, score=scored, **more)
        seen.append((images, labels, scores))
        assert more == {"falling": falling}

    monkeypatch.setattr(server, "update_by_epochs", noting)
    new = algorithm.server_update(state, uploads, Rng(7))
    ((images, labels, scores),) = seen
    *others, last = uploads.values()
    assert torch.equal(images, torch.cat([one.tensors["images"] for one in others]))
    assert torch.equal(labels, torch.cat([one.tensors["labels"] for one in others]).long())
    # the kept model has the best AUC on the last client's images, each class against the rest
    truth = last.tensors["labels"].long()
    logits = task.outputs(task.model_from(new.tensors), last.tensors["images"])
    areas = [
        roc_auc_score(truth == c, logits.softmax(1)[:, c].double()) for c in truth.unique().tolist()
    ]
    assert len(scores) == 4 and max(scores) == pytest.approx(sum(areas) / len(areas), abs=1e-6)
    # what stays in the state is all that came
    assert len(new.tensors["uploaded/labels"]) == len(labels) + len(truth)


def test_the_epochs_begin_with_the_first_model(task, clients):
    algorithm, state, uploads = uploaded(task, clients, server_cosine=True, server_lr=1e-12)
    new = algorithm.server_update(state, uploads, Rng(7))
    for name, value in state.tensors.items():
        if name.startswith("parameters/"):
            torch.testing.assert_close(new.tensors[name], value)


def test_a_rate_that_falls_falls_epoch_by_epoch(task, clients, monkeypatch):
    seen = []
    monkeypatch.setattr(server, "update_by_epochs", lambda *given, **more: seen.append(more))
    algorithm, state, uploads = uploaded(task, clients, server_cosine=True)
    algorithm.server_update(state, uploads, Rng(7))
    assert seen == [{"falling": True, "score": None}]


def test_one_client_alone_cannot_choose(task, clients):
    algorithm, state, uploads = uploaded(task, clients[:1], last_client_chooses=True)
    with pytest.raises(InputError, match="none to learn from"):
        algorithm.server_update(state, uploads, Rng(7))
    for schedule in (Schedule(clients=1), Schedule(clients=3, active=1)):
        alone = algorithms.create("gddfl", {"last_client_chooses": True}, schedule=schedule)
        with pytest.raises(InputError, match="last_client_chooses asks for a second client"):
            alone.initialise(task, Rng(0))


def test_a_client_that_was_asked_for_no_image_does_not_choose(task, clients):
    """Two images of each class in all: the last client that sent some is held out."""
    settings = {"images_per_class": 2, "last_client_chooses": True, "server_epochs": 2}
    run = attrs.evolve(TINY, algorithm="random_selection", settings=settings)
    algorithm = run.new_algorithm()
    uploads = {
        client.id: Message({"images": client.images[:count], "labels": client.labels[:count]})
        for client, count in zip(clients, (6, 4, 0), strict=True)
    }
    state = algorithm.initialise(task, Rng(0))
    held = []

    def noting(task, images, labels, model):
        held.append(len(labels))
        return 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_shot, "quality", noting)
        algorithm.learnt_by_epochs(state, uploads, Rng(1))
    assert set(held) == {4}
