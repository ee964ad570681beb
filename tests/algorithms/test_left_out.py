"""Questions beside a round: a client whose answer is refused in every round ends no run."""

from __future__ import annotations

import attrs
import pytest

from core.federation import Message, UploadError
from tests.algorithms.subjects import ROUNDS, crowd, subjects

SUBJECTS = subjects()
#: what clients are asked before or after a round, and who never answers as asked; FL-MRCM asks its
#: target alone
ASKED = {
    "asyndgan": ("introduce", 1),
    "desa": ("anchors", 1),
    "fedad": ("teach", 1),
    "fediod": ("introduce", 1),
    "fediod task_kind=segmentation pretrain_steps=1": ("introduce", 1),
    "fedmd tested=clients": ("send_model", 1),
    "fedmix": ("averages", 1),
    "flmrcm": ("encode", 0),
    "random_selection": ("counts", 1),
}


def spoilt(subject, question, who, refused):
    """The algorithm, one of whose clients sends nothing when it is asked this question."""
    algorithm = subject.new()
    honest = algorithm.at_clients

    def at_clients(call, *given):
        answers = honest(call, *given)
        nothing = {who: Message({})} if call == question and who in answers else {}
        return answers | nothing

    algorithm.at_clients = at_clients
    algorithm.schedule = attrs.evolve(algorithm.schedule, active=None, refused=refused)
    return algorithm


@pytest.mark.parametrize("name", ASKED)
def test_the_run_goes_on_with_the_others(name, monkeypatch):
    subject, (question, who) = SUBJECTS[name], ASKED[name]
    algorithm = spoilt(subject, question, who, "leave_out")
    monkeypatch.setattr(type(subject), "new", lambda self: algorithm)
    if name == "flmrcm":  # which says that its result is that of FedAvg
        algorithm.measures = lambda state: {}
    results = list(subject.run(crowd(subject.task_kind)))
    assert len(results) == ROUNDS
    asked = results[:1] if name == "random_selection" else results  # which asks once
    assert all(str(who) in result.refused for result in asked)


def test_desa_goes_on_distilling_though_anchors_are_refused(monkeypatch):
    subject, (question, who) = SUBJECTS["desa"], ASKED["desa"]
    algorithm, told = spoilt(subject, question, who, "leave_out"), []
    send = algorithm.broadcast

    def broadcast(state, client_id):
        message = send(state, client_id)
        told.append("logits/others" in message.tensors)
        return message

    monkeypatch.setattr(algorithm, "broadcast", broadcast)
    monkeypatch.setattr(type(subject), "new", lambda self: algorithm)
    list(subject.run(crowd()))
    # in the first round nobody has learned anything yet
    each = len(told) // ROUNDS
    assert told == [False] * each + [True] * each * (ROUNDS - 1)


@pytest.mark.parametrize("name", ASKED)
def test_it_ends_where_the_schedule_says_so(name, monkeypatch):
    subject = SUBJECTS[name]
    algorithm = spoilt(subject, *ASKED[name], "end")
    monkeypatch.setattr(type(subject), "new", lambda self: algorithm)
    with pytest.raises(UploadError, match=f"client {ASKED[name][1]} was refused"):
        list(subject.run(crowd(subject.task_kind)))
