"""Tests a run whose request to take its batch is not answered. The engine, which stalls during the request, its RPC endpoint, the ticks and
Spark are real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest
import yaml

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.staging.batches import StagedBatches
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.batch_reference import delivery_of
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.rpc import connection, run_endpoint
from sluice.orchestration.rpc.run_caller import RunCaller, caller_of_code_server
from sluice.orchestration.run import merge_run
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.batch import run_batch
from sluice.spark_jobs.merging.merge import merge_table
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

KEYS = {"g": "id", "c": "id", "d": "id", "numbers": "n"}


class Host:
    """Hosts the engines of this process, for ticks and the RPC endpoint."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get_or_start(self, destination: str) -> Engine:
        assert destination == "shop"
        return self._engine


class Stall:
    """Stalls the engine in its next `publish` until `end` is called, as a disk or a store that hangs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._armed, self._ended = False, threading.Event()
        publish = StagedBatches.publish

        def stalled(batches: StagedBatches, folder: Path, ledger_id: str) -> None:
            if self._armed:
                assert self._ended.wait(120)
            publish(batches, folder, ledger_id)

        patch.setattr(StagedBatches, "publish", stalled)

    def begin(self) -> None:
        self._armed = True

    def end(self) -> None:
        self._ended.set()


class Shop:
    """Provides a destination whose tables c and d refer to g and c with ON DELETE CASCADE. MySQL deletes their rows without row events.
    `numbers` is a table without foreign keys.
    """

    def __init__(self, captured: Captured, engine: Engine, instance: dg.DagsterInstance) -> None:
        self.captured, self.engine, self.instance = captured, engine, instance
        ports = Ports(
            host=lambda: Host(engine),
            files=lambda: destination_files,
            merge=spark_merge,
            run_engine=caller_of_code_server,
        )
        self.config = captured.config
        self.defs = build_definitions(self.config, ports)

    def tick(self) -> list[dg.RunRequest]:
        sensor = self.defs.resolve_sensor_def("shop_engine")
        repository = self.defs.get_repository_def()
        with dg.build_sensor_context(instance=self.instance, repository_def=repository) as context:
            return list(sensor.evaluate_tick(context).run_requests or ())

    def request(self) -> dg.RunRequest:
        return wait_for("a tick asks for a run", self.tick)[0]

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        job = self.defs.resolve_job_def("merge_shop_job")
        return job.execute_in_process(
            instance=self.instance,
            run_config=dict(request.run_config),
            tags=dict(request.tags),
            raise_on_error=False,
        )

    def merge_all(self) -> None:
        """Ticks and runs until nothing is left."""

        def done() -> bool:
            for request in self.tick():
                assert self.run(request).success
            return self.engine.outstanding() is None and 99 in self.rows("numbers")

        wait_for("all is merged", done, 180)

    def rows(self, table: str) -> list[int]:
        """Returns the keys in a table of the lake, or none if the lake does not have it yet."""
        path = self.config.table_path("shop", self.captured.database, table)
        if not deltalake.DeltaTable.is_deltatable(path):
            return []
        log = deltalake.DeltaTable(path)
        found = deltalake.QueryBuilder().register("t", log).execute(f"SELECT {KEYS[table]} AS k FROM t").read_all()
        return sorted(row["k"] for row in pa.table(found).to_pylist())

    def versions(self) -> dict[str, int]:
        paths = {table: self.config.table_path("shop", self.captured.database, table) for table in KEYS}
        return {table: deltalake.DeltaTable(path).version() for table, path in paths.items()}


WHEN = ("before the next request", "before the run ends", "before its tick", "after its tick")


@pytest.fixture(scope="module")
def shop(
    mysql80: DatabaseServer, spark_server: SparkConnectServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """Starts a destination for all tests of this file. The lake has one row of g, with rows of c and d that refer to it, for each test, and
    one row of g that no test deletes.
    """
    folder = tmp_path_factory.mktemp("unanswered")
    captured = Captured(folder, mysql80)
    conf = {"data_dir": f"{folder}/data", "lake": f"{folder}/lake", "spark": {"remote": spark_server.url}}
    (captured.conf / "sluice.yaml").write_text(yaml.safe_dump(conf))
    name = captured.database
    captured.describe(f"tables: {json.dumps({f'{name}.{table}': {'merge': 'spark'} for table in KEYS})}")
    captured.run(
        f"CREATE TABLE {name}.g (id INT PRIMARY KEY, filler VARCHAR(4000))",
        f"CREATE TABLE {name}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {name}.g (id) ON DELETE CASCADE)",
        f"CREATE TABLE {name}.d (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {name}.c (id) ON DELETE CASCADE)",
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        running(captured) as engine,
        dg.DagsterInstance.ephemeral(tempdir=str(folder)) as instance,
    ):
        patch.setattr(run_endpoint, "_run_endpoints", [])
        made = Shop(captured, engine, instance)
        for number in range(len(WHEN) + 1):
            captured.run(*rows_below(name, number, "x" * 4000 if number else ""))
        captured.run(f"INSERT INTO {name}.numbers VALUES (99, '')")
        wait_for("an engine runs", lambda: engine.status().state == "RUNNING")
        made.merge_all()
        yield made
        for each in run_endpoint._run_endpoints:
            each.close()


def rows_below(database: str, number: int, filler: str = "") -> tuple[str, ...]:
    """Returns statements that insert a row of g, a row of c that refers to it, and a row of d that refers to the row of c."""
    return (
        f"INSERT INTO {database}.g VALUES ({number}, '{filler}')",
        f"INSERT INTO {database}.c VALUES ({100 + number}, {number})",
        f"INSERT INTO {database}.d VALUES ({200 + number}, {100 + number})",
    )


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.found
@pytest.mark.parametrize("when", WHEN)
def test_a_run_whose_request_was_not_answered_writes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Defect 3: the engine stalled during the request, the run merged the old batch, the engine replaced the batch, and cascades were lost.

    A run that repeats its request gets the answer to its first request, and merges the longer batch.
    """
    name, stall = shop.captured.database, Stall(monkeypatch)
    gone = 1 + WHEN.index(when)
    later = 10 + gone
    left = [each for each in shop.rows("g") if each != gone]
    shop.captured.run(f"DELETE FROM {name}.g WHERE id = {gone}")
    request = shop.request()
    handed_out = shop.engine.outstanding()
    assert handed_out is not None
    assert handed_out.appendable
    shop.captured.run(*rows_below(name, later))
    stall.begin()

    def end() -> None:
        stall.end()
        wait_for(
            "the engine has carried it out", lambda: (head := shop.engine.outstanding()) is None or head != handed_out
        )

    repeats = when == "before the next request"
    monkeypatch.setattr(connection, "ANSWER_SECONDS_MAX", 1.0)
    monkeypatch.setattr(merge_run, "TAKE_SECONDS_MAX", 60.0 if repeats else 0.0)
    take, merged = RunCaller.take, threading.Event()

    def merge_g_and_end(session: Any, batch: Any, staged: Any, *rest: Any, **kept: Any) -> Any:
        if not staged.name.endswith(".g"):
            assert merged.wait(60)
            return merge_table(session, batch, staged, *rest, **kept)
        report = merge_table(session, batch, staged, *rest, **kept)
        end()
        merged.set()
        return report

    def take_and_end(caller: RunCaller, reference: Any, *, append: bool) -> None:
        try:
            take(caller, reference, append=append)
        except BaseException:
            if repeats or when == "before the run ends":
                end()
            raise

    before = shop.versions()
    with monkeypatch.context() as patch:
        patch.setattr(run_batch, "merge_table", merge_g_and_end)
        patch.setattr(RunCaller, "take", take_and_end)
        result = shop.run(request)
    assert result.success is repeats
    assert (shop.versions() == before) is not repeats, "a run that fails has written nothing"
    match when:
        case "before its tick":
            end()
        case "after its tick":
            (again,) = shop.tick()
            stall.end()
            assert delivery_of(again.tags) > delivery_of(request.tags), "it was rolled back"
            assert shop.run(again).success
    shop.merge_all()
    for table, first in (("g", 0), ("c", 100), ("d", 200)):
        assert shop.rows(table) == [first + number for number in (*left, later)]
