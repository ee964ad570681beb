"""Stacked training: as one by one, each with weights, statistics and batches of its own."""

import attrs
import pytest
import torch

from core import models
from core.baselines.fedavg import FedAvg
from core.data import Dataset, Split
from core.federation import (
    Client,
    LocalTraining,
    OutputObjective,
    Runtime,
    Schedule,
    Task,
    train,
)
from core.federation.stacked_training import Learner, clients_at_once, train_stacked
from core.rng import Rng

#: samples of each client: passes end at different steps, and one client never has a whole batch
SAMPLES = (40, 33, 64, 7)


def small_task(model="lenet", precision="float32", size=12):
    options = {} if model == "lenet" else {"width": 4}
    runtime = Runtime.choose("cpu", precision)
    count = sum(SAMPLES)
    images = torch.randint(0, 256, (count, 1, size, size), generator=Rng(0).generator())
    split = Split(images.byte(), torch.arange(count) % 5)
    dataset = Dataset("random", split, split, split, tuple("abcde"), (0.5,), (0.5,), fingerprint="")
    return Task(dataset, model, options, runtime)


def parts(task):
    split = task.dataset.train
    return list(zip(split.images.split(SAMPLES), split.labels.split(SAMPLES), strict=True))


@pytest.mark.parametrize(
    ("model", "precision"),
    [("lenet", "float32"), ("resnet8", "float32"), ("convnet", "bfloat16")],
)
def test_stacked_is_one_by_one(model, precision):
    task = small_task(model, precision)
    settings = LocalTraining(lr=0.05, batch_size=16, local_steps=7, momentum=0.9, weight_decay=0.01)
    near = 1e-4 if precision == "float32" else 3e-2

    def loss(model, outputs, labels):
        return task.loss(outputs, labels)

    alone, together = [], []
    for k, (images, labels) in enumerate(parts(task)):
        one, other = (task.new_model(Rng(k)) for _ in range(2))
        for name, value in [*one.named_buffers(), *other.named_buffers()]:
            if name.endswith("num_batches_tracked"):
                value.add_(k)  # statistics may be of another age
        train(one, images, labels, settings, OutputObjective(task, loss), Rng(7).at(k))
        alone.append(one)
        drawn = settings.drawn(labels, Rng(7).at(k))
        together.append(Learner(other, images, labels, loss, drawn))
    train_stacked(task, together, settings)
    for k, (one, learner) in enumerate(zip(alone, together, strict=True)):
        found = learner.model.state_dict()
        for name, value in one.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=near, atol=near)
            if name.endswith("num_batches_tracked"):
                assert int(value) == k + settings.local_steps
        pairs = zip(one.parameters(), task.new_model(Rng(k)).parameters(), strict=True)
        assert max((w - before).abs().max() for w, before in pairs) > 0.01


def test_what_cannot_train_stacked_trains_alone():
    """A network that does not say that it can, and images that are cropped."""
    settings = LocalTraining(batch_size=32, local_steps=20)
    lenet, images = models.build("lenet", 1, 28, 10, Rng(0)), torch.zeros(1, 1, 28, 28)
    assert clients_at_once(lenet, images, settings) > 1
    cropped = attrs.evolve(settings, local_augmentation="crop_flip")
    assert clients_at_once(lenet, images, cropped) == 1
    assert clients_at_once(torch.nn.Linear(3, 2), images, settings) == 1


def clients_of(task):
    return [Client(k, task, images, labels) for k, (images, labels) in enumerate(parts(task))]


def test_unequal_numbers_of_steps_and_a_client_alone(monkeypatch):
    """With passes in place of steps, clients of equal numbers of batches go together."""
    seen = []
    monkeypatch.setattr(
        "core.baselines.fedavg.train_stacked",
        lambda task, learners, settings: seen.append([len(one.labels) for one in learners]),
    )
    task = small_task()
    method = FedAvg(FedAvg.Settings(batch_size=16, local_epochs=1), Schedule(clients=4, rounds=1))
    state, clients = method.initialise(task, Rng(0)), clients_of(task)
    messages = {client.id: method.broadcast(state, client.id) for client in clients}
    answers = method.at_clients("client_update", clients, messages, Rng(0).at("client"))
    # 3, 3, 4 and 1 batches
    assert seen == [[40, 33]] and list(answers) == [0, 1, 2, 3]
