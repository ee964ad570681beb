"""A loss, an algorithm and settings of one's own, by public names alone."""

import attrs
import pytest
import torch

from core import algorithms, models
from core.baselines.fedavg import FedAvg
from core.condensation import matching
from core.condensation.engine import Condensation
from core.data import load
from core.errors import InputError
from core.federation import Schedule, Task, distribute, rounds
from core.rng import Rng
from lab import Experiment, Record, run

SMALL = {"iterations": 3, "server_steps": 2, "real_batch": 8}


def energy(real, condensed, weights):
    """2 E|x - s| - E|x - x'| - E|s - s'|, the energy distance of a class."""
    w, apart = weights / weights.sum(), torch.cdist
    within = apart(real, real).mean() + w @ apart(condensed, condensed) @ w
    return 2 * (apart(real, condensed) @ w).mean() - within


def of_means(real, condensed, weights):
    return (real.mean(0) - weights @ condensed / weights.sum()).square().sum()


def uploads(name, kernel, **more):
    """What two clients condense in a round."""
    task = Task(load("digits"), "convnet", {"width": 4})
    algorithm = algorithms.create(name, {**SMALL, "kernel": kernel, **more})
    clients = distribute(task, {"name": "iid"}, 2, 0)
    state = algorithm.initialise(task, Rng(0))
    sent = {client.id: algorithm.broadcast(state, client.id) for client in clients}
    answers = algorithm.at_clients("client_update", clients, sent, Rng(1))
    return torch.cat([answer.tensors["images"].float() for answer in answers.values()])


@pytest.mark.parametrize("name", ["fedvck", "feddm", "dm", "gddfl"])
def test_every_method_that_matches_features_takes_a_loss(name):
    more = {"image_lr": 50.0} | ({"encoder_width": 4} if name in ("dm", "gddfl") else {})
    linear = uploads(name, "linear", **more)
    apart = [(uploads(name, own, **more) - linear).abs().max() for own in (of_means, energy)]
    assert apart[0] <= 1 < apart[1]  # grey levels


def test_the_energy_distance_is_that_of_scipy_and_a_class_does_not_see_another():
    stats = pytest.importorskip("scipy.stats")
    x, y = torch.randn(2, 6, 1).double(), torch.randn(2, 4, 1).double()
    weights = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1]]).double()
    found = matching.matching_losses(energy, x, y, weights)
    expected = [
        stats.energy_distance(a[:, 0], b[w > 0, 0]) for a, b, w in zip(x, y, weights, strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(expected).double() ** 2)


def test_exact_means_are_for_losses_of_means():
    assert Condensation(kernel=of_means, estimator="expectation").kernel is of_means
    for other in (energy, "gaussian"):
        with pytest.raises(InputError, match=r"take 'feature_bank'"):
            Condensation(kernel=other, estimator="expectation")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (
            "gausian",
            r"did you mean 'gaussian'.*or a function \(real, condensed, weights\) -> scalar",
        ),
        (7, "no kernel named 7"),
        (lambda real: real, r"the loss <lambda> of \(8, .* fails: TypeError"),
        (lambda real, condensed, weights: 1.0, "fails"),
        (lambda real, condensed, weights: condensed, "no scalar that depends on the condensed"),
        (lambda real, condensed, weights: real.sum(), "no scalar that depends on the condensed"),
        (lambda real, condensed, weights: torch.rand(()) * condensed.sum(), "random"),
    ],
)
def test_what_is_no_loss_is_one_line(kernel, words):
    with pytest.raises(InputError, match=words) as error:
        uploads("fedvck", kernel)
    assert "\n" not in str(error.value)


class Mine(FedAvg):
    """FedAvg whose clients remember how often they were asked."""

    def answer(self, client, model):
        client.memory["asked"] = client.memory.get("asked", torch.tensor(0)) + 1
        return super().answer(client, model)


def test_results_carry_clients_and_the_given_ones_stay_as_they_are():
    task = Task(load("digits"), "convnet", {"width": 4})
    clients = distribute(task, {"name": "iid"}, 2, 0)
    algorithm = Mine(attrs.evolve(FedAvg.Settings(), local_steps=1), Schedule(clients=2, rounds=2))
    first, again = (list(rounds(algorithm, task, clients, 0)) for _ in range(2))
    assert first[-1].metrics == again[-1].metrics and len(repr(first[0])) < 1000
    assert [int(client.memory["asked"]) for client in again[-1].clients] == [2, 2]
    assert not any(client.memory for client in clients)


def test_a_record_names_what_is_ones_own(tmp_path):
    small = {"local_steps": 1}
    stated = Experiment(algorithm="fedavg", dataset="digits", rounds=1, settings=small)
    with pytest.raises(InputError, match=r"a record names its algorithm: give .*Mine"):
        run(stated, algorithm=Mine())
    algorithms.register("mine", Mine)
    record = run(attrs.evolve(stated, algorithm="mine"), record=tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json") == record
    assert record.code != run(stated).code and record.metrics == run(stated).metrics
    vck = Experiment(algorithm="fedvck", dataset="digits", rounds=1, settings=SMALL)
    mine = algorithms.create("fedvck", {**SMALL, "kernel": energy})
    with pytest.raises(InputError, match="a record names its kernel: give"):
        run(vck, algorithm=mine)
    matching.register("energy", energy)
    assert (
        run(attrs.evolve(vck, settings={**SMALL, "kernel": "energy"})).settings["kernel"]
        == "energy"
    )
    for wrong in (("fedavg", Mine), ("", Mine), ("mine", dict), ("mine", Mine())):
        with pytest.raises(InputError, match="a name of its own and a subclass of Algorithm"):
            algorithms.register(*wrong)
    for wrong in (("linear", energy), (3, energy), ("mine", 3)):
        with pytest.raises(InputError, match="a name of its own and a function"):
            matching.register(*wrong)


def test_a_wrong_object_is_one_line_that_says_what_was_expected():
    """What a newcomer may give in the place of something else, by what the sentence says."""
    digits = load("digits")
    task = Task(digits, "convnet", {"width": 4})
    clients, iid = distribute(task, {"name": "iid"}, 2, 0), {"name": "iid"}
    stated = Experiment(algorithm="fedavg", dataset="digits")
    wrong = {
        "dataset must be an instance of Dataset": lambda: Task("digits"),
        "model_options must be an instance of dict": lambda: Task(digits, "convnet", 7),
        "task must be an instance of Task, not Dataset": lambda: distribute(digits, iid, 2, 0),
        "partition must be an instance of Mapping": lambda: distribute(task, "iid", 2, 0),
        "algorithm must be .* Algorithm, not <class": lambda: next(rounds(Mine, task, clients, 0)),
        "clients must be .* Sequence": lambda: next(rounds(Mine(), task, 2, 0)),
        "seed must be a whole number": lambda: next(rounds(Mine(), task, clients, "0")),
        "settings must be .* Mapping": lambda: algorithms.create("fedavg", FedAvg.Settings()),
        "schedule must be .* Schedule": lambda: algorithms.create("fedavg", schedule=2),
        r"settings must be Mine\.Settings": lambda: Mine({"lr": 0.1}),
        "experiment must be .* Experiment": lambda: run({"algorithm": "fedavg"}),
        "algorithm must be .* Algorithm, not 'fed": lambda: run(stated, algorithm="fedavg"),
        "7: expected str": lambda: run(stated, record=7),
        "name of its own and a class or function": lambda: models.register("mine", 7),
    }
    for words, call in wrong.items():
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)
