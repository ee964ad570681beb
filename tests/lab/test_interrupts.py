"""An interrupt ends a run, also where a library has dropped it."""

import contextlib
import copyreg
import signal
import threading

import pytest

from lab import Experiment, Record, running
from lab.interrupts import kept_interrupts

TINY = Experiment(
    algorithm="fedavg",
    dataset="digits",
    model_options={"width": 8},
    clients=2,
    rounds=4,
    settings={"local_steps": 1},
)


@pytest.fixture(autouse=True)
def pythons_handler():
    """Of Ctrl-C; workers of xdist ignore it."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture(params=["Ctrl-C", "SIGTERM", "SIGTERM, Ctrl-C ignored"])
def number(request):
    """A signal that interrupts, as the command line has it."""
    if request.param == "Ctrl-C":
        return signal.SIGINT
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if request.param == "SIGTERM, Ctrl-C ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return signal.SIGTERM


def interrupt_and_drop(number):
    """A class is interrupted while `copyreg` notes its slots, as any class may be."""

    class Unlucky(type):
        def __setattr__(cls, name, value):
            signal.raise_signal(number)

    copyreg._slotnames(Unlucky("Unlucky", (), {}))


def test_a_dropped_interrupt_ends_the_run_after_its_round(monkeypatch, tmp_path, number):
    def unlucky(*args, **named):
        for result in rounds(*args, **named):
            if result.round == 2:
                interrupt_and_drop(number)
            yield result

    rounds = running.rounds
    monkeypatch.setattr(running, "rounds", unlucky)
    files = {"record": tmp_path / "r.json", "checkpoint": tmp_path / "c.safetensors"}
    with pytest.raises(KeyboardInterrupt):
        running.run(TINY, **files)
    cut = Record.load(files["record"])
    assert cut.status == "running" and len(cut.rounds) == 2
    assert signal.getsignal(number) is signal.default_int_handler
    monkeypatch.setattr(running, "rounds", rounds)
    assert len(running.run(TINY, **files).rounds) == 4


def test_an_interrupt_works_at_once(number):
    with pytest.raises(KeyboardInterrupt), kept_interrupts():
        signal.raise_signal(number)
        raise AssertionError("the interrupt came later")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_a_programs_own_handler_is_kept(handler, number):
    signal.signal(number, handler)
    with kept_interrupts() as interrupt_again:
        assert signal.getsignal(number) is handler
        signal.raise_signal(number)
        interrupt_again()
    assert signal.getsignal(number) is handler


def test_other_threads_leave_signals_alone():
    found = []

    def work():
        with contextlib.suppress(ValueError), kept_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
