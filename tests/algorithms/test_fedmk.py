"""FedMK: sharing, weights, what is sent, pseudo knowledge and its generator, and rates that fall."""

import attrs
import pytest
import torch

from core import algorithms, server
from core.algorithms import fedmk as module
from core.algorithms.fedmk import draw_pseudo
from core.data import Split
from core.errors import InputError
from core.families import generative
from core.families.generative import feature_generator
from core.federation import Message
from core.models import count_parameters
from core.rng import Rng
from lab import make_clients
from tests.algorithms.on_digits import after_rounds, last_round, on_digits

SHORT = {
    "images_per_class": 2,
    "iterations": 2,
    "inner_batch": 8,
    "real_batch": 8,
    "server_steps": 3,
    "generator_steps": 2,
}
TINY = on_digits("fedmk", SHORT, model_options={}, model="lenet", clients=4, active=3, rounds=3)


def fedmk(**settings):
    return algorithms.create("fedmk", SHORT | settings)


@pytest.fixture(scope="module")
def clients(task):
    return make_clients(TINY, task)


@pytest.fixture(scope="module")
def after_one_round(task, clients):
    return after_rounds(fedmk(), task, clients[:3])[0]


def sources(algorithm, clients, state):
    """What clients start from, without running the extraction."""
    model = state.task.model_from(state.tensors)
    return [
        algorithm.problem(
            client, algorithm.broadcast(state, client.id), model, Rng(7).at(client.id)
        )
        for client in clients
    ]


def kinds(message):
    return {name.split("/")[0] for name in message.tensors}


def test_the_first_round_starts_from_uniform_noise(task, clients):
    algorithm = fedmk(images_per_class=50)
    state = algorithm.initialise(task, Rng(0))
    assert kinds(algorithm.broadcast(state, 0)) == {"parameters", "buffers"}
    for client, source in zip(clients, sources(algorithm, clients, state), strict=True):
        start = source.knowledge
        # U[-1, 1]: mean 0, variance 1/3
        assert float(start.abs().max()) <= 1 and abs(float(start.mean())) < 0.02
        assert float(start.var()) == pytest.approx(1 / 3, abs=0.02)
        own = client.labels.unique()
        assert torch.equal(source.knowledge_labels, own.repeat_interleave(50))


def test_later_rounds_start_from_another_client_of_the_last_round(clients, after_one_round):
    """What the other client knows is taken over, the rest is noise; nobody gets his own."""
    state, algorithm, given = after_one_round, fedmk(), set()
    for number in range(20):
        state = attrs.evolve(state, meta=state.meta | {"round": number})
        for client, source in zip(clients, sources(algorithm, clients, state), strict=True):
            message = algorithm.broadcast(state, client.id).tensors
            (owner,) = [
                owner
                for owner in range(3)
                if message["images"] is state.tensors[f"knowledge/{owner}/images"]
            ]
            given.add((client.id, owner))
            for label in source.knowledge_labels.unique():
                own, theirs = source.knowledge_labels == label, message["labels"] == label
                start, shared = source.knowledge[own], message["images"][theirs]
                assert (theirs.any() and torch.equal(start, shared)) == theirs.any()
    assert given == {(k, other) for k in range(4) for other in range(3) if k != other}


def test_without_sharing_nothing_but_the_model_is_sent(clients, after_one_round):
    algorithm = fedmk(sharing=False)
    assert kinds(algorithm.broadcast(after_one_round, 0)) == {"parameters", "buffers"}
    for source in sources(algorithm, clients, after_one_round):
        assert float(source.knowledge.abs().max()) <= 1


def test_real_images_that_are_not_moved_are_sent_as_they_are(task, clients):
    """Of 50, more than a client has, each image is there as often as every other, up to one."""
    algorithm, client = (
        fedmk(init="real", sharing=False, iterations=0, images_per_class=50),
        clients[0],
    )
    state = algorithm.initialise(task, Rng(0))
    real = task.inputs(client.images).flatten(1)
    messages = {client.id: algorithm.broadcast(state, client.id)}
    sent = algorithm.client_updates([client], messages, [Rng(0)])[client.id].tensors
    same = (sent["images"].flatten(1)[:, None] == real[None]).all(-1)
    assert same.any(1).all()  # every one is a real image
    for c in client.labels.unique():
        drawn = same[sent["labels"] == c][:, client.labels == c].sum(0)
        assert int(drawn.sum()) == 50 and int(drawn.max() - drawn.min()) <= 1


