"""Every algorithm on a device that is not there: nothing is on the wrong one, and no loop waits."""

import attrs
import pytest
import torch

from core.federation import Schedule, rounds
from tests.algorithms.subjects import on_a_gpu, subjects
from tests.elsewhere import WrongPlace, elsewhere

#: settings that say how often a loop goes round
TURNS = (
    "local_steps",
    "initial_steps",
    "iterations",
    "inner_steps",
    "network_steps",
    "server_steps",
    "distill_steps",
    "generator_steps",
    "gan_steps",
)
#: lines that may wait in every turn: (file and function, why)
ALLOWED = {
    "algorithms/feddf.py FedDF._distil": "it stops when the validation loss no longer falls",
    "federation/validation.py _statistics": "every answer is admitted before a step goes on with it",
}
SUBJECTS = subjects()


def waits(subject, turns, second=slice(12, 30)):
    """Where and how often the host waits in a round of two clients, the first with 12 images."""
    settings = {name: turns for name in TURNS if getattr(subject.settings, name, None)}
    with elsewhere() as places:
        there, clients = on_a_gpu(subject.task_kind, slice(0, 12), second)
        algorithm = subject.kind(
            attrs.evolve(subject.settings, **settings),
            Schedule(clients=2, active=2, rounds=getattr(subject.settings, "local_rounds", 1) or 1),
        )
        list(rounds(algorithm, there, clients, 7))
    return places.waits


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_it_runs_and_its_loops_do_not_wait(subject):
    grew = grown(waits(subject, 1), waits(subject, 2))
    assert {line: times for line, times in grew.items() if line[0] not in ALLOWED} == {}


def grown(few, more):
    """Where the host waits more often when the loops go round once more."""
    return {line: (few[line], more[line]) for line in more if more[line] > few[line]}


def test_networks_with_statistics_that_train_side_by_side_do_not_wait():
    subject = SUBJECTS["fedavg"]
    alike = slice(12, 24)
    assert grown(waits(subject, 1, alike), waits(subject, 2, alike)) == {}


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
