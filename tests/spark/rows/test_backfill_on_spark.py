"""Tests a backfill from a server's binlog while an engine runs: it restores what the lake lost, and changes nothing else."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.gtid import GtidSet
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.time_text import time_text
from sluice.console.lake.history import captured_table, history_of
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base import failpoints
from sluice.orchestration.run.rows.backfill import Done
from sluice.orchestration.run.rows.job import RowsConfig, request_of
from sluice.orchestration.run.rows.request import BackfillRequest
from sluice.orchestration.run.spark_merge import KeptRecords
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables.lake_look import LakeLook
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import SECOND_US, Pipeline, killed_at
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]


def counts(done: Done) -> list[tuple[int, int, int]]:
    return [(each.rows_inserted, each.rows_updated, each.rows_deleted) for each in done.outcomes]


@pytest.mark.parametrize("kind", ["mysql80", "mariadb114"])
def test_what_the_lake_lost_comes_back_and_what_was_deleted_stays_deleted_backfill(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    pipeline = Pipeline(tmp_path, request.getfixturevalue(kind), spark_server)
    numbers = pipeline.name
    with running(pipeline.captured) as engine:
        for number in range(8):
            pipeline.insert(number, 10 * number)
        pipeline.change(f"UPDATE {numbers} SET filler = 'new' WHERE n IN (2, 3)", f"DELETE FROM {numbers} WHERE n = 4")
        pipeline.change(f"UPDATE {numbers} SET n = 50 WHERE n = 5")
        pipeline.merge(engine)
        right = pipeline.rows()
        assert right == {0: "", 1: "", 2: "new", 3: "new", 50: "", 6: "", 7: ""}
        pipeline.by_another_hand(f"DELETE FROM delta.`{pipeline.path}` WHERE n IN (0, 1, 2, 7, 50)")
        old = f"SELECT 4, 'dead', _sluice_order_key - 1000, _sluice_commit_time, 'insert' FROM delta.`{pipeline.path}` WHERE n = 6"
        pipeline.by_another_hand(f"INSERT INTO delta.`{pipeline.path}` {old}")
        pipeline.by_another_hand(
            f"UPDATE delta.`{pipeline.path}` SET filler = 'old', _sluice_order_key = 1 WHERE n = 3"
        )
        pipeline.change(f"DELETE FROM {numbers} WHERE n = 6")  # The lake does not have this change yet.
        done = pipeline.backfill(5, 65)
        assert pipeline.rows() == {1: "", 2: "new", 3: "new", 6: ""}, "0, 7 and 50 lie outside"
        assert counts(done) == [(2, 1, 1)]
        assert pipeline.is_in_newest_snapshot()
        assert counts(pipeline.backfill(5, 65)) == [(0, 0, 0)], "run twice it changes nothing"
        pipeline.backfill(-5)
        assert pipeline.rows() == right, (
            "a backfill must not apply the DELETE of row 6, which the stream has not merged yet"
        )
        pipeline.merge(engine)
        assert pipeline.rows() == {key: row for key, row in right.items() if key != 6}
        assert not engine.status().stopped_tables
    reported = history_of(captured_table(pipeline.config, numbers))
    found = [each for each in reported if each.backfill]
    assert {each.kind for each in found} == {"backfill"}
    assert [(each.from_us, each.to_us) for each in found][-1] == tuple((pipeline.base + s) * SECOND_US for s in (5, 65))
    assert found[-1].run == "by hand"
    assert found[-1].server_uuid
    assert not list((pipeline.captured.directory / "backfills").glob("*/")), "its files are gone"
    records = KeptRecords(destination_files.LakeTables(pipeline.captured.directory))
    owner = Owner(
        ledger_id=destination_files.read_ledger(pipeline.captured.directory).ledger_id,
        destination="shop",
        table=numbers,
    )
    record = records.get(numbers)
    assert record is not None
    assert LakeLook({}).trouble(owner, pipeline.path, record) == ""


def test_rows_that_are_marked_as_deleted_stay_marked_backfill(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server, deletes="soft")
    with running(pipeline.captured) as engine:
        for number in range(3):
            pipeline.insert(number, 10 * number)
        pipeline.change(f"DELETE FROM {pipeline.name} WHERE n = 1")
        pipeline.merge(engine)
        pipeline.by_another_hand(f"DELETE FROM delta.`{pipeline.path}` WHERE n IN (1, 2)")
        pipeline.backfill(-5)
        assert pipeline.rows() == {0: "", 2: ""}
        assert counts(pipeline.backfill(-5)) == [(0, 0, 0)]


def test_tables_that_cannot_be_read_again_are_refused_by_name_backfill(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    other = f"{pipeline.captured.database}.other"
    with running(pipeline.captured) as engine:
        pipeline.insert(0, 0)
        pipeline.change(f"CREATE TABLE {other} (n INT PRIMARY KEY)", f"INSERT INTO {other} VALUES (1)")
        pipeline.merge(engine)
        pipeline.change(f"TRUNCATE {other}")
        pipeline.merge(engine)
        with pytest.raises(ActRefusedError, match=rf"{other}: the interval has DDL statements on the table"):
            pipeline.backfill(-5, tables=(other,))
        done = pipeline.backfill(-5)
        assert list(done.refused) == [other]
        assert [each.name for each in done.outcomes] == [pipeline.name]
        cursor = destination_files.read_ledger(pipeline.captured.directory).cursor
        SnapshotRecords(pipeline.captured.directory).begin(wanted(pipeline.name, cursor, time.time()))
        with pytest.raises(ActRefusedError, match="a snapshot of the table is"):
            pipeline.backfill(-5, tables=(pipeline.name,))


def test_the_command_does_it_and_prints_json_for_programs_backfill(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    monkeypatch.setenv("SLUICE_CONF", str(pipeline.captured.conf))
    with running(pipeline.captured) as engine:
        pipeline.insert(1, 0)
        pipeline.insert(2, 1)
        pipeline.merge(engine)
        pipeline.by_another_hand(f"DELETE FROM delta.`{pipeline.path}` WHERE n = 2")
        command = ["backfill", "shop", "--from", time_text((pipeline.began + 1) * SECOND_US), "--json"]
        answer = CliRunner().invoke(app, command)
        assert answer.exit_code == 0, answer.exception
        (table,) = json.loads(answer.stdout)["tables"]
        assert (table["name"], table["rows_inserted"]) == (pipeline.name, 1)
        assert pipeline.rows() == {1: "", 2: ""}


def test_a_backfill_that_is_killed_anywhere_is_right_when_it_is_done_again_backfill(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    gates, other = tmp_path / "gates", f"{pipeline.captured.database}.others"
    gates.mkdir()
    environment = {**os.environ, "SLUICE_CONF": str(pipeline.captured.conf), failpoints.VARIABLE: str(gates)}
    with running(pipeline.captured) as engine:
        pipeline.change(f"CREATE TABLE {other} (n INT PRIMARY KEY, filler TEXT)", f"INSERT INTO {other} VALUES (1, '')")
        pipeline.insert(0, 0)
        pipeline.merge(engine)
        pipeline.insert(1, 10)
        pipeline.change(f"DELETE FROM {pipeline.name} WHERE n = 0", f"UPDATE {other} SET filler = 'new'")
        pipeline.merge(engine)
        others = pipeline.config.table_path("shop", *other.split("."))
        begin = time_text((pipeline.began + 1) * SECOND_US)
        for point in (failpoints.BEFORE_ROWS, failpoints.BETWEEN_ROWS, failpoints.AFTER_ROWS):
            for path in (pipeline.path, others):
                pipeline.by_another_hand(f"DELETE FROM delta.`{path}` WHERE n = 1")
            (gates / point).touch()
            command = [sys.executable, "-m", "sluice.console.main", "backfill", "shop", "--from", begin]
            killed_at(gates / point, command, environment)
            again = subprocess.run(command, env=environment, capture_output=True, timeout=180, check=False)
            assert again.returncode == 0, again.stderr.decode()
            assert pipeline.rows() == {1: ""}, point
            assert pipeline.rows(others) == {1: "new"}, point
            (left,) = (pipeline.captured.directory / "backfills").iterdir()
            assert left.name == "backfill.lock", point
        pipeline.insert(2, 20)
        pipeline.merge(engine)
        assert pipeline.rows() == {1: "", 2: ""}
        assert not engine.status().stopped_tables


def committed(pipeline: Pipeline, number: int) -> str:
    """Inserts a row, and returns the GTID of its transaction."""
    mariadb = "mariadb" in pipeline.captured.server.version
    with pipeline.captured.server.connect() as connection, connection.cursor() as cursor:

        def queried(what: str) -> str:
            cursor.execute(f"SELECT {what}")
            return str(next(iter(cursor.fetchone())))

        before = "" if mariadb else queried("@@global.gtid_executed")
        cursor.execute(f"INSERT INTO {pipeline.name} VALUES ({number}, '')")
        if mariadb:
            return queried("@@last_gtid")
        return str(GtidSet.parse(queried("@@global.gtid_executed")).subtract(GtidSet.parse(before)))


@pytest.mark.seeds
@pytest.mark.parametrize("kind", ["mysql80", "mariadb114"])
def test_exactly_the_transactions_that_gtids_name_are_applied_and_those_of_a_run_backfill(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    spark_server: SparkConnectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The times of a run need a server with times in microseconds, so that two runs do not share a time."""
    pipeline = Pipeline(tmp_path, request.getfixturevalue(kind), spark_server)
    monkeypatch.setenv("SLUICE_CONF", str(pipeline.captured.conf))

    def backfilled(*words: str) -> dict[str, Any]:
        answer = CliRunner().invoke(app, ["backfill", "shop", *words, "--json"])
        assert answer.exit_code == 0, answer.exception
        reported: dict[str, Any] = json.loads(answer.stdout)
        return reported

    # Waits until the binlog file is older than this test's rows, so that the search for their times begins in this file. In the previous
    # file, other tests wrote rows with times in the future.
    wait_for("the binlog file is older than the rows", lambda: time.time() > pipeline.began + 2)
    with running(pipeline.captured) as engine:
        one, _ = committed(pipeline, 1), committed(pipeline, 2)
        pipeline.merge(engine)
        committed(pipeline, 3)
        four = committed(pipeline, 4)
        pipeline.merge(engine)
        pipeline.by_another_hand(f"DELETE FROM delta.`{pipeline.path}` WHERE n <= 4")
        plan = backfilled("--gtids", f"{one},{four}", "--plan")
        assert (plan["gtids"], plan["tables"][0]["refused"], plan["counted"]) == (f"{one},{four}", "", True)
        # As texts, 24Z would be after 24.000001Z.
        assert dt.datetime.fromisoformat(plan["from_time"]) <= dt.datetime.fromisoformat(plan["to_time"])

        done = backfilled("--gtids", f"{one},{four}")

        assert pipeline.rows() == {1: "", 4: ""}, "2 and 3 are of transactions between them"
        assert [each["rows_inserted"] for each in done["tables"]] == [2]
        (table,) = backfilled("--gtids", f"{one},{four}")["tables"]
        assert table["rows_inserted"] == table["rows_updated"] == 0, "run twice it changes nothing"
        if kind == "mysql80":
            history = history_of(captured_table(pipeline.config, pipeline.name))
            run = min((each for each in history if each.streamed and each.run), key=lambda each: each.version).run
            requested = request_of(pipeline.config, RowsConfig(run=run), time.time_ns() // 1000)
            assert isinstance(requested, BackfillRequest)
            assert (requested.destination, requested.tables, requested.from_us > 0) == ("shop", (pipeline.name,), True)
            backfilled("--run", run)
            assert pipeline.rows() == {1: "", 2: "", 4: ""}, "another run merged 3"
