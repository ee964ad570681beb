"""A step of training that is recorded once and replayed does what steps from Python do."""

import attrs
import pytest
import torch
from torch import nn

from core import replay
from core.federation import Schedule, rounds, stacked_training
from core.federation.local_training import LocalTraining
from core.rng import Rng
from core.training import train
from tests.algorithms.subjects import on_a_gpu, subjects
from tests.elsewhere import elsewhere
from tests.tape import Refused, Tape

#: how often loops of steps go round
TURNS = ("local_steps", "initial_steps", "server_steps", "generator_steps")
#: of these all steps are taken one by one: their objectives or optimisers ask the host
HOST = {"fedmk", "flmrcm", "fedmd"}
#: has other loops only
OTHER = {"asyndgan"}
SUBJECTS = {name: each for name, each in subjects().items() if each.name not in HOST | OTHER}


def recorder(places, taped):
    """What takes the place of `core.replay.record`; the recordings end in a list."""

    def record(work, draws):
        taped.append(Tape(places, work, draws))
        return taped[-1]

    return record


def trained(subject, monkeypatch, worth, small=0):
    """The state after two rounds of two clients on what stands in for a GPU, and the recordings."""
    taped = []
    with elsewhere() as places, monkeypatch.context() as patched:
        patched.setattr(replay, "WORTH", worth)
        patched.setattr(replay, "record", recorder(places, taped))
        patched.setattr(stacked_training, "SMALL", small)  # what is smaller has a loop of its own
        there, clients = on_a_gpu(subject.task_kind, slice(0, 14), slice(14, 31))
        steps = {name: 8 for name in TURNS if getattr(subject.settings, name, None)}
        algorithm = subject.kind(
            attrs.evolve(subject.settings, **steps), Schedule(clients=2, active=2, rounds=2)
        )
        state = list(rounds(algorithm, there, clients, 7))[-1].state
        tensors = {name: value.detach().clone() for name, value in state.tensors.items()}
    return tensors, taped


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_an_algorithm_learns_the_same(subject, monkeypatch, capsys):
    usual, none = trained(subject, monkeypatch, 10**9)
    replayed, taped = trained(subject, monkeypatch, 0)
    assert not none
    assert "one by one" not in capsys.readouterr().err
    assert taped
    assert usual.keys() == replayed.keys()
    for name, value in usual.items():
        torch.testing.assert_close(replayed[name], value, rtol=0, atol=0, msg=name, equal_nan=True)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "feddistill tracking=run", "fedgen"])
def test_stacked_clients_learn_the_same(name, monkeypatch, capsys):
    usual, _ = trained(SUBJECTS[name], monkeypatch, 10**9, small=10**9)
    replayed, taped = trained(SUBJECTS[name], monkeypatch, 0, small=10**9)
    assert taped and "one by one" not in capsys.readouterr().err
    for key, value in usual.items():
        torch.testing.assert_close(replayed[key], value, rtol=0, atol=0, msg=key)


def fitted(monkeypatch, places, objective, steps=12, halfway=None, batch_size=4):
    """The weights of a line after some steps down an objective, and the recordings."""
    taped = []
    with monkeypatch.context() as patched:
        patched.setattr(replay, "WORTH", 0)
        patched.setattr(replay, "record", recorder(places, taped))
        x = torch.arange(10.0)[:, None].to("cuda")
        model = nn.Linear(1, 1).to("cuda")
        with torch.no_grad():
            model.weight.fill_(0.0), model.bias.fill_(0.0)
        settings = LocalTraining(lr=0.5, batch_size=batch_size, momentum=0.0, weight_decay=0.0)
        labels = torch.zeros(10, dtype=torch.int64).to("cuda")
        train(model, x, labels, settings, steps, objective, Rng(0), None, halfway)
        return model.bias.item(), taped


def test_a_recording_is_made_anew_half_way(monkeypatch):
    slope = [1.0]

    def objective(model, images, labels):
        return -slope[0] * model.bias.sum()

    def halfway():
        slope[0] = 10.0

    with elsewhere() as places:
        # six steps of 0.5 and six of 5
        found, taped = fitted(monkeypatch, places, objective, halfway=halfway)
    assert found == pytest.approx(33.0) and len(taped) == 2


def test_a_batch_that_holds_all_images_is_replayed_too(monkeypatch):
    def objective(model, images, labels):
        return -images.sum() * model.bias.sum() / 45

    with elsewhere() as places:
        found, taped = fitted(monkeypatch, places, objective, batch_size=64)
    assert found == pytest.approx(6.0) and len(taped) == 1


def test_what_needs_the_host_is_done_step_by_step_and_told_once(monkeypatch, capsys):
    replay.say_once.cache_clear()
    calls = []

    def objective(model, images, labels):
        calls.append(float(images.sum()))  # waits
        return -model.bias.sum()

    with elsewhere() as places:
        found, taped = fitted(monkeypatch, places, objective)
        fitted(monkeypatch, places, objective)
    assert found == pytest.approx(6.0) and not taped
    said = capsys.readouterr().err
    assert said.count("one by one, slower") == 1 and "_local_scalar_dense" in said
    assert len(calls) == 2 * 12


def test_a_recording_does_nothing_yet_and_draws_on(monkeypatch):
    with elsewhere() as places:
        draws, total = Rng(3).generator("cuda"), torch.zeros(2).to("cuda")

        def work():
            total.add_(torch.rand(2, generator=draws, device="cuda"))

        with pytest.raises(Refused):
            Tape(places, work)
        tape, same = Tape(places, work, [draws]), Rng(3).generator("cuda")
        assert total.tolist() == [0.0, 0.0]
        wanted = torch.zeros(2)
        for _ in range(2):
            tape.replay()
            wanted += torch.rand(2, generator=same, device="cuda").cpu()
        assert total.tolist() == wanted.tolist()
        host = torch.ones(2)
        with pytest.raises(Refused):
            Tape(places, lambda: total.add_(host.to("cuda", non_blocking=True)))
