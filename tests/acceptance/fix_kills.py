"""Provides a whole pipeline with named crash points and a small workload. Checks that nothing was lost, duplicated or reordered."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder

from benchmarks.servers.pipeline import Pipeline
from sluice.cdc_engine import destination_files
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.consistent_snapshot import deltalake_tables, read_consistent_snapshot
from sluice.console.stack.stack import CODE_SERVER, SPARK, StackOptions
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.lake_settings import storage_options
from tests.telemetry.fix_collector import Collector, collecting
from tests.waiting import wait_for

DATABASE = "kills"
KEYS = 12
WAIT_SECONDS_MAX = 180.0
Death = tuple[str, str]  # The victims, and the failpoint at which they are killed.
SCHEMA = (
    "CREATE TABLE counters (id INT PRIMARY KEY, version INT NOT NULL, note VARCHAR(40))",
    "CREATE TABLE moving (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL)",
    "CREATE TABLE journal (entry INT NOT NULL, note VARCHAR(40))",
    "CREATE TABLE early (id INT PRIMARY KEY, version INT NOT NULL, note VARCHAR(40))",
)
EARLY_ROWS = 2_000  # The number of rows that exist before the stream starts.
SETTINGS: dict[str, Any] = {"runs": "batch", "snapshots": {"chunk_rows": 300}}
# All other tables are small, and are merged in one job before these. Each batch therefore uses both ways of merging.
TABLES: dict[str, Any] = {f"{DATABASE}.early": {"snapshot": "initial", "merge": "spark"}}


class Workload:
    """Writes transactions that are the same in each run. A transaction increments every counter, moves and swaps keys, and adds entries to
    a journal. The journal has no key, so duplicate entries can be counted.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._round = 0

    def prepare(self) -> None:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
            cursor.execute(f"USE {DATABASE}")
            for statement in SCHEMA:
                cursor.execute(statement)
            cursor.executemany("INSERT INTO early VALUES (%s, 0, 'early')", [(key,) for key in range(EARLY_ROWS)])
            cursor.execute("COMMIT")

    def run(self, rounds: int = 3) -> None:
        """Runs rounds. Each round increments every counter once, moves keys, and writes one journal entry per counter."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {DATABASE}")
            for _ in range(rounds):
                self._round += 1
                cursor.execute("START TRANSACTION")
                for statement in self._statements(self._round):
                    cursor.execute(statement)
                cursor.execute("COMMIT")

    def _statements(self, number: int) -> Iterator[str]:
        for key in range(KEYS):
            yield (
                f"INSERT INTO counters VALUES ({key}, 1, 'new') "
                f"ON DUPLICATE KEY UPDATE version = version + 1, note = 'round {number}'"
            )
            yield f"INSERT INTO journal VALUES ({number * KEYS + key}, 'round {number}')"
        yield f"INSERT INTO moving VALUES ({number * 10}, 'a{number}'), ({number * 10 + 1}, 'b{number}')"
        yield f"UPDATE moving SET id = -1 WHERE id = {number * 10}"
        yield f"UPDATE moving SET id = {number * 10} WHERE id = {number * 10 + 1}"
        yield f"UPDATE moving SET id = {number * 10 + 1} WHERE id = -1"
        yield f"UPDATE early SET version = {number} WHERE id % 7 = {number % 7}"
        yield f"UPDATE early SET id = id + {EARLY_ROWS} WHERE id = {number * 3 % EARLY_ROWS}"
        yield f"DELETE FROM early WHERE id % 101 = {number}"
        yield f"INSERT IGNORE INTO early VALUES ({number}, {number}, 'late')"
        if number > 2:
            yield f"DELETE FROM moving WHERE id = {(number - 2) * 10}"
            yield f"INSERT INTO moving VALUES ({(number - 2) * 10}, 'again {number}')"
            yield f"DELETE FROM moving WHERE id = {(number - 2) * 10 + 1}"


class KillBench:
    """Runs a pipeline with failpoints, and kills the pipeline's processes at them. `main` has settings of sluice.yaml, for example for a
    lake in a store. `tables` has the settings of the destination's tables.
    """

    def __init__(
        self, folder: Path, collector: Collector, main: Mapping[str, Any] | None, tables: Mapping[str, Any]
    ) -> None:
        self.collector = collector
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.pipeline = Pipeline(
            folder,
            DATABASE,
            _silent,
            settings={**SETTINGS, "tables": tables},
            main=main,
            options=StackOptions(
                spark_memory="2g",
                die_with_parent=True,
                environment={
                    failpoints.VARIABLE: str(self.gates),
                    "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
                },
                webserver=False,
                warms_spark=False,
            ),
        )
        self.workload = Workload(lambda: self.pipeline.server.connect(autocommit=False))
        self._runs = SETTINGS["runs"]

    def start(self) -> None:
        self.pipeline.server.start()
        self.workload.prepare()
        self.pipeline.start()
        self.workload.run()
        self.settle()
        self.wait_until_published()

    def use(self, runs: str) -> None:
        """Sets whether runs merge one batch or drain."""
        if runs != self._runs:
            self.pipeline.change({"runs": runs})
            self._runs = runs

    def attach(self) -> None:
        """Waits until a draining run has settled everything and waits for its next batch."""
        self.workload.run(1)
        self.settle()
        wait_for(
            "a run is attached", lambda: destination_files.drain_lock_held(self.pipeline.directory), WAIT_SECONDS_MAX
        )

    def wait_until_published(self, *tables: str) -> None:
        """Waits until the newest snapshots of these tables are published. Without `tables`, waits for the snapshot of `early`, the table
        that existed before the stream.
        """
        records = SnapshotRecords(self.pipeline.directory)

        def published() -> bool:
            found = [records.get(f"{DATABASE}.{table}") for table in tables or ("early",)]
            for record in found:
                assert record is not None
                assert record.state not in {SnapshotState.FAILED, SnapshotState.CANCELED}, record
            return all(record and record.state == SnapshotState.PUBLISHED for record in found)

        wait_for("the snapshot is published", published, WAIT_SECONDS_MAX)

    def settle(self) -> None:
        """Waits until everything is acked."""
        self.pipeline.wait_until_acked(self.pipeline.end(), WAIT_SECONDS_MAX)

    def shut(self, point: str) -> None:
        (self.gates / f"{point}.reached").unlink(missing_ok=True)
        (self.gates / point).touch()

    def reached(self, point: str) -> int:
        """Waits until a process stops at the gate of a failpoint. Returns the id of the process."""
        note = self.gates / f"{point}.reached"
        wait_for(f"a process reaches {point}", lambda: note.exists() and note.read_text(), WAIT_SECONDS_MAX)
        return int(note.read_text())

    def kill_along(self, deaths: Sequence[Death], begin: Callable[[], None]) -> None:
        """Kills one victim after another, each when a process reaches its gate, and restarts it at once. Meanwhile the work that `begin`
        started continues. " and " in a victim joins two victims that are killed together.
        """
        points = [point for _, point in deaths]
        assert all(point != following for point, following in itertools.pairwise(points)), "opening one opens both"
        self.shut(points[0])
        try:
            begin()
            for (victims, point), following in zip(deaths, [*points[1:], None], strict=True):
                at_gate = self.reached(point)
                for victim in victims.split(" and "):
                    self.kill(victim, at_gate)
                if following is not None:
                    self.shut(following)
                    (self.gates / point).unlink()
                    self.revive()
        finally:
            self.open()
            self.revive()

    def open(self) -> None:
        for gate in self.gates.iterdir():
            gate.unlink()

    def kill(self, victim: str, at_gate: int) -> None:
        """Sends SIGKILL to the engine's host, the run at the gate, the Spark server, MySQL, or all processes of Sluice ("stack")."""
        if victim == "mysql":
            self.pipeline.server.kill()
            return
        if victim == "stack":
            assert not self.pipeline.stack.kill()
            return
        if victim == "run":
            os.kill(at_gate, signal.SIGKILL)
            return
        running, name = self.pipeline.stack.file.running, {"engine host": CODE_SERVER, "spark": SPARK}[victim]
        os.kill(running()[name].pid, signal.SIGKILL)
        wait_for(f"the {victim} is gone", lambda: name not in running(), WAIT_SECONDS_MAX)

    def revive(self) -> None:
        """Restarts whatever does not run, as an operator or a supervisor does. Dagster restarts the runs."""
        if not self.pipeline.server.running:
            self.pipeline.server.start()
        self.pipeline.start_again()

    def require_equal(self) -> None:
        """Checks that every table is equal to MySQL's row by row. The journal has no key, so also checks that it contains every entry
        exactly once.
        """
        config, name = self.pipeline.config, self.pipeline.destination
        requested = ComparedDestination(config, name, source_of(config.destinations[name]), self.storage_options)
        tables = [f"{DATABASE}.{table}" for table in ("counters", "moving", "journal", "early")]
        for result in compare_destination(requested, tables, Extent()):
            assert result.equal, result
        log = _rows(self.table("journal"), "SELECT count(*), count(DISTINCT entry) FROM t")
        assert log[0][0] == log[0][1], "an entry of the journal was applied twice"
        self._require_whole_transactions()

    def _require_whole_transactions(self) -> None:
        """Checks that a consistent snapshot has as many versions of counters as journal entries. Each transaction adds one version and one
        entry per counter.
        """
        snapshot = read_consistent_snapshot(
            self.pipeline.config.lake, self.pipeline.destination, storage_options=self.storage_options
        )
        tables = deltalake_tables(snapshot, self.storage_options)
        (versions, entries) = (
            QueryBuilder()
            .register("t", tables[f"{DATABASE}.{name}"])
            .execute(f"SELECT {what} AS n FROM t")
            .read_all()["n"][0]
            .as_py()
            for name, what in (("counters", "sum(version)"), ("journal", "count(*)"))
        )
        assert versions == entries, f"at {snapshot.file}:{snapshot.offset} {versions} versions and {entries} entries"

    def require_versions_never_went_back(self) -> None:
        seen: dict[int, int] = {}
        for version in range(self.table("counters").version() + 1):
            for key, value in _rows(self.table("counters", version), "SELECT id, version FROM t"):
                assert value >= seen.get(key, 0), f"counter {key} went from {seen[key]} to {value} in version {version}"
                seen[key] = value
        assert len(seen) == KEYS

    @property
    def storage_options(self) -> dict[str, str]:
        return storage_options(self.pipeline.config.storage_options)

    def table(self, name: str, version: int | None = None) -> DeltaTable:
        """Opens a table of the lake without Spark."""
        path = self.pipeline.config.table_path(DATABASE, DATABASE, name)
        return DeltaTable(path, version=version, storage_options=self.storage_options or None)


