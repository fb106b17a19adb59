"""The fidelity matrix: on each server, with each amount of table metadata, one table with a column of every type is inserted, updated
and deleted from, and every staged image is what SELECT returned of the row at that moment.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_engine.binlog.rows import OPERATION
from cdc_engine.contracts import Operation
from console.toolchain.servers import DatabaseServer
from tests.fidelity.catalogue import Kind, kinds_of
from tests.fidelity.comparison import expected, printed
from tests.fidelity.pipeline import SERVERS, Pipeline, images, run

DATABASE = "fidelity"
CASES = [
    (server, metadata)
    for server in SERVERS
    for metadata in ("MINIMAL", "FULL")
    if (server, metadata) != ("mysql57", "FULL")
]
COLUMNS_A_TABLE = 60  # so that a row of every type at its widest stays under the servers' row size
Rows = dict[int, tuple[Any, ...]]


@contextlib.contextmanager
def row_metadata(server: DatabaseServer, metadata: str) -> Iterator[None]:
    """The server's own default where it has no such variable (MySQL 5.7)."""
    with server.connect() as connection, connection.cursor() as cursor:
        if not cursor.execute("SHOW GLOBAL VARIABLES LIKE 'binlog_row_metadata'"):
            yield
            return
        (before,) = (value for _, value in cursor.fetchall())
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL binlog_row_metadata = {before}")


def tables(server: str) -> dict[str, tuple[Kind, ...]]:
    kinds = kinds_of(server)
    return {f"t{first}": kinds[first : first + COLUMNS_A_TABLE] for first in range(0, len(kinds), COLUMNS_A_TABLE)}


def create(table: str, kinds: tuple[Kind, ...]) -> str:
    columns = ", ".join(f"c{index} {kind.declared}" for index, kind in enumerate(kinds))
    return f"CREATE TABLE {table} (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4 ROW_FORMAT=DYNAMIC"


def literals(kinds: tuple[Kind, ...], row: int) -> list[str]:
    """The values of one row; a NULL stands behind the last value of each kind."""
    return [(*kind.values, "NULL")[row % (len(kind.values) + 1)] for kind in kinds]


def row_count(kinds: tuple[Kind, ...]) -> int:
    return 1 + max(len(kind.values) for kind in kinds)


def inserts(table: str, kinds: tuple[Kind, ...]) -> str:
    rows = ", ".join(f"({row}, {', '.join(literals(kinds, row))})" for row in range(row_count(kinds)))
    return f"INSERT INTO {table} VALUES {rows}"


def update(table: str, kinds: tuple[Kind, ...], row: int) -> str:
    pairs = ", ".join(f"c{index} = {value}" for index, value in enumerate(literals(kinds, row + 1)))
    return f"UPDATE {table} SET {pairs} WHERE id = {row}"


def selected(server: DatabaseServer, table: str, kinds: tuple[Kind, ...]) -> Rows:
    with server.connect(conv={}, use_unicode=False, database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        columns = ", ".join(kind.select.format(f"c{index}") for index, kind in enumerate(kinds))
        cursor.execute(f"SELECT id, {columns} FROM {table}")
        return {
            int(row[0]): tuple(expected(raw, kind.declared) for raw, kind in zip(row[1:], kinds, strict=True))
            for row in cursor.fetchall()
        }


@pytest.mark.parametrize(("name", "metadata"), CASES)
def test_every_type_is_what_select_returns_fidelity(
    name: str, metadata: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    chosen = tables(name)
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *(create(table, kinds) for table, kinds in chosen.items()), database=DATABASE)
    with row_metadata(server, metadata):
        pipeline = Pipeline.of(server, DATABASE, tmp_path)
        run(server, *(inserts(table, kinds) for table, kinds in chosen.items()), database=DATABASE)
        before = {table: selected(server, table, kinds) for table, kinds in chosen.items()}
        run(
            server,
            *(update(table, kinds, row) for table, kinds in chosen.items() for row in range(row_count(kinds))),
            database=DATABASE,
        )
        after = {table: selected(server, table, kinds) for table, kinds in chosen.items()}
        run(server, *(f"DELETE FROM {table}" for table in chosen), database=DATABASE)
        staged = pipeline.staged()
    for table, kinds in chosen.items():
        found = images(staged, table)
        for operation, rows in ((Operation.INSERT, before), (Operation.UPDATE_AFTER, after), (Operation.DELETE, after)):
            assert_rows(found.filter(found[OPERATION].to_numpy() == operation), rows[table], kinds)


def assert_rows(found: Any, rows: Rows, kinds: tuple[Kind, ...]) -> None:
    ids = found["id"].to_pylist()
    assert sorted(ids) == sorted(rows)
    problems = []
    for index, kind in enumerate(kinds):
        for number, value in zip(ids, found[f"c{index}"].to_pylist(), strict=True):
            ours, theirs = printed(value, kind.declared), rows[number][index]
            if kind.by_value and ours is not None:
                ours, theirs = json.loads(ours), json.loads(theirs)
            if ours != theirs:
                problems.append((kind.declared, ours, theirs))
    assert not problems
