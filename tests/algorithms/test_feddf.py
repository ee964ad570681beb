"""FedDF against FedAvg, against the ensemble computed by hand, and where it stops."""

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.baselines import feddf
from core.errors import InputError
from core.families import public_images as public
from core.federation import Runtime, pack
from core.federation.tensors import unpack
from core.rng import Rng
from lab import make_clients, make_task, rounds
from tests.algorithms.on_digits import accuracy_after, on_digits

SMALL = {"auxiliary": "photographs", "pool": 120, "distill_steps": 3, "distill_batch": 32}
TINY = on_digits(
    "feddf",
    {"local_steps": 2, "batch_size": 16, "momentum": 0.9, "lr": 0.01} | SMALL,
    alpha=0.3,
    model_options={"width": 8, "depth": 2},
    clients=4,
    rounds=3,
)


@pytest.fixture(scope="module")
def round_one(task):
    """A state and the uploads of its clients."""
    algorithm = algorithms.create("feddf", TINY.settings)
    state = algorithm.initialise(task, Rng(0))
    clients = make_clients(TINY, task)
    return state, {
        c.id: algorithm.client_update(c, algorithm.broadcast(state, c.id), Rng(c.id))
        for c in clients
    }


def test_without_distillation_it_is_fedavg_bit_for_bit(task):
    settings = TINY.settings | {"distill_steps": 0}
    local = {key: settings[key] for key in ("local_steps", "batch_size", "momentum", "lr")} | {
        "weight_decay": 0.0
    }
    runs = [
        list(rounds(attrs.evolve(TINY, algorithm=name, settings=chosen), task=task))
        for name, chosen in (("feddf", settings), ("fedavg", local))
    ]
    for ours, theirs in zip(*runs, strict=True):
        assert ours.row() | {"seconds": 0} == theirs.row() | {"seconds": 0}
        assert all(
            torch.equal(ours.state.tensors[name], w) for name, w in theirs.state.tensors.items()
        )


def test_its_traffic_is_that_of_fedavg(task):
    ours, theirs = (
        next(rounds(attrs.evolve(TINY, algorithm=name, settings=chosen), task=task))
        for name, chosen in (("feddf", TINY.settings), ("fedavg", {"local_steps": 2}))
    )
    assert (ours.up, ours.down) == (theirs.up, theirs.down)


