"""FedKD: quantised and noisy ensembles against arithmetic, one upload only, and PATE's budget."""

import math

import attrs
import numpy as np
import pytest
import torch
from scipy.stats import kstest

from core import algorithms
from core.baselines.fedkd import laplace, quantised
from core.errors import InputError
from core.families import public_images as public
from core.federation import Message, UploadError
from core.rng import Rng
from lab import make_clients, rounds
from tests.algorithms.on_digits import last_round, on_digits

TINY = on_digits(
    "fedkd",
    {
        "local_steps": 3,
        "lr": 0.01,
        "pool": 80,
        "distill_steps": 3,
        "distill_batch": 32,
        "auxiliary": "photographs",
    },
    alpha=0.3,
    model_options={"width": 8, "depth": 2},
    clients=4,
)


def create(**changes):
    return algorithms.create("fedkd", TINY.settings | changes)


def tiny(**changes):
    return attrs.evolve(TINY, settings=TINY.settings | changes)


def test_the_class_with_most_noisy_votes_in_all_wins():
    """Not the one with the most from one client."""
    votes = torch.tensor([[[0.9, 0.0, 0.6]], [[0.0, 0.0, 0.6]], [[0.0, 0.1, 0.0]]])
    private = create(private=True)
    assert private._ensemble([{"votes/noisy": one} for one in votes], Rng(0)).tolist() == [2]


@pytest.mark.parametrize("levels", [1, 10, 100, 127])
def test_quantised_answers_are_at_most_half_a_step_away(levels):
    logits = 7 * torch.randn(50, 10, generator=Rng(0).generator())
    steps, size = quantised(logits, levels)
    assert steps.dtype == torch.int8 and int(steps.abs().max()) == levels
    apart = (steps.float() * size / levels - logits).abs()
    assert float(apart.max()) <= float(size) / levels / 2 * 1.0001
    assert not quantised(torch.zeros(3, 4), levels)[0].any()


def test_laplace_noise_has_its_law():
    drawn = laplace(torch.zeros(40_000, dtype=torch.float64), 1.5, Rng(0).generator()).numpy()
    assert kstest(drawn / 1.5, "laplace").pvalue > 1e-3
    assert drawn.var() == pytest.approx(2 * 1.5**2, rel=0.05)


@pytest.mark.parametrize("levels", [0, 100])
def test_the_ensemble_weighs_clients_by_their_share_of_each_class(levels):
    """sum_k n_k^c / n^c z_k^c, and the plain mean of a class that nobody has."""
    rng = Rng(0).numpy()
    logits, counts = rng.normal(size=(3, 6, 10)), rng.integers(0, 50, (3, 10))
    counts[:, 4], counts[:2, 5] = 0, 0
    uploads = []
    for k, z in enumerate(torch.tensor(logits, dtype=torch.float32)):
        sent = {"answers/logits": z}
        if levels:
            steps, size = quantised(z * (k + 1), levels)
            sent = {"answers/levels": steps, "answers/scale": size}
            logits[k] = steps.numpy() * (size.item() / levels)
        uploads.append(sent | {"samples/classes": torch.tensor(counts[k])})
    ensemble = create(levels=levels, noise_scale=0.0)._ensemble(uploads, Rng(0)).numpy()
    shares = np.where(counts.sum(0) > 0, counts / np.maximum(counts.sum(0), 1), 1 / 3)
    np.testing.assert_allclose(ensemble, (shares[:, None] * logits).sum(0), atol=1e-5)


def test_noise_is_added_once_to_the_ensemble_or_left_to_every_batch():
    tensors = {
        "answers/logits": torch.zeros(4000, 10),
        "samples/classes": torch.ones(10, dtype=torch.int64),
    }
    once, later = (
        create(levels=0, noise_scale=2.0, fresh_noise=fresh)._ensemble([tensors], Rng(0))
        for fresh in (False, True)
    )
    assert float(once.var()) == pytest.approx(2 * 2.0**2, rel=0.05) and not later.any()


