"""FedIOD from its first round to its last: architectures, bytes, rates, and what can go wrong."""

import math

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.algorithms import fediod as module
from core.algorithms.fediod import scores
from core.algorithms.fediod.scores import ensemble_accuracy
from core.algorithms.fediod.server import generator_from
from core.algorithms.fediod.teachers import teachers
from core.errors import InputError
from core.federation import Ledger
from core.models import Stacked
from core.rng import Rng
from lab import TableSpec, make_clients, rounds
from tests.algorithms import fediod_on_digits
from tests.algorithms.fediod_on_digits import (
    CLASSES,
    FAST,
    PIXELS,
    RELEASED,
    TINY,
    B,
    K,
    fediod,
    play,
)

handed_out, clients = fediod_on_digits.handed_out, fediod_on_digits.clients


def test_two_architectures_of_teachers(task):
    """Convolutional and residual teachers, dealt out in turn; the student is the task's network."""
    experiment = attrs.evolve(
        TINY,
        rounds=1,
        settings=FAST
        | {
            "teacher_models": [
                {"model": "resnet8", "width": 4, "grid": 1},
                {"model": "convnet", "width": 4},
            ]
        },
    )
    clients = make_clients(experiment, task)
    (result,) = rounds(experiment, task=task, clients=clients)
    settings = experiment.new_algorithm().settings
    assert Stacked(teachers(clients, settings)).groups == [[0, 2], [1]]
    kinds = [type(network).__name__ for network in teachers(clients, settings)]
    assert kinds == ["ResNet8", "ConvNet", "ResNet8"]
    assert type(experiment.new_algorithm().model(result.state)).__name__ == "ConvNet"
    assert math.isfinite(result.metrics["accuracy"])


def test_the_number_of_rounds_only_cuts_the_same_distillation(task):
    (once,) = rounds(attrs.evolve(TINY, rounds=1), task=task)
    *_, parts = rounds(attrs.evolve(TINY, rounds=4), task=task)  # 6 steps in 1 + 2 + 1 + 2
    for name, value in once.state.tensors.items():
        assert torch.equal(value, parts.state.tensors[name]), name
    assert once.metrics["accuracy"] == parts.metrics["accuracy"]
    for direction in ("up", "down"):
        assert (
            once.ledger.total(direction)["gradients"] == parts.ledger.total(direction)["gradients"]
        )


@pytest.mark.parametrize(
    ("settings", "up", "down"),
    [
        ({}, B * CLASSES + B + 1 + B * PIXELS, B * PIXELS + B * CLASSES + B),
        ({"importance": "class_ratio"}, B * CLASSES + B * PIXELS, B * PIXELS + B * CLASSES),
        (
            {"confidence": 0.0, "uniqueness": 0.0, "mimic": 0.0},
            B * CLASSES + B + 1 + B * PIXELS,
            B * PIXELS,
        ),
        (
            {"gan": 0.0, "importance": "class_ratio"},
            B * CLASSES + B * PIXELS,
            B * PIXELS + B * CLASSES,
        ),
        (
            {"student_steps": 3, "importance": "class_ratio"},
            4 * B * CLASSES + B * PIXELS,
            4 * B * PIXELS + B * CLASSES,
        ),
    ],
    ids=str,
)
def test_bytes_by_arithmetic(task, settings, up, down):
    """Numbers of 4 bytes in a step, for each of 3 clients and 6 steps; class counts once, weights
    as JSON.
    """
    results = list(rounds(attrs.evolve(TINY, settings=FAST | settings), task=task))
    ledger = results[-1].ledger
    assert [result.up for result in results] == [
        2 * K * 4 * up + (K * CLASSES * 8 if n == 0 else 0) for n in range(3)
    ]
    assert sum(v for kind, v in ledger.total("down").items() if kind != "meta") == 6 * K * 4 * down
    assert ledger.total("up").get("counts") == K * CLASSES * 8 and set(ledger.total("up")) <= {
        "counts",
        "logits",
        "discriminator",
        "gradients",
    }


