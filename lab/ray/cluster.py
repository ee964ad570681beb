"""Workers of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from core.errors import InputError, one_line
from lab.ray import Lost
from lab.record import REPOSITORY


class RayWorkers:
    """A job is one CPU and a share of a GPU of any node, by default a whole one if the cluster has any. The
    nodes have this package at the same path. InputError where Ray does not answer.
    """

    def __init__(self, address: str | None, gpus: float | None) -> None:
        try:
            import ray
        except ImportError:
            raise InputError(
                "--on ray needs Ray: make machines, or pip install -e '.[ray]'"
            ) from None
        self._ray = ray
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        try:
            cluster = address or os.environ.get("RAY_ADDRESS", "auto")
            ray.init(cluster, runtime_env={"env_vars": {"PYTHONPATH": path}}, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"no Ray cluster answers: {str(error).partition('.')[0]}; "
                "start one with `ray start --head`, or set RAY_ADDRESS"
            ) from None
        # a job that asks for no GPU would see all of its node's, and take the first
        self._gpus = float("GPU" in ray.cluster_resources()) if gpus is None else gpus

    @property
    def capacity(self) -> int:
        """Jobs for which the nodes that are alive have room."""
        has = self._ray.cluster_resources()
        cpus = int(has.get("CPU", 0))
        return min(cpus, int(has.get("GPU", 0) / self._gpus)) if self._gpus else cpus

    def submit(self, job: partial) -> Any:
        """Hand a job to the cluster."""
        options = {"num_cpus": 1, "num_gpus": self._gpus, "max_retries": 0}
        return self._ray.remote(job.func).options(**options).remote(*job.args, **job.keywords)

    def finished(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        """Jobs that ended, and their outcomes."""
        done, _ = self._ray.wait(list(handles), timeout=seconds, fetch_local=False)
        return [(handle, self._outcome(handle)) for handle in done]

    def _outcome(self, handle: Any) -> Any:
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            return one_line(error.cause)
        except self._ray.exceptions.RayError:  # its worker or node went away, or ran out of memory
            return Lost()

    def stop(self) -> None:
        """Leave the cluster, which ends what this program began there."""
        self._ray.shutdown()
