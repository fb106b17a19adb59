"""Tests DDL statements of a table with a real MySQL and a real Spark. Statements are followed at once, or are pending until they are
approved. In the end, the table in the lake equals the source.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sluice.cdc_engine.acts.stopped_table import approve
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.acts.schema import pending_changes_of, pending_json, schema_json
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import target
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]


class Pipeline:
    """Runs an engine, and merges its batches one after the other."""

    def __init__(self, captured: Captured, spark: SparkSettings) -> None:
        self.captured, self.spark = captured, spark
        self.config = load_config(captured.conf)
        self.engine = Engine(self.config, "shop")
        self.deliveries = 0

    def flow_until(self, what: str, condition: Any) -> None:
        """Hands out, merges and acks until the condition holds."""

        def flows() -> bool:
            batch = self.engine.hand_out(0.5)
            if batch is not None:
                self.deliveries += 1
                targets = {name: target(self.config, "shop", name) for name in batch.tables}
                target_now = functools.partial(target, self.config, "shop")
                merge_batch(
                    read_staged_batch(self.engine.directory / batch.path),
                    targets,
                    self.spark,
                    BatchContext(target_of=target_now),
                )
                self.engine.ack(batch)
            return batch is None and condition()

        wait_for(what, flows, 120.0)

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a table in the lake."""
        path = self.config.table_path("shop", self.captured.database, table)
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
        found = pa.table(query.execute(f"SELECT {columns} FROM t ORDER BY id").read_all())
        return [tuple(row.values()) for row in found.to_pylist()]

    def source_rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        with self.captured.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM {self.captured.database}.{table} ORDER BY id")
            return list(cursor.fetchall())

    def equal(self, table: str, columns: str) -> bool:
        path = self.config.table_path("shop", self.captured.database, table)
        if not deltalake.DeltaTable.is_deltatable(path):
            return False
        there = {field.name for field in deltalake.DeltaTable(path).schema().fields}
        return set(columns.split(", ")) <= there and self.rows(table, columns) == self.source_rows(table, columns)

    def state(self, table: str) -> str:
        stop = read_ledger(self.engine.directory).stopped(self.captured.database, table)
        return stop.state if stop else "FLOWING"


@pytest.fixture
def pipeline(tmp_path: Path, mysql80: DatabaseServer, spark_server: SparkConnectServer) -> Iterator[Pipeline]:
    captured = Captured(tmp_path, mysql80)
    captured.describe("schema_changes: {widen: rewrite}", "snapshot: never")
    made = Pipeline(captured, SparkSettings(remote=spark_server.url))
    made.engine.start()
    yield made
    made.engine.stop()


def test_ddl_add_widen_drop_rename_and_convert_end_equal(pipeline: Pipeline) -> None:
    database = pipeline.captured.database
    name = f"{database}.orders"
    run = pipeline.captured.run
    run(
        f"CREATE TABLE {database}.calm (id INT PRIMARY KEY)",
        f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, b VARCHAR(20), c INT, d VARCHAR(10))",
        f"INSERT INTO {name} VALUES (1, 10, 'x', 100, '11'), (2, 20, 'y', 200, '12')",
        f"ALTER TABLE {name} ADD e INT NOT NULL DEFAULT 7, MODIFY a BIGINT, DROP c",
        f"INSERT INTO {name} VALUES (3, 3000000000, 'z', '13', 8)",
        f"UPDATE {name} SET b = 'Y' WHERE id = 2",
    )
    pipeline.flow_until("what is added, widened and dropped flows", lambda: pipeline.equal("orders", "id, a, b, d, e"))
    assert pipeline.rows("orders", "id, c") == [(1, 100), (2, None), (3, None)]
    run(
        f"ALTER TABLE {name} RENAME COLUMN b TO bb",
        f"INSERT INTO {name} VALUES (4, 40, 'w', '14', 9)",
        f"ALTER TABLE {name} MODIFY d INT",
        f"DELETE FROM {name} WHERE id = 1",
        f"INSERT INTO {database}.calm VALUES (1), (2)",
    )
    pipeline.flow_until("the other table goes on", lambda: pipeline.equal("calm", "id"))
    assert pipeline.state("orders") == "DDL_HELD"
    (pending,) = pending_json(pending_changes_of(pipeline.config))
    assert pending["statement"] == f"ALTER TABLE {name} RENAME COLUMN b TO bb"
    assert pending["choices"] == ["apply", "new_column"]
    shown = {table["table"]: table["state"] for table in schema_json(pipeline.config, "shop")}
    assert shown == {name: "DDL_HELD", f"{database}.calm": "FLOWING", f"{database}.numbers": "FLOWING"}
    (orders,) = [table for table in schema_json(pipeline.config, "shop") if table["table"] == name]
    # The schema history also follows statements of a stopped table, so the column already has its new name.
    assert [column["name"] for column in orders["columns"]] == ["id", "a", "bb", "d", "e"]
    with pytest.raises(ActRefusedError, match="'keep' is not a plan"):
        approve(pipeline.config.destination_dir("shop"), name, "keep")
    approve(pipeline.config.destination_dir("shop"), name, "apply")
    pipeline.flow_until(
        "the next change is held",
        lambda: "MODIFY d INT" in str(pending_json(pending_changes_of(pipeline.config))),
    )
    assert pipeline.rows("orders", "id, bb") == [(1, "x"), (2, "Y"), (3, "z"), (4, "w")]
    approve(pipeline.config.destination_dir("shop"), name, "apply")
    pipeline.flow_until("the table is equal", lambda: pipeline.equal("orders", "id, a, bb, d, e"))
    assert pipeline.state("orders") == "FLOWING"
    assert pipeline.equal("calm", "id")


ADDED = (
    "stamp TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
    "moment DATETIME DEFAULT CURRENT_TIMESTAMP",
    "begun TIMESTAMP NULL DEFAULT '2020-01-01 00:00:00'",
    "until TIME(2) DEFAULT '-12:30:00'",
    "since YEAR NOT NULL DEFAULT 2020",
    "flag BIT(1) NOT NULL DEFAULT b'1'",
    "wide BIT(64) DEFAULT 0b101",
    "raw VARBINARY(5) NOT NULL DEFAULT 'abc'",
)


def test_ddl_rows_already_there_show_what_the_source_shows_in_columns_added(pipeline: Pipeline) -> None:
    database = pipeline.captured.database
    pipeline.captured.run(
        "SET time_zone = '+05:30'",
        f"CREATE TABLE {database}.grown (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.grown VALUES (1), (2)",
        f"ALTER TABLE {database}.grown {', '.join(f'ADD {column}' for column in ADDED)}",
        f"INSERT INTO {database}.grown (id) VALUES (3)",
    )
    names = ", ".join(column.split()[0] for column in ADDED)
    pipeline.flow_until("the rows are there", lambda: pipeline.equal("grown", "id"))
    with pipeline.captured.server.connect(init_command="SET time_zone = '+00:00'") as connection:
        cursor = connection.cursor()
        shown = names.replace("until", "CAST(until AS CHAR)").replace("flag", "flag + 0").replace("wide", "wide + 0")
        cursor.execute(f"SELECT {shown} FROM {database}.grown ORDER BY id")
        source = list(cursor.fetchall())
    lake = pipeline.rows("grown", names)
    assert [[_without_zone(value) for value in row] for row in lake] == [list(row) for row in source]


def _without_zone(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
