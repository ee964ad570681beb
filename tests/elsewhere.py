"""A second device where there is none: its tensors live on the CPU and are marked as being on `cuda`.

`Elsewhere` answers what code asks of a tensor's place, and makes tensors for `cuda` marked ones. What is
really computed, also below `vmap` and `grad` and in backward passes, goes through `_Operations`: it refuses
to mix places, as CUDA does, and notes where the host waits. All values are those of the CPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
CORE = str(Path(__file__).parents[1] / "core") + "/"

#: storages on cuda, and those of which nobody can tell, by number: they outlive a test in caches
FAR: dict[int, StorageWeakRef] = {}
ANYWHERE: dict[int, StorageWeakRef] = {}
GENERATORS: dict[int, torch.Generator] = {}

aten = torch.ops.aten
#: the host needs the values to go on, or to know the shape of the result
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.bincount}
WAITS |= {aten._unique2, aten.unique_consecutive, aten.unique_dim}
JOINING = {aten.cat, aten.stack}
#: their indices may be on the CPU, and are copied then
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class WrongPlace(RuntimeError):
    """What CUDA would have refused."""


def tensors_of(*given: Any) -> list[torch.Tensor]:
    """All tensors in arguments or results, in their order."""
    found: list[torch.Tensor] = []
    for each in given:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += tensors_of(*each)
        elif isinstance(each, dict):
            found += tensors_of(*each.values())
    return found


def has_no_numbers(tensors: list[torch.Tensor]) -> bool:
    """Whether an operation is on PyTorch's device "meta": forward differentiation asks there for shapes."""
    return any(tensor.is_meta for tensor in tensors)


class _Operations(TorchDispatchMode):
    def __init__(self, places: Elsewhere) -> None:
        super().__init__()
        self.places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, places, op = kwargs or {}, self.places, func.overloadpacket
        tensors = tensors_of(args, kwargs)
        there = [places.holds(t) for t in tensors]
        if places.placing or has_no_numbers(tensors):
            return func(*args, **kwargs)
        if not tensors:  # made by PyTorch itself for a tensor that it does not show
            return places.mark(func(*args, **kwargs), places.anywhere)
        if any(there):
            self._look(op, tensors, there, args, kwargs)
        result = func(*args, **kwargs)
        if any(there) and op is not aten.copy_:
            places.mark(result)
        return result

    def _look(self, op: Any, tensors: list, there: list[bool], args: Any, kwargs: Any) -> None:
        """Refuse what mixes places; note what waits."""
        places = self.places
        here = [
            t
            for t, far in zip(tensors, there, strict=True)
            if not far
            # CUDA takes single numbers from the host, but does not join them with others
            and (t.dim() or op in JOINING)
            and _storage(t)._cdata not in places.anywhere
        ]
        if op is aten.copy_:
            patient = there[0] and len(args) > 2 and args[2]
            if there[0] != there[1] and (here or there[0] < there[1]) and not patient:
                places.wait("a copy")
        elif op in INDEXING:
            if not there[0] and here:
                raise WrongPlace(f"{op}: a tensor on the CPU, and others on cuda")
            if here:
                places.wait("indices on the CPU")
            if any(t.dtype == torch.bool for t in tensors[1:]):
                places.wait("a mask as index")
        elif here:
            raise WrongPlace(f"{op}: {[tuple(t.shape) for t in here]} on the CPU, others on cuda")
        if op in WAITS or (op is aten.repeat_interleave and kwargs.get("output_size") is None):
            places.wait(str(op).removeprefix("aten."))
        if (generator := kwargs.get("generator")) is not None:
            places.fitting(generator, True, str(op))


