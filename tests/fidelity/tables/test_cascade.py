"""Foreign keys that act below the binlog, from real servers to the lake: the lake's tables are what SELECT answers."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest

from console.toolchain.database.server import DatabaseServer
from console.toolchain.spark.server import SparkConnectServer
from spark_jobs import SparkSettings, TableTarget, merge_batch
from spark_jobs.cascades.derive import carried_out
from spark_jobs.staged_batch import StagedTable, read_staged_batch
from tests.fidelity.pipeline import Pipeline, run
from tests.fidelity.tables.cascade_tree import DATABASE, NAMES, TABLES, statements

KEYS = {"l": (), "k": ("a", "b"), "kk": ("x", "y", "z")}
Rows = Counter[tuple[Any, ...]]


def begun(server: DatabaseServer, folder: Path) -> Pipeline:
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *TABLES, database=DATABASE)
    return Pipeline.of(server, DATABASE, folder)


def play(server: DatabaseServer, seed: int, count: int, names: tuple[str, ...] = NAMES) -> int:
    """How many of the statements the server took, of those about tables with these names."""
    taken = 0
    with server.connect(database=DATABASE, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for statement in statements(seed, count):
            named = set(re.findall(r"(?:FROM|INTO|UPDATE|JOIN) (\w+)", statement)) - {"id"}
            if not named <= set(names):
                continue
            with contextlib.suppress(pymysql.MySQLError):
                cursor.execute(statement)
                taken += 1
    return taken


def selected(server: DatabaseServer, table: str) -> Rows:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM {table}")
        return Counter(tuple(row) for row in cursor.fetchall())


def folded(table: StagedTable, key: tuple[str, ...]) -> Rows:
    """What the images of a batch leave where nothing was before, as the merge does it."""
    rows: dict[Any, tuple[Any, ...]] = {}
    log: Rows = Counter()
    for segment in table.changes:
        names = [column.name for column in segment.columns]
        for image in pq.read_table(segment.path).to_pylist():
            values = tuple(plain(image[name]) for name in names)
            there = image["_sluice_operation"] in {1, 3}
            log[values] += 1 if there else -1
            rows.pop(tuple(image[name] for name in key), None)
            if there:
                rows[tuple(image[name] for name in key)] = values
    return Counter(rows.values()) if key else +log


def plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


@pytest.mark.parametrize("server", ["mysql80", "mariadb114"])
def test_random_cascades_are_in_the_staged_images(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Without Spark, so that many can be played: the lake is empty at the beginning."""
    source: DatabaseServer = request.getfixturevalue(server)
    derived = 0
    for seed in range(12):
        pipeline = begun(source, tmp_path / str(seed))
        assert play(source, seed, 250) > 100
        staged = pipeline.staged()
        assert not staged.stopped
        batch = read_staged_batch(staged.path)
        targets = {table.name: TableTarget(path=str(tmp_path / "none" / table.name)) for table in batch.tables}
        lane: Any = None
        carried, refused = carried_out(lane, batch, targets, {})
        assert not refused
        tables = {table.table: table for table in carried.tables}
        for name in NAMES:
            found = folded(tables[name], KEYS.get(name, ("id",))) if name in tables else Counter()
            assert found == selected(source, name), (seed, name)
        derived += sum(table.rows for table in carried.tables) - sum(table.rows for table in batch.tables)
    assert derived > 100


def lake_rows(path: Path, table: str) -> Rows:
    if not path.exists():
        return Counter()
    log = deltalake.DeltaTable(str(path))
    names = [field.name for field in log.schema().fields if not field.name.startswith("_sluice_")]
    columns = ", ".join(f'"{name}"' for name in names)
    alive = "NOT coalesce(_sluice_deleted, false)" if table == "e" else "true"
    sign = "CASE WHEN _sluice_operation IN ('insert', 'update_postimage') THEN 1 ELSE -1 END" if table == "l" else "1"
    query = f"SELECT {columns}, {sign} AS sign FROM t WHERE {alive}"
    found = deltalake.QueryBuilder().register("t", log).execute(query).read_all()
    rows: Rows = Counter()
    for row in pa.table(found).to_pylist():
        rows[tuple(plain(row[name]) for name in names)] += row["sign"]
    return +rows


MERGED = ("p", "c", "e", "l")


def test_random_cascades_over_several_batches_are_in_the_lake(
    mysql80: DatabaseServer, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    """The second batch is merged twice, again from what was derived; then all is read and merged again from the beginning."""
    pipeline = begun(mysql80, tmp_path)
    first = pipeline.begin
    settings = SparkSettings(remote=spark_server.url)

    def merge(times: int = 1) -> None:
        staged = pipeline.staged()
        assert not staged.stopped
        targets = {
            f"{DATABASE}.{table.table}": TableTarget(
                path=str(tmp_path / "lake" / table.table), deletes="soft" if table.table == "e" else "hard"
            )
            for table in staged.manifest.tables
        }
        for _ in range(times):
            merge_batch(staged.path, targets, settings)
            for name in MERGED:
                assert lake_rows(tmp_path / "lake" / name, name) == selected(mysql80, name), name
        pipeline.begin = type(first).from_json(dict(staged.manifest.end))

    play(mysql80, 101, 150, MERGED)
    merge()
    play(mysql80, 102, 100, MERGED)
    merge(times=2)
    pipeline.begin = first
    merge()
