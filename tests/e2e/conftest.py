"""What tests of mistakes start from: data and results of their own."""

import pytest

from lab import importing, queue, record
from tests.lab.small_runs import put, written

# asserts of this helper say what they compared, as those of tests do
pytest.register_assert_rewrite("tests.e2e.mistakes")


@pytest.fixture
def data_root(tmp_path, monkeypatch):
    """An empty data folder, and results of the test's own with one record that no mistake may
    touch.
    """
    root, results = tmp_path / "data", tmp_path / "results"
    root.mkdir()
    put(results, written(), paper="reference")
    monkeypatch.setenv("FEDCON_DATA", str(root))
    monkeypatch.setattr(record, "RESULTS", results)
    monkeypatch.setattr(queue, "RESULTS", results)
    monkeypatch.setattr(importing, "RESULTS", results)
    return root