def test_the_ensemble_is_the_plain_mean_of_logits_and_the_start_is_fedavgs_average(
    task, round_one, monkeypatch
):
    seen = {}

    def catch(task, student, images, targets, *rest):
        seen.update(
            student={n: w.clone() for n, w in student.named_parameters()},
            images=images,
            targets=targets,
        )

    monkeypatch.setattr(public, "mimic", catch)
    state, uploads = round_one
    algorithms.create("feddf", TINY.settings).server_update(state, uploads, Rng(5))
    one_by_one = [
        task.outputs(task.model_from(upload.tensors), seen["images"]).double()
        for upload in uploads.values()
    ]
    torch.testing.assert_close(
        seen["targets"].double(), sum(one_by_one) / len(one_by_one), rtol=1e-5, atol=1e-5
    )
    samples = [upload.meta["samples"] for upload in uploads.values()]
    assert len(set(samples)) > 1  # so that the two kinds of mean differ
    for name, w in seen["student"].items():
        average = sum(
            n / sum(samples) * u.tensors[f"parameters/{name}"].double()
            for n, u in zip(samples, uploads.values(), strict=True)
        )
        torch.testing.assert_close(w.double(), average, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_the_divergence_in_closed_form():
    """d KL(sigma(t) || sigma(s)) / ds = (sigma(s) - sigma(t)) / N; at a temperature T the same over
    T.
    """
    numbers = Rng(0).numpy().normal(size=(2, 5, 4))
    for temperature in (1.0, 3.0):
        student = torch.tensor(numbers[0], requires_grad=True)
        algorithm = algorithms.create("feddf", {"temperature": temperature})
        algorithm._divergence(student, torch.tensor(numbers[1])).backward()
        soft = [
            np.exp(z / temperature) / np.exp(z / temperature).sum(1, keepdims=True) for z in numbers
        ]
        assert np.allclose(student.grad.numpy(), (soft[0] - soft[1]) / 5 / temperature, atol=1e-9)


def test_distillation_brings_a_student_closer_to_the_ensemble(task):
    algorithm = algorithms.create(
        "feddf", {"distill_steps": 30, "distill_batch": 32, "distill_lr": 0.01}
    )
    images = public.public_images(task, algorithm.settings)[:200]
    ensemble = task.outputs(task.new_model(Rng(1)), images) * 5
    student = task.new_model(Rng(2))
    before = algorithm._divergence(task.outputs(student, images), ensemble)
    algorithm._distil(task, student, images, ensemble, Rng(3))
    assert algorithm._divergence(task.outputs(student, images), ensemble) < 0.5 * before


@pytest.mark.parametrize(("patience", "taken"), [(10, 15), (1, 10), (50, 50)])
def test_it_stops_when_the_divergence_stands_still(round_one, monkeypatch, patience, taken):
    """At a rate of almost nothing nothing improves: it looks every 5 batches, and stops `patience`
    after the first.
    """
    plain = make_task(attrs.evolve(TINY, model_options={"width": 8, "norm": "none"}), Runtime())
    steps, trained = [], []
    original = public.mimic

    def count(task, student, images, targets, divergence, optimiser, batch, number, rng):
        steps.append(number)
        trained.append(images)
        original(task, student, images, targets, divergence, optimiser, batch, number, rng)

    monkeypatch.setattr(public, "mimic", count)
    settings = SMALL | {
        "distill_steps": 50,
        "check_every": 5,
        "patience": patience,
        "distill_lr": 1e-30,
    }
    images = public.public_images(plain, algorithms.create("feddf", settings).settings)[:100]
    algorithms.create("feddf", settings)._distil(
        plain,
        plain.new_model(Rng(0)),
        images,
        torch.randn(100, 10, generator=Rng(1).generator()),
        Rng(2),
    )
    assert sum(steps) == taken
    # a tenth is kept apart to look at, unless nobody will look
    assert all(torch.equal(some, images if patience == 50 else images[10:]) for some in trained)


def test_the_rate_falls_along_a_cosine_and_the_gradient_can_be_bounded(task):
    model = task.new_model(Rng(0))
    optimiser = public.adam(model, 0.5, steps=10, clip_norm=2.0)
    rates, norms = [], []
    optimiser.register_step_post_hook(
        lambda *_: norms.append(
            float(torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt())
        )
    )
    for _ in range(10):
        rates.append(optimiser.param_groups[0]["lr"])
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
    assert np.allclose(rates, [0.25 * (1 + np.cos(np.pi * step / 10)) for step in range(10)])
    assert np.allclose(norms, 2.0, rtol=1e-4)
    released = algorithms.create("feddf", variant="released").settings
    assert (released.clip_norm, released.local_augmentation) == (5.0, "crop_flip")


def test_batched_teachers_answer_as_one_by_one(task, round_one):
    images = public.public_images(task, algorithms.create("feddf", SMALL).settings)[:700]
    teachers = [task.model_from(upload.tensors) for upload in round_one[1].values()]
    together = public.answers(task, teachers, images)
    assert together.shape == (4, 700, 10)
    for teacher, answer in zip(teachers, together, strict=True):
        torch.testing.assert_close(answer, task.outputs(teacher, images), rtol=1e-4, atol=1e-5)


def test_it_beats_chance_on_digits():
    accuracy = accuracy_after(
        TINY,
        model_options={"width": 16},
        rounds=4,
        evaluate_every=4,
        settings={"local_steps": 10, "batch_size": 32}
        | SMALL
        | {"pool": 640, "distill_steps": 10, "distill_batch": 64},
    )
    assert accuracy > 0.25  # chance is 0.10


def test_the_tasks_own_images_are_refused_as_auxiliary_data(task):
    experiment = attrs.evolve(TINY, settings=TINY.settings | {"auxiliary": "digits"})
    with pytest.raises(InputError, match="another data set"):  # before any client trains
        experiment.new_algorithm().initialise(task, Rng(0))
    unused = attrs.evolve(experiment, settings=experiment.settings | {"distill_steps": 0})
    assert unused.new_algorithm().initialise(task, Rng(0)).tensors


def test_a_single_auxiliary_image_is_refused(round_one, monkeypatch):
    """There would be none to look at, and the student would never be kept."""
    state, uploads = round_one
    monkeypatch.setattr(public, "drawn", lambda images, *rest: images[:1])
    method = algorithms.create("feddf", TINY.settings | {"distill_steps": 4, "patience": 2})
    with pytest.raises(InputError, match="give it two"):
        method.server_update(state, uploads, Rng(5))


def test_defaults_are_the_papers():
    settings = feddf.Settings()
    assert (settings.lr, settings.batch_size, settings.local_epochs) == (0.1, 64, 40)
    assert (settings.distill_steps, settings.patience, settings.temperature) == (10_000, 1_000, 1.0)


def test_the_student_ends_with_the_weights_that_were_best(task, monkeypatch):
    """It is brought to the ensemble in the first five batches, and away from it in the others."""
    algorithm = algorithms.create(
        "feddf", {"distill_steps": 50, "check_every": 5, "patience": 10, "distill_batch": 32}
    )
    images = public.public_images(task, algorithm.settings)[:100]
    teacher, looks = task.new_model(Rng(1)), []

    def moved(task, student, *rest):
        looks.append(len(looks))
        unpack(student, pack(teacher if len(looks) == 1 else task.new_model(Rng(len(looks)))))

    monkeypatch.setattr(public, "mimic", moved)
    student = task.new_model(Rng(0))
    algorithm._distil(task, student, images, task.outputs(teacher, images), Rng(2))
    assert len(looks) == 3  # five batches that helped, and ten that did not
    for name, value in pack(teacher).items():
        assert torch.equal(value, pack(student)[name]), name


def test_images_kept_apart_go_with_their_own_answers(task, monkeypatch):
    """Three of ten images are looked at, the others are learnt from, each beside its answer."""
    images = torch.randint(0, 256, (10, 1, 8, 8), dtype=torch.uint8)
    ensemble, seen = torch.arange(10.0)[:, None].expand(10, 10), []
    monkeypatch.setattr(public, "mimic", lambda *given: seen.append(given[2:4]))
    monkeypatch.setattr(
        feddf.FedDF,
        "_divergence",
        lambda self, outputs, wanted: seen.append(wanted) or torch.tensor(1.0),
    )
    settings = TINY.settings | {"patience": 1, "check_every": 1, "kept_apart": 0.3}
    student = task.new_model(Rng(1))
    algorithms.create("feddf", settings)._distil(task, student, images, ensemble, Rng(3))
    (learnt, told), looked_at, *_ = seen
    assert learnt.equal(images[3:]) and told.equal(ensemble[3:]) and looked_at.equal(ensemble[:3])


def test_public_images_are_drawn_from_all_of_them(task, monkeypatch):
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None]
    monkeypatch.setattr(public, "public_images", lambda task, settings: images)
    some = [public.drawn(task, public.PublicData(), 20, Rng(k)).flatten() for k in (0, 1)]
    assert all(len(one.unique()) == 20 and int(one.max()) >= 50 for one in some)
    assert not some[0].equal(some[1])
    every = public.drawn(task, public.PublicData(), None, Rng(0))
    assert every.flatten().sort().values.equal(images.flatten())