def _rows(table: DeltaTable, statement: str) -> list[tuple[Any, ...]]:
    if not {"id", "entry"} & {field.name for field in table.schema().fields}:
        return []
    answer = QueryBuilder().register("t", table).execute(statement).read_all()
    return list(zip(*(column.to_pylist() for column in answer.columns), strict=True))


def named(deaths: Sequence[Death]) -> str:
    """Returns the id of a test."""
    return ",".join(f"{victim}@{point}" for victim, point in deaths)


def _silent(_: str) -> None:
    """Discards the stack's progress; failures raise."""


# The stack is stopped after the last test of this package. Otherwise its ticks would use an eighth of a core until all tests have run.
@pytest.fixture(scope="package")
def kill_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillBench]:
    yield from running_bench(tmp_path_factory.mktemp("kills"))


def running_bench(
    folder: Path, main: Mapping[str, Any] | None = None, tables: Mapping[str, Any] = TABLES
) -> Iterator[KillBench]:
    """Yields a started bench, and stops it at the end. `main` has settings of sluice.yaml, and `tables` has the settings of the
    destination's tables.
    """
    with collecting() as collector:
        bench = KillBench(folder, collector, main, tables)
        try:
            bench.start()
            yield bench
        finally:
            bench.open()
            bench.pipeline.stop()