def test_all_classes_can_be_made_but_not_from_images_that_a_client_lacks(task, clients):
    assert not clients[0].class_counts.all()
    state = fedmk().initialise(task, Rng(0))
    for source in sources(fedmk(classes="all"), clients, state):
        assert torch.equal(source.knowledge_labels, torch.arange(10).repeat_interleave(2))
    with pytest.raises(InputError, match="client 0 lacks a class"):
        sources(fedmk(classes="all", init="real"), clients, state)


def test_weights_come_from_the_received_model(task, clients):
    state, client = fedmk().initialise(task, Rng(0)), clients[0]
    logits = task.outputs(task.model_from(state.tensors), client.images).double()
    right = logits[torch.arange(len(client)), client.labels]
    loss, counts = logits.exp().sum(1).log() - right, client.class_counts
    wanted = {
        "dynamic": 1 / (1 + (-5 * loss).exp()),
        "uniform": torch.ones(len(client)).double(),
        "class_balanced": len(client) / ((counts > 0).sum() * counts[client.labels]).double(),
    }
    for name, values in wanted.items():
        (source,) = sources(fedmk(weights=name), [client], state)
        torch.testing.assert_close(source.weights.double(), values, rtol=1e-4, atol=1e-5)


def test_the_federation_of_comparison_draws_for_itself_and_changes_nothing(task):
    """It draws noise of its own: with the other's a set would have no distance."""
    pytest.importorskip("ot")
    run, distances = attrs.evolve(TINY, rounds=1), []
    plain = last_round(run, task)
    assert "emd" not in plain.metrics
    for size in (1, 2):
        last = last_round(run, task, compare_size=size)
        distances.append(last.metrics["emd"])
        assert (last.up, last.down) == (plain.up, plain.down)
        assert last.metrics["accuracy"] == plain.metrics["accuracy"]
    assert distances[1] > distances[0] / 2 > 0.1


def test_the_costs_that_the_appendix_prints(task):
    """627.2 K up, 1,677.2 K down, 16 M against FedAvg's 420 M: 10 active clients, MNIST's shape."""
    train = task.dataset.train
    wide = train.images.repeat(1, 1, 4, 4)[..., :28, :28].contiguous()
    split = Split(wide, train.labels)
    dataset = attrs.evolve(task.dataset, train=split, test=split, val=split)
    large = attrs.evolve(task, dataset=dataset)
    clients = make_clients(attrs.evolve(TINY, clients=10, partition={"name": "iid"}), large)
    short = {"iterations": 1, "server_steps": 1}
    _, ledger = after_rounds(fedmk(images_per_class=20, classes="all", **short), large, clients, 2)
    up, down = ledger.rounds[-1]["up"], ledger.rounds[-1]["down"]
    assert "images" not in ledger.rounds[0]["down"]  # nothing to share yet
    # of ONE client with ten classes, as printed
    assert up == {"images": 10 * 627_200, "labels": 10 * 200}
    assert down["images"] == 10 * 627_200
    # the printed model of 105 K is 26,434 float32 numbers, 0.7% more
    assert down["parameters"] == 10 * 4 * count_parameters(large.new_model(Rng(0))) == 10 * 105_736
    # the printed download counts the knowledge once and the model ten times; 16 M is ten times that
    assert down["images"] / 10 + down["parameters"] == pytest.approx(1_677_200, rel=0.005)
    # FedAvg sends the model in both directions
    assert 200 * 2 * down["parameters"] == pytest.approx(420e6, rel=0.01)


# the server


def test_beta_is_the_share_of_pseudo_knowledge(task, after_one_round, monkeypatch):
    """One full-batch step by hand: the gradient of L(D^) + beta L(D^_pseudo), beta = |pseudo| /
    |uploaded|.
    """
    one = {"server_steps": 1, "server_batch": 10_000, "server_lr": 0.1}
    algorithm = fedmk(pseudo=0.5, server_momentum=0.0, server_weight_decay=0.0, **one)
    uploads, seen, sample = uploads_of(after_one_round), [], module.draw_pseudo
    monkeypatch.setattr(
        module, "draw_pseudo", lambda *given: seen.append(sample(*given)) or seen[-1]
    )
    state = after_one_round
    new = algorithm.server_update(state, uploads, Rng(3))
    ((features, classes),) = seen
    x, y = (
        torch.cat([upload.tensors[kind] for upload in uploads.values()])
        for kind in ("images", "labels")
    )
    assert len(classes) == round(0.5 * len(y)) and not features.requires_grad
    model, entropy = task.model_from(state.tensors).train(), torch.nn.functional.cross_entropy
    pseudo = entropy(model.classifier(features), classes)
    (entropy(model(x), y.long()) + len(classes) / len(y) * pseudo).backward()
    for name, w in model.named_parameters():
        wanted = w.detach() - 0.1 * w.grad
        torch.testing.assert_close(new.tensors[f"parameters/{name}"], wanted, rtol=1e-3, atol=1e-5)


