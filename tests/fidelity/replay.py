"""Folds the staged images of a table as the merge into the lake does, and compares the result with the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.cdc_engine.binlog.rows.decoder import OPERATION, ORDER_KEY
from sluice.cdc_engine.contracts import Operation
from sluice.cdc_engine.staging.segment_writer import ROW
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import Pipeline, images

GONE = (Operation.DELETE, Operation.UPDATE_BEFORE)


def assert_replayed(pipeline: Pipeline, *tables: str, **options: Any) -> dict[str, pa.Table]:
    """Requires that the tables equal SELECT, and that their images are in order. The first column of a table must be its key. Returns the
    images of each table.
    """
    staged = pipeline.staged(**options)
    assert not staged.stopped
    found = {table: images(staged, table) for table in tables}
    for table, rows in found.items():
        keys: list[Any] = rows[ORDER_KEY].to_pylist()
        assert keys == sorted(keys)
        assert rows[ROW].to_pylist() == list(range(1, rows.num_rows + 1))
        assert folded(rows) == selected(pipeline.server, pipeline.database, table)
    return found


def folded(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Returns the last image of each key, except images that delete the row."""
    last: dict[Any, tuple[Any, ...]] = {}
    names = [name for name in rows.column_names if not name.startswith("_sluice_")]
    every: list[dict[str, Any]] = rows.to_pylist()
    for row in every:
        values = tuple(row[name] for name in names)
        last[values[0]] = () if row[OPERATION] in GONE else values
    return sorted(values for values in last.values() if values)


def selected(server: DatabaseServer, database: str, table: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM `{database}`.`{table}`")
        return sorted(tuple(row) for row in cursor.fetchall())


def pipeline_with(server: DatabaseServer, folder: Path, database: str, *statements: str) -> Pipeline:
    """Creates a new database with the tables that `statements` create, and captures it from then on."""
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in (
            f"DROP DATABASE IF EXISTS {database}",
            f"CREATE DATABASE {database}",
            f"USE {database}",
            *statements,
        ):
            cursor.execute(statement)
    return Pipeline.of(server, database, folder)
