"""The bar of a run says how far a round has come, and no more often than a reader can follow."""

import attrs
import pytest

from core.experiments import bar
from core.federation import Ledger, RoundResult
from core.progress import Stage

STAGES = [Stage("clients", 10, 3), Stage("parts", 1), Stage("training", 80, 20)]
RESULT = RoundResult(1, {"accuracy": 0.5}, 2**20, 2**21, {}, None, Ledger())


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(bar, "EVERY", 0)


def test_it_names_the_loops_of_more_than_one_step(at_once, capsys):
    with bar.Bar("moon, seed 0", 4, True) as one:
        one.tell(STAGES)
    assert "now=clients 3/10, training 20/80]" in capsys.readouterr().err


def test_what_a_round_gave_stays_beside_them(at_once, capsys):
    with bar.Bar("moon, seed 0", 4, True) as one:
        one.show(RESULT)
        one.tell(STAGES[1:2])
        one.tell(STAGES)
    said = capsys.readouterr().err
    assert "1/4" in said and "accuracy=50.0%, up=1.0MB, down=2.0MB, now=clients 3/10" in said
    assert "parts" not in said


def test_a_round_from_a_checkpoint_says_nothing_about_the_time_left(capsys):
    with bar.Bar("moon, seed 0", 4, True) as one:
        one.show(attrs.evolve(RESULT, followed=True))
    said = capsys.readouterr().err
    assert "1/4" in said and "<?" in said.split("\r")[-1]


def test_it_is_not_drawn_at_every_step(monkeypatch, capsys):
    monkeypatch.setattr(bar, "EVERY", 3600)
    with bar.Bar("moon, seed 0", 4, True) as one:
        one.tell(STAGES)
    assert "clients" not in capsys.readouterr().err


def test_one_that_is_not_shown_says_nothing(at_once, capsys):
    with bar.Bar("moon, seed 0", 4, False) as one:
        one.tell(STAGES)
        one.show(RESULT)
    assert capsys.readouterr() == ("", "")
