"""Tests snapshots of tables with every awkward kind of key while their rows change: the published rows equal the source."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent
from sluice.orchestration.base.ports import PublishOutcome
from sluice.orchestration.run.spark_publish import spark_publish
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

# By table: the columns of its key, and the SQL expressions of their values for a number `n` from 0 to 59.
KEYS = {
    "general": ("k varchar(40) COLLATE utf8mb4_general_ci", "IF({n} % 2, CONCAT('ä', {n}), CONCAT('B', {n}, ' '))"),
    "accents": ("k varchar(40) COLLATE utf8mb4_0900_ai_ci", "CONCAT(CHAR(97 + {n} % 26 USING utf8mb4), 'É', {n})"),
    "latin": ("k varchar(40) CHARACTER SET latin1", "CONCAT(_utf8mb4'ü', {n})"),
    "composite": (
        "a int, b varchar(9), c date",
        "-({n} % 3), CONCAT('x', {n} % 7), DATE'2020-01-31' + INTERVAL {n} DAY",
    ),
    "decimals": ("k decimal(30,10)", "{n} * 12345678901234567.0000000001 - 5"),
    "dates": ("k date", "DATE'1000-01-01' + INTERVAL {n} * 5000 DAY"),
    "times": ("k datetime(6)", "TIMESTAMP'2024-02-29 23:59:59.999999' + INTERVAL {n} HOUR"),
    "binaries": ("k binary(4)", "UNHEX(LPAD(HEX({n} * 71582788), 8, '0'))"),
    "negative": ("k bigint", "-9223372036854775808 + {n}"),
    "huge": ("k bigint unsigned", "18446744073709551615 - {n}"),
    "enums": (f"k enum({', '.join(repr(f'e{59 - n}') for n in range(60))})", "CONCAT('e', {n})"),
    "skewed": ("k bigint", "IF({n} < 50, {n}, {n} * 100000000000)"),
    "floats": ("k double", "{n} / 7 - 3"),
    "one": ("k int", "{n}"),
    "none": ("k int", "{n}"),
}
ROWS = {"one": (7,), "none": ()}
CHUNK_ROWS = 9


def values(name: str, numbers: range | tuple[int, ...]) -> str:
    return ", ".join(f"({KEYS[name][1].format(n=n)}, {n}, 'read')" for n in numbers)


def names_of(columns: str) -> str:
    """Returns the names of the key columns."""
    return ", ".join(each.split()[0] for each in columns.split(", ") if each[0] in "abck" and " " in each)


def test_tables_with_awkward_keys_equal_the_source_though_they_change_while_a_snapshot_reads_them_equality(
    mysql80: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    database, captured = pipeline.captured.database, pipeline.captured
    captured.describe(f"snapshots: {json.dumps({'chunk_rows': CHUNK_ROWS})}")
    captured.run("SET sql_log_bin = 0", f"USE {database}", *(made for name in KEYS for made in making(name)))
    tables = [f"{database}.{name}" for name in KEYS]
    published: dict[str, PublishOutcome] = {}

    def publish(record: object, table: object) -> int:
        done = spark_publish(pipeline.config, "shop", record, table, "run", refusal=str)  # type: ignore[arg-type]
        published[record.table] = done  # type: ignore[attr-defined]
        return done.label

    outside = SnapshotCallbacks(run_lock=contextlib.nullcontext, publish=publish, say=print, progress=lambda _: None)
    with running(captured) as engine:
        pipeline.merge(engine)
        snapshot.start(captured.directory, tables)
        records, ending = SnapshotRecords(captured.directory), threading.Event()

        def is_published() -> bool:
            pipeline.merge_next(engine)
            run_all(snapshot_dependencies(pipeline.config, "shop", outside), 0.0)
            return not any(each.has_work for each in records.all())

        with ThreadPoolExecutor(1) as thread:
            changing = thread.submit(change, pipeline, ending)
            try:
                wait_for("all rows are published", is_published, 240)
            finally:
                ending.set()
                changing.result()
        pipeline.merge(engine)
        requested = ComparedDestination(pipeline.config, "shop", source_of(pipeline.config.destinations["shop"]))
        for found in compare_destination(requested, tables, Extent()):
            assert found.equal, found
    ways = {name: (done.way, done.reason) for name, done in published.items() if done.way != "files"}
    assert ways.keys() <= {"floats"}, ways


def making(name: str) -> list[str]:
    columns, rows = KEYS[name][0], ROWS.get(name, range(0, 60, 2))
    made = [f"CREATE TABLE {name} ({columns}, n int, word varchar(20), PRIMARY KEY ({names_of(columns)}))"]
    return [*made, f"INSERT INTO {name} VALUES {values(name, rows)}"] if rows else made


def change(pipeline: Pipeline, ending: threading.Event) -> None:
    """Inserts, replaces, updates and deletes rows of every table until `ending` is set."""
    with pipeline.captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {pipeline.captured.database}")
        step = 0
        while not ending.is_set():
            for name in KEYS:
                n = (step * 7) % 58
                for statement in (
                    f"REPLACE INTO {name} VALUES {values(name, (n,))}",
                    f"UPDATE {name} SET word = 'changed {step}' WHERE n % 5 = {step % 5}",
                    f"DELETE FROM {name} WHERE n = {(n + 2) % 58}",
                ):
                    cursor.execute(statement)
            connection.commit()
            step += 1
            ending.wait(0.1)
