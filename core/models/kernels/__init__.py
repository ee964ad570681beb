"""Compiled passes over maps, made on this machine when they are first needed.

The `.cpp` files beside this one are compiled in a few seconds, once, into the user's cache folder
(`FEDCON_CACHE`, else `$XDG_CACHE_HOME`, else `~/.cache`). Without a C++ compiler, or with
`FEDCON_KERNELS=eager`, networks run by PyTorch's own kernels: the same numbers within rounding, in
more passes over memory and more multiplications.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

from core.errors import unknown
from core.models.slopes import without_slope

NAMES = ("fused.cpp", "winograd.cpp", "tiles.cpp", "images_last.cpp", "rows.cpp")
SOURCES = tuple(Path(__file__).with_name(name) for name in NAMES)
HEADER = Path(__file__).with_name("vectors.h")
#: what is tried, the fastest first. OpenMP is taken from PyTorch, so that both have one pool of
#: threads; a compiler that does not know a choice fails, and the next one is tried
_OPENMP = ("-fopenmp", "-nodefaultlibs", "-lstdc++", "-lc")
_ARCHITECTURES = (("-march=native",), ("-mcpu=native",), ())
#: without -fno-trapping-math GCC makes no vectors of a loop with a choice in it where a processor has
#: no masks (AVX2, NEON): each pass took seven times as long. No result changes
FLAGS = (
    *("-O3", "-std=c++17", "-shared", "-fPIC"),
    *("-fno-trapping-math", "-fopenmp-simd", "-Wno-unknown-pragmas"),
)
_AVX512 = ("-march=x86-64-v4", "-mtune=native")
_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_off: ContextVar[bool] = ContextVar("eager", default=False)


@contextmanager
def eager() -> Iterator[None]:
    """Within it networks run by PyTorch's own kernels."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def off() -> bool:
    """Whether somebody asked to do without, by `eager` or for the whole process."""
    return _off.get() or _unwanted()


def _unwanted() -> bool:
    """Whether `FEDCON_KERNELS` is "eager". Raises InputError where it is anything else."""
    asked = os.environ.get("FEDCON_KERNELS", "")
    if asked.lower() not in ("", "eager"):
        raise unknown("value of FEDCON_KERNELS", asked, ("eager",))
    return bool(asked)


def in_use() -> str:
    """ "fused" or "eager": what networks on this machine's CPU run by."""
    return "eager" if off() or library() is None else "fused"


def fits(*maps: torch.Tensor) -> bool:
    """Whether the compiled passes take these maps: all of one type, plain tensors on a CPU."""
    return plain_on("cpu", maps) and in_use() == "fused"


def plain_on(device: str, maps: Sequence[torch.Tensor]) -> bool:
    """Whether these are plain maps on such a device, all of one type that the passes know. Maps that
    carry a slope are left to PyTorch's operations.
    """
    return (
        all(
            type(each) in (torch.Tensor, torch.nn.Parameter)
            and each.device.type == device
            and each.ndim == 4
            and each.dtype == maps[0].dtype
            for each in maps
        )
        and maps[0].dtype in _TYPES
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(without_slope(each) is each for each in maps)
    )


@functools.cache
def keep_memory() -> None:
    """Let the C library of Linux use the memory of freed maps again.

    It would hand blocks above 32 MiB back to the system, which then clears every page of the next
    one: maps of 128 images took as long to get as to compute. Up to 1 GiB stays with the process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX: no block of its own for a large tensor
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled passes; None, which is said once, where they cannot be had."""
    if _unwanted():
        return None
    keep_memory()
    compiler = next(
        filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None
    )
    reason = "there is no C++ compiler"
    if compiler is not None:
        wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
        for architecture in ((_AVX512,) if wide else ()) + _ARCHITECTURES:
            for threads in (_OPENMP, ()):
                try:
                    return _loaded(compiler, (*architecture, *threads))
                except (OSError, subprocess.SubprocessError) as error:
                    reason = f"{compiler} failed: {str(error).splitlines()[0]}"
    print(f"networks run without fused kernels, slower: {reason}", file=sys.stderr)
    return None


