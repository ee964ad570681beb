"""Slopes along a direction."""

from concurrent.futures import ThreadPoolExecutor

import torch

from core.models.slopes import along


def test_threads_do_not_meet_in_pytorchs_one_level():
    """Of a linear map the slope is the map of the direction; shadow runs of an attack are threads."""
    draws = torch.Generator().manual_seed(0)
    weights = torch.randn(64, 64, generator=draws, dtype=torch.float64)
    points, ways = torch.randn(2, 16, 256, 64, generator=draws, dtype=torch.float64)

    def slope(at: int) -> torch.Tensor:
        for _ in range(20):
            found = along(lambda x: x @ weights, points[at], ways[at])[1]
        return found

    with ThreadPoolExecutor(4) as threads:
        for at, found in enumerate(threads.map(slope, range(16))):
            torch.testing.assert_close(found, ways[at] @ weights)
