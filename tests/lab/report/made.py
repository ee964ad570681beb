"""Made-up records of a table's cells."""

from lab import Record


def record(experiment, **metrics):
    """A complete record as a run of ten rounds leaves it."""
    rounds = [
        {"round": r, "metrics": metrics, "up": 100, "down": 50, "seconds": {}} for r in range(1, 11)
    ]
    return Record(
        experiment=experiment,
        settings={},
        fingerprint="f",
        environment={"device": "cpu"},
        code="c",
        status="complete",
        rounds=rounds,
        metrics=metrics,
        bytes={"up": {"parameters": 1000}, "down": {}},
    )


def measure(cell, accuracies):
    return {
        run.id: record(run, accuracy=value)
        for run, value in zip(cell.experiments, accuracies, strict=False)
    }


def one(frame, row, column):
    return frame[(frame["row"] == row) & (frame["column"] == column)].iloc[0]
