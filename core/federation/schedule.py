"""The schedule of a run: its rounds, who takes part, and when it is tested."""

from __future__ import annotations

from typing import Any

import attrs

from core.checks import coerced, number, one_of, whole
from core.errors import InputError

SPLITS = ("test", "val")
ENDS = ("end", "leave_out")
#: who can test a model
EVALUATORS: tuple[str, ...] = ("server", "clients")
#: no sound training moves a network further in one round
UPDATE_NORM = 1e4


def _active(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    if value is not None:
        whole(1)(instance, attribute, value)
        if value > instance.clients:
            raise InputError(
                f"active must be at most the number of clients, {instance.clients}, not {value}"
            )


@attrs.frozen(kw_only=True, field_transformer=coerced)
class Schedule:
    """The plan of a run, for the round loop and for algorithms."""

    #: N, clients in all; from the beginning of a run those that have data
    clients: int = attrs.field(default=10, validator=whole(1))
    #: clients that take part in a round; None: all
    active: int | None = attrs.field(default=None, validator=_active)
    rounds: int = attrs.field(default=10, validator=whole(1))
    #: test every so many rounds; the last round is always tested
    evaluate_every: int = attrs.field(default=1, validator=whole(1))
    #: "test", or "val" to choose hyper-parameters
    evaluate_on: str = attrs.field(
        default="test", validator=one_of("split to evaluate on", *SPLITS)
    )
    #: "server": on all images of the split. "clients", as in the code of FedGen: by each that has taken
    #: part so far, with running statistics of its own, on images of its own classes
    tested_by: str = attrs.field(default="server", validator=one_of("tester", *EVALUATORS))
    #: what an upload that is refused does: "end" the round, and the run with it; "leave_out": the
    #: round goes on with the others
    refused: str = attrs.field(default="end", validator=one_of("answer to a refused upload", *ENDS))
    #: the largest Euclidean norm of a client's update of a network
    update_norm: float = attrs.field(default=UPDATE_NORM, validator=number(0, above=True))

    def among(self, able: int) -> Schedule:
        """The schedule of a run in which so many clients have data."""
        able = max(able, 1)
        active = None if self.active is None or self.active >= able else self.active
        return attrs.evolve(self, clients=able, active=active)

    def steps_until(self, steps: int, number: int) -> int:
        """Steps of a run that are done after a round, from 1: every round takes as many."""
        return steps * min(number, self.rounds) // self.rounds

    def tests(self, number: int) -> bool:
        """True where the model is tested after this round, counted from 1."""
        return number % self.evaluate_every == 0 or number == self.rounds
