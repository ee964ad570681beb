"""FedMK's server: pseudo knowledge and its generator, rates that fall, and uploads that are refused."""

import attrs
import pytest
import torch

from core import server
from core.federation import Ledger, Message, UploadError
from core.federation.tensors import unpack
from core.rng import Rng
from tests.algorithms import fedmk_on_digits
from tests.algorithms.fedmk_on_digits import fedmk

TINY = fedmk_on_digits.TINY
clients, after_one_round = fedmk_on_digits.clients, fedmk_on_digits.after_one_round


def test_beta_is_the_share_of_pseudo_knowledge(task, after_one_round, monkeypatch):
    """One full-batch step by hand: the gradient of L(D^) + beta L(D^_pseudo), beta = |pseudo| /
    |uploaded|.
    """
    from core.algorithms import fedmk as module

    algorithm = fedmk(
        pseudo=0.5,
        server_steps=1,
        server_batch=10_000,
        server_lr=0.1,
        server_momentum=0.0,
        server_weight_decay=0.0,
    )
    uploads = uploads_of(after_one_round)
    seen = {}
    sample = module.draw_pseudo

    def watch(generator, labels, number, rng):
        seen["made"] = sample(generator, labels, number, rng)
        seen["uploaded"] = len(labels)
        return seen["made"]

    monkeypatch.setattr(module, "draw_pseudo", watch)
    state = attrs.evolve(after_one_round, task=task)
    new = algorithm.server_update(state, uploads, Rng(3))
    features, classes = seen["made"]
    assert len(classes) == round(0.5 * seen["uploaded"]) and not features.requires_grad
    model = task.model_from(state.tensors).train()
    x = torch.cat([upload.tensors["images"] for upload in uploads.values()])
    y = torch.cat([upload.tensors["labels"] for upload in uploads.values()]).long()
    entropy = torch.nn.functional.cross_entropy
    loss = entropy(model(x), y) + len(classes) / len(y) * entropy(
        model.classifier(features), classes
    )
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    for (name, weight), slope in zip(model.named_parameters(), slopes, strict=True):
        torch.testing.assert_close(
            new.tensors[f"parameters/{name}"], weight.detach() - 0.1 * slope, rtol=1e-3, atol=1e-5
        )


def test_the_generator_learns_what_the_classifier_sees(task, after_one_round):
    """Eq. 10: the classifier recognises the labels of generated features better than before."""
    from core.algorithms.fedmk import draw_pseudo
    from core.families.generative import feature_generator

    algorithm = fedmk(generator_steps=100, generator_lr=0.01)
    model = task.model_from(after_one_round.tensors)
    labels = torch.arange(10).repeat(30)
    generator = feature_generator(task, model.feature_size, Rng(0))
    right = []
    for _ in range(2):
        features, classes = draw_pseudo(generator, labels, 300, Rng(1))
        right.append(float((model.classifier(features).argmax(1) == classes).float().mean()))
        algorithm.train_generator(generator.train(), model, labels, {}, Rng(2))
    assert right[0] < 0.5 < 0.9 < right[1]
    assert torch.equal(
        torch.cat([w.flatten() for w in model.parameters()]),
        torch.cat([w.flatten() for w in task.model_from(after_one_round.tensors).parameters()]),
    )


def test_pseudo_knowledge_comes_by_the_generators_running_statistics(task):
    """Features (n, D) of z ~ N(0, 1) and of classes in the shares of the uploaded labels."""
    from core.algorithms.fedmk import draw_pseudo
    from core.families.generative import feature_generator

    generator, labels = feature_generator(task, 12, Rng(0)).train(), torch.tensor([2, 2, 7])
    features, classes = draw_pseudo(generator, labels, 300, Rng(1))
    draws = Rng(1).at("draws").generator()
    server.draw_labels(torch.bincount(labels, minlength=10).float(), 300, draws)
    noise = server.draw_noise("normal", (300, generator.noise), draws)
    torch.testing.assert_close(features, generator.eval()(noise, classes))
    assert set(classes.tolist()) == {2, 7} and 170 < int((classes == 2).sum()) < 230


def test_the_generator_learns_the_classes_in_the_shares_of_the_uploads(
    task, after_one_round, monkeypatch
):
    from core.families import generative

    seen = []
    monkeypatch.setattr(generative, "trained", lambda *given: seen.append(given[3]) or {})
    model, labels = task.model_from(after_one_round.tensors), torch.tensor([2, 2, 7])
    generator = generative.feature_generator(task, model.feature_size, Rng(0))
    fedmk().train_generator(generator, model, labels, {}, Rng(2))
    assert seen[0].tolist() == [0, 0, 2, 0, 0, 0, 0, 1, 0, 0]


