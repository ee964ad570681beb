"""Every algorithm on what stands in for a GPU: no loop waits, replayed steps do the same."""

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
from tests.elsewhere import WrongPlace, elsewhere
from tests.tape import Refused, Tape

#: how often loops of steps go round that are replayed, and all loops
REPLAYED = ("local_steps", "initial_steps", "server_steps", "generator_steps")
LOOPS = (*REPLAYED, "iterations", "inner_steps", "network_steps", "distill_steps", "gan_steps")
#: lines that may wait in every turn: (file and function, why)
ALLOWED = {
    "baselines/feddf.py FedDF._distil": "it stops when the validation loss no longer falls",
    "federation/validation.py _statistics": "every answer is admitted before a step goes on with it",
}
SUBJECTS = subjects()
#: of these all steps are taken one by one: their objectives or optimisers ask the host
HOST = {"fedmk", "flmrcm", "fedmd"}
#: these have no steps that are replayed, or those of FedAvg's clients or of DM's server
ALIKE = {"asyndgan", "centralized", "standalone", "fedavgm", "fedensemble", "dfrd", "fediod"}
ALIKE |= {"dc", "dsa", "gddfl", "random_selection"}
#: a subject of each other method: its variants take the same steps
TRAINED = {each.name: each for each in SUBJECTS.values() if each.name not in HOST | ALIKE}


def recorder(places, taped):
    """What takes the place of `core.replay.record`; the recordings end in a list."""

    def record(work, draws):
        taped.append(Tape(places, work, draws))
        return taped[-1]

    return record


def outcome(subject, number, steps, *parts, replayed=False, small=stacked_training.SMALL):
    """The state after so many rounds of two clients with these images on what stands in for a GPU, where
    and how often the host waited, and the recordings; `steps` are settings of those that the subject has.
    Clients of smaller networks than `small` train stacked.
    """
    taped = []
    with elsewhere() as places, pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "WORTH", 0 if replayed else 10**9)
        patch.setattr(replay, "WARM", 1)
        patch.setattr(replay, "record", recorder(places, taped))
        patch.setattr(stacked_training, "SMALL", small)
        there, clients = on_a_gpu(subject.task_kind, *parts)
        own = {name: n for name, n in steps.items() if getattr(subject.settings, name, None)}
        algorithm = subject.kind(
            attrs.evolve(subject.settings, **own), Schedule(clients=2, active=2, rounds=number)
        )
        state = list(rounds(algorithm, there, clients, 7))[-1].state
        tensors = {name: value.detach().clone() for name, value in state.tensors.items()}
    return tensors, places.waits, taped


def waits_that_grow(subject, *parts):
    """Where the host waits more often when the loops of a round go round once more."""
    number = getattr(subject.settings, "local_rounds", 1) or 1
    few, more = (outcome(subject, number, dict.fromkeys(LOOPS, n), *parts)[1] for n in (1, 2))
    return {line for line in more if more[line] > few[line] and line[0] not in ALLOWED}


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_it_runs_and_its_loops_do_not_wait(subject):
    assert not waits_that_grow(subject, slice(0, 12), slice(12, 30))


def test_networks_with_statistics_that_train_side_by_side_do_not_wait():
    assert not waits_that_grow(SUBJECTS["fedavg"], slice(0, 12), slice(12, 24))


@pytest.mark.parametrize(
    ("name", "small"),
    [*((name, 0) for name in TRAINED), *((name, 10**9) for name in ("fedavg", "feddistill"))],
)
def test_replayed_steps_learn_the_same(name, small, capsys):
    """Also stacked; one client has a smaller second batch, and a server's rate falls."""
    steps, images = dict.fromkeys(REPLAYED, 4) | {"server_steps": 8}, (slice(0, 14), slice(14, 31))
    usual, replayed = (
        outcome(TRAINED[name], 2, steps, *images, replayed=replaying, small=small)
        for replaying in (False, True)
    )
    assert replayed[2] and not usual[2] and "one by one" not in capsys.readouterr().err
    assert usual[0].keys() == replayed[0].keys()
    for key, value in usual[0].items():
        torch.testing.assert_close(replayed[0][key], value, rtol=0, atol=0, msg=key, equal_nan=True)


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


# what stands in for a GPU


def rows(device):
    return torch.arange(6.0).view(2, 3).to(device)


def in_backward():
    x = rows("cuda").requires_grad_()
    return torch.autograd.grad((x * x).sum(), x, rows("cpu").sum())[0] + rows("cpu")


WRONG = {
    "mixed": lambda: rows("cuda") + rows("cpu"),
    "chosen": lambda: rows("cpu")[torch.tensor([0]).to("cuda")],
    "other generator": lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
    "under vmap": lambda: torch.vmap(torch.dot)(rows("cuda"), rows("cpu")),
    "in backward": in_backward,
    "as numpy": lambda: rows("cuda").numpy(),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_device_is_found(wrong):
    with elsewhere(), pytest.raises(WrongPlace):
        wrong()


def test_waits_are_counted_and_values_are_right():
    with elsewhere() as places:
        x = rows("cpu").to("cuda", non_blocking=True)
        y = torch.full((3,), 2.0, device=x.device).mul_(torch.tensor(3.0)) + x[0]
        model = torch.nn.Linear(3, 1).to("cuda", non_blocking=True)
        model(x).sum().backward()
        assert not places.waits
        assert x.is_cuda and model.weight.grad.device == y.device == torch.device("cuda", 0)
        for wait in (
            y.sum().item,
            y.tolist,
            y.cpu,
            y.nonzero,
            lambda: bool(y[0] > 1),
            lambda: y[y > 7],
        ):
            before = places.waits.total()
            wait()
            assert places.waits.total() > before
        assert y.cpu().numpy().tolist() == [6.0, 7.0, 8.0]
