"""What a record says about the machine."""

import mmap
import multiprocessing

from core.federation import Runtime


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