def test_the_generator_learns_against_the_model_that_the_round_began_with(task, after_one_round):
    """Algorithm 1: the generator first, then the global model."""
    from core.families.generative import feature_generator

    algorithm, before, uploads = fedmk(), after_one_round.tensors, uploads_of(after_one_round)
    after = algorithm.server_update(after_one_round, uploads, Rng(3)).tensors
    labels = torch.cat([one.tensors["labels"] for one in uploads.values()]).long()
    model, rng = task.model_from(before), Rng(3).at("generator")
    generator = unpack(feature_generator(task, model.feature_size, Rng(0)), before, "generator/")
    wanted = algorithm.train_generator(generator, model, labels, before, rng)
    for name, value in wanted.items():
        torch.testing.assert_close(after[name], value)


def moved(state, round_, **settings):
    """How the server's plain steps without pseudo knowledge move the weights, as one vector."""
    algorithm = fedmk(pseudo=0.0, **settings)
    state = attrs.evolve(state, meta=state.meta | {"round": round_})
    new = algorithm.server_update(state, uploads_of(state), Rng(3))
    return torch.cat(
        [
            (new.tensors[name] - value).flatten().double()
            for name, value in state.tensors.items()
            if name.startswith("parameters/")
        ]
    )


def test_the_rate_falls_from_round_to_round_down_to_a_last_one(after_one_round):
    """One plain step moves the weights by the rate times a gradient that is the same in all."""
    falling = {"server_steps": 1, "server_lr": 0.1, "round_decay": 0.5, "last_lr": 0.02}
    first = moved(after_one_round, 0, **falling)
    assert float(first.norm()) > 0.01
    for round_, rate in ((1, 0.05), (2, 0.025), (3, 0.02), (9, 0.02)):
        step = moved(after_one_round, round_, **falling)
        torch.testing.assert_close(step, first * rate / 0.1, rtol=1e-3, atol=1e-6)


def test_a_last_rate_above_the_first_leaves_the_first(after_one_round):
    assert fedmk(server_lr=0.01, last_lr=0.5).settings.rate(4) == 0.01


def test_the_second_half_of_a_round_takes_the_decayed_rate(after_one_round):
    """Of two steps the second is server_decay times as long, along the same gradient."""
    rate = {"server_lr": 0.1}
    one = moved(after_one_round, 0, server_steps=1, **rate)
    two = moved(after_one_round, 0, server_steps=2, **rate)
    assert 0.01 < float((two - one).norm()) < 2 * float(one.norm())
    for decay in (0.1, 0.5):
        less = moved(after_one_round, 0, server_steps=2, server_decay=decay, **rate)
        torch.testing.assert_close(less - one, decay * (two - one), rtol=1e-3, atol=1e-6)


def test_without_pseudo_knowledge_the_generator_rests(task, clients):
    algorithm, ledger = fedmk(pseudo=0.0), Ledger()
    ledger.open_round()
    state = algorithm.initialise(task, Rng(0))
    after = algorithm.round(state, clients, ledger, Rng(1))
    for name, value in state.tensors.items():
        if name.startswith("generator/"):
            assert torch.equal(value, after.tensors[name])
    assert not any(name.startswith("adam/") for name in after.tensors)


def uploads_of(state):
    return {
        owner: Message(
            {kind: state.tensors[f"knowledge/{owner}/{kind}"] for kind in ("images", "labels")}
        )
        for owner in range(3)
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda images, labels: (images[:-1], labels),
        lambda images, labels: (images[:-1], labels[:-1]),
        lambda images, labels: (images, labels.flip(0)),
    ],
)
def test_malformed_knowledge_is_refused(task, clients, after_one_round, monkeypatch, spoil):
    algorithm = fedmk()
    honest = algorithm.client_updates

    def update(clients, messages, rngs):
        answers = honest(clients, messages, rngs)
        images, labels = spoil(*answers[0].tensors.values())
        return answers | {0: Message({"images": images, "labels": labels})}

    monkeypatch.setattr(algorithm, "client_updates", update)
    ledger = Ledger()
    ledger.open_round()
    state = algorithm.initialise(task, Rng(0))
    with pytest.raises(UploadError, match="client 0"):
        algorithm.round(state, clients, ledger, Rng(1))
    algorithm.schedule = attrs.evolve(algorithm.schedule, refused="leave_out")
    after = algorithm.round(state, clients, ledger, Rng(1))
    assert list(ledger.rounds[-1]["refused"]) == ["0"]
    assert "knowledge/1/images" in after.tensors and "knowledge/0/images" not in after.tensors
