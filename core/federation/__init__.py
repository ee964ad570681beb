"""The contract of federated algorithms, and the loop that runs them."""

from core.federation.algorithm import Algorithm, State
from core.federation.client import Client
from core.federation.loop import RoundResult, make_clients, make_task, rounds, select
from core.federation.message import Field, Ledger, Message, UploadError, check_upload
from core.federation.running import run
from core.federation.runtime import Runtime
from core.federation.task import Task, pack
from core.federation.training import LocalTraining, supervised, train

__all__ = [
    "Algorithm",
    "Client",
    "Field",
    "Ledger",
    "LocalTraining",
    "Message",
    "RoundResult",
    "Runtime",
    "State",
    "Task",
    "UploadError",
    "check_upload",
    "make_clients",
    "make_task",
    "pack",
    "rounds",
    "run",
    "select",
    "supervised",
    "train",
]
