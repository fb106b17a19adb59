"""pytest plugin that starts Dagster's real processes with `kill_location`: a code server (`dagster api grpc`) and the daemon."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster import DagsterInstance
from dagster._core.execution.plan.resume_retry import ReexecutionStrategy
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.console.stack.dagster_storage import with_storage
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import delivery_of
from tests.orchestration.fix_location import write_tables
from tests.waiting import wait_for

NUMBER_BYTES = 16  # The same value as in kill_location, which only the code server imports.
ROOT = Path(__file__).parents[2]
LOCATION = "sluice"
START_SECONDS_MAX = 60.0
MARK = "SLUICE_TEST_STACK"


class DagsterStack:
    """Dagster's code server and daemon as processes, with the files of one destination and Dagster's instance. Tests observe the processes
    through these files and the instance.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "conf"
        self.home = root / "home"
        self.directory = root / "data" / "engine" / "shop"
        self.failpoints = root / "failpoints"
        self.failpoints.mkdir()
        self.port = free_port()
        self.processes: list[ChildProcess] = []
        self._write_files()
        self.environment = {
            **os.environ,
            "SLUICE_CONF": str(self.conf),
            "DAGSTER_HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            MARK: str(root),
            failpoints.VARIABLE: str(self.failpoints),
        }

    def _write_files(self) -> None:
        (self.conf / "destinations").mkdir(parents=True)
        self.home.mkdir()
        (self.conf / "sluice.yaml").write_text(f"data_dir: {self.root}/data\nlake: {self.root}/lake\n")
        self.write_runs("batch")
        settings = (ROOT / "conf" / "dagster.yaml").read_text()
        (self.home / "dagster.yaml").write_text(with_storage(settings, self.home))
        workspace = (ROOT / "workspace.yaml").read_text().replace("4266", str(self.port))
        (self.home / "workspace.yaml").write_text(workspace)
        write_tables(self.directory, ("shop.orders",))
        (self.directory / "captured").write_text("4")

    def write_runs(self, runs: str) -> None:
        """Sets `runs` for the next code server."""
        (self.conf / "destinations" / "shop.yaml").write_text(
            f"source: {{user: sluice}}\nruns: {runs}\nmaintenance: {{optimize: ''}}\n"
        )

    def _start(self, name: str, *arguments: str) -> ChildProcess:
        log = self.root / f"{name}.log"
        process = ChildProcess([sys.executable, "-m", *arguments], log, environment=self.environment, folder=ROOT)
        self.processes.append(process)
        return process

    def start_code_server(self) -> ChildProcess:
        from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415

        server = self._start(
            "code_server",
            *("sluice.orchestration.code_server", "-m", "tests.orchestration.kill_location"),
            *("-h", "127.0.0.1", "-p", str(self.port), "--location-name", LOCATION),
        )

        def answers() -> bool:
            assert server.running, last_lines(self.root / "code_server.log")
            try:
                DagsterGrpcClient(host="127.0.0.1", port=self.port).ping("up")
            except Exception:
                return False
            return True

        wait_for("the code server answers", answers, START_SECONDS_MAX)
        return server

    def start(self) -> None:
        self.started_at = time.time()
        self.code_server = self.start_code_server()
        self._start("daemon", "sluice.orchestration.daemon", "run", "-w", str(self.home / "workspace.yaml"))
        self.instance = DagsterInstance.from_config(str(self.home))

    def kill_code_server(self) -> None:
        """Kills only the code server: its runs continue, as they do when it crashes."""
        os.kill(self.code_server.pid, signal.SIGKILL)
        wait_for("the code server has ended", lambda: not self.code_server.running)

    def request_code_server_end(self) -> None:
        """Shuts the code server down as `sluice down` does, so that its runs can end."""
        from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415

        DagsterGrpcClient(host="127.0.0.1", port=self.port).shutdown_server()

    def left_over(self) -> list[psutil.Process]:
        """Returns every process with this stack's mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.root):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stop(self) -> None:
        """Stops the processes, and then kills them with everything that they started. None may remain."""
        for process in self.processes:
            process.stop(5)
        for orphan in self.left_over():
            orphan.kill()
        wait_for("every process has ended", lambda: not self.left_over(), 10)
        self.instance.dispose()

    def capture(self, count: int) -> int:
        """Adds changes to the source and returns its new position."""
        path = self.directory / "captured"
        end = int(path.read_text()) + count
        temporary = path.with_suffix(".new")
        temporary.write_text(str(end))
        temporary.replace(path)
        return end

    def shut(self, gate: str) -> None:
        (self.directory / f"at.{gate}").unlink(missing_ok=True)
        (self.directory / f"shut.{gate}").touch()

    def open(self, gate: str) -> None:
        (self.directory / f"shut.{gate}").unlink(missing_ok=True)

    def reached(self, gate: str) -> int:
        """Waits until a run reaches a gate, and returns the process id of the run."""
        path = self.directory / f"at.{gate}"
        text = wait_for(f"a run is at {gate}", lambda: path.read_text() if path.exists() else None)
        return int(text.split()[0])

    def lake(self) -> list[dict[str, Any]]:
        path = self.directory / "lake"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def head(self) -> OutstandingBatch | None:
        return destination_files.head_of_line(self.directory)

    def wait_until_acked(self, end: int, seconds_max: float = 90.0) -> None:
        def acked() -> bool:
            cursor = destination_files.read_ledger(self.directory).cursor
            return cursor is not None and cursor.offset // NUMBER_BYTES >= end

        wait_for(f"all is acked up to {end}", acked, seconds_max)

    def require_lake_equals_source(self) -> None:
        """Checks that every number is in the lake once, in order."""
        numbers = [number for line in self.lake() for number in line["numbers"]]
        assert numbers == list(range(5, int((self.directory / "captured").read_text()) + 1))

    def runs_of(self, delivery: int) -> list[dg.DagsterRun]:
        return [run for run in self.instance.get_runs() if delivery_of(run.tags) == str(delivery)]

    def execute_again(self, run: dg.DagsterRun) -> str:
        """Creates a new run with the config and the tags of an old one, as "Re-execute" in the UI does. Returns its id."""
        target = WorkspaceFileTarget([str(self.home / "workspace.yaml")])
        with WorkspaceProcessContext(self.instance, target) as process_context:
            context = process_context.create_request_context()
            location = context.get_code_location(LOCATION)
            repository = next(iter(location.get_repositories().values()))
            job = repository.get_full_job(run.job_name)
            again = self.instance.create_reexecuted_run(
                parent_run=run,
                request_context=context,
                code_location=location,
                remote_job=job,
                strategy=ReexecutionStrategy.ALL_STEPS,
                use_parent_run_tags=True,
            )
            self.instance.submit_run(again.run_id, context)
            return again.run_id

    def wait_until_ended(self, run_id: str, seconds_max: float = 60.0) -> dg.DagsterRun:
        def ended() -> dg.DagsterRun | None:
            run = self.instance.get_run_by_id(run_id)
            return run if run is not None and run.is_finished else None

        return wait_for(f"run {run_id} has ended", ended, seconds_max)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterStack]:
    """Starts one stack for a module's tests, which run in it one after the other."""
    made = DagsterStack(tmp_path_factory.mktemp("dagster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()
