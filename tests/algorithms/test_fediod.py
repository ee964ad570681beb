"""FedIOD: its steps against one objective written out, what each setting does, and whole runs."""

import functools
import math

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.algorithms import fediod as module
from core.algorithms.fediod import clients as clients_side
from core.algorithms.fediod import scores
from core.algorithms.fediod.scores import ensemble_accuracy
from core.algorithms.fediod.server import generator_from
from core.algorithms.fediod.teachers import teachers, train_teacher
from core.errors import InputError
from core.federation import Ledger, Schedule, UploadError
from core.federation.tensors import take
from core.models import Stacked
from core.rng import Rng
from lab import TableSpec, make_clients, make_task, rounds
from tests.algorithms.on_digits import last_round, on_digits
from tests.algorithms.on_drawings import on_nuclei
from tests.algorithms.on_fediod import agreement, check_gradients, entropy, judged, objective

FAST = {
    "local_steps": 2,
    "distill_steps": 6,
    "distill_batch": 8,
    "noise": 7,
    "generator_width": 4,
    "discriminator_width": 4,
    "scored_images": 20,
}


TINY = on_digits("fediod", FAST, model_options={"width": 4}, rounds=3, evaluate_every=9)


K, B, CLASSES, PIXELS = 3, 8, 10, 64
#: of the authors' code: who learns first, when, and what with
RELEASED = {
    "generator_form": "released",
    "discriminator_norm": "batch",
    "discriminator_first": True,
    "discriminator_rests": True,
}


@pytest.fixture(scope="module")
def handed_out(task):
    """Clients that have trained their teachers."""
    clients = make_clients(TINY, task)
    for client in clients:
        train_teacher(client, fediod().settings, Rng(4).at(client.id))
    return clients


@pytest.fixture
def clients(handed_out):
    return [client.copy() for client in handed_out]


def fediod(**settings):
    return algorithms.create("fediod", FAST | settings, schedule=Schedule(rounds=1))


def play(task, clients, algorithm, steps=1):
    """Server's and clients' side after some steps from the same start."""
    state = algorithm.initialise(task, Rng(0))
    state.tensors.update({f"counts/{client.id}": client.class_counts for client in clients})
    server, side = algorithm.sides(state, clients, Rng(1))
    for step in range(steps):
        list(algorithm.step(server, side, step))
    return server, side


def weights(server, side):
    networks = (server.generator, server.student, *side.judges)
    return [parameter for network in networks for parameter in network.parameters()]


# one step


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"importance": "class_ratio"},
        {"gan_weights": "uniform", "class_ratio": "share", "input_ratio": "real"},
        {"tau": 2.0},
        {"mimic": 0.0},
        {"gan": 0.0, "uniqueness": 0.0},
        {"confidence": 0.0, "uniqueness": 3.0, "mimic": 0.5},
    ],
    ids=str,
)
def test_the_messages_carry_the_gradients_of_the_printed_objective(task, clients, settings):
    """Those of one graph arrive at G, S and D_k; Adam's first step is their sign times lr."""
    before, after = (play(task, clients, fediod(**settings), steps) for steps in (0, 1))
    check_gradients(before, after, fediod(**settings).settings)
    for old, new in zip(weights(*before), weights(*after), strict=True):
        moved, clear = (new - old).detach(), new.grad.abs() > 1e-5
        wanted = -1e-3 * new.grad.sign()
        torch.testing.assert_close(moved[clear], wanted[clear], rtol=0.02, atol=1e-6)


