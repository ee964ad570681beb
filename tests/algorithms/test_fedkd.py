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
from lab import make_clients, make_task, rounds
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


def test_the_ensemble_weighs_clients_by_their_share_of_each_class():
    """sum_k n_k^c / n^c z_k^c by element, and the plain mean for a class that nobody has."""
    rng = Rng(0).numpy()
    logits, counts = rng.normal(size=(3, 6, 10)), rng.integers(0, 50, (3, 10))
    counts[:, 4], counts[:2, 5] = 0, 0
    uploads = [
        {"answers/logits": torch.tensor(z, dtype=torch.float32), "samples/classes": torch.tensor(n)}
        for z, n in zip(logits, counts, strict=True)
    ]
    ensemble = create(levels=0, noise_scale=0.0)._ensemble(uploads, Rng(0)).numpy()
    shares = np.where(counts.sum(0) > 0, counts / np.maximum(counts.sum(0), 1), 1 / 3)
    assert np.allclose(ensemble, (shares[:, None] * logits).sum(0), atol=1e-5)
    assert np.allclose(ensemble[:, 5], logits[2, :, 5], atol=1e-5)


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
    released = algorithms.create("fedkd", variant="released").settings
    assert released.fresh_noise and released.local_augmentation == "crop_flip"


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({}, 80 * 10 + 4 + 8 * 10),
        ({"levels": 0}, 4 * 80 * 10 + 8 * 10),
        ({"private": True}, 4 * 80 * 10),
    ],
)
def test_clients_speak_once_and_every_byte_is_counted(task, settings, each):
    if "private" in settings:
        pytest.importorskip("opacus")
    first, second = rounds(tiny(**settings), task=task)
    assert first.up == 4 * each and second.up == second.down == 0
    assert set(first.ledger.total("down")) == {"meta"}


def test_teachers_train_in_the_rounds_they_are_given_then_answer_and_are_forgotten(task):
    experiment = attrs.evolve(tiny(local_rounds=2), rounds=3)
    clients, remembered, results = make_clients(experiment, task), [], []
    for result in rounds(experiment, task=task, clients=clients):
        remembered.append([bool(client.memory) for client in clients])
        results.append(result)
    assert remembered == [4 * [True], 4 * [False], 4 * [False]]
    assert [result.up > 0 for result in results] == [False, True, False]
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


def test_a_client_tells_how_many_images_of_each_class_it_has(task):
    algorithm, client = create(), make_clients(TINY, task)[0]
    message = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0)
    sent = algorithm.client_update(client, message, Rng(0)).tensors["samples/classes"]
    assert sent.tolist() == np.bincount(client.labels, minlength=10).tolist()


def test_every_run_asks_public_images_of_its_own(task):
    algorithm = create()
    one, other = (
        algorithm._asked(task, algorithm.initialise(task, Rng(seed)).meta) for seed in (0, 1)
    )
    assert one.shape == other.shape == (80, 1, 8, 8) and not torch.equal(one, other)


def test_teachers_who_would_never_answer_are_refused_before_they_train(task):
    experiment = attrs.evolve(tiny(local_rounds=3), rounds=2)
    with pytest.raises(InputError, match="local_rounds must be at most 2"):
        next(rounds(experiment, task=task))


def lesson(task, monkeypatch, ensemble, **settings):
    """What the student's training is given: network, images, targets, divergence, optimiser, batch
    size and number of steps.
    """
    seen, algorithm = [], create(**settings)
    monkeypatch.setattr(public, "mimic", lambda *given: seen.append(given))
    state = algorithm.initialise(task, Rng(0))
    algorithm._distil(attrs.evolve(state, tensors=state.tensors | {"ensemble": ensemble}), Rng(3))
    return seen[0][1:8]


def test_the_student_learns_by_the_absolute_error(task, monkeypatch):
    divergence = lesson(task, monkeypatch, torch.ones(2), pool=2)[3]
    assert float(divergence(torch.zeros(1, 2), torch.tensor([[1.0, -3.0]]))) == 2


def test_levels_come_back_as_logits_before_they_are_averaged():
    """50 of 100 levels of a largest logit of 8 are a logit of 4; a client's answers have its own size."""
    uploads = [
        {
            "answers/levels": torch.tensor([steps], dtype=torch.int8),
            "answers/scale": torch.tensor([size]),
            "samples/classes": torch.tensor(counts),
        }
        for steps, size, counts in (([50, -100], 8.0, [3, 1]), ([100, 25], 2.0, [1, 1]))
    ]
    found = create(levels=100, noise_scale=0.0)._ensemble(uploads, Rng(0))
    wanted = [[0.75 * 4.0 + 0.25 * 2.0, 0.5 * -8.0 + 0.5 * 0.5]]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"distill_epochs": 5, "distill_steps": None}, 15),
        ({"distill_epochs": 5, "distill_steps": 7}, 7),
    ],
)
def test_the_student_passes_all_answers_as_often_as_it_is_told_at_its_own_rate(
    task, monkeypatch, settings, steps
):
    """Three batches of 32 hold 80 images, the last one fewer."""
    *_, optimiser, batch, taken = lesson(
        task, monkeypatch, torch.ones(80, 10), distill_lr=0.125, lr=0.5, **settings
    )
    assert (batch, taken) == (32, steps)
    assert [group["lr"] for group in optimiser.param_groups] == [0.125]


