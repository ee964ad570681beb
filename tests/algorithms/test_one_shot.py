"""What GDD-FL, DM, DC, DSA and random selection share: one upload, and the training of the server."""

import attrs
import pytest
import torch
from sklearn.metrics import roc_auc_score

from core import algorithms, server
from core.errors import Diverged, InputError
from core.families import condensing, one_shot
from core.federation import Message, Schedule
from core.rng import Rng
from lab import rounds
from tests.algorithms.on_digits import after_rounds, on_digits, uploads_of
from tests.algorithms.watching import differences

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


@pytest.fixture(scope="module", params=ALL)
def run(request, task):
    """A method, and the results of its two rounds."""
    name = request.param
    experiment = attrs.evolve(TINY, algorithm=name, settings=settings_of(name))
    return name, list(rounds(experiment, task=task))


def test_one_upload_of_pixels_and_labels(run, clients):
    """One byte a pixel and channel, one a label; random selection counts all clients together."""
    name, (first, second) = run
    up, held = first.ledger.total("up"), sum(int((c.class_counts > 0).sum()) for c in clients)
    number = 2 * (10 if name == "random_selection" else held)
    assert (up["images"], up["labels"]) == (number * 64, number)
    assert set(first.ledger.total("down")) == {"meta"}  # a seed or quotas, no model
    assert (second.up, second.down) == (0, 0)


def test_later_rounds_change_nothing(run):
    _, (first, second) = run
    assert first.state.meta["spoken"] and second.metrics == first.metrics
    assert not differences(first.state.tensors, second.state.tensors)


@pytest.mark.parametrize("name", ["dm", "random_selection"])
def test_the_server_trains_the_first_model_on_what_it_received(name, task, clients):
    """The images stay in the state, with their clients; the model is that of a training on them."""
    algorithm = create(name)
    state, (new, _) = algorithm.initialise(task, Rng(0)), after_rounds(algorithm, task, clients)
    images, labels, owner = (
        new.tensors[f"uploaded/{kind}"] for kind in ("images", "labels", "client")
    )
    assert images.dtype == torch.uint8 and len(images) == len(labels) == len(owner)
    knowledge = condensing.Knowledge(images, labels, torch.zeros_like(labels))
    again = condensing.learn(task, state, knowledge, algorithm.settings, Rng(0).at("server"))
    for key, value in again.named_parameters():
        assert torch.equal(new.tensors[f"parameters/{key}"], value)


def test_an_encoder_that_is_too_deep_for_the_images(task, clients):
    with pytest.raises(InputError, match="depth 4 needs images of at least 16x16"):
        uploaded(task, clients, encoder_depth=4)


def test_images_far_from_any_image_are_not_sent(task, clients):
    with pytest.raises(Diverged, match="condensation has diverged"):
        uploaded(task, clients, image_lr=1e38)


def uploaded(task, clients, name="dm", **more):
    """An algorithm, its first state, and what the clients send."""
    algorithm = create(name, **more)
    state = algorithm.initialise(task, Rng(0))
    return algorithm, state, uploads_of(algorithm, state, clients, Rng(3))


@pytest.mark.parametrize("falling", [False, True])
def test_the_last_client_chooses_the_epoch_and_is_not_trained_on(
    task, clients, falling, monkeypatch
):
    given = {"last_client_chooses": True, "server_cosine": falling, "server_lr": 0.05}
    algorithm, state, uploads = uploaded(task, clients, **given)
    seen, scores, update = [], [], server.update_by_epochs

    def noting(*given, score, falling):
        seen.extend([*given[1:3], falling])
        update(
            *given, score=lambda model: scores.append(score(model)) or scores[-1], falling=falling
        )

    monkeypatch.setattr(server, "update_by_epochs", noting)
    new = algorithm.server_update(state, uploads, Rng(7))
    *others, last = uploads.values()
    images, labels, falls = seen
    assert falls == falling
    assert torch.equal(images, torch.cat([one.tensors["images"] for one in others]))
    assert torch.equal(labels, torch.cat([one.tensors["labels"] for one in others]).long())
    # the kept model has the best AUC on the last client's images, each class against the rest
    truth = last.tensors["labels"].long()
    logits = task.outputs(task.model_from(new.tensors), last.tensors["images"])
    chances = logits.softmax(1).double()
    areas = [roc_auc_score(truth == c, chances[:, c]) for c in truth.unique().tolist()]
    assert len(scores) == 4 and max(scores) == pytest.approx(sum(areas) / len(areas), abs=1e-6)
    # what stays in the state is all that came
    assert len(new.tensors["uploaded/labels"]) == len(labels) + len(truth)


def test_one_client_alone_cannot_choose(task, clients):
    algorithm, state, uploads = uploaded(task, clients[:1], last_client_chooses=True)
    with pytest.raises(InputError, match="none to learn from"):
        algorithm.server_update(state, uploads, Rng(7))
    for schedule in (Schedule(clients=1), Schedule(clients=3, active=1)):
        alone = algorithms.create("gddfl", {"last_client_chooses": True}, schedule=schedule)
        with pytest.raises(InputError, match="last_client_chooses asks for a second client"):
            alone.initialise(task, Rng(0))


def test_a_client_that_was_asked_for_no_image_does_not_choose(task, clients, monkeypatch):
    """Two images of each class in all: the last client that sent some is held out."""
    algorithm = create("random_selection", last_client_chooses=True, server_epochs=2)
    uploads = {
        client.id: Message({"images": client.images[:count], "labels": client.labels[:count]})
        for client, count in zip(clients, (6, 4, 0), strict=True)
    }
    held_out = []
    monkeypatch.setattr(one_shot, "quality", lambda *given: held_out.append(len(given[2])) or 1.0)
    algorithm.learnt_by_epochs(algorithm.initialise(task, Rng(0)), uploads, Rng(1))
    assert set(held_out) == {4}
