"""The runs of a page: what they share, what they keep, and the looks inside them."""

from __future__ import annotations

import attrs
import pytest
import torch

import lab
from core.algorithms import find, switches
from core.condensation import LatentEncoder
from core.errors import InputError
from core.federation import Ledger
from core.rng import Rng
from lab.profiles import apply
from lab.report.lesson import (
    Lesson,
    answers,
    clients_apart,
    condensed,
    learned,
    matching,
    pooled,
    share_right,
    switch_table,
    trained,
    victim,
)


@pytest.fixture(scope="module")
def lesson():
    return Lesson(
        "quick",
        "fedprox",
        dataset="digits",
        alpha=0.1,
        clients=4,
        rounds=2,
        seed=3,
        model_options={"width": 4, "depth": 1},
        settings={"local_steps": 2, "lr": 0.05},
        own={"fedprox": {"mu": 0.5}},
    )


def test_an_experiment_is_what_a_reader_would_ask_for_by_hand(lesson):
    fields = {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "clients": 4,
        "rounds": 2,
        "seed": 3,
        "model_options": {"width": 4, "depth": 1},
    }
    settings = {"local_steps": 2, "lr": 0.05}
    by_hand = {"algorithm": "fedprox", "settings": settings | {"mu": 0.5}, **fields}
    assert lesson.experiment().id == apply("quick", by_hand).id
    by_hand = {"algorithm": "fedavg", "settings": settings | {"lr": 0.1}, **fields}
    assert lesson.experiment("fedavg", lr=0.1).id == apply("quick", by_hand).id
    assert lesson.title == "digits, alpha = 0.1"


def test_a_changed_lesson_keeps_the_rest_and_the_task(lesson):
    other = lesson.but(rounds=1, alpha=5.0)
    changed = {"rounds": 1, "partition": {"name": "dirichlet", "alpha": 5.0}}
    assert other.experiment() == attrs.evolve(lesson.experiment(), **changed)
    assert other.task is lesson.task and lesson.experiment().rounds == 2
    with pytest.raises(InputError, match="model is one for all runs"):
        lesson.but(model="lenet")


def test_a_changed_lesson_puts_settings_of_an_algorithm_on_top_of_its_own(lesson):
    other = lesson.but(own={"fedprox": {"lr": 0.2}, "fedavg": {"lr": 0.3}})
    assert other.experiment().settings == lesson.experiment(lr=0.2).settings
    assert other.experiment().settings["mu"] == 0.5 and lesson.experiment().settings["lr"] == 0.05
    assert other.experiment("fedavg").settings == lesson.experiment("fedavg", lr=0.3).settings


def test_settings_of_an_algorithm_that_is_none_are_refused(lesson):
    with pytest.raises(InputError, match="no algorithm named 'fedprx'; did you mean 'fedprox'"):
        lesson.but(own={"fedprx": {"mu": 1.0}})
    with pytest.raises(InputError, match="no algorithm named 'teacher_models'"):
        lesson.but(own={"teacher_models": []})
    with pytest.raises(InputError, match=r"own must give fedprox a mapping of settings, not 0\.5"):
        lesson.but(own={"fedprox": 0.5})


def test_a_run_keeps_what_the_package_gives_round_by_round(lesson):
    run = lesson.run("fedavg")
    plain = list(lab.rounds(lesson.experiment("fedavg")))
    assert [result.metrics for result in run.results] == [result.metrics for result in plain]
    for name, value in plain[-1].state.tensors.items():
        torch.testing.assert_close(run.state.tensors[name], value, rtol=0, atol=0)
    assert [state.tensors.keys() for state in run.states] == 2 * [run.state.tensors.keys()]
    assert run.accuracy == 100 * plain[-1].metrics["accuracy"]
    assert run.record.bytes["up"] == run.results[-1].ledger.total("up")
    table = run.per_round()
    assert table.index.tolist() == [1, 2] and table.loc[2, "accuracy (%)"] == run.accuracy
    assert table["up (MB)"].sum() * 2**20 == sum(run.record.bytes["up"].values())


def test_the_first_round_begins_at_the_start(lesson):
    run, algorithm = lesson.run(), lesson.experiment().new_algorithm()
    ledger = Ledger()
    ledger.open_round()
    after = algorithm.round(lesson.start(), lesson.members(), ledger, Rng(3).at("round", 1))
    assert after.tensors.keys() == run.states[0].tensors.keys()
    for name, value in after.tensors.items():
        assert torch.equal(value, run.states[0].tensors[name])


def test_a_run_goes_on_with_the_clients_that_it_is_given(lesson):
    people = lesson.members()[:2]
    run = lesson.run("fedavg", clients=people)
    assert run.clients == people
    sent = [r.record.bytes["up"]["parameters"] for r in (run, lesson.run("fedavg"))]
    assert sent[0] * len(lesson.members()) == 2 * sent[1]


def test_members_have_data_and_the_plot_shows_all_clients(lesson):
    pytest.importorskip("matplotlib")
    lonely = lesson.but(partition={"name": "dirichlet", "alpha": 0.005, "min_size": 0}, clients=12)
    members = lonely.members()
    assert all(len(client) for client in members) and len(members) < 12
    figure = lonely.partition_plot()
    assert "12 clients" in figure.get_label() and "has 0 to" in figure.get_label()


def test_pooled_images_know_their_owners(lesson):
    members = lesson.members()
    images, labels, owner = pooled(members)
    for number, client in enumerate(members):
        assert torch.equal(images[owner == number], client.images)
        assert torch.equal(labels[owner == number], client.labels)


