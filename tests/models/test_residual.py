"""The residual block beside one whose shortcut has a stride of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from core.models.residual import BasicBlock
from core.rng import Rng


def written_out(block: BasicBlock, maps: torch.Tensor) -> torch.Tensor:
    """The block as He et al. print it, in evaluation mode, with PyTorch's strided convolutions."""

    def normalised(maps: torch.Tensor, norm: nn.BatchNorm2d) -> torch.Tensor:
        return F.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias)

    conv, norm = block.downsample
    shortcut = normalised(F.conv2d(maps, conv.weight, stride=block.stride), norm)
    inner = F.conv2d(maps, block.conv1.weight, stride=block.stride, padding=1)
    inner = F.conv2d(normalised(inner, block.bn1).relu(), block.conv2.weight, padding=1)
    return (normalised(inner, block.bn2) + shortcut).relu()


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("stride, size", [(2, 8), (2, 7), (3, 8)])
def test_a_thinned_shortcut_is_a_strided_one(stride, size, twice):
    block = BasicBlock(4, 6, stride).double().eval()
    leaf = torch.randn(3, 4, size, size, dtype=torch.float64, generator=Rng(0).generator())
    leaf.requires_grad_()
    found = []
    for way in (block, lambda maps: written_out(block, maps)):
        y = way(leaf)
        wanted = [leaf, *(p for p in block.parameters() if p.ndim == 4)]
        slopes = torch.autograd.grad(y.pow(3).sum(), wanted, create_graph=twice)
        if twice:
            slopes = torch.autograd.grad(slopes[0].square().sum(), wanted)
        found.append((y, *slopes))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
