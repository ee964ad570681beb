"""What tests of mistakes start from: data and results of their own."""

import pytest

from lab import Experiment, Record, importing, queue, record

# asserts of this helper say what they compared, as those of tests do
pytest.register_assert_rewrite("tests.e2e.mistakes")


@pytest.fixture
def data_root(tmp_path, monkeypatch):
    """An empty data folder, and results of the test's own with one record that no mistake may
    touch.
    """
    root, results = tmp_path / "data", tmp_path / "results"
    root.mkdir()
    experiment = Experiment(algorithm="fedavg", dataset="digits", rounds=1)
    metrics, none = {"accuracy": 0.5}, {"up": 0, "down": 0, "seconds": {}}
    Record(
        experiment,
        {},
        fingerprint="0" * 64,
        environment={},
        code="0" * 12,
        status="complete",
        rounds=[{"round": 1, "metrics": metrics, **none}],
        metrics=metrics,
        bytes={"up": {}, "down": {}},
    ).save(results / "reference" / f"{experiment.id}.json")
    monkeypatch.setenv("FEDCON_DATA", str(root))
    monkeypatch.setattr(record, "RESULTS", results)
    monkeypatch.setattr(queue, "RESULTS", results)
    monkeypatch.setattr(importing, "RESULTS", results)
    return root
