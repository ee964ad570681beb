"""Experiments as data, the records they leave, the tables they fill and the queue of what is still
to run.
"""

from core.experiments.experiment import PROFILES, Experiment
from core.experiments.profiles import Profile
from core.experiments.queue import pending
from core.experiments.record import Record, records
from core.experiments.tables import TableSpec

__all__ = ["PROFILES", "Experiment", "Profile", "Record", "TableSpec", "pending", "records"]
