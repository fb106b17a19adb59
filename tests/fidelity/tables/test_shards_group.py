"""Tests that shards of a real server become one Delta table. Whatever is done to each shard, its rows in the lake equal SELECT, and the
equality check agrees.

The tables have a key or none, images lack columns, and both ways of merging are used.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, SparkConfig, TableConfig
from sluice.cdc_engine.config.shards import ShardsConfig
from sluice.cdc_engine.instance.tables.value_policies import keys_of, policies_of
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.staging import StagingResult
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent, Verdict
from sluice.orchestration.base.lake_settings import target
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.equality.unwritten import NothingToWaitFor
from tests.fidelity.pipeline import Pipeline, run
from tests.spark.staged import Records

pytestmark = [pytest.mark.servers, pytest.mark.spark]

DATABASE, DESTINATION = "shards_group", "fidelity"
COLUMNS = "id int PRIMARY KEY, n int DEFAULT 7, name varchar(20)"
TABLES = ("orders_1", "orders_2", "items_1", "items_2", "log_1", "log_2")
WAYS: dict[str, SmallSetting] = {"orders": "spark", "items": "small", "log": "small"}
BEFORE = (
    "INSERT INTO orders_1 (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    "INSERT INTO orders_2 (id, name) VALUES (1, 'A'), (2, 'B'), (3, 'C')",
    "INSERT INTO items_1 (id, name) VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO items_2 (id, name) VALUES (1, 'A'), (2, 'B')",
    "INSERT INTO log_1 VALUES (1, 'a'), (1, 'a')",
    "INSERT INTO log_2 VALUES (1, 'a')",
)
AFTER = (
    "SET binlog_row_image = MINIMAL",
    "UPDATE orders_1 SET name = 'moved' WHERE id = 1",
    "UPDATE orders_1 SET id = 11 WHERE id = 1",
    "DELETE FROM orders_2 WHERE id = 2",
    "UPDATE items_2 SET n = 9, id = 11 WHERE id = 1",
    "UPDATE items_1 SET name = 'few' WHERE id = 2",
    "SET binlog_row_image = FULL",
    "UPDATE orders_2 SET n = n + 1",
    "DELETE FROM log_1 LIMIT 1",
    "UPDATE log_2 SET name = 'b'",
)
CHANGED = (
    "TRUNCATE TABLE orders_1",
    "INSERT INTO orders_1 (id, name) VALUES (1, 'anew')",
    "ALTER TABLE orders_2 ADD COLUMN note varchar(10) NOT NULL DEFAULT 'two'",
    "INSERT INTO orders_2 (id, name, note) VALUES (9, 'I', 'own')",
    "INSERT INTO orders_1 (id, name) VALUES (2, 'without')",
    "ALTER TABLE orders_1 ADD COLUMN note varchar(10) NOT NULL DEFAULT 'one'",
    "UPDATE orders_1 SET note = 'told' WHERE id = 2",
    "ALTER TABLE orders_2 DROP COLUMN n",
    "UPDATE orders_2 SET name = 'less' WHERE id = 9",
)


@dataclasses.dataclass
class Merged:
    """The lake after some batches. `config` has the rules that make the tables shards, and the way in which each Delta table is merged."""

    pipeline: Pipeline
    config: SluiceConfig
    spark: SparkSettings
    records: Records = dataclasses.field(default_factory=Records)
    taken: set[int] = dataclasses.field(default_factory=set)

    def merge(self) -> StagingResult:
        """Stages everything since the beginning under another delivery number, and merges it. Changes that are merged
        already are left out.
        """
        settings = self.config.destinations[DESTINATION]
        staged = self.pipeline.staged(policies=policies_of(settings), keys=keys_of(settings))
        names = [table.name for table in staged.manifest.tables]
        targets = {name: target(self.config, DESTINATION, name) for name in names}
        merge_batch(read_staged_batch(staged.path), targets, self.spark, BatchContext(records=self.records))
        return staged

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        path = f"{self.config.lake}/all/{table.rpartition('_')[0]}"
        query = f"SELECT {', '.join(columns)} FROM t WHERE shard = 'shard {table[-1]}' ORDER BY id"
        found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path)).execute(query).read_all()
        return [tuple(row.values()) for row in pa.table(found).to_pylist()]

    def selected(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        with self.pipeline.server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")
            return list(cursor.fetchall())

    def verdicts(self) -> dict[str, Verdict]:
        source = Source(destination=DESTINATION, host="127.0.0.1", port=self.pipeline.server.port, user="root")
        requested = ComparedDestination(self.config, DESTINATION, source, merged=NothingToWaitFor())
        names = [f"{DATABASE}.{table}" for table in TABLES]
        found = compare_destination(requested, names, Extent())
        return {each.table.partition(".")[2]: each.verdict for each in found}


@pytest.fixture
def merged(mysql80: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path) -> Merged:
    tables = [f"{name} ({'id int, name text' if name.startswith('log') else COLUMNS})" for name in TABLES]
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(mysql80, *(f"CREATE TABLE {each}" for each in tables), database=DATABASE)
    rules = tuple(
        ShardsConfig(
            tables=rf"{DATABASE}\.({name})_(\d+)",
            into="all/{1}",
            column="shard",
            name="shard {2}",
            options=TableConfig(merge=way),
        )
        for name, way in WAYS.items()
    )
    settings = DestinationConfig(
        name=DESTINATION,
        source=SourceConfig(port=mysql80.port, user="root"),
        include=rf"{DATABASE}\..*",
        shards=rules,
    )
    config = SluiceConfig(
        data_dir=tmp_path,
        lake=str(tmp_path / "lake"),
        spark=SparkConfig(remote=spark_server.url),
        destinations={DESTINATION: settings},
    )
    config.destination_dir(DESTINATION).mkdir(parents=True)
    spark = SparkSettings(remote=spark_server.url, sessions_file=tmp_path / "lanes.json")
    pipeline = Pipeline.of(mysql80, DATABASE, tmp_path)
    pipeline.review = SchemaDecisions(policy=settings.schema_policy)
    return Merged(pipeline, config, spark)


def test_shards_of_a_server_are_one_table_with_the_rows_of_each(merged: Merged) -> None:
    server = merged.pipeline.server
    for statements in (BEFORE, AFTER, CHANGED):
        run(server, *statements, database=DATABASE)
        assert not merged.merge().stopped
    shown = ("id", "n", "name")
    wanted = {"orders_1": (*shown, "note"), "orders_2": ("id", "name", "note"), "items_1": shown, "items_2": shown}
    for table, columns in wanted.items():
        assert merged.rows(table, *columns) == merged.selected(table, *columns)
    # The column that one shard dropped stays for the other.
    assert {row[0] for row in merged.rows("orders_2", "n")} == {8, None}
    assert merged.verdicts() == dict.fromkeys(TABLES, Verdict.EQUAL)
    run(server, "SET sql_log_bin = 0", "UPDATE orders_2 SET name = 'unseen' WHERE id = 1", database=DATABASE)
    assert merged.verdicts() == {**dict.fromkeys(TABLES, Verdict.EQUAL), "orders_2": Verdict.DIFFERENT}


def test_a_shard_that_gets_another_name_stops_in_a_group(merged: Merged) -> None:
    """The table stops because its rows are among the rows of other shards, and Sluice does not move them."""
    run(merged.pipeline.server, "RENAME TABLE orders_1 TO old, orders_2 TO orders_3", database=DATABASE)
    stopped = merged.pipeline.staged(policies=policies_of(merged.config.destinations[DESTINATION])).stopped
    assert [(each.table, each.state) for each in stopped] == [
        ("old", "DDL_UNSUPPORTED"),
        ("orders_3", "DDL_UNSUPPORTED"),
    ]
    assert "its Delta table has rows of other shards" in stopped[0].reason
