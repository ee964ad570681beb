"""The bar of a run says how far a round has come, and no more often than a reader can follow."""

import attrs
import pytest

from core.federation import Ledger, RoundResult
from core.progress import Stage
from lab import bar, rounds
from tests.algorithms.on_digits import on_digits

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
        assert "2/4" in str(one._bar) and "<?" in str(one._bar)
        start = bar.time.time()
        monkeypatch.setattr(one._bar, "_time", lambda: start + 2)
        one.show(attrs.evolve(RESULT, round=3))
        assert "3/4" in str(one._bar) and "2.0" in str(one._bar)


def test_rounds_from_a_checkpoint_are_told_from_others(tmp_path):
    """Also where it has one round only."""
    one = on_digits("fedavg", {"local_steps": 1}, rounds=3, clients=2)
    file, seen = tmp_path / "c", []
    for result in rounds(one, checkpoint=file):
        seen.append(result.restored)
        if result.round == 1:
            break
    seen += [result.restored for result in rounds(one, checkpoint=file)]
    assert seen == [False, True, False, False]


@pytest.mark.parametrize(("terminal", "every"), [(True, 1.0), (False, 30.0)])
def test_it_is_not_drawn_at_every_step(monkeypatch, capsys, terminal, every):
    """Once a second on a terminal; a log would get long by that."""
    clock = [100.0]
    monkeypatch.setattr(bar.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(bar.sys.stderr, "isatty", lambda: terminal, raising=False)
    with bar.Bar("moon, seed 0", 4, True) as one:
        clock[0] += every - 0.01
        one.tell(STAGES)
        assert "clients" not in capsys.readouterr().err
        clock[0] += 0.02
        one.tell(STAGES)
        one.tell(STAGES)
    # tqdm draws what it shows once more at its end
    assert 1 <= capsys.readouterr().err.count("now=clients") <= 2
