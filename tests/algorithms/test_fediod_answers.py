"""FedIOD's clients where every step goes by questions, and where an answer is missing or not sound."""

import attrs
import pytest
import torch

from core import algorithms
from core.federation import Message, UploadError
from lab import rounds
from tests.algorithms import fediod_on_digits
from tests.algorithms.fediod_on_digits import FAST, RELEASED, TINY

handed_out, clients = fediod_on_digits.handed_out, fediod_on_digits.clients


def row(result):
    return {key: value for key, value in result.row().items() if key != "seconds"}


@pytest.mark.parametrize(
    "name", ["teacher/parameters/classifier.bias", "teacher/buffers/norms.0.running_var"]
)
def test_a_teacher_that_answers_with_nan_is_named(task, clients, name):
    known = [key for key in clients[1].memory if key.startswith(name.rsplit("/", 1)[0])]
    name = name if name in known else known[0]
    clients[1].memory[name] = torch.full_like(clients[1].memory[name], float("nan"))
    with pytest.raises(UploadError, match="client 1 was refused"):
        list(rounds(TINY, task=task, clients=clients))


def asked(experiment, task, answers=None):
    """The results where every step goes by questions, as to clients that are elsewhere."""
    algorithm = experiment.new_algorithm()
    algorithm.remote = True
    if answers:
        algorithm.at_clients = answers(algorithm)
    return list(rounds(experiment, task=task, algorithm=algorithm))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pretrain_steps": 2, "student_steps": 2},
        {"gan": 0.0, "gan_weights": "uniform"},
        RELEASED,
    ],
    ids=str,
)
def test_questions_at_every_step_give_what_the_batched_program_gives(task, settings):
    """Clients that keep nothing between two questions but their memory, bit for bit."""
    experiment = attrs.evolve(TINY, settings=FAST | settings)
    *_, batched = rounds(experiment, task=task)
    *_, by_questions = asked(experiment, task)
    for name, value in batched.state.tensors.items():
        assert torch.equal(value, by_questions.state.tensors[name]), name
    assert row(batched) == row(by_questions)
    assert [entry["up"] for entry in batched.ledger.rounds] == [
        entry["up"] for entry in by_questions.ledger.rounds
    ]


def test_a_client_that_falls_out_of_the_conversation_is_named(task):
    def deaf(algorithm):
        here = algorithm.at_clients

        def answers(call, *given):
            found = here(call, *given)
            return {k: v for k, v in found.items() if k != 2 or call != "pull_back"}

        return answers

    with pytest.raises(UploadError, match="client 2 did not answer in step 0"):
        asked(attrs.evolve(TINY, refused="leave_out"), task, deaf)


# answers of every step


def spoilt_later(monkeypatch, spoil, after=3):
    """Client 1 answers as `spoil` says, from its fourth answer on."""
    kind, seen = algorithms.find("fediod"), []
    true = kind.validate

    def hostile(self, answers, form, clients, ledger, **more):
        if 1 in answers and "logits" in form[0]:
            seen.append(1)
            if len(seen) > after:
                answers = answers | {1: spoil(answers)}
        return true(self, answers, form, clients, ledger, **more)

    monkeypatch.setattr(kind, "validate", hostile)


def with_logits(answer: Message, logits: torch.Tensor) -> Message:
    return Message(answer.tensors | {"logits": logits})


LATER = {
    "a row less": (lambda a: with_logits(a[1], a[1].tensors["logits"][1:]), "shape"),
    "values beyond any": (
        lambda a: with_logits(a[1], 1e30 * torch.ones_like(a[1].tensors["logits"])),
        "out of range",
    ),
    "another client's": (lambda a: a[0], "that of client 0"),
    "nothing": (lambda a: Message({}), "'discriminator/generated' is missing"),
}


@pytest.mark.parametrize("refused", ["end", "leave_out"])
@pytest.mark.parametrize("name", LATER)
def test_every_answer_is_admitted_not_only_the_first(task, clients, monkeypatch, name, refused):
    spoil, words = LATER[name]
    spoilt_later(monkeypatch, spoil)
    with pytest.raises(UploadError, match=f"client 1 was refused: .*{words}"):
        list(rounds(attrs.evolve(TINY, rounds=1, refused=refused), task=task, clients=clients))


def test_a_client_that_cannot_say_its_counts_is_left_out(task, clients, monkeypatch):
    """The round goes on with the others, as the schedule says."""
    kind = algorithms.find("fediod")
    true = kind.introduce

    def introduce(self, clients, messages, rngs):
        return true(self, clients, messages, rngs) | {1: Message({})}

    monkeypatch.setattr(kind, "introduce", introduce)
    lenient = attrs.evolve(TINY, rounds=1, refused="leave_out")
    (result,) = rounds(lenient, task=task, clients=clients)
    assert list(result.refused) == ["1"] and "'counts' is missing" in result.refused["1"]
    assert {name for name in result.state.tensors if name.startswith("counts/")} == {
        "counts/0",
        "counts/2",
    }