def test_teachers_stay_as_they_are_and_nothing_of_a_network_is_sent(task, clients):
    algorithm = fediod()
    before = [take("teacher/", client.memory) for client in clients]
    server, side = play(task, clients, algorithm, 2)
    sent = {
        f"{message.direction} {name}"
        for message in algorithm.step(server, side, 2)
        for name in message.of(0).tensors
    }
    assert sent == {
        "down images",
        "up logits",
        "up discriminator/generated",
        "up discriminator/real",
        "down gradients/logits",
        "down gradients/generated",
        "up gradients/images",
    }
    for client, tensors in zip(clients, before, strict=True):
        after = take("teacher/", client.memory)
        assert all(torch.equal(after[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("first", [False, True])
def test_the_generators_gradient_is_of_the_discriminator_before_or_after_its_step(
    task, clients, first
):
    """The released game: -log sigmoid(D_k(x)), weighted by pi_k, at the D_k of before or after its step."""
    game = {"gan_loss": "non_saturating", "gan_weighted": "generator", "importance": "class_ratio"}
    algorithm = fediod(**game, discriminator_norm="batch", discriminator_first=first)
    before, after = (play(task, clients, algorithm, steps) for steps in (0, 1))
    # the server's networks from before, and discriminators that have learnt
    answering = (before[0], after[1]) if first else before
    check_gradients(before, after, algorithm.settings, answering)


def moves(side, step):
    """Which discriminators an action moves."""
    before = [[p.clone() for p in judge.parameters()] for judge in side.judges]
    step()
    pairs = zip(before, side.judges, strict=True)
    return [not all(map(torch.equal, old, judge.parameters())) for old, judge in pairs]


def test_a_discriminator_rests_once_it_has_seen_its_clients_images(task, clients):
    """The others' stand still after their last batch, until the largest client's epoch ends."""
    passes = [math.ceil(len(client) / B) for client in clients]
    algorithm = fediod(discriminator_rests=True)
    server, side = play(task, clients, algorithm, 0)
    assert side.epoch == max(passes) > min(passes)
    for step in (0, min(passes) - 1, min(passes), max(passes) - 1, max(passes)):
        moved = moves(side, lambda step=step: list(algorithm.step(server, side, step)))
        assert moved == [step % max(passes) < batches for batches in passes]
    # across a network each client is served alone, so nobody may be awake
    small = min(clients, key=len)
    side = clients_side.ClientsHere([small], algorithm.settings, torch.ones(1), 0.0, Rng(0), 1000)
    images = torch.rand(B, *small.images.shape[1:])
    for step in (min(passes) - 1, min(passes)):
        graph, none = side.judge_only(images, step), clients_side.AnswerGradients()
        moved = moves(side, functools.partial(side.pull_back, graph, none, step))
        assert moved == [step < min(passes)]


# a run


def test_two_architectures_of_teachers(task):
    """Convolutional and residual teachers, dealt out in turn; the student is the task's network."""
    residual = {"model": "resnet8", "width": 4, "grid": 1}
    both = FAST | {"teacher_models": [residual, {"model": "convnet", "width": 4}]}
    experiment = attrs.evolve(TINY, rounds=1, settings=both)
    (result,) = rounds(experiment, task=task)
    networks = teachers(result.clients, experiment.new_algorithm().settings)
    assert Stacked(networks).groups == [[0, 2], [1]]
    kinds = [type(network).__name__ for network in networks]
    assert kinds == ["ResNet8", "ConvNet", "ResNet8"]
    assert type(experiment.new_algorithm().model(result.state)).__name__ == "ConvNet"
    assert math.isfinite(result.metrics["accuracy"])


def test_pretraining_sends_no_logits_and_can_be_cut_anywhere(task):
    """4 steps of pretraining and 6 of distillation in rounds of 3, 3 and 4."""
    experiment = attrs.evolve(TINY, settings=FAST | {"pretrain_steps": 4})
    whole = list(rounds(experiment, task=task))
    pretraining, distilling = 4 * B * PIXELS, 4 * (B * CLASSES + B + 1 + B * PIXELS)
    wanted = [3 * pretraining + CLASSES * 8, pretraining + 2 * distilling, 4 * distilling]
    assert [result.up for result in whole] == [K * size for size in wanted]
    once = last_round(attrs.evolve(experiment, rounds=1), task)
    for name, value in once.state.tensors.items():
        assert torch.equal(value, whole[-1].state.tensors[name]), name
    assert once.metrics["accuracy"] == whole[-1].metrics["accuracy"]
    start = experiment.new_algorithm().initialise(task, Rng(TINY.seed).at("initialise")).tensors
    for name, value in start.items():
        assert torch.equal(value, whole[0].state.tensors[name]) or "student/" not in name


@pytest.mark.parametrize(
    "settings",
    [
        {"gan_lr": 1e30, "student_lr": 1e30, "distill_steps": 30},
        # nothing of the student reaches the clients, so that their answers are sound
        {"student_lr": 1e30, "mimic": 0.0, "student_optimiser": "sgd"},
    ],
)
def test_what_diverges_in_the_middle_of_a_round_is_found_at_its_end(task, clients, settings):
    with pytest.raises(InputError, match="not finite"):
        last_round(TINY, task, clients, **settings)


def test_a_generator_that_makes_one_image_only_is_an_error(task, clients):
    algorithm = fediod()
    state, ledger = algorithm.initialise(task, Rng(0)), Ledger()
    state.tensors["generator/parameters/out.weight"].zero_()
    state.tensors["generator/parameters/out.bias"].fill_(-200.0)
    ledger.open_round()
    with pytest.raises(InputError, match="collapsed before step 6"):
        algorithm.round(state, clients, ledger, Rng(0))


@pytest.fixture(scope="module")
def last(task):
    return last_round(TINY, task)


def test_measures_say_how_the_step_stood(task, clients):
    (server, side), (after, _) = (play(task, clients, fediod(), steps) for steps in (0, 1))
    with torch.no_grad():
        images = server.images(0)
        inputs = task.dataset.standardise(images)
        z = torch.stack([teacher(inputs) for teacher in side.teachers.networks])
        entropies, jsd = agreement(z, [len(client) for client in clients])
        shown = np.average(z.softmax(-1).mean(1), 0, [len(client) for client in clients])
        wanted = {
            "judged_generated": judged(side.judges, [inputs] * K).mean(),
            "judged_real": judged(side.judges, side._real(0)).mean(),
            "teacher_entropy": entropies,
            "teacher_jsd": jsd,
            "synthetic_classes": entropy(torch.from_numpy(shown)).exp(),
            "synthetic_spread": images.std(0, correction=0).max(),
            "student_gap": objective(server, side, fediod().settings)[1],
        }
    assert after.measures() == pytest.approx({k: float(v) for k, v in wanted.items()}, rel=1e-3)
    silent = play(task, clients, fediod(importance="class_ratio"), 1)[0]
    assert "judged_generated" not in silent.measures()


def test_the_ensemble_is_tested_on_real_images(task, clients, monkeypatch):
    """Part by part, each client by its share of a class."""
    for client in clients:  # teachers that know the classes of their clients
        client.memory = {}
        train_teacher(client, fediod(local_steps=30, lr=0.05).settings, Rng(4).at(client.id))
    server, side = play(task, clients, fediod(), 0)
    test, counts = task.dataset.test, torch.stack([c.class_counts for c in clients]).double()
    z = torch.stack([task.outputs(t, test.images).double() for t in side.teachers.networks])

    def right(weights):
        return float((torch.einsum("kc,kmc->mc", weights, z).argmax(1) == test.labels).sum())

    monkeypatch.setattr(scores, "PART", 100)
    number = len(test) * ensemble_accuracy(side, server, test)
    assert number == pytest.approx(right(counts / counts.sum(0)), abs=1)
    assert number != pytest.approx(right(torch.ones_like(counts)), abs=3)


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_ensemble_is_tested_on_the_split_that_tests_the_student(task, monkeypatch, split):
    seen = []
    monkeypatch.setattr(module, "ensemble_accuracy", lambda *given: seen.append(given[2]) or 0.5)
    last_round(attrs.evolve(TINY, rounds=1, evaluate_on=split), task)
    assert len(seen) == 1 and seen[0] is getattr(task.dataset, split)


def test_synthetic_images_are_made_by_the_running_statistics(task, last):
    algorithm = fediod()
    images = algorithm.synthetic(last.state, 5, Rng(0))
    assert images.shape == (5, 1, 8, 8) and images.min() >= 0 and images.max() <= 1
    generator = generator_from(task, algorithm.settings, last.state.tensors).eval()
    noise = torch.randn(5, 7, generator=Rng(0).generator())
    torch.testing.assert_close(images, generator(noise).detach())


@pytest.mark.parametrize(
    ("samples", "settings", "steps"),
    [
        ([130, 5], {}, 3 * 300),
        ([130, 5], {"epoch_of": "smallest"}, 300),
        ([130, 5], {"distill_steps": 7}, 7),
        ([1], {"distill_batch": 4, "distill_epochs": 2}, 2),
    ],
)
def test_an_epoch_is_a_pass_over_one_clients_data(samples, settings, steps):
    assert algorithms.create("fediod", settings).settings.all_steps(samples) == steps


def test_the_rates_fall_along_a_cosine_over_all_rounds(task, monkeypatch):
    """8 steps in 3 rounds, 2 of them without the student; (1 + cos 2x) / 2 = cos^2 x."""
    rates = {"gan_lr": 0.04, "student_lr": 0.5, "student_last_lr": 0.1}
    experiment = attrs.evolve(TINY, settings=FAST | rates | {"pretrain_steps": 2})
    kind, found = algorithms.find("fediod"), []
    plain = kind.step

    def step(self, server, side, now):
        optimisers = server.generator_optimiser, side.optimiser
        before = [one.param_groups[0]["lr"] for one in optimisers]
        found.append([*before, server.student_optimiser.param_groups[0]["lr"]])
        return plain(self, server, side, now)

    monkeypatch.setattr(kind, "step", step)
    list(rounds(experiment, task=task))
    n = np.arange(8)
    gan = 0.04 * np.cos(np.pi / 2 * n / 8) ** 2
    student = 0.1 + 0.4 * np.cos(np.pi / 2 * np.maximum(n - 2, 0) / 6) ** 2
    np.testing.assert_allclose(found, np.stack([gan, gan, student], 1), rtol=1e-12)


def test_printed_and_released_values():
    printed = algorithms.create("fediod").settings
    assert (printed.lr, printed.batch_size, printed.local_epochs) == (0.0025, 16, 500)
    assert (printed.gan_lr, printed.student_lr) == (1e-3, 1e-3)
    assert (printed.distill_batch, printed.distill_epochs, printed.noise) == (64, 300, 100)
    cells = [cell for cell in TableSpec.find("fediod", 1).cells("paper") if cell.published]
    runs = [run for cell in cells for run in cell.experiments]
    assert len(runs) == 3 * len(cells) and {(run.clients, run.model) for run in runs} == {
        (20, "resnet8")
    }
    differing = {
        *("gan_lr", "gan_beta", "gan_loss", "gan_weighted", "uniqueness", "uniqueness_form", "tau"),
        *("student_optimiser", "student_lr", "student_last_lr", "student_weight_decay"),
        *("student_steps", "distill_epochs", "mimic", "balance", "importance"),
        "discriminator_width",
    }
    assert set(algorithms.switches("fediod")) == differing | set(RELEASED)


def test_what_stands_in_the_way_is_told_before_teachers_are_trained(task, monkeypatch, tmp_path):
    """A file that is not Inception's."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    scores.inception_file().parent.mkdir(parents=True)
    scores.inception_file().write_bytes(b"junk")
    with pytest.raises(InputError, match="published weights"):
        fediod(scored_images=10).initialise(task, Rng(0))
    assert fediod(scored_images=0).initialise(task, Rng(0)).tensors


# a conversation across a network


def over_a_network(experiment, task, answers=None):
    """The last result where every step goes by questions, as to clients that are elsewhere."""
    algorithm = experiment.new_algorithm()
    algorithm.remote = True
    if answers:
        algorithm.at_clients = answers(algorithm.at_clients)
    *_, last = rounds(experiment, task=task, algorithm=algorithm)
    return last


SHORT = FAST | {"distill_steps": 3}
REMOTE = {
    "printed": on_digits("fediod", SHORT | {"pretrain_steps": 2, "student_steps": 2}),
    "released": on_digits("fediod", SHORT | RELEASED),
    "label maps": on_nuclei("fediod", SHORT | {"pretrain_steps": 1, "distill_steps": 2}),
}


@pytest.mark.parametrize("experiment", REMOTE.values(), ids=REMOTE)
def test_questions_at_every_step_give_what_the_batched_program_gives(experiment):
    """Clients that keep nothing between two questions but their memory, bit for bit."""
    task = make_task(experiment)
    batched, asked = last_round(experiment, task), over_a_network(experiment, task)
    for name, value in batched.state.tensors.items():
        assert torch.equal(value, asked.state.tensors[name]), name
    rows = [result.row() | {"seconds": None} for result in (batched, asked)]
    assert rows[0] == rows[1]
    assert batched.ledger.total("up") == asked.ledger.total("up")


def test_a_client_that_falls_out_of_the_conversation_is_named(task):
    def without_client_2(plain):
        def answers(call, *given):
            complete = plain(call, *given)
            return {k: v for k, v in complete.items() if k != 2 or call != "pull_back"}

        return answers

    with pytest.raises(UploadError, match="client 2 did not answer in step 0"):
        over_a_network(attrs.evolve(TINY, refused="leave_out"), task, without_client_2)
