"""The passes that a GPU runs, in Triton's interpreter, beside those of the CPU.

On a GPU `tests/test_same_on_a_gpu.py` runs them compiled. The interpreter must be asked for before
Triton is imported, so it has a process of its own.
"""

import os
import subprocess
import sys

import pytest

from core.models import kernels

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")

#: (N, C, H, W), shortcut, slope, pool, rows of scale and shift
CASES = [
    ((3, 5, 6, 4), False, 0.0, 2, 3),
    ((3, 5, 5, 7), True, 0.2, 1, 1),
    ((2, 40, 9, 9), True, 0.0, 2, 2),
    ((2, 16, 4, 4), False, 1.0, 1, 1),
]
BOTH = """
import sys, torch
from core.models import fused, kernels
from core.models.kernels import on_gpu
from core.rng import Rng

kind, cases = getattr(torch, sys.argv[1]), eval(sys.argv[2])
close = 1e-2 if kind == torch.bfloat16 else 1e-5
drawn = iter(range(10**6))

def normal(*size):
    return torch.randn(size, generator=Rng(next(drawn)).generator())

def maps(*size):
    return normal(*size).to(kind).contiguous(memory_format=torch.channels_last)

def alike(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype and one.shape == other.shape
            torch.testing.assert_close(one, other, rtol=close, atol=close)

for (n, c, h, w), has_shortcut, slope, pool, rows in cases:
    x, dy, shortcut = maps(n, c, h, w), maps(n, c, h // pool, w // pool), maps(n, c, h, w)
    rest = shortcut if has_shortcut else None, slope, pool
    a, b, mean, *line = (normal(rows, c) for _ in range(5))
    alike([on_gpu.forward(x, a, b, *rest)], [kernels.forward(x, a, b, *rest)])
    for each in (None, tuple(line)):
        given = (x, dy, a, b, each, *rest)
        alike(on_gpu.backward(*given), kernels.backward(*given))
    alike(on_gpu.sums(x, dy, a, b, mean, *rest), kernels.sums(x, dy, a, b, mean, *rest))
    pivot, weight, bias = normal(c), normal(c), normal(c)
    found = on_gpu.moments(x, pivot)
    alike(found, kernels.moments(x, pivot))
    for group, groups in ((None, 1), (torch.arange(n) % 2 * 2, 4)):  # 1 and 3 have no image
        values = fused._values(x, group, groups)
        given = (*found, pivot, weight, bias, group, values, 1e-5)
        made = kernels.statistics(*given)
        alike(on_gpu.statistics(*given), made)
        for extra in (None, normal(groups, c)):
            given = (*found, weight, group, values, made[0], made[2], extra, extra)
            alike(on_gpu.slopes(*given), kernels.slopes(*given))
"""


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_the_passes_of_a_gpu_give_those_of_the_cpu(kind):
    told = [sys.executable, "-c", BOTH, kind, repr(CASES)]
    interpreted = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(told, capture_output=True, text=True, env=interpreted)
    assert done.returncode == 0, done.stderr[-2000:]