def test_noise_of_the_batches_is_another_one_in_each(task, monkeypatch):
    """The mean of |Laplace(b)| is b; over many batches the noise averages out."""
    ensemble = torch.zeros(400, 10)
    settings = {"fresh_noise": True, "noise_scale": 3.0}
    divergence = lesson(task, monkeypatch, ensemble, **settings)[3]
    losses = [float(divergence(ensemble, ensemble)) for _ in range(4)]
    assert losses == pytest.approx(4 * [3.0], rel=0.1) and len(set(losses)) == 4


def test_no_more_images_are_asked_than_there_are(task):
    algorithm = create(pool=10**6)
    state = algorithm.initialise(task, Rng(0))
    assert state.meta["queries"] == len(algorithm._asked(task, state.meta)) == 5_000


def test_it_is_better_than_chance():
    steps = {"local_steps": 150, "pool": 2000, "distill_steps": 400, "distill_batch": 64}
    run = attrs.evolve(TINY, model_options={"width": 16})
    last = last_round(run, make_task(run), **steps)
    assert last.metrics["accuracy"] > 0.25  # chance is 0.10


# differential privacy


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_a_smaller_budget_buys_fewer_answers_at_the_same_noise(task, delta):
    accountants = pytest.importorskip("opacus.accountants")
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


def test_votes_carry_the_noise_that_the_budget_asks_for(task):
    """The sum of the uploads varies by sigma = sqrt(2) z per vote around the true counts; single
    uploads by less.
    """
    pytest.importorskip("opacus")
    clients = make_clients(TINY, task)
    for protects, share in (("sum", 1 / 4), ("upload", 1.0)):
        noisy, true = (
            create(private=True, full_epsilon=budget, protects=protects, pool=1500, local_steps=1)
            for budget in (10.0, 1e9)
        )
        states = [algorithm.initialise(task, Rng(0)) for algorithm in (noisy, true)]
        sharers = {"sharers": 4 if protects == "sum" else 1}
        errors = []
        for client in clients:
            sent = []
            for algorithm, state in zip((noisy, true), states, strict=True):
                message = algorithm.broadcast(
                    attrs.evolve(state, meta=state.meta | sharers), client.id
                )
                answer = algorithm.client_update(client.copy(), message, Rng(client.id))
                sent.append(answer.tensors["votes/noisy"])
            # the teacher's first choice
            plain = create(levels=0, pool=1500, local_steps=1)
            logits = plain.client_update(client.copy(), message, Rng(client.id)).tensors
            assert torch.equal(sent[1].argmax(1), logits["answers/logits"].argmax(1))
            errors.append(sent[0] - sent[1].round())
        sigma = math.sqrt(2) * states[0].meta["noise"] * math.sqrt(1500)
        assert float(errors[0].std()) == pytest.approx(sigma * math.sqrt(share), rel=0.05)
        assert float(torch.stack(errors).sum(0).std()) == pytest.approx(
            sigma * math.sqrt(4 * share), rel=0.05
        )
        assert not torch.allclose(errors[0], errors[1])


REFUSED = "more than its privacy budget"


@pytest.mark.parametrize(
    ("protects", "claim", "fine"),
    [("upload", {"sharers": 1}, True), ("upload", {"sharers": 2}, False)]
    + [("sum", {"sharers": n}, 1 <= n <= 4) for n in (-1, 0, 1, 4, 5, 10**6)]
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
    """Two of four clients a round add a half of it each, and none adds less."""
    pytest.importorskip("opacus")
    some = attrs.evolve(tiny(private=True), active=2)
    first = next(rounds(some, task=task))
    assert first.state.meta["sharers"] == 2 and first.state.meta["answered"]
    algorithm, client = some.new_algorithm(), make_clients(some, task)[0]
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


def test_a_private_upload_holds_votes_and_nothing_else(task):
    pytest.importorskip("opacus")
    algorithm = create(private=True)
    tensors, meta = algorithm.upload_format(algorithm.initialise(task, Rng(0)))
    assert set(tensors) == {"votes/noisy"} and not meta
    metrics = last_round(TINY, task, private=True).metrics
    assert 9.5 < metrics["spent_epsilon"] <= 10 and metrics["answered_images"] == 80


def test_a_budget_that_buys_no_answer_is_refused(task):
    pytest.importorskip("opacus")
    with pytest.raises(InputError, match="does not buy one answer"):
        create(private=True, epsilon=0.001, pool=2).initialise(task, Rng(0))
