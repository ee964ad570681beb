"""The bar of a run says how far a round has come, and no more often than a reader can follow."""

import attrs
import pytest

from core.federation import Ledger, RoundResult
from core.progress import Stage
from lab import bar

STAGES = [Stage("clients", 10, 3), Stage("parts", 1), Stage("training", 80, 20)]
RESULT = RoundResult(1, {"accuracy": 0.5}, 2**20, 2**21, {}, None, Ledger())


@pytest.mark.parametrize("shown", [True, False])
def test_it_names_what_a_round_gave_and_the_loops_of_more_than_one_step(monkeypatch, capsys, shown):
    monkeypatch.setattr(bar, "IN_A_LOG", 0)
    with bar.Bar("moon, seed 0", 4, shown) as one:
        one.show(RESULT)
        one.tell(STAGES[1:2])
        one.tell(STAGES)
    said = capsys.readouterr().err
    loops = "now=clients 3/10, training 20/80, accuracy=50.0%, up=1.0MB"
    assert ("1/4" in said and loops in said and "parts" not in said) if shown else not said


def test_the_rate_of_a_resumed_run_is_that_of_the_rounds_to_come(capsys, monkeypatch):
    """Two rounds from a checkpoint are there at once, and say nothing of the time left; the third takes
    two seconds.
    """
    with bar.Bar("moon, seed 0", 4, True) as one:
        for number in (1, 2):
            one.show(attrs.evolve(RESULT, round=number, restored=True))
        assert "2/4" in str(one) and "<?" in str(one)
        end = one._time() + 2
        monkeypatch.setattr(one, "_time", lambda: end)
        one.show(attrs.evolve(RESULT, round=3))
        assert "3/4" in str(one) and "2.0" in str(one)


@pytest.mark.parametrize(("terminal", "every"), [(True, 1.0), (False, 30.0)])
def test_it_is_not_drawn_at_every_step(monkeypatch, capsys, terminal, every):
    """Once a second on a terminal; a log would get long by that."""
    monkeypatch.setattr(bar.sys.stderr, "isatty", lambda: terminal, raising=False)
    with bar.Bar("moon, seed 0", 4, True) as one:
        start = one._time()
        for seconds, shown in ((every - 0.1, False), (every + 0.1, True), (every + 0.2, False)):
            monkeypatch.setattr(one, "_time", lambda now=start + seconds: now)
            one.tell(STAGES)
            assert ("now=clients" in capsys.readouterr().err) == shown
