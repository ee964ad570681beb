"""Every random draw of the package comes from a generator derived here from a seed and the purpose
of the draw.
"""

from __future__ import annotations

import hashlib
import operator

import attrs
import numpy as np
import torch


def _plain(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    return tuple(part if isinstance(part, str) else operator.index(part) for part in path)


@attrs.frozen
class Rng:
    """A node in a tree of random streams.

    A node is a seed and a path such as `("round", 3, "client", 7, "batches")`. The same path always
    gives the same stream, and no stream depends on what was drawn before from another. So a run
    that is resumed in the middle draws what an uninterrupted run would have drawn. Different paths
    give different streams but for chance: PyTorch keeps 32 bits of a seed on a CPU.
    """

    #: a whole number of any kind: a stream's key is that of its value
    seed: int = attrs.field(converter=operator.index)
    path: tuple[str | int, ...] = attrs.field(default=(), converter=_plain)

    def at(self, *parts: str | int) -> Rng:
        """The node below this one reached by `parts`."""
        return Rng(self.seed, self.path + parts)

    @property
    def key(self) -> int:
        """A 63-bit integer that stands for this node."""
        digest = hashlib.sha256(repr((self.seed, *self.path)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh torch generator at the start of this node's stream."""
        return torch.Generator(device=device).manual_seed(self.key)

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator at the start of this node's stream."""
        return np.random.default_rng(self.key)
