"""What a record says about the machine."""

import torch

from core.federation import Runtime


def test_peak_memory_grows_by_what_is_held():
    runtime = Runtime()
    before = runtime.peak_memory()
    held = torch.ones(2 * before // 4 + 2**20)  # float32: more than twice the peak so far
    assert runtime.peak_memory() >= before + held.numel()
    assert before > 50 * 2**20  # PyTorch alone takes that much
