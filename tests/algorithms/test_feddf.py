"""FedDF: the ensemble and the divergence by hand, and where it stops."""

import attrs
import numpy as np
import pytest
import torch
from scipy.special import softmax

from core import algorithms
from core.errors import InputError
from core.families import public_images as public
from core.federation import pack
from core.federation.tensors import unpack
from core.rng import Rng
from lab import make_clients, make_task
from tests.algorithms.on_digits import on_digits, uploads_of

SMALL = {"auxiliary": "photographs", "pool": 120, "distill_steps": 3, "distill_batch": 32}
TINY = on_digits(
    "feddf",
    {"local_steps": 2, "batch_size": 16, "momentum": 0.9, "lr": 0.01} | SMALL,
    alpha=0.3,
    model_options={"width": 8, "depth": 2},
    clients=4,
    rounds=3,
)


def feddf(**settings):
    return algorithms.create("feddf", TINY.settings | settings)


@pytest.fixture(scope="module")
def round_one(task):
    """A state and the uploads of its clients."""
    state = feddf().initialise(task, Rng(0))
    return state, uploads_of(feddf(), state, make_clients(TINY, task), Rng(0))


def test_the_ensemble_is_the_plain_mean_of_logits_and_the_start_is_fedavgs_average(
    task, round_one, monkeypatch
):
    seen = {}

    def catch(task, student, images, targets, *rest):
        weights = {name: w.clone() for name, w in student.named_parameters()}
        seen.update(student=weights, images=images, targets=targets)

    monkeypatch.setattr(public, "mimic", catch)
    state, uploads = round_one
    feddf().server_update(state, uploads, Rng(5))
    logits = [
        task.outputs(task.model_from(upload.tensors), seen["images"]) for upload in uploads.values()
    ]
    torch.testing.assert_close(seen["targets"], sum(logits) / 4, rtol=1e-5, atol=1e-5)
    samples = [upload.meta["samples"] for upload in uploads.values()]
    assert len(set(samples)) > 1  # so that the two kinds of mean differ
    for name, w in seen["student"].items():
        average = sum(
            n / sum(samples) * u.tensors[f"parameters/{name}"].double()
            for n, u in zip(samples, uploads.values(), strict=True)
        )
        torch.testing.assert_close(w.double(), average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_gradient_of_the_divergence_in_closed_form(temperature):
    """d KL(sigma(t) || sigma(s)) / ds = (sigma(s) - sigma(t)) / N; at a temperature T the same over
    T.
    """
    numbers = Rng(0).numpy().normal(size=(2, 5, 4))
    student = torch.tensor(numbers[0], requires_grad=True)
    feddf(temperature=temperature)._divergence(student, torch.tensor(numbers[1])).backward()
    ours, theirs = softmax(numbers / temperature, axis=2)
    assert np.allclose(student.grad.numpy(), (ours - theirs) / 5 / temperature, atol=1e-9)


@pytest.mark.parametrize(("patience", "taken"), [(10, 15), (1, 10), (50, 50)])
def test_it_stops_when_the_divergence_stands_still(monkeypatch, patience, taken):
    """It looks every 5 batches; at a rate of almost nothing the first look is the best."""
    plain = make_task(attrs.evolve(TINY, model_options={"width": 8, "norm": "none"}))
    seen, mimic = [], public.mimic
    monkeypatch.setattr(public, "mimic", lambda *given: seen.append(given) or mimic(*given))
    often = {"distill_steps": 50, "check_every": 5, "patience": patience, "distill_lr": 1e-30}
    images = public.public_images(plain, feddf().settings)[:100]
    ensemble = torch.randn(100, 10, generator=Rng(1).generator())
    feddf(**often)._distil(plain, plain.new_model(Rng(0)), images, ensemble, Rng(2))
    assert sum(given[7] for given in seen) == taken
    # a tenth is held out, unless nobody will look
    first = 0 if patience == 50 else 10
    for given in seen:
        assert torch.equal(given[2], images[first:]) and torch.equal(given[3], ensemble[first:])


def test_the_rate_falls_along_a_cosine_and_the_gradient_can_be_bounded(task):
    optimiser, rates = public.adam(task.new_model(Rng(0)), 0.5, steps=10, clip_norm=2.0), []
    weights = optimiser.param_groups[0]["params"]
    for _ in range(10):
        rates.append(optimiser.param_groups[0]["lr"])
        for w in weights:
            w.grad = torch.ones_like(w)
        optimiser.step()
        norm = torch.cat([w.grad.flatten() for w in weights]).norm()
        assert float(norm) == pytest.approx(2, rel=1e-4)
    assert np.allclose(rates, [0.25 * (1 + np.cos(np.pi * step / 10)) for step in range(10)])


def test_a_single_auxiliary_image_is_refused(round_one, monkeypatch):
    """There would be none to look at, and the student would never be kept."""
    drawn = public.drawn
    monkeypatch.setattr(public, "drawn", lambda *given: drawn(*given)[:1])
    with pytest.raises(InputError, match="give it two"):
        feddf(distill_steps=4, patience=2).server_update(*round_one, Rng(5))


def test_the_student_ends_with_the_weights_that_were_best(task, monkeypatch):
    """It is brought to the ensemble in the first five batches, and away from it in the others."""
    algorithm = feddf(distill_steps=50, check_every=5, patience=10)
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


def test_public_images_are_drawn_from_all_of_them(task, monkeypatch):
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None]
    monkeypatch.setattr(public, "public_images", lambda task, settings: images)
    some = [public.drawn(task, public.PublicData(), 20, Rng(k)).flatten() for k in (0, 1)]
    assert all(len(one.unique()) == 20 and int(one.max()) >= 50 for one in some)
    assert not some[0].equal(some[1])
    every = public.drawn(task, public.PublicData(), None, Rng(0))
    assert every.flatten().sort().values.equal(images.flatten())
