"""Loops are counted for whoever listens, and for nobody else."""

import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.progress import counted, listening


def listener():
    seen = []
    return seen, lambda stages: seen.append([str(stage) for stage in stages])


def test_a_loop_within_a_loop_is_heard_behind_it():
    seen, tell = listener()
    with listening(tell):
        for _ in counted("ab", "clients", 2):
            assert list(counted(range(2), "training", 2)) == [0, 1]
    assert seen == [
        ["clients 0/2"],
        ["clients 0/2", "training 0/2"],
        ["clients 0/2", "training 1/2"],
        ["clients 1/2"],
        ["clients 1/2", "training 0/2"],
        ["clients 1/2", "training 1/2"],
    ]


def test_a_loop_that_is_left_is_over():
    seen, tell = listener()
    with listening(tell):
        for _ in counted(range(9), "condensation", 9):
            break
        with pytest.raises(ZeroDivisionError):
            list(counted((1 // k for k in (1, 0)), "clients", 2))
        list(counted([0], "training", 1))
    assert seen == [["condensation 0/9"], ["clients 0/2"], ["training 0/1"]]


def test_nobody_hears_what_was_not_asked_for():
    seen, tell = listener()
    assert list(counted(iter(range(3)), "training", 3)) == [0, 1, 2]
    with listening(tell):
        pass
    assert list(counted(range(3), "training", 3)) == [0, 1, 2]
    assert not seen


def test_the_inner_of_two_listeners_hears():
    seen, tell = listener()
    others, tell_others = listener()
    with listening(tell):
        with listening(tell_others):
            list(counted([0], "training", 1))
        list(counted([0], "epochs", 1))
    assert others == [["training 0/1"]] and seen == [["epochs 0/1"]]


def test_loops_in_other_threads_are_not_taken_for_parts_of_this_one():
    seen, tell = listener()
    with listening(tell), ThreadPoolExecutor(1) as pool:
        for _ in counted(range(2), "runs", 2):
            here = contextvars.copy_context()
            assert pool.submit(here.run, list, counted("ab", "training", 2)).result() == ["a", "b"]
    assert seen == [["runs 0/2"], ["runs 1/2"]]
