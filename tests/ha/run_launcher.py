"""Defines a run launcher that starts each run as on another host. The run has another folder, HOME, conf/ and DAGSTER_HOME, and no file of
the engine.

dagster.yaml names it as it names the launchers for Docker and Kubernetes. It starts processes instead of containers. Each process is a
fork of one that has imported the modules of a run, because a test starts dozens of runs, and each import would take seconds of processor
time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, serialize_value
from dagster._serdes.config_class import ConfigurableClassData

from sluice.orchestration.code_server import WARM_MODULES

OF_THE_DAEMON = ("DAGSTER_HOME", "SLUICE_CONF", "SLUICE_CONF_IN_USE", "HOME")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*WARM_MODULES, "dagster._cli", "tests.ha.rows_transform"])


def _run(host: Path, words: str) -> None:
    """Does in a new process what `dagster api execute_run` does on another host."""
    from dagster._cli import cli  # noqa: PLC0415  the daemon does not need it

    own = {"HOME": host / "home", "SLUICE_CONF": host / "conf", "DAGSTER_HOME": host / "dagster"}
    for name in OF_THE_DAEMON:
        os.environ.pop(name, None)
    os.environ.update({name: str(path) for name, path in own.items()})
    os.setsid()
    os.chdir(host / "home")
    log = os.open(host / "runs.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    cli(["api", "execute_run", words], prog_name="dagster")


class OtherHostLauncher(RunLauncher[dg.DagsterInstance], ConfigurableClass):
    """Starts each run in a process that simulates another host. `host` is the folder of that host."""

    def __init__(self, host: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._host, self._data = Path(host), inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._data

    @classmethod
    def config_type(cls) -> Any:
        return {"host": str}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Any:
        return cls(**config_value, inst_data=inst_data)

    def launch_run(self, context: LaunchRunContext) -> None:
        origin, run = context.job_code_origin, context.dagster_run
        assert origin is not None
        words = serialize_value(ExecuteRunArgs(origin, run.run_id, self._instance.get_ref(), True))
        process = FORKS.Process(target=_run, args=(self._host, words))
        process.start()
        (self._host / "pids" / run.run_id).write_text(str(process.pid))

    def terminate(self, run_id: str) -> bool:
        process = self._process(run_id)
        if process is None or process.status() == psutil.STATUS_STOPPED:  # A host that is suspended does not answer.
            return False
        process.send_signal(signal.SIGINT)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        status = WorkerStatus.RUNNING if self._process(run.run_id) else WorkerStatus.FAILED
        return CheckRunHealthResult(status)

    def _process(self, run_id: str) -> psutil.Process | None:
        try:
            process = psutil.Process(int((self._host / "pids" / run_id).read_text()))
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None
        return None if process.status() == psutil.STATUS_ZOMBIE else process
