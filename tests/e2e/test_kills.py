"""Kills at points of a run drawn at random by name; `python -m tests.e2e.kills 500` does more."""

import pytest

from tests.e2e.kills import kill_often


@pytest.mark.timeout(600)
def test_killed_at_any_point_and_gone_on_is_the_same_record_bit_for_bit(tmp_path):
    done = kill_often(30, tmp_path)
    assert sum(done.values()) == 30 and sum(count > 0 for count in done.values()) >= 6, done