def test_scores_are_right_where_the_largest_one_is_that_of_the_label():
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
    assert share_right(scores, torch.tensor([1, 0, 1, 1])) == 75


def test_answers_are_those_of_each_network(lesson):
    networks = [lesson.task.new_model(Rng(k)).eval() for k in range(3)]
    inputs = lesson.task.inputs(lesson.task.dataset.train.images[:700])
    found = answers(networks, inputs)
    assert found.shape[:2] == (3, 700)
    for k, network in enumerate(networks):
        torch.testing.assert_close(found[k], network(inputs).detach(), rtol=1e-4, atol=1e-4)
    assert not found.requires_grad


def test_a_trained_network_knows_what_it_was_shown(lesson):
    train = lesson.task.dataset.train
    inputs, labels = lesson.task.inputs(train.images), train.labels
    fresh, taught = (trained(lesson.task, inputs, labels, n, Rng(0)) for n in (1, 60))
    scores = [
        share_right(lesson.task.outputs(net, train.images), labels) for net in (fresh, taught)
    ]
    assert scores[1] > scores[0] + 20


def test_condensation_starts_at_the_distance_of_mean_features(lesson):
    task, client = lesson.task, max(lesson.members(), key=len)
    model, seen = task.new_model(Rng(1)).eval(), []
    pictures, labels, losses = condensed(
        task,
        model,
        client.images,
        client.labels,
        2,
        Rng(5),
        watch=lambda step, images: seen.append(images.clone()),
        iterations=3,
        image_lr=1.0,
    )
    held = client.labels.unique()
    assert labels.tolist() == held.repeat_interleave(2).tolist()
    assert len(seen) == len(losses) == 3 and pictures.shape == seen[0].shape
    assert losses[-1] < losses[0]
    # by hand: Eq. 2 of FedVCK, both sides under the statistics of the real images
    eye = LatentEncoder(model)
    real, statistics = eye(task.inputs(client.images), torch.zeros_like(client.labels))
    made, _ = eye(seen[0], torch.zeros_like(labels), statistics)
    gaps = [
        (real[client.labels == c].mean(0) - made[labels == c].mean(0)).square().sum() for c in held
    ]
    assert losses[0].item() == pytest.approx(torch.stack(gaps).mean().item(), rel=0.02)


def test_images_teach_what_networks_trained_by_hand_know(lesson):
    task, (train, test) = lesson.task, (lesson.task.dataset.train, lesson.task.dataset.test)
    inputs, labels = task.inputs(train.images[:100]), train.labels[:100]
    found = learned(task, inputs, labels, 20, Rng(2), networks=2)
    scores = []
    for k in range(2):
        network = trained(task, inputs, labels, 20, Rng(2).at("pupil", k))
        guesses = task.outputs(network, test.images).argmax(1)
        scores.append(100 * sum(map(torch.equal, guesses, test.labels)) / len(guesses))
    low, high = sorted(float(score) for score in scores)
    assert low < high and found["images"] == 100
    assert found["accuracy (%)"] == pytest.approx((low + high) / 2, abs=1e-3)
    assert found["std"] == pytest.approx((high - low) / 2**0.5, abs=1e-3)


def test_matching_starts_from_noise_for_each_class_that_is_held(lesson):
    train = lesson.task.dataset.train
    odd = train.labels % 2 == 1
    at = matching(
        lesson.task,
        lesson.task.new_model(Rng(1)),
        train.images[odd],
        train.labels[odd],
        3,
        Rng(4),
        iterations=7,
    )
    assert at.labels.tolist() == [c for c in (1, 3, 5, 7, 9) for _ in range(3)]
    assert at.group.tolist() == [k for k in range(5) for _ in range(3)]
    assert at.start.shape == (15, *train.images.shape[1:])
    assert abs(at.start.mean()) < 0.15 and abs(at.start.std() - 1) < 0.15


def test_a_network_under_attack_bends(lesson):
    network = victim(lesson.task, Rng(2))
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(network.double()(x).square().sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.square().sum(), x)
    assert bend.abs().max() > 0 and max(w.abs().max() for w in network.parameters()) > 1 / 3


def test_switches_are_all_that_the_released_code_changes():
    settings = find("fedvck").Settings
    pairs = switches("fedvck")
    assert (
        pairs
        and attrs.evolve(settings(), **{k: v[1] for k, v in pairs.items()}) == settings.released()
    )
    assert all(default == getattr(settings(), name) for name, (default, _) in pairs.items())
    table = switch_table({"a": (None, 2), "b": ("x", "y")}, {"a": "Eq. 1"}, {None: "none"})
    assert table.loc["a"].tolist() == ["Eq. 1", "none", "2"]
    assert table.loc["b"].tolist() == ["", "x", "y"]


def test_pictures_are_the_images_that_network_inputs_stand_for(lesson):
    images = lesson.task.dataset.test.images[:5]
    inputs = lesson.task.inputs(images)
    assert torch.equal(lesson.as_images(inputs.double()), images)
    assert lesson.as_images(inputs - 100).max() == 0 and lesson.as_images(inputs + 100).min() == 255


def test_clients_apart_compares_clients_with_classes():
    # client 0 has class 0 at (0, 0) and (0, 2), its mean at (0, 1), and class 1 at (4, 1);
    # client 1 has both one higher; client 2 has class 1 alone, three higher
    points = [(0.0, 0.0), (0, 2), (4, 1), (0, 2), (4, 2), (4, 4)]
    labels, owner = torch.tensor([0, 0, 1, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 2])
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    found = clients_apart(torch.tensor(points)[order], labels[order], owner[order])
    assert found == pytest.approx(100 * ((1 + 1 + 2 + 3) / 4) / ((4 + 4) / 2))
