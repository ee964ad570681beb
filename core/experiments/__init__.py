"""Experiments as data, the records they leave, the tables they fill and the queue of what is still
to run.
"""

from core.experiments.experiment import PROFILES, Experiment
from core.experiments.record import Record, records

__all__ = ["PROFILES", "Experiment", "Record", "records"]
