"""The contract of federated algorithms, and the loop that runs them."""

from core.federation.algorithm import CLASSIFICATION, EVERY_TASK, SERVER, Algorithm, State
from core.federation.client import Client, Rows, distribute, owner
from core.federation.dense import Dense, Reconstruction, Segmentation, task_of
from core.federation.local_training import (
    LocalTraining,
    OutputObjective,
    SupervisedTraining,
    supervised,
    train,
)
from core.federation.loop import RoundResult, check_serves, rounds, select
from core.federation.message import Ledger, Message
from core.federation.runtime import Runtime
from core.federation.schedule import Schedule
from core.federation.task import OwnTest, Task
from core.federation.tensors import pack
from core.federation.validation import (
    LARGEST,
    Field,
    Format,
    UploadError,
    each_once,
    network_form,
    validate_uploads,
)

__all__ = [
    "CLASSIFICATION",
    "EVERY_TASK",
    "LARGEST",
    "SERVER",
    "Algorithm",
    "Client",
    "Dense",
    "Field",
    "Format",
    "Ledger",
    "LocalTraining",
    "Message",
    "OutputObjective",
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
    "check_serves",
    "distribute",
    "each_once",
    "network_form",
    "owner",
    "pack",
    "rounds",
    "select",
    "supervised",
    "task_of",
    "train",
    "validate_uploads",
]
