"""Two engine hosts with one Dagster, and each of their parts killed under load: nothing is lost, and the lake equals the source."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from benchmarks.servers.postgres import PostgresServer
from benchmarks.servers.s3 import S3Server
from sluice.cdc_engine.instance.sources import source_of
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent
from sluice.object_stores.options import resolved
from tests.ha.fix_production import SECRETS, Production
from tests.instance.fix_destination import Captured

pytestmark = [pytest.mark.servers, pytest.mark.spark]

S = dg.DagsterRunStatus


@contextmanager
def load(captured: Captured) -> Iterator[None]:
    """Inserts, updates, moves of keys and deletes, in one transaction after the other until the block ends."""
    stopping, table = threading.Event(), f"{captured.database}.numbers"

    def write() -> None:
        number = 0
        while not stopping.is_set():
            number += 10
            captured.run(
                "BEGIN",
                f"INSERT INTO {table} VALUES {', '.join(f'({number + each}, {each})' for each in range(8))}",
                f"UPDATE {table} SET filler = CONCAT(filler, 'x') WHERE n % 7 = {number % 7}",
                f"UPDATE {table} SET n = n + 8 WHERE n = {number + 1}",
                f"DELETE FROM {table} WHERE n = {number - 96}",
                "COMMIT",
            )
            stopping.wait(0.1)

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
    """`request.param`: the setting `runs`; without it, `batch`."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    postgres = PostgresServer(tmp_path / "postgres").start()
    captured = Captured(tmp_path / "source", mysql80)
    captured.describe(f"runs: {getattr(request, 'param', 'batch')}")
    made = Production(tmp_path, captured, postgres, s3_store, spark_server.url)
    try:
        yield made
    finally:
        made.stop()
        postgres.stop()


@pytest.mark.timeout(600)  # ten starts of a Python with Dagster, beside whatever else the machine does
def test_ha_two_engine_hosts_with_one_dagster_whatever_is_killed(production: Production) -> None:
    with load(production.captured):
        production.start()

        # a new code server, while a run merges: the run is no child of the old one
        run = production.wait_for_run()
        production.kill("code server")
        assert production.wait_until_ended(run).status is S.SUCCESS

        # a run whose host dies, and an engine host that stands still
        active = production.active()
        run = production.wait_for_run()
        os.kill(production.pid_of(run), signal.SIGKILL)
        production.stand_still(active)
        assert production.wait_until_ended(run).status is S.FAILURE
        file, offset = production.cursor()
        production.wait_until_merged("a run was killed and an engine host stood still", (file, offset + 1))
        successor = production.active()
        assert successor != active
        production.go_on(active)

        # the daemon, Dagster's storage, which has the ledger too, and the engine host that reads
        known = {each.run_id for each in production.instance.get_runs()}
        for name in ("daemon", successor):
            production.kill(name)
        production.postgres.kill()
        production.postgres.start()
    production.wait_until_merged("Postgres, the daemon and an engine host were killed")
    assert known <= {each.run_id for each in production.instance.get_runs()}, "the storage lost nothing"
    require_equal(production)
    require_apart(production, "merging delivery")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("production", ["drain"], indirect=True)
def test_ha_a_run_on_another_host_drains_whatever_is_killed(production: Production) -> None:
    with load(production.captured):
        production.start()
        run = production.wait_for_attached_run()
        known = len(production.instance.get_runs())
        production.wait_until_merged("a run was attached")
        assert len(production.instance.get_runs()) == known, "it settles its batches itself"

        # the engine host that it calls: it continues with the other one, or ends and is replaced
        active = production.active()
        production.kill(active)
        file, offset = production.cursor()
        production.wait_until_merged("an engine host was killed", (file, offset + 1))
        assert production.wait_for_attached_run()

        # its own host: nobody gives its drain lock back
        run = production.wait_for_attached_run()
        os.kill(production.pid_of(run), signal.SIGKILL)
        assert production.wait_until_ended(run).status is S.FAILURE
        assert production.wait_for_attached_run().run_id != run.run_id
    production.wait_until_merged("a run that drained was killed")
    require_equal(production)
    require_apart(production, "tables merged in")


def require_equal(production: Production) -> None:
    config = production.config("runs")
    shop = config.destinations["shop"]
    options = resolved(config.storage_options)
    asked = ComparedDestination(config, "shop", source_of(shop), storage_options=options)
    (result,) = compare_destination(asked, [f"{production.captured.database}.numbers"], Extent())
    assert result.equal, result


def require_apart(production: Production, says: str) -> None:
    """Runs saw no file of the engines, their batches were extended over TLS, and no secret is in a log. `says`: what they say of each."""
    assert not list((production.root / "runs").rglob("run-endpoint.json"))
    logs = {path.name: path.read_text(errors="replace") for path in production.root.rglob("*.log")}
    assert says in logs["runs.log"]
    assert "without newer changes" not in logs["runs.log"].rpartition(says)[2], "the last run reached the engine"
    for name, log in logs.items():
        for secret in SECRETS.values():
            assert secret not in log or secret == SECRETS["AWS_REQUEST_CHECKSUM_CALCULATION"], name