def test_pretraining_sends_no_logits_and_can_be_cut_anywhere(task, tmp_path):
    """4 steps of pretraining and 6 of distillation in rounds of 3, 3 and 4; the second round has
    both kinds.
    """
    experiment = attrs.evolve(TINY, settings=FAST | {"pretrain_steps": 4})
    whole = list(rounds(experiment, task=task))
    pretraining, distilling = 4 * B * PIXELS, 4 * (B * CLASSES + B + 1 + B * PIXELS)
    assert [result.up - (K * CLASSES * 8 if n == 0 else 0) for n, result in enumerate(whole)] == [
        K * 3 * pretraining,
        K * (pretraining + 2 * distilling),
        K * 4 * distilling,
    ]
    (once,) = rounds(attrs.evolve(experiment, rounds=1), task=task)
    assert all(
        torch.equal(value, whole[-1].state.tensors[name])
        for name, value in once.state.tensors.items()
    )
    student = {
        name: value
        for name, value in experiment.new_algorithm()
        .initialise(task, Rng(TINY.seed).at("initialise"))
        .tensors.items()
        if name.startswith("student/")
    }
    assert all(torch.equal(value, whole[0].state.tensors[name]) for name, value in student.items())


def test_nan_in_the_middle_of_a_round_is_found_at_its_end(task, clients):
    """The first step is sound, then the learning rate throws everything out of range."""
    with pytest.raises(InputError, match="not finite"):
        list(
            rounds(
                attrs.evolve(
                    TINY, settings=FAST | {"gan_lr": 1e30, "student_lr": 1e30, "distill_steps": 30}
                ),
                task=task,
                clients=clients,
            )
        )


def test_a_student_that_diverges_alone_is_found(task, clients):
    """The clients' answers are sound: nothing of the student reaches them."""
    settings = FAST | {"student_lr": 1e30, "mimic": 0.0, "student_optimiser": "sgd"}
    with pytest.raises(InputError, match=r"round 1 left 'student/.*not finite"):
        list(rounds(attrs.evolve(TINY, settings=settings), task=task, clients=clients))


def test_a_generator_that_makes_one_image_only_is_an_error(task, clients):
    algorithm = fediod()
    state = algorithm.initialise(task, Rng(0))
    state.tensors["generator/parameters/out.weight"].zero_()
    state.tensors["generator/parameters/out.bias"].fill_(-200.0)
    ledger = Ledger()
    ledger.open_round()
    with pytest.raises(InputError, match="collapsed before step 6"):
        algorithm.round(state, clients, ledger, Rng(0))


def test_measures_say_how_the_last_step_stood(task):
    *_, last = rounds(TINY, task=task)
    assert 0 <= last.metrics["teacher_entropy"] <= math.log(CLASSES)
    assert 0 <= last.metrics["teacher_jsd"] <= math.log(K)
    assert 1 <= last.metrics["synthetic_classes"] <= CLASSES
    assert 1 <= last.metrics["adapted_inception_score"] <= CLASSES
    assert 0 < last.metrics["synthetic_spread"] <= 0.5 and last.metrics["student_gap"] > 0


def test_the_ensemble_is_tested_on_real_images(task, clients, monkeypatch):
    server, side = play(task, clients, fediod(), 0)
    test, draw = task.dataset.test, np.random.default_rng(0)
    n = np.array([client.class_counts.numpy() for client in clients], dtype=float)
    # teachers that know the classes of which they have 50 images, and guess at others
    known = np.eye(CLASSES)[test.labels.numpy()] * (n[:, None] > 50)
    z = known + draw.normal(size=(K, len(test), CLASSES))

    class ClientsSide:
        def logits(self, images: torch.Tensor, part: int) -> torch.Tensor:
            first = 100 * (part - 1)
            assert torch.equal(images * 255, test.images[first : first + 100].float())
            return torch.tensor(z[:, first : first + 100]).float()

    def right(weights: np.ndarray) -> float:
        said = np.einsum("kc,kmc->mc", weights, z).argmax(1)
        return float((said == test.labels.numpy()).mean())

    monkeypatch.setattr(scores, "PART", 100)
    found = ensemble_accuracy(ClientsSide(), server, test)
    assert found == pytest.approx(right(n / n.sum(0)), abs=2 / len(test))
    assert found > right(np.ones_like(n) / K) + 4 / len(test)
    # the teachers themselves are asked in the same way
    asked = side.logits(test.images.float() / 255)
    theirs = [task.outputs(one, test.images) for one in side.teachers.networks]
    torch.testing.assert_close(asked, torch.stack(theirs), rtol=1e-3, atol=1e-3)
    *_, last = rounds(TINY, task=task)
    assert 0 <= last.metrics["ensemble_accuracy"] <= 1


