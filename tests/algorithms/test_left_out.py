"""Questions beside a round: a client whose answer is refused in every round ends no run."""

from __future__ import annotations

import attrs
import pytest

from core.federation import Message
from tests.algorithms.subjects import crowd, subjects

SUBJECTS = subjects()
#: what clients are asked before or after a round, and who never answers as asked; FL-MRCM asks its
#: target alone
ASKED = {
    "asyndgan": ("introduce", 1),
    "desa": ("anchors", 1),
    "fedad": ("teach", 1),
    "fediod": ("introduce", 1),
    "fedmd tested=clients": ("send_model", 1),
    "fedmix": ("averages", 1),
    "flmrcm": ("encode", 0),
    "random_selection": ("counts", 1),
}


@pytest.fixture
def spoilt(monkeypatch):
    """A function of a name: a subject whose client sends nothing, and its algorithm."""

    def spoil(name):
        subject, (question, who) = SUBJECTS[name], ASKED[name]
        algorithm = subject.new()
        honest = algorithm.at_clients

        def at_clients(call, *given):
            answers = honest(call, *given)
            nothing = {who: Message({})} if call == question and who in answers else {}
            return answers | nothing

        algorithm.at_clients = at_clients
        algorithm.schedule = attrs.evolve(
            algorithm.schedule, active=None, refused="leave_out", rounds=2
        )
        monkeypatch.setattr(type(subject), "new", lambda self: algorithm)
        return subject, algorithm

    return spoil


@pytest.mark.parametrize("name", ASKED)
def test_the_run_goes_on_with_the_others(name, spoilt):
    subject, algorithm = spoilt(name)
    if name == "flmrcm":  # which says that its result is that of FedAvg
        algorithm.measures = lambda state: {}
    results = list(subject.run(crowd(subject.task_kind)))
    assert len(results) == 2
    asked = results[:1] if name == "random_selection" else results  # which asks once
    assert all(str(ASKED[name][1]) in result.refused for result in asked)
    if name == "desa":  # which goes on distilling, too
        sent = [
            algorithm.broadcast(results[0].state, client.id) for client in crowd() if len(client)
        ]
        assert all("logits/others" in message.tensors for message in sent)
