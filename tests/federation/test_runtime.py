"""What a record says about the machine, and runs in parallel."""

import itertools
import mmap
import multiprocessing
import threading
from contextvars import ContextVar

import pytest
import torch

from core.federation import Runtime


@pytest.fixture(params=[1, 3])
def threads(request):
    """PyTorch with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_parallel_runs_have_a_core_each_and_come_in_order(threads):
    together = threading.Barrier(threads, timeout=20)

    def run(item: int) -> tuple[int, int, int]:
        together.wait()  # passed only when so many are here at once
        return item, torch.get_num_threads(), threading.get_ident()

    items = range(2 * threads)
    found = list(Runtime().in_parallel(run, items))
    assert [item for item, _, _ in found] == list(items)
    assert {own for _, own, _ in found} == {1}
    assert len({place for _, _, place in found}) == threads
    assert torch.get_num_threads() == threads


def test_what_holds_for_the_caller_holds_in_parallel_runs(threads):
    named = ContextVar("named", default="outside")
    token = named.set("inside")
    found = set(Runtime().in_parallel(lambda _: named.get(), range(4)))
    named.reset(token)
    assert found == {"inside"}


def test_float32_on_a_gpu_is_no_shorter_number(monkeypatch):
    """The precision does not depend on the machine."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for device, shorter in (("cpu", True), ("cuda", False)):
        assert Runtime.choose(device).precision == "float32"
        assert Runtime.choose(device, "bfloat16").precision == "bfloat16"
        assert torch.backends.cudnn.allow_tf32 == shorter


def test_after_an_error_nothing_else_begins(threads):
    begun = itertools.count()

    def run(item: int) -> int:
        next(begun)
        if item == 1:
            raise KeyboardInterrupt
        return item

    found = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(Runtime().in_parallel(run, range(1000)))
    assert next(begun) < 1000 and torch.get_num_threads() == threads


def measure(connection) -> None:
    """Peaks before and with 64 MB more, in a process whose own peak begins here."""
    runtime = Runtime()
    before = runtime.peak_memory()
    # from the system itself: the allocator may hold memory that was given back
    held = mmap.mmap(-1, 2**26)
    for _ in range(64):
        held.write(b"x" * 2**20)
    connection.send((before, runtime.peak_memory(), len(held)))


def test_peak_memory_grows_by_what_is_held():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=measure, args=(there,))
    child.start()
    before, after, held = here.recv()
    child.join()
    assert 0.9 * held < after - before < 2 * held
    assert before > 50 * 2**20  # PyTorch alone takes that much
