"""A run that is killed at any point and started again leaves the record of a run that was not."""

import pytest

from tests.e2e import kills


@pytest.mark.timeout(600)
def test_killed_at_any_point_and_gone_on_is_the_same_record_bit_for_bit(tmp_path):
    runs = kills.kill_everywhere(kills.processes(), tmp_path)
    assert runs < len(kills.POINTS) / 2  # most were killed more than once
