"""The contract of federated algorithms, and the loop that runs them."""

from core.federation.algorithm import EVERY_TASK, Algorithm, State
from core.federation.client import Client, Rows, distribute, owner
from core.federation.dense import Dense, Reconstruction, Segmentation, task_of
from core.federation.fields import LARGEST, Field, as_announced, network_form
from core.federation.local_training import (
    LocalTraining,
    SupervisedTraining,
    learn,
    supervised,
    through,
    train,
)
from core.federation.loop import RoundResult, check_serves, rounds, select
from core.federation.message import Ledger, Message
from core.federation.runtime import Runtime
from core.federation.schedule import Schedule
from core.federation.task import OwnTest, Task
from core.federation.tensors import pack
from core.federation.uploads import UploadError, admit, announce

__all__ = [
    "EVERY_TASK",
    "LARGEST",
    "Algorithm",
    "Client",
    "Dense",
    "Field",
    "Ledger",
    "LocalTraining",
    "Message",
    "OwnTest",
    "Reconstruction",
    "RoundResult",
    "Rows",
    "Runtime",
    "Schedule",
    "Segmentation",
    "State",
    "SupervisedTraining",
    "Task",
    "UploadError",
    "admit",
    "announce",
    "as_announced",
    "check_serves",
    "distribute",
    "learn",
    "network_form",
    "owner",
    "pack",
    "rounds",
    "select",
    "supervised",
    "task_of",
    "through",
    "train",
]
