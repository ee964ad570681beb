"""Experiments as data, running them, the records they leave, the tables they fill and the queue."""

from core.experiments.experiment import PROFILES, Experiment
from core.experiments.grid import TableSpec
from core.experiments.profiles import Profile
from core.experiments.queue import pending
from core.experiments.record import Record, new_record, records
from core.experiments.running import make_clients, make_task, rounds, run

__all__ = [
    "PROFILES",
    "Experiment",
    "Profile",
    "Record",
    "TableSpec",
    "make_clients",
    "make_task",
    "new_record",
    "pending",
    "records",
    "rounds",
    "run",
]
