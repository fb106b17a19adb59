"""Tests two engine hosts with one Dagster. Each of their parts is killed and stopped under load: nothing is lost, no batch is applied
twice, and the lake equals the source.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from benchmarks.servers.postgres import PostgresServer
from benchmarks.servers.s3 import S3Server
from benchmarks.servers.zookeeper import ZooKeeperEnsemble
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.position import file_number
from sluice.console.lake.history import history_of
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent
from sluice.object_stores.options import resolved
from sluice.orchestration.base.failpoints import BEFORE_MERGE, BETWEEN_TABLES
from tests.ha.fix_production import SECRETS, TABLES, Production, Reached
from tests.ha.rows_transform import IN_TRANSFORM
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

S = dg.DagsterRunStatus
# The pause between two transactions. A run takes longer than this, so one run follows the other. With shorter pauses, the runs would have
# more changes, and the test would take more processor time.
PAUSE_SECONDS = 2.5


@contextmanager
def load(captured: Captured) -> Iterator[None]:
    """Runs transactions with inserts, updates, changed keys and deletes, one after the other until the block ends."""
    stopping, table = threading.Event(), f"{captured.database}.numbers"
    journal, people = f"{captured.database}.journal", f"{captured.database}.people"

    def write() -> None:
        number = 0
        while not stopping.is_set():
            number += 10
            captured.run(
                "BEGIN",
                f"INSERT INTO {table} VALUES {', '.join(f'({number + each}, {each})' for each in range(8))}",
                f"UPDATE {table} SET filler = CONCAT(filler, 'x') WHERE n % 7 = {number % 7}",
                f"UPDATE {table} SET n = n + 8 WHERE n = {number + 1}",
                f"DELETE FROM {table} WHERE n < {number - 800}",
                f"INSERT INTO {journal} VALUES ({number})",
                f"INSERT INTO {people} VALUES ({number}, 'ann {number}')",
                f"UPDATE {people} SET name = CONCAT(name, 'x') WHERE id % 70 = {number % 70}",
                f"DELETE FROM {people} WHERE id < {number - 200}",
                "COMMIT",
            )
            stopping.wait(PAUSE_SECONDS)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@pytest.fixture
def production(
    tmp_path: Path,
    mysql80: DatabaseServer,
    s3_store: S3Server,
    spark_server: SparkConnectServer,
    *,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Production]:
    """Provides a production with its servers. `request.param` contains the setting `runs` and the location of the ledger."""
    runs, ledger = request.param
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    captured = Captured(tmp_path / "source", mysql80)
    captured.run(
        f"CREATE TABLE {captured.database}.journal (entry INT NOT NULL)",
        f"CREATE TABLE {captured.database}.people (id INT PRIMARY KEY, name VARCHAR(200))",
    )
    transform = {"function": "tests.ha.rows_transform:people", "reads": ["name"], "writes": ["name"]}
    tables = {
        f"{captured.database}.people": {"transform": transform},
        f"{captured.database}.numbers": {"merge": "spark"},
    }
    captured.describe(f"runs: {runs}", f"tables: {json.dumps(tables)}")
    with ExitStack() as stack:
        postgres = PostgresServer(tmp_path / "postgres")
        stack.callback(postgres.stop)
        keeper = ZooKeeperEnsemble(tmp_path / "zookeeper") if ledger == "zookeeper" else None
        if keeper is not None:
            stack.callback(keeper.stop)
            keeper.start()
        reached = Reached(postgres=postgres.start(), store=s3_store, spark=spark_server, zookeeper=keeper)
        made = Production(tmp_path, captured, reached)
        stack.callback(spark_server.start)  # This is for a test that fails between the end of Spark and its restart.
        stack.callback(made.stop)
        yield made


@pytest.mark.seeds
@pytest.mark.timeout(1500)  # The test starts Python with Dagster some twenty times.
@pytest.mark.parametrize("production", [("batch", "zookeeper")], indirect=True)
def test_ha_each_process_of_two_hosts_is_killed_and_stopped_with_zookeeper(production: Production) -> None:
    production.start()
    production.start_part("webserver")
    with load(production.captured):
        _engine_stands_still_in_a_transform(production)
        _code_server_stands_still_while_an_engine_dies(production)
        _daemon_stands_still(production)
        _run_stands_still(production)
        _spark_stands_still_while_a_run_dies(production)
        _spark_dies(production)
        _zookeeper_is_disconnected(production)
    production.wait_until_merged("everything")
    require_equal(production)
    require_apart(production, "merging delivery")


def _engine_stands_still_in_a_transform(production: Production) -> None:
    """The active engine host is suspended in a transform. The webserver is suspended too, but no other process waits for it."""
    with production.gate(IN_TRANSFORM) as reached:
        stopped = production.active()
        assert reached() == production.processes[stopped].pid
        production.stand_still(stopped)
    production.stand_still("webserver")
    successor = production.wait_for_takeover_from(stopped)
    said = len(production.log(stopped))
    production.go_on(stopped)
    production.go_on("webserver")
    wait_for("it says that it lost the lease", lambda: "LEASE_LOST" in production.log(stopped)[said:])
    production.wait_until_merged("an engine host stood still in a transform, and continued")
    assert production.active() == successor


def _code_server_stands_still_while_an_engine_dies(production: Production) -> None:
    """The takeover needs no Dagster."""
    with production.gate(IN_TRANSFORM) as reached:
        killed = production.active()
        assert reached() == production.processes[killed].pid
        production.stand_still("code server")
        production.kill(killed)
    production.wait_for_takeover_from(killed)
    production.go_on("code server")
    production.wait_until_merged("the code server stood still while an engine host died in a transform")


def _daemon_stands_still(production: Production) -> None:
    run = production.wait_for_run()
    production.stand_still("daemon")
    production.kill("webserver")
    known = {each.run_id for each in production.instance.get_runs()}
    assert production.wait_until_ended(run).status is S.SUCCESS
    assert {each.run_id for each in production.instance.get_runs()} == known, "nothing starts a run meanwhile"
    production.go_on("daemon")
    production.wait_until_merged("the daemon stood still and the webserver was killed")


def _run_stands_still(production: Production) -> None:
    """A run is suspended between two of its tables, so another run replaces it. When the suspended run continues, it writes no further
    table.
    """
    with production.gate(BETWEEN_TABLES) as reached:
        stopped = reached()
        os.kill(stopped, signal.SIGSTOP)
        run = production.run_of(stopped)
    production.wait_until_merged("a run stood still")
    assert production.wait_until_ended(run).status is S.FAILURE
    written = production.commits_of(run)
    said = len(production.log("runs/runs"))
    os.kill(stopped, signal.SIGCONT)
    wait_for("the run that stood still has ended", lambda: not psutil.pid_exists(stopped), 120)
    assert production.commits_of(run) == written, "it wrote nothing after it was replaced"
    assert "does not hold the run lock of shop any more" in production.log("runs/runs")[said:], (
        "the fence refused its next table"
    )


def _spark_stands_still_while_a_run_dies(production: Production) -> None:
    """The next run has the same batch. It waits for Spark, in which a statement of the killed run may still be running."""
    with production.gate(BETWEEN_TABLES) as reached:
        killed = reached()
        run = production.run_of(killed)
        production.stand_still("Spark")
        os.kill(killed, signal.SIGKILL)
    production.kill("daemon")
    assert production.wait_until_ended(run).status is S.FAILURE
    with production.gate(BEFORE_MERGE) as reached:
        reached()
    production.go_on("Spark")
    production.wait_until_merged("Spark stood still while a run and the daemon were killed")


def _spark_dies(production: Production) -> None:
    with production.gate(BETWEEN_TABLES) as reached:
        reached()
        production.reached.spark.kill()
        production.kill("code server")
    production.reached.spark.start()
    production.wait_until_merged("Spark and the code server were killed")


def _zookeeper_is_disconnected(production: Production) -> None:
    """The active engine host loses its connections to ZooKeeper, and then the runs lose theirs. At the end, the leader of ZooKeeper is
    killed.
    """
    host = production.active()
    production.disconnect_all(host)
    production.wait_for_takeover_from(host)
    production.wait_until_merged("an engine host lost ZooKeeper")
    production.connect(host)
    with production.gate(BETWEEN_TABLES) as reached:
        run = production.run_of(reached())
        production.disconnect_all("runs")
    assert production.wait_until_ended(run).status is S.FAILURE, "the fence refused what it had not written"
    production.connect("runs")
    assert production.reached.zookeeper is not None
    leader = production.reached.zookeeper.leader
    leader.kill()
    production.wait_until_merged("the runs lost ZooKeeper, and its leader was killed")
    leader.start()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("production", [("drain", "sql")], indirect=True)
def test_ha_a_run_on_another_host_drains_whatever_is_killed(production: Production) -> None:
    production.start()
    with load(production.captured):
        run = production.wait_for_attached_run()
        known = len(production.instance.get_runs())
        production.wait_until_merged("a run was attached")
        assert len(production.instance.get_runs()) == known, "it settles its batches itself"

        # The test kills the engine host that the run calls. The run continues with the other host, or it ends and is replaced.
        active = production.active()
        production.kill(active)
        file, offset = production.cursor()
        production.wait_until_merged("an engine host was killed", (file, offset + 1))
        assert production.wait_for_attached_run()

        # The test kills the run's own process, so nobody releases the run's drain lock.
        run = production.wait_for_attached_run()
        os.kill(production.pid_of(run), signal.SIGKILL)
        assert production.wait_until_ended(run).status is S.FAILURE
        assert production.wait_for_attached_run().run_id != run.run_id

        # Dagster's storage, which has the ledger too
        known_runs = {each.run_id for each in production.instance.get_runs()}
        production.kill("code server")
        production.postgres.kill()
        production.postgres.start()
    production.wait_until_merged("Postgres and the code server were killed")
    assert known_runs <= {each.run_id for each in production.instance.get_runs()}, "the storage lost nothing"
    require_equal(production)
    require_apart(production, "tables merged in")


def require_equal(production: Production) -> None:
    """Requires that each table equals the source and has each batch once. The transformed table must have the rows that its function
    returns.
    """
    config, database = production.config("runs"), production.captured.database
    shop = config.destinations["shop"]
    options = resolved(config.storage_options)
    requested = ComparedDestination(config, "shop", source_of(shop), storage_options=options)
    for result in compare_destination(requested, [f"{database}.{table}" for table in TABLES], Extent()):
        assert result.equal, result
    with production.captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, UPPER(name) FROM {database}.people")
        people = dict(cursor.fetchall())
    assert dict(zip(*production.columns("people", "id", "name"), strict=True)) == people
    (entries,) = production.columns("journal", "entry")
    assert len(entries) == len(set(entries)), "an entry of the journal was applied twice"
    for table in TABLES:
        intervals = [each for each in history_of(production.table(table))[::-1] if each.streamed]
        assert intervals
        for before, after in itertools.pairwise(intervals):
            assert _position(before.end) <= _position(after.start), f"{table} got changes twice: {before}, {after}"


def _position(position: Mapping[str, Any]) -> tuple[int, int]:
    return file_number(position["file"]), int(position["offset"])


def require_apart(production: Production, says: str) -> None:
    """Requires that runs saw no file of the engines, that their batches were extended over TLS, and that no secret is in a log. `says` is
    the message that a run logs about each batch.
    """
    assert not list((production.root / "runs").rglob("run-endpoint.json"))
    logs = {path.name: path.read_text(errors="replace") for path in production.root.rglob("*.log")}
    *batches, _ = logs["runs.log"].split(says)
    assert any("without newer changes" not in each for each in batches), "a run reached the engine"
    for name, log in logs.items():
        for secret in SECRETS.values():
            assert secret not in log or secret == SECRETS["AWS_REQUEST_CHECKSUM_CALCULATION"], name