def test_teachers_train_in_the_rounds_they_are_given_then_answer_and_are_forgotten(task):
    experiment = attrs.evolve(tiny(local_rounds=2), rounds=3)
    remembered, results = [], []
    for result in rounds(experiment, task=task):
        remembered.append([bool(client.memory) for client in result.clients])
        results.append(result)
    assert remembered == [4 * [True], 4 * [False], 4 * [False]]
    assert [result.up > 0 for result in results] == [False, True, False]
    assert set(results[-1].ledger.total("down")) == {"meta"}
    weights = [result.state.tensors["parameters/classifier.weight"] for result in results]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])
    assert torch.equal(*(result.state.tensors["ensemble"] for result in results[1:]))


def test_a_run_in_many_rounds_is_that_in_few(task):
    """The optimisers of teachers and student go on; batches of all images have no order."""
    whole = {"batch_size": 4096, "distill_batch": 80, "noise_scale": 0.0, "levels": 0, "lr": 0.05}

    def student(local_rounds, distilling, steps):
        number = {"local_rounds": local_rounds, "local_steps": steps, "distill_steps": steps}
        run = attrs.evolve(tiny(**whole, **number), rounds=local_rounds + distilling - 1)
        return last_round(run, task).state.tensors

    few, many = student(1, 1, 6), student(3, 3, 2)
    for name, value in few.items():
        # a bias in front of a normalisation has only rounding for a slope, of which Adam makes steps
        if name.startswith("parameters/") and not name.endswith("conv.bias"):
            torch.testing.assert_close(many[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"distill_epochs": 5, "distill_steps": None}, 15),
        ({"distill_epochs": 5, "distill_steps": 7, "fresh_noise": True, "noise_scale": 3.0}, 7),
    ],
)
def test_the_student_learns_by_the_absolute_error(task, monkeypatch, settings, steps):
    """Three batches hold 80 images; noise differs in each, and the mean of |Laplace(b)| is b."""
    seen, algorithm = [], create(distill_lr=0.125, lr=0.5, **settings)
    monkeypatch.setattr(public, "mimic", lambda *given: seen.extend(given))
    state = algorithm.initialise(task, Rng(0))
    algorithm._distil(
        attrs.evolve(state, tensors=state.tensors | {"ensemble": torch.ones(80, 10)}), Rng(3)
    )
    divergence, optimiser, batch, number = seen[4:8]
    assert (batch, number, optimiser.param_groups[0]["lr"]) == (32, steps, 0.125)
    zeros = torch.zeros(400, 10)
    errors = [float(divergence(zeros, zeros)) for _ in range(4)]
    if "fresh_noise" in settings:
        assert errors == pytest.approx(4 * [3.0], rel=0.1) and len(set(errors)) == 4
    else:
        assert float(divergence(torch.zeros(1, 2), torch.tensor([[1.0, -3.0]]))) == 2


# differential privacy


def test_a_smaller_budget_buys_fewer_answers_at_the_same_noise(task):
    accountants = pytest.importorskip("opacus.accountants")
    delta = 1e-3
    private = {"private": True, "delta": delta, "pool": 400}
    methods = {epsilon: create(epsilon=epsilon, **private) for epsilon in (3.5, 6.0, 10.0)}
    states = {epsilon: method.initialise(task, Rng(0)) for epsilon, method in methods.items()}
    answered = [state.meta["queries"] for state in states.values()]
    assert answered == sorted(answered) and answered[0] < 0.3 * answered[2] and answered[2] == 400
    noise = [one.meta["noise"] * math.sqrt(one.meta["queries"]) for one in states.values()]
    assert noise == pytest.approx(3 * [noise[0]], rel=1e-6)
    for epsilon, state in states.items():
        library = accountants.RDPAccountant()
        library.history = [(noise[0], 1.0, state.meta["queries"])]
        spent = methods[epsilon].measures(state)["spent_epsilon"]
        assert spent == pytest.approx(library.get_epsilon(delta), rel=1e-3)
        assert 0.95 * epsilon < spent <= epsilon
    plain = create(epsilon=3.5, **private | {"private": False})
    measured = plain.measures(plain.initialise(task, Rng(0)))
    assert measured == {"answered_images": float(answered[0])}


