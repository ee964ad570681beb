"""Generators of all random draws of the package, each derived from a seed and the purpose of the draw."""

from __future__ import annotations

import hashlib
import operator

import attrs
import numpy as np
import torch

#: the state of PyTorch's generator on a CPU: bytes before the words of the twister, and how many words
HEAD, WORDS = 24, 624


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
        return type(self)(self.seed, self.path + parts)

    @property
    def parent(self) -> Rng:
        """The node above this one."""
        return type(self)(self.seed, self.path[:-1])

    @property
    def _name(self) -> bytes:
        return repr((self.seed, *self.path)).encode()

    @property
    def key(self) -> int:
        """A 63-bit integer that identifies this node."""
        return int.from_bytes(hashlib.sha256(self._name).digest()[:8], "big") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh torch generator at the start of this node's stream."""
        return torch.Generator(device=device).manual_seed(self.key)

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator at the start of this node's stream."""
        return np.random.default_rng(self.key)


@attrs.frozen
class SecretRng(Rng):
    """A tree of streams as `Rng`, of a seed of any length that others must not find out.

    On a CPU all numbers of the generator's state are drawn from seed and path by SHAKE-256, in the
    place of the 32 bits that PyTorch keeps of a key: those can be tried one by one, and of some ten
    thousands of streams two are alike. On a GPU PyTorch keeps 64 bits, of which the key has 63.
    """

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh torch generator at the start of this node's stream."""
        generator = super().generator(device)
        if generator.device.type == "cpu":
            state = generator.get_state()
            # a Mersenne twister's 624 words of 32 bits come after 24 bytes, 8 bytes for each
            drawn = hashlib.shake_256(self._name).digest(4 * WORDS)
            words = np.frombuffer(drawn, "<u4").astype(np.uint64)
            state[HEAD : HEAD + 8 * WORDS] = torch.from_numpy(words).view(torch.uint8)
            generator.set_state(state)
        return generator