class Elsewhere(TorchFunctionMode):
    """A machine with a GPU; `waits` counts by the line of core and the kind of the wait."""

    def __init__(self) -> None:
        super().__init__()
        self.far, self.anywhere, self.generators = FAR, ANYWHERE, GENERATORS
        self.waits: Counter[tuple[str, str]] = Counter()
        #: an operation does nothing but put a tensor somewhere
        self.placing = False
        self.operations = _Operations(self)

    def fitting(self, generator: Any, far: bool, what: str) -> None:
        """Refuse a generator that is elsewhere than what it fills."""
        if generator is not None and (generator._cdata in self.generators) != far:
            raise WrongPlace(f"{what}: the generator is on another device than the tensor")

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on cuda."""
        return _storage(tensor)._cdata in self.far

    def mark(self, results: Any, where: dict[int, StorageWeakRef] | None = None) -> Any:
        """Put tensors on cuda, or somewhere else, and hand them on."""
        marked = self.far if where is None else where
        for each in tensors_of(results):
            storage = _storage(each)
            if storage._cdata not in marked:
                # the weak reference keeps its number from being given to another storage
                marked[storage._cdata] = StorageWeakRef(storage)
        return results

    def wait(self, why: str) -> None:
        """Note that the host waits, and where in core."""
        frame: Any = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(CORE):
            frame = frame.f_back
        code = frame.f_code if frame is not None else None
        where = f"{code.co_filename[len(CORE) :]} {code.co_qualname}" if code else "?"
        self.waits[where, why] += 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if answer := _ASKED.get(func):
            return answer(self.holds(args[0]))
        if func in (torch.Tensor.numpy, torch.Tensor.__array__) and self.holds(args[0]):
            raise WrongPlace("a tensor on cuda has no NumPy view: it must be copied first")
        if func is torch.Tensor.tolist and self.holds(args[0]):
            self.wait("tolist")
        if func is torch.Tensor.__deepcopy__:
            result = func(*args, **kwargs)
            if self.holds(args[0]):
                self.mark(result)
            return result
        if func is F.one_hot and len(args) > 1:  # a GPU does not look at the values
            place = CUDA if self.holds(args[0]) else CPU
            return self._placed(place, lambda: func(*args))
        if func is torch.Tensor.backward:
            with self:
                kwargs |= dict(zip(("gradient", "retain_graph"), args[1:], strict=False))
                return torch.autograd.backward(args[0], kwargs.pop("gradient", None), **kwargs)
        if func is torch.Tensor.cpu:
            return self._moved(args[0], CPU, False)
        if func is torch.Tensor.to:
            return self._to(args[0], args[1:], kwargs)
        if kwargs.get("device") is not None:
            return self._made(func, args, kwargs)
        if not any(isinstance(one, torch.Tensor) for one in args) and not tensors_of(args, kwargs):
            return self._placed(CPU, lambda: func(*args, **kwargs))
        return func(*args, **kwargs)

    def _to(self, tensor: torch.Tensor, rest: Any, kwargs: dict[str, Any]) -> Any:
        device = kwargs.pop("device", None)
        if rest and isinstance(rest[0], (str, torch.device)):
            device, *rest = rest
        elif rest and isinstance(rest[0], torch.Tensor):
            device, rest = CUDA if self.holds(rest[0]) else CPU, (rest[0].dtype, *rest[1:])
        elif rest and rest[0] is None:
            device, *rest = rest
        patient = kwargs.get("non_blocking") or (len(rest) > 1 and rest[1])
        if device is not None and torch.device(device).type != "meta":
            tensor = self._moved(tensor, torch.device(device), bool(patient))
        kwargs |= {k: v for k, v in zip(("dtype", "non_blocking", "copy"), rest, strict=False) if v}
        return tensor.to(**kwargs) if kwargs else tensor

    def _moved(self, tensor: torch.Tensor, device: torch.device, patient: bool) -> torch.Tensor:
        """A tensor on a device; the same where it is there."""
        if self.holds(tensor) == (device.type == "cuda"):
            return tensor
        if not (patient and device.type == "cuda"):
            self.wait(f"a copy to {device.type}")
        return self._placed(device, tensor.clone)

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A new tensor on the device that is asked for."""
        device = torch.device(kwargs["device"])
        if device.type == "meta":
            return func(*args, **kwargs)
        far, name = device.type == "cuda", getattr(func, "__name__", str(func))
        self.fitting(kwargs.get("generator"), far, name)
        if name in ("tensor", "as_tensor", "asarray"):
            if isinstance(args[0], torch.Tensor):
                return self._to(args[0], (), kwargs)
            if far:
                self.wait("values from the host")
        kwargs["device"] = CPU
        return self._placed(device, lambda: func(*args, **kwargs))

    def _placed(self, device: torch.device, make: Any) -> Any:
        before, self.placing = self.placing, True
        try:
            result = make()
        finally:
            self.placing = before
        if device.type == "cuda":
            self.mark(result)
        return result


_ASKED = {
    torch.Tensor.device.__get__: lambda far: CUDA if far else CPU,
    torch.Tensor.is_cuda.__get__: lambda far: far,
    torch.Tensor.is_cpu.__get__: lambda far: not far,
}


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.untyped_storage()


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """As if there were a GPU."""
    places = Elsewhere()

    class Generator(torch.Generator):
        asked: torch.device

        def __new__(cls, device: Any = "cpu") -> Generator:
            made = super().__new__(cls, device="cpu")
            if torch.device(device).type == "cuda":
                places.generators[made._cdata] = made
            made.asked = torch.device(device)
            return made

        @property
        def device(self) -> torch.device:
            return self.asked  # unlike a tensor's, without the number that nobody gave

    waiting = patch.object(torch.cuda, "synchronize", lambda device=None: None)
    made = patch.object(torch, "Generator", Generator)
    with made, waiting, places.operations, places:
        yield places