def test_measures_say_what_the_discriminators_said(task, clients):
    server, side = play(task, clients, fediod(), 0)
    with torch.no_grad():
        fake, real = (
            torch.stack(
                [1 - judge(x).sigmoid().mean() for judge, x in zip(side.judges, those, strict=True)]
            )
            .mean()
            .item()
            for those in ([task.dataset.standardise(server.images(0))] * K, side._real(0))
        )
    found = play(task, clients, fediod(), 1)[0].measures()
    assert found["judged_generated"] == pytest.approx(fake, rel=1e-4)
    assert found["judged_real"] == pytest.approx(real, rel=1e-4)
    assert not any(
        name.startswith("judged")
        for name in play(task, clients, fediod(importance="class_ratio"), 1)[0].measures()
    )


def test_synthetic_images(task):
    *_, last = rounds(TINY, task=task)
    algorithm = TINY.new_algorithm()
    images = algorithm.synthetic(last.state, 5, Rng(0))
    assert images.shape == (5, 1, 8, 8) and images.min() >= 0 and images.max() <= 1
    assert torch.equal(images[:2], algorithm.synthetic(last.state, 5, Rng(0))[:2])
    # by the running statistics
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
    """8 steps in 3 rounds, 2 of them pretraining; (1 + cos 2x) / 2 = cos^2 x. G and D_k fall from
    the first step on, the student from the first of its own.
    """
    rates = {"gan_lr": 0.04, "gan_last_lr": 0.01, "student_lr": 0.5, "student_last_lr": 0.1}
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
    gan = 0.01 + 0.03 * np.cos(np.pi / 2 * n / 8) ** 2
    student = 0.1 + 0.4 * np.cos(np.pi / 2 * np.maximum(n - 2, 0) / 6) ** 2
    np.testing.assert_allclose(found, np.stack([gan, gan, student], 1), rtol=1e-12)


def test_printed_and_released_values():
    printed, released = (
        algorithms.create("fediod", variant=variant).settings for variant in ("printed", "released")
    )
    assert (printed.lr, printed.batch_size, printed.local_epochs) == (0.0025, 16, 500)
    assert (
        printed.gan_lr,
        printed.student_lr,
        printed.gan_last_lr,
        printed.distill_batch,
        printed.distill_epochs,
        printed.noise,
    ) == (1e-3, 1e-3, 0, 64, 300, 100)
    cells = [cell for cell in TableSpec.find("fediod", 1).cells("paper") if cell.published]
    assert {len(cell.experiments) for cell in cells} == {3}
    runs = [run for cell in cells for run in cell.experiments]
    assert {(run.clients, run.model) for run in runs} == {(20, "resnet8")}
    differing = {
        field.name
        for field in attrs.fields(type(printed))
        if getattr(printed, field.name) != getattr(released, field.name)
    }
    assert differing == {
        "gan_lr",
        "gan_beta",
        "student_optimiser",
        "student_lr",
        "student_last_lr",
        "student_weight_decay",
        "student_steps",
        "distill_epochs",
        "uniqueness",
        "mimic",
        "balance",
        "gan_loss",
        "gan_weighted",
        "uniqueness_form",
        "tau",
        "importance",
        "discriminator_width",
        *RELEASED,
    }


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_ensemble_is_tested_on_the_split_that_tests_the_student(task, monkeypatch, split):
    seen = []
    monkeypatch.setattr(
        module, "ensemble_accuracy", lambda side, server, images: seen.append(images) or 0.5
    )
    list(rounds(attrs.evolve(TINY, rounds=1, evaluate_on=split), task=task))
    assert len(seen) == 1 and seen[0] is getattr(task.dataset, split)


def test_what_stands_in_the_way_is_told_before_teachers_are_trained(task, monkeypatch, tmp_path):
    """A misspelt option of the second teacher; a file that is not Inception's."""
    wrong = [{"model": "convnet", "width": 4}, {"model": "convnet", "widht": 4}]
    with pytest.raises(InputError, match="widht"):
        fediod(teacher_models=wrong).initialise(task, Rng(0))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    place = scores.inception_file()
    place.parent.mkdir(parents=True)
    place.write_bytes(b"junk")
    with pytest.raises(InputError, match="published weights"):
        fediod(scored_images=10).initialise(task, Rng(0))
    assert fediod(scored_images=0).initialise(task, Rng(0)).tensors