@pytest.mark.parametrize(("protects", "share"), [("sum", 1 / 4), ("upload", 1.0)])
def test_votes_carry_the_noise_that_the_budget_asks_for(task, protects, share):
    """The sum of four uploads varies by sigma = sqrt(2) z per vote; single uploads by less."""
    pytest.importorskip("opacus")
    settings, errors = {"protects": protects, "pool": 1500, "local_steps": 1}, []
    noisy, true = (create(private=True, full_epsilon=budget, **settings) for budget in (10.0, 1e9))
    states = [algorithm.initialise(task, Rng(0)) for algorithm in (noisy, true)]
    for client in make_clients(TINY, task):
        votes = []
        for algorithm, state in zip((noisy, true), states, strict=True):
            meta = algorithm.broadcast(state, client.id).meta
            message = Message({}, meta | {"sharers": 4 if protects == "sum" else 1})
            answer = algorithm.client_update(client.copy(), message, Rng(client.id))
            votes.append(answer.tensors["votes/noisy"])
        errors.append(votes[0] - votes[1].round())
    # the true vote is the teacher's first choice
    plain = create(levels=0, **settings).client_update(client.copy(), message, Rng(client.id))
    assert torch.equal(votes[1].argmax(1), plain.tensors["answers/logits"].argmax(1))
    assert torch.equal(plain.tensors["samples/classes"], client.class_counts)
    sigma = math.sqrt(2) * states[0].meta["noise"] * math.sqrt(1500)
    single, total = float(errors[0].std()), float(torch.stack(errors).sum(0).std())
    assert single == pytest.approx(sigma * math.sqrt(share), rel=0.05)
    assert total == pytest.approx(sigma * math.sqrt(4 * share), rel=0.05)


REFUSED = "more than its privacy budget"


@pytest.mark.parametrize(
    ("protects", "claim", "fine"),
    [("upload", {"sharers": 1}, True), ("upload", {"sharers": 2}, False)]
    + [("sum", {"sharers": n}, 1 <= n <= 4) for n in (0, 4, 5)]
    + [("upload", {"queries": 81}, False), ("upload", {"noise": 0.1}, False)],
)
def test_a_client_answers_no_more_and_with_no_less_noise_than_its_own_settings_say(
    task, protects, claim, fine
):
    """Or one that hears of a million sharers would give its votes as they are."""
    pytest.importorskip("opacus")
    clients = make_clients(TINY, task)
    algorithm = create(private=True, protects=protects).among(clients)
    honest = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0).meta
    if "noise" in claim:
        claim = {"noise": 0.99 * honest["noise"]}
    message = Message({}, honest | claim)
    if fine:
        assert algorithm.client_update(clients[0], message, Rng(0)).tensors
        return
    with pytest.raises(InputError, match=REFUSED):
        algorithm.client_update(clients[0], message, Rng(0))


def test_a_private_client_answers_once(task):
    """Whatever comes between; so a checkpoint has its mark."""
    pytest.importorskip("opacus")
    algorithm, client = create(private=True), make_clients(TINY, task)[0]
    message = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0)
    algorithm.client_update(client, message, Rng(0))
    algorithm.teach([client], {0: Message({})}, [Rng(0)])
    for again in (message, Message({}, message.meta | {"queries": 1, "seed": 5})):
        with pytest.raises(InputError, match=REFUSED):
            algorithm.client_update(client, again, Rng(1))


def test_those_who_answer_share_the_noise(task):
    """Two of four clients a round add a half of it each, and none adds less. They send votes alone."""
    pytest.importorskip("opacus")
    some = attrs.evolve(tiny(private=True), active=2)
    first = next(rounds(some, task=task))
    assert first.state.meta["sharers"] == 2 and first.state.meta["answered"]
    algorithm, client = some.new_algorithm(), make_clients(some, task)[0]
    assert [*map(set, algorithm.upload_format(first.state))] == [{"votes/noisy"}, set()]
    message = Message({}, algorithm.broadcast(first.state, 0).meta | {"sharers": 3})
    with pytest.raises(InputError, match=REFUSED):
        algorithm.client_update(client, message, Rng(0))


def test_a_sum_without_some_of_its_noise_is_refused(task):
    """Three of four shares would protect less than the record says."""
    algorithm = create(private=True, protects="sum", pool=400)
    state = algorithm.initialise(task, Rng(0))
    state = attrs.evolve(state, meta=state.meta | {"sharers": 4})
    votes = Message({"votes/noisy": torch.zeros(state.meta["queries"], 10)})
    with pytest.raises(UploadError, match="3 of 4 clients answered"):
        algorithm.server_update(state, dict.fromkeys(range(3), votes), Rng(0))
