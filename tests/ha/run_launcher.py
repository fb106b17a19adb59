"""A run launcher that starts each run as another host would: with another folder, HOME, conf/ and DAGSTER_HOME, and no file of the engine.

dagster.yaml names it as it names the launchers of Docker and Kubernetes. Their containers are processes here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, serialize_value
from dagster._serdes.config_class import ConfigurableClassData

OF_THE_DAEMON = ("DAGSTER_HOME", "SLUICE_CONF", "SLUICE_CONF_IN_USE", "HOME")


class OtherHostLauncher(RunLauncher[dg.DagsterInstance], ConfigurableClass):
    """`host`: the folder of the host that runs are started on."""

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
        environment = {name: value for name, value in os.environ.items() if name not in OF_THE_DAEMON}
        own = {"HOME": self._host / "home", "SLUICE_CONF": self._host / "conf", "DAGSTER_HOME": self._host / "dagster"}
        with (self._host / "runs.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dagster", "api", "execute_run", words],
                cwd=self._host / "home",
                env={**environment, **{name: str(path) for name, path in own.items()}},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self._host / "pids" / run.run_id).write_text(str(process.pid))

    def terminate(self, run_id: str) -> bool:
        process = self._process(run_id)
        if process is None or process.status() == psutil.STATUS_STOPPED:  # Nobody reaches a host that stands still.
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
