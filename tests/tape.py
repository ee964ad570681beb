"""What stands in for a CUDA graph: operations that are noted and undone, and done again on request.

It changes nothing, and refuses what waits for the device or takes something from the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.elsewhere import WAITS, Elsewhere, _storage, aten, has_no_numbers, tensors_of

#: operations that tell PyTorch's profiler where it is, and nothing else
SILENT = {"profiler"}


class Refused(RuntimeError):
    """What CUDA does not record."""


class Tape(TorchDispatchMode):
    """The operations of one piece of work on the device of `places`."""

    def __init__(
        self, places: Elsewhere, work: Callable[[], None], draws: Sequence[torch.Generator] = ()
    ) -> None:
        super().__init__()
        self.places, self.draws = places, draws
        self.noted: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.states: dict[torch.Generator, torch.Tensor] = {}
        waited = places.waits.copy()
        try:
            with self:
                work()
        finally:  # what CUDA records it does not do
            waited_for, places.placing = places.waits - waited, True
            for tensor, value in reversed(self.before.values()):  # one may be a view of another
                tensor.data.copy_(value)
            for generator, state in self.states.items():
                generator.set_state(state)
            places.placing = False
        if waited_for:
            raise Refused(f"it waits: {waited_for}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        asks = func.overloadpacket in WAITS
        if (
            func.namespace in SILENT
            or has_no_numbers(tensors_of(args, kwargs))
            or (asks and self.places.placing)
        ):
            return func(*args, **kwargs)  # a CPU looks at what it places, a GPU does not
        self._refuse(func, asks, args, kwargs)
        for tensor in _written(func, args, kwargs):
            self.before.setdefault(id(tensor), (tensor, tensor.detach().clone()))
        if (generator := kwargs.get("generator")) is not None:
            self.states.setdefault(generator, generator.get_state())
        # a number that the host holds goes into a recording as it is
        kept = tree_map(lambda one: one if self._changes(one) else one.clone(), (args, kwargs))
        result = func(*args, **kwargs)
        self.noted.append((func, *kept, result))
        return result

    def _refuse(self, func: Any, asks: bool, args: Any, kwargs: Any) -> None:
        if asks:
            raise Refused(f"{func} needs a value")
        if self.places.placing and func.overloadpacket is aten.clone:
            raise Refused("a copy from the host or to it")
        for tensor in [] if self.places.placing else tensors_of(args, kwargs):
            if tensor.dim() and not self._far(tensor):
                raise Refused(f"{func} takes {tuple(tensor.shape)} from the host")
        generator = kwargs.get("generator")
        if generator is not None and generator._cdata not in {one._cdata for one in self.draws}:
            raise Refused("a generator that was not registered")

    def _changes(self, given: Any) -> bool:
        """Whether a replay sees what has become of an argument."""
        return not isinstance(given, torch.Tensor) or given.dim() > 0 or self._far(given)

    def _far(self, tensor: torch.Tensor) -> bool:
        return self.places.holds(tensor) or _storage(tensor)._cdata in self.places.anywhere

    @torch.no_grad()
    def replay(self) -> None:
        """Do it all again, in the same places."""
        for func, args, kwargs, result in self.noted:
            with torch._C.DisableTorchFunction():  # nobody asks for a device here
                found = func(*args, **kwargs)
            for old, new in zip(tensors_of(result), tensors_of(found), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.data.copy_(new)


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operation changes in place."""
    if func.overloadpacket is aten.native_batch_norm:  # its schema does not say so
        return [each for each in args[3:5] if each is not None and args[5]]
    named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    changed = [
        named[one.name]
        for one in func._schema.arguments
        if one.alias_info is not None and one.alias_info.is_write and one.name in named
    ]
    return [*tensors_of(changed)]
