"""Experiments as data, running them, the records they leave, the tables they fill and the queue."""

import core

if not hasattr(core, "__version__"):
    where = next(iter(core.__path__))
    raise ImportError(f"{where} is another package named core: start Python in another folder")

from lab.experiment import PROFILES, Experiment
from lab.profiles import Profile
from lab.queue import pending
from lab.record import Record, new_record, records
from lab.running import make_clients, make_task, rounds, run
from lab.table import TableSpec

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