def test_pseudo_knowledge_comes_by_the_generators_running_statistics(task):
    """Features (n, D) of z ~ N(0, 1) and of classes in the shares of the uploaded labels."""
    generator, labels = feature_generator(task, 12, Rng(0)).train(), torch.tensor([2, 2, 7])
    features, classes = draw_pseudo(generator, labels, 300, Rng(1))
    draws = Rng(1).at("draws").generator()
    server.draw_labels(torch.bincount(labels, minlength=10).float(), 300, draws)
    noise = server.draw_noise("normal", (300, generator.noise), draws)
    torch.testing.assert_close(features, generator.eval()(noise, classes))
    assert set(classes.tolist()) == {2, 7} and 170 < int((classes == 2).sum()) < 230


def test_the_generator_learns_against_the_model_that_the_round_began_with(
    task, after_one_round, monkeypatch
):
    """Algorithm 1: the generator first; Eq. 10 with the classes in the shares of the uploads."""
    state, seen, uploads = after_one_round, [], uploads_of(after_one_round)
    model, classes = task.model_from(state.tensors), torch.tensor([3, 0, 9])
    features = torch.randn(3, model.feature_size, generator=torch.Generator().manual_seed(0))

    def trained(generator, tensors, loss, distribution, *rest):
        seen.extend([tensors, distribution, loss(features, classes, features)])
        return {}

    monkeypatch.setattr(generative, "trained", trained)
    fedmk().server_update(state, uploads, Rng(3))
    tensors, distribution, loss = seen
    assert tensors is state.tensors  # Adam goes on
    labels = torch.cat([one.tensors["labels"] for one in uploads.values()])
    assert distribution.tolist() == torch.bincount(labels, minlength=10).tolist()
    wanted = torch.nn.functional.cross_entropy(model.classifier(features), classes)
    torch.testing.assert_close(loss, wanted.detach())


def moved(state, t, **settings):
    """How the server's plain steps without pseudo knowledge move the weights, as one vector."""
    state = attrs.evolve(state, meta=state.meta | {"round": t})
    new = fedmk(pseudo=0.0, **settings).server_update(state, uploads_of(state), Rng(3))
    names = [name for name in state.tensors if name.startswith("parameters/")]
    return torch.cat([(new.tensors[name] - state.tensors[name]).flatten() for name in names])


def test_the_rate_falls_from_round_to_round_down_to_a_last_one(after_one_round):
    """One plain step moves the weights by the rate times a gradient that is the same in all."""
    falling = {"server_steps": 1, "server_lr": 0.1, "round_decay": 0.5, "last_lr": 0.02}
    first = moved(after_one_round, 0, **falling)
    assert float(first.norm()) > 0.01
    for round_, rate in ((1, 0.05), (2, 0.025), (3, 0.02), (9, 0.02)):
        step = moved(after_one_round, round_, **falling)
        torch.testing.assert_close(step, first * rate / 0.1, rtol=1e-3, atol=1e-6)
    assert fedmk(server_lr=0.01, last_lr=0.5).settings.rate(4) == 0.01


def test_the_second_half_of_a_round_takes_the_decayed_rate(after_one_round):
    """Of two steps the second is server_decay times as long, along the same gradient."""
    rate = {"server_lr": 0.1}
    one = moved(after_one_round, 0, server_steps=1, **rate)
    two = moved(after_one_round, 0, server_steps=2, **rate)
    assert 0.01 < float((two - one).norm()) < 2 * float(one.norm())
    less = moved(after_one_round, 0, server_steps=2, server_decay=0.1, **rate)
    torch.testing.assert_close(less - one, 0.1 * (two - one), rtol=1e-3, atol=1e-6)


def test_without_pseudo_knowledge_the_generator_rests(after_one_round):
    state = after_one_round
    after = fedmk(pseudo=0.0).server_update(state, uploads_of(state), Rng(1))
    for name, value in after.tensors.items():
        if name.startswith(("generator/", "adam/")):
            assert torch.equal(value, state.tensors[name]), name


def uploads_of(state):
    return {
        owner: Message(
            {kind: state.tensors[f"knowledge/{owner}/{kind}"] for kind in ("images", "labels")}
        )
        for owner in range(3)
    }


def test_the_next_client_can_start_from_what_is_accepted(after_one_round):
    algorithm, (first, *_) = fedmk(), uploads_of(after_one_round).values()
    labels = first.tensors["labels"]
    assert algorithm.upload_fault(first) is None
    for wrong in (labels.flip(0), labels[1:]):
        fault = algorithm.upload_fault(Message(first.tensors | {"labels": wrong}))
        assert "2 images of a class, sorted by class" in fault
