"""Settings of all tests, and what several of them need."""

from pathlib import Path

import pytest
from hypothesis import settings

#: folders and files that take longest come first, so that no worker is left alone with one at the end
LONGEST = {"e2e", "test_replay.py", "test_contract.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.isdisjoint(item.path.parts) and item.path.suffix == ".py")


# a busy machine is slow, not wrong
settings.register_profile("few examples", deadline=None, max_examples=25)
settings.load_profile("few examples")


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The notebook whose source the test's module has as TEXT."""
    path = tmp_path / "tiny.py"
    path.write_text(request.module.TEXT)
    return path


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of FedAvg's kind train one after the other: stacked, their sums have another order."""
    monkeypatch.setattr("core.baselines.fedavg.clients_at_once", lambda *given: 1)
