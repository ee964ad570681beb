"""Settings of all tests, and what several of them need."""

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

#: folders and files that take longest come first, so that no worker is left alone with one at the end
LONGEST = {"e2e", "test_replay.py", "test_contract.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.isdisjoint(item.path.parts))


# a busy machine is slow, not wrong
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The notebook whose source the test's module has as TEXT."""
    path = tmp_path / "tiny.py"
    path.write_text(request.module.TEXT)
    return path


@functools.cache
def _built_for(vectors: str, folder: Path) -> ctypes.CDLL:
    """Kernels that GCC makes for processors of such a kind; each kind is made once for all workers."""
    from core.models import kernels

    made, whole = folder / f"{vectors}.so", folder / f"{vectors}.whole"
    told = (f"-march={vectors}", "-o", str(made), *map(str, kernels.SOURCES))
    with FileLock(folder / f"{vectors}.lock"):
        if not whole.exists():
            subprocess.run(["g++", *kernels.FLAGS, *told], check=True, capture_output=True)
            whole.touch()
    return ctypes.CDLL(str(made))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels for other processors are compiled: a folder of all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "compiled_kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def take_kernels_for(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Call it with a kind of processor ("x86-64-v3", or "native": as they are): networks run by its
    kernels until the test ends.
    """

    def take(vectors: str) -> None:
        if vectors == "native":
            return
        if shutil.which("g++") is None or platform.machine() != "x86_64" or sys.platform != "linux":
            pytest.skip("needs GCC for x86-64")
        from core.models import kernels

        library = _built_for(vectors, compiled)
        monkeypatch.setattr(kernels, "library", lambda: library)
        monkeypatch.setattr(kernels, "threaded", lambda: True)

    return take


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of FedAvg's kind train one after the other: abreast, their sums have another order."""
    monkeypatch.setattr("core.baselines.fedavg.abreast", lambda *given: 1)