def _loaded(compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Compile, where this has not been done before, and load. Raises OSError or SubprocessError."""
    stat = Path(compiler).stat()
    told = (
        *(file.read_bytes() for file in (*SOURCES, HEADER)),
        compiler,
        stat.st_mtime_ns,
        stat.st_size,
        FLAGS,
        flags,
        _processor(),
    )
    name = f"fused-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}.so"
    path = _folder() / name
    if not _as_written(path):
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / name
            subprocess.run(
                [compiler, *FLAGS, "-o", str(made), *map(str, SOURCES), *flags],
                check=True,
                capture_output=True,
                timeout=120,
            )
            ctypes.CDLL(str(made), mode=os.RTLD_NOW)  # all its symbols are there
            told_whole = made.with_suffix(".sha256")
            told_whole.write_text(_digest(made), encoding="ascii")
            for file in (made, told_whole):
                with file.open("rb") as written:
                    os.fsync(written.fileno())
                file.replace(path.with_suffix(file.suffix))
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _as_written(path: Path) -> bool:
    """Whether a library is there, whole: of one that lost its end, whoever calls it dies."""
    try:
        return path.with_suffix(".sha256").read_text(encoding="ascii") == _digest(path)
    except (OSError, ValueError):
        return False


def _processor() -> str:
    """What kind of processor this is: a cache folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@functools.cache
def _folder() -> Path:
    """Where compiled kernels are kept; where nothing can be written a folder that goes with this
    process.
    """
    base = os.environ.get("FEDCON_CACHE") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "fedcon-book"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # of a home folder that nobody knows
        own = tempfile.mkdtemp(prefix="fedcon-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return Path(own)


def moments(x: torch.Tensor, pivot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums (N, C) of x - k and of its square over the positions of maps (N, C, H, W), k (C,)."""
    plain, square = (torch.zeros(x.shape[:2]) for _ in range(2))
    call("moments", x, pivot, plain, square, _shape(x))
    return plain, square


def statistics(
    plain: torch.Tensor,
    square: torch.Tensor,
    pivot: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    group: torch.Tensor | None,
    values: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Mean m, variance v, r = (v + eps)^-1/2, w r and bias - m w r, (G, C) each, from what `moments` gives:
    sums (N, C) about a pivot (C,).

    Args:
        weight, bias: (C,) float32. group: (N,) int64, the group of each image; None: all are one.
        values: (G,) float64, the values of a channel in each group.
    """
    assert group is None or (group.dtype == torch.int64 and group.is_contiguous())
    found = [plain.new_empty(len(values), plain.shape[1]) for _ in range(5)]
    size = (*_sized(plain, values), float(eps))
    call("statistics", plain, square, pivot, weight, bias, group, values, *found, *size)
    return tuple(found)


def slopes(
    plain: torch.Tensor,
    centred: torch.Tensor,
    weight: torch.Tensor,
    group: torch.Tensor | None,
    values: torch.Tensor,
    mean: torch.Tensor,
    rate: torch.Tensor,
    d_mean: torch.Tensor | None,
    d_variance: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """`line` of `backward`, two times (G, C), and the gradients of weight and bias, (C,), from what `sums`
    gives and what comes in for m and v themselves, (G, C) or None.
    """
    line = [torch.empty_like(mean) for _ in range(2)]
    own = [torch.zeros_like(weight) for _ in range(2)]
    given = (weight, group, values, mean, rate, d_mean, d_variance)
    call("slopes", plain, centred, *given, *line, *own, *_sized(plain, values))
    return (*line, *own)


def _sized(rows: torch.Tensor, values: torch.Tensor) -> tuple[int, int, int]:
    return len(rows), len(values), rows.shape[1]


def forward(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    shortcut: torch.Tensor | None,
    slope: float,
    pool: int,
) -> torch.Tensor:
    """pool(f(scale x + shift + shortcut)), (N, C, H / pool, W / pool); scale and shift are (N, C),
    or (1, C); f(z) is z above 0 and slope z below.
    """
    size = (*x.shape[:2], x.shape[2] // pool, x.shape[3] // pool)
    y = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
    call("forward", x, shortcut, scale, shift, y, _shape(x), stride(scale), float(slope), pool)
    return y


def sums(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    mean: torch.Tensor,
    shortcut: torch.Tensor | None,
    slope: float,
    pool: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums (N, C) of dz and of dz (x - mean), dz the gradient before f; mean is (N, C) or (1, C)."""
    plain, centred = (torch.zeros(x.shape[:2]) for _ in range(2))
    strides = stride(scale), stride(mean)
    given = (shortcut, dy, scale, shift, mean, plain, centred, _shape(x))
    call("sums", x, *given, *strides, float(slope), pool)
    return plain, centred


def backward(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    line: tuple[torch.Tensor, torch.Tensor] | None,
    shortcut: torch.Tensor | None,
    slope: float,
    pool: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """scale dz + a x + b with `line` (a, b), (N, C) or (1, C) each, and dz where there is a
    shortcut.
    """
    dx, dz = torch.empty_like(x), None if shortcut is None else torch.empty_like(x)
    a, b = (None, None) if line is None else line
    strides = stride(scale), 0 if a is None else stride(a)
    given = (shortcut, dy, scale, shift, a, b, dx, dz, _shape(x))
    call("backward", x, *given, *strides, float(slope), pool)
    return dx, dz


def threaded() -> bool:
    """Whether the compiled passes take as many threads as PyTorch has: they were compiled with OpenMP."""
    found = library()
    return found is not None and bool(found.threaded())


@functools.cache
def has_tiles() -> bool:
    """Whether the passes that multiply matrices (AMX) were compiled and this process may use them."""
    found = library()
    return found is not None and bool(found.tiles_ready())


def _shape(x: torch.Tensor) -> ctypes.Array[ctypes.c_int64]:
    n, c, h, w = x.shape
    return (ctypes.c_int64 * 4)(n, h, w, c)


def stride(values: torch.Tensor) -> int:
    """How far the next image's values are: 0 where all images have the same."""
    return values.shape[1] if len(values) > 1 else 0


def call(name: str, x: torch.Tensor, *rest: torch.Tensor | ctypes.Array | float | None) -> None:
    """Call a pass for the type of x, with the number of threads as its last argument."""
    found = library()
    assert found is not None
    given = [
        ctypes.c_void_p(each.data_ptr())
        if isinstance(each, torch.Tensor)
        else ctypes.c_float(each)
        if isinstance(each, float)
        else ctypes.c_int64(each)
        if isinstance(each, int)
        else each
        for each in (x, *rest)
    ]
    function = getattr(found, f"{name}_{_TYPES[x.dtype]}")
    function(*given, ctypes.c_int64(torch.get_num_threads()))
