"""Starts two engine hosts with one Dagster. Dagster's storage is in Postgres. The ledger is in the same Postgres, or in three ZooKeeper
nodes. Batches and lake are in S3. Runs are on a third host.

A host is a folder with its own conf/. The hosts share servers, but no file. Runs and ticks reach the engines over TLS. A host's connection
to each ZooKeeper node can be interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import yaml
from dagster._core.storage.tags import RUN_KEY_TAG
from deltalake import QueryBuilder
from sqlalchemy import create_engine, text

from benchmarks.servers.postgres import PostgresServer
from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from benchmarks.servers.zookeeper import ZooKeeperEnsemble
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.destination_files import drain_lock_held, lease_holder, read_ledger
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.position import file_number
from sluice.console.lake.history import HistoryTable
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.object_stores.options import resolved
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import BATCH_TAG, DRAIN, RUNS_TAG
from sluice.package_files import package_file
from sluice.spark_jobs.tables.commit_record import read_commit
from tests.certificates import make_certificate
from tests.instance.fix_destination import Captured
from tests.parser.proxy import Proxy
from tests.style.sources import ROOT
from tests.waiting import wait_for

SESSION_SECONDS = 6
HOSTS = ("one", "two", "dagster", "runs")
ENGINES = HOSTS[:2]
TABLES = ("numbers", "journal", "people")
MARK = "SLUICE_TEST_PRODUCTION"
SECRETS = {
    "PRODUCTION_TOKEN": "a token that all hosts have",
    "LAKE_ACCESS": ACCESS_KEY,
    "LAKE_SECRET": SECRET_KEY,
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reached:
    """The servers that all hosts reach. `zookeeper` is None if the ledger is in Postgres."""

    postgres: PostgresServer
    store: S3Server
    spark: SparkConnectServer
    zookeeper: ZooKeeperEnsemble | None = None


class Production:
    """All processes of the two engine hosts and of Dagster, with the servers that they reach. A test can kill or pause each process."""

    def __init__(self, root: Path, captured: Captured, reached: Reached) -> None:
        self.root, self.captured, self.reached, self.postgres = root, captured, reached, reached.postgres
        self._prefix = f"s3://{reached.store.bucket}/{uuid.uuid4().hex[:12]}"
        nodes = reached.zookeeper.nodes if reached.zookeeper else []
        self._nodes = [node.port for node in nodes]
        self._lines = {name: [Proxy(port) for port in self._nodes] for name in HOSTS}
        self._certificate, self._key = make_certificate(root)
        self._ports = {name: free_port() for name in ("one", "two", "dagster", "webserver")}
        self._gates = root / "gates"
        self._gates.mkdir()
        self.processes: dict[str, ChildProcess] = {}
        for name in HOSTS:
            self._write(name)
        self._create_databases()

    def _write(self, name: str) -> None:
        host = self.root / name
        for folder in ("conf/destinations", "dagster", "home", "pids"):
            (host / folder).mkdir(parents=True)
        calls = {"kind": "remote", "address": ",".join(f"127.0.0.1:{self._ports[each]}" for each in ENGINES)}
        tls = {"certificate_file": str(self._certificate), "key_file": str(self._key)} if name in ENGINES else {}
        listens = {"listen": f"127.0.0.1:{self._ports.get(name, 4267)}", "token": "$PRODUCTION_TOKEN"}
        main = {
            "data_dir": str(host / "data"),
            "lake": f"{self._prefix}/lake",
            "staging": f"{self._prefix}/staged",
            "storage_options": {
                **self.reached.store.options,
                "aws_access_key_id": "$LAKE_ACCESS",
                "aws_secret_access_key": "$LAKE_SECRET",
            },
            "spark": {"remote": self.reached.spark.url},
            "meta": {**self._ledger(name), "session_seconds": SESSION_SECONDS},
            "engine": {**calls, **listens, **tls, "ca_file": str(self._certificate)},
        }
        (host / "conf" / "sluice.yaml").write_text(yaml.safe_dump(main))
        shop = (self.captured.conf / "destinations" / "shop.yaml").read_text()
        (host / "conf" / "destinations" / "shop.yaml").write_text(shop)
        (host / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(self.dagster_settings()))
        location = {"host": "127.0.0.1", "port": self._ports["dagster"], "location_name": "sluice"}
        (host / "dagster" / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [{"grpc_server": location}]}))

    def _ledger(self, name: str) -> dict[str, str]:
        if not self._nodes:
            return {"kind": "sql", "url": self._url("ledger")}
        hosts = ",".join(f"127.0.0.1:{line.port}" for line in self._lines[name])
        return {"kind": "zookeeper", "hosts": hosts, "address": f"{name}:4266"}

    def dagster_settings(self) -> dict[str, Any]:
        """Returns the package's dagster.yaml, with a storage and a run launcher as in production."""
        shipped: dict[str, Any] = yaml.safe_load(package_file("conf/dagster.yaml").read_text())
        launcher = {
            "module": "tests.ha.run_launcher",
            "class": "OtherHostLauncher",
            "config": {"host": str(self.root / "runs")},
        }
        return {
            **shipped,
            "storage": {
                "postgres": {"postgres_url": self._url("dagster").replace("postgresql", "postgresql+psycopg2", 1)}
            },
            "run_launcher": launcher,
            "run_monitoring": {**shipped["run_monitoring"], "poll_interval_seconds": 2},
        }

    def _url(self, database: str) -> str:
        return self.postgres.url.removesuffix("postgres") + database

    def _create_databases(self) -> None:
        engine = create_engine(self.postgres.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for name in ("ledger", "dagster"):
                connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()

    def config(self, name: str) -> SluiceConfig:
        return load_config(self.root / name / "conf")

    def start(self) -> None:
        """Starts all processes. Returns when the engine reads the source, so that later commits are captured."""
        for name in (*ENGINES, "code server", "daemon"):
            self.start_part(name)
        self.instance = dg.DagsterInstance.from_config(str(self.root / "dagster" / "dagster"))
        wait_for("the source is read", lambda: any("state=STREAMING" in self.log(name) for name in ENGINES), 120)

    def start_part(self, name: str) -> None:
        host = self.root / (name if name in ENGINES else "dagster")
        own = {"HOME": host / "home", "SLUICE_CONF": host / "conf", "DAGSTER_HOME": host / "dagster"}
        environment = {
            **os.environ,
            **SECRETS,
            **{key: str(path) for key, path in own.items()},
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "SLUICE_CACHE": os.environ.get("SLUICE_CACHE") or str(Path.home() / ".cache" / "sluice"),
            failpoints.VARIABLE: str(self._gates),
            MARK: str(self.root),
        }
        command = [sys.executable, "-m", *self._words(name)]
        log = self.root / f"{name.replace(' ', '-')}.log"
        self.processes[name] = ChildProcess(command, log, environment=environment, folder=host / "home")

    def _words(self, name: str) -> Sequence[str]:
        if name in ENGINES:
            return ("sluice.orchestration.rpc.process",)
        workspace = ("-w", str(self.root / "dagster" / "dagster" / "workspace.yaml"))
        if name == "daemon":
            return ("dagster._daemon", "run", *workspace)
        if name == "webserver":
            return ("dagster_webserver", "-h", "127.0.0.1", "-p", str(self._ports["webserver"]), *workspace)
        where = ("-h", "127.0.0.1", "-p", str(self._ports["dagster"]), "--location-name", "sluice")
        return ("sluice.orchestration.code_server", "-m", "sluice.orchestration.definitions", *where)

    def kill(self, name: str) -> None:
        """Kills one process, but not the processes that it started. The end of a container, or the kernel when memory is exhausted, does
        the same.
        """
        os.kill(self.processes[name].pid, signal.SIGKILL)
        wait_for(f"{name} is dead", lambda: not self.processes[name].running)

    def revive(self) -> None:
        """Starts what has ended, as the manager of services or containers does."""
        for name, process in list(self.processes.items()):
            if not process.running:
                process.kill()  # The process has ended already. This call ends the process that watches it.
                self.start_part(name)

    def active(self) -> str:
        """Returns the engine host that has the lease."""

        def found() -> str:
            with contextlib.suppress(SluiceError):  # Postgres is away
                holder = lease_holder(self.config("dagster").destination_dir("shop"))
                if holder is not None and holder.held:
                    return next((name for name in ENGINES if holder.pid == self.processes[name].pid), "")
            return ""

        return wait_for("an engine host is active", found, 120)

    def cursor(self) -> tuple[int, int]:
        try:
            cursor = read_ledger(self.config("dagster").destination_dir("shop")).cursor
        except SluiceError:  # Postgres is away
            return (0, 0)
        return (file_number(cursor.file), cursor.offset) if cursor else (0, 0)

    def end_of_source(self) -> tuple[int, int]:
        with self.captured.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row: Any = cursor.fetchone()
        return file_number(row[0]), int(row[1])

    def wait_until_merged(self, what: str, end: tuple[int, int] | None = None) -> None:
        """Waits until everything that is in the source now is merged and acked. Processes that end meanwhile are started again."""
        end = end or self.end_of_source()

        def merged() -> bool:
            self.revive()
            return self.cursor() >= end

        wait_for(f"all is merged after {what}", merged, 180)

    def wait_for_run(self) -> dg.DagsterRun:
        """Waits for a run whose process is at work."""

        def found() -> dg.DagsterRun | None:
            runs = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]), limit=1)
            return runs[0] if runs else None

        return wait_for("a run is at work", found, 120)

    def wait_for_attached_run(self) -> dg.DagsterRun:
        """Waits for a draining run that has requested a batch after its first one."""

        def found() -> dg.DagsterRun | None:
            self.revive()
            draining = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED], tags={RUNS_TAG: DRAIN})
            runs = self.instance.get_runs(draining, limit=1)
            attached = runs and runs[0].tags[BATCH_TAG] != runs[0].tags.get(RUN_KEY_TAG)
            return runs[0] if attached and drain_lock_held(self.config("dagster").destination_dir("shop")) else None

        return wait_for("a run drains", found, 180)

    def wait_until_ended(self, run: dg.DagsterRun) -> dg.DagsterRun:
        def ended() -> dg.DagsterRun | None:
            self.revive()
            now = self.instance.get_run_by_id(run.run_id)
            return now if now is not None and now.is_finished else None

        return wait_for(f"run {run.run_id} has ended", ended, 120)

    def wait_for_takeover_from(self, host: str) -> str:
        """Returns the engine host that has the lease after `host`."""
        return wait_for(f"another host takes over from {host}", lambda: next(iter({self.active()} - {host}), ""), 120)

    def table(self, name: str) -> HistoryTable:
        config, database = self.config("runs"), self.captured.database
        path, options = config.kept_path("shop", database, name), resolved(config.storage_options)
        return HistoryTable("shop", f"{database}.{name}", path, (), dict(options))

    def columns(self, table: str, *names: str) -> list[list[Any]]:
        """Returns the values of these columns of a lake table."""
        query = QueryBuilder().register("t", self.table(table).log())
        answer = query.execute(f"SELECT {', '.join(names)} FROM t").read_all()
        return [list(column.to_pylist()) for column in answer.columns]

    def commits_of(self, run: dg.DagsterRun) -> int:
        """Returns how many commits of the tables a run has made."""
        commits = [read_commit(commit) for name in TABLES for commit in self.table(name).log().history()]
        return sum(commit.run == run.run_id for commit in commits)

    def stand_still(self, name: str) -> None:
        """Pauses an engine host, a part of Dagster, or Spark with SIGSTOP. `go_on` continues the process."""
        os.kill(self._pid(name), signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        os.kill(self._pid(name), signal.SIGCONT)

    def _pid(self, name: str) -> int:
        return self.reached.spark.pid if name == "Spark" else self.processes[name].pid

    def log(self, name: str) -> str:
        return (self.root / f"{name.replace(' ', '-')}.log").read_text(errors="replace")

    @contextlib.contextmanager
    def gate(self, point: str) -> Iterator[Callable[[], int]]:
        """Holds the processes that reach a failpoint until the block ends. Yields a function that waits until a process reaches it, and
        returns the process id.
        """
        gate, note = self._gates / point, self._gates / f"{point}.reached"
        note.unlink(missing_ok=True)
        gate.touch()
        try:
            yield lambda: int(
                wait_for(f"a process reaches {point}", lambda: note.read_text() if note.exists() else "", 120)
            )
        finally:
            gate.unlink()

    def disconnect_all(self, host: str) -> None:
        """Interrupts the host's connections to all ZooKeeper nodes."""
        for line in self._lines[host]:
            line.connect_to(free_port())
            line.disconnect()

    def connect(self, host: str) -> None:
        for line, port in zip(self._lines[host], self._nodes, strict=True):
            line.connect_to(port)

    def run_of(self, pid: int) -> dg.DagsterRun:
        """Returns the run that is this process."""
        for path in (self.root / "runs" / "pids").iterdir():
            if path.read_text() == str(pid) and (run := self.instance.get_run_by_id(path.name)):
                return run
        raise AssertionError(f"process {pid} is no run")

    def pid_of(self, run: dg.DagsterRun) -> int:
        return int((self.root / "runs" / "pids" / run.run_id).read_text())

    def stop(self) -> None:
        with contextlib.suppress(ServerError, ProcessLookupError):
            self.go_on("Spark")
        for process in self.processes.values():
            process.kill()
        for left in psutil.process_iter():
            try:
                if left.environ().get(MARK) == str(self.root):
                    left.kill()
            except psutil.Error:
                continue
        if hasattr(self, "instance"):
            self.instance.dispose()
        for line in itertools.chain.from_iterable(self._lines.values()):
            line.disconnect()
