"""The small runs that tests of records and of the queue start from."""

from lab import Experiment

PLAIN = {"algorithm": "fedavg", "dataset": "digits"}


def small(**changes) -> Experiment:
    return Experiment(
        **PLAIN,
        clients=2,
        rounds=3,
        settings={"local_steps": 1},
        model_options={"width": 4},
        profile="quick",
        **changes,
    )
