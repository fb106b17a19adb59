"""Tests the fidelity matrix. Rows of every type are inserted, updated and deleted on each server, with each amount of table metadata and
each row image. The staged images must equal what SELECT returned at that moment.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from sluice.cdc_engine.binlog.rows.decoder import OPERATION
from sluice.cdc_engine.binlog.rows.partial import GROUP_COLUMNS, PRESENT
from sluice.cdc_engine.contracts import Operation
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.catalogue import Kind, kinds_of
from tests.fidelity.comparison import expected, printed
from tests.fidelity.pipeline import SERVERS, Pipeline, images, row_metadata, run

pytestmark = pytest.mark.servers

DATABASE = "fidelity"
CASES = [
    (server, metadata)
    for server in SERVERS
    for metadata in ("MINIMAL", "FULL")
    if (server, metadata) != ("mysql57", "FULL")
]
# With this limit, a row with the widest values of every type does not exceed the servers' row size.
COLUMNS_A_TABLE = 60
IDS_AN_IMAGE = 1000
IMAGES = {"FULL": 0, "MINIMAL": 1000, "NOBLOB": 2000}  # Row image → the first id of its rows.
# JSON values of the matrix contain values of these types. The types have no literal, so the values come from a table.
TYPED = (
    "CREATE TABLE typed (y year, b bit(9), e enum('one', 'zwö'), s set('p', 'q'))",
    "INSERT INTO typed VALUES (2024, b'100000001', 'zwö', 'p,q')",
)
Rows = dict[int, tuple[Any, ...]]
Statements = Callable[[str, tuple[Kind, ...], int], Iterator[str]]


def tables(server: str) -> dict[str, tuple[Kind, ...]]:
    kinds = kinds_of(server)
    return {f"t{first}": kinds[first : first + COLUMNS_A_TABLE] for first in range(0, len(kinds), COLUMNS_A_TABLE)}


def create(table: str, kinds: tuple[Kind, ...]) -> str:
    columns = ", ".join(f"c{index} {kind.declared}" for index, kind in enumerate(kinds))
    return f"CREATE TABLE {table} (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4 ROW_FORMAT=DYNAMIC"


def literals(kinds: tuple[Kind, ...], row: int) -> list[str]:
    """Returns the literals of row number `row`, one for each kind. The values of a kind repeat, with NULL after the last one."""
    return [(*kind.values, "NULL")[row % (len(kind.values) + 1)] for kind in kinds]


def row_count(kinds: tuple[Kind, ...]) -> int:
    return 1 + max(len(kind.values) for kind in kinds)


def inserts(table: str, kinds: tuple[Kind, ...], first: int) -> Iterator[str]:
    rows = ", ".join(f"({first + row}, {', '.join(literals(kinds, row))})" for row in range(row_count(kinds)))
    yield f"INSERT INTO {table} VALUES {rows}"


def updates(table: str, kinds: tuple[Kind, ...], first: int) -> Iterator[str]:
    """Yields updates that give each row the values of the next row, but only in every second column, so that an image can lack columns."""
    for row in range(row_count(kinds)):
        changed = list(enumerate(literals(kinds, row + 1)))[row % 2 :: 2]
        yield f"UPDATE {table} SET {', '.join(f'c{index} = {value}' for index, value in changed)} WHERE id = {first + row}"


def deletes(table: str, _kinds: tuple[Kind, ...], first: int) -> Iterator[str]:
    yield f"DELETE FROM {table} WHERE id BETWEEN {first} AND {first + IDS_AN_IMAGE - 1}"


def selected(server: DatabaseServer, table: str, kinds: tuple[Kind, ...]) -> Rows:
    with server.connect(conv={}, use_unicode=False, database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        columns = ", ".join(kind.select.format(f"c{index}") for index, kind in enumerate(kinds))
        cursor.execute(f"SELECT id, {columns} FROM {table}")
        return {
            int(row[0]): tuple(expected(raw, kind.declared) for raw, kind in zip(row[1:], kinds, strict=True))
            for row in cursor.fetchall()
        }


@dataclasses.dataclass(frozen=True)
class Played:
    """The rows that SELECT returned after the inserts and after the updates, and the staged images. Both are by table and contain the rows
    of all row images.
    """

    kinds: dict[str, tuple[Kind, ...]]
    before: dict[str, Rows]
    after: dict[str, Rows]
    staged: dict[str, pa.Table]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Runs the statements on one server with one setting of the table metadata, MINIMAL or FULL. The rows of each row image have their own
    range of ids, and one binlog contains all rows.
    """
    name, metadata = request.param
    server: DatabaseServer = request.getfixturevalue(name)
    kinds = tables(name)
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *TYPED, *(create(table, each) for table, each in kinds.items()), database=DATABASE)
    with row_metadata(server, metadata):
        pipeline = Pipeline.of(server, DATABASE, tmp_path_factory.mktemp("matrix"))
        _write(server, kinds, inserts)
        before = {table: selected(server, table, each) for table, each in kinds.items()}
        _write(server, kinds, updates)
        after = {table: selected(server, table, each) for table, each in kinds.items()}
        _write(server, kinds, deletes)
        staged = pipeline.staged()
    return Played(kinds, before, after, {table: images(staged, table) for table in kinds})


def _write(server: DatabaseServer, kinds: dict[str, tuple[Kind, ...]], statements: Statements) -> None:
    for image, first in IMAGES.items():
        made = (statement for table, each in kinds.items() for statement in statements(table, each, first))
        run(server, f"SET SESSION binlog_row_image = {image}", *made, database=DATABASE)


@pytest.mark.parametrize("image", IMAGES)
def test_every_type_is_what_select_returns_fidelity(played: Played, image: str) -> None:
    for table, kinds in played.kinds.items():
        rows = Replay(kinds, range(IMAGES[image], IMAGES[image] + IDS_AN_IMAGE))
        found = played.staged[table]
        operations = found[OPERATION].to_numpy()
        rows.apply(found.filter(operations == Operation.INSERT))
        assert_rows(rows, played.before[table])
        rows.apply(found.filter(operations == Operation.UPDATE_AFTER))
        assert_rows(rows, played.after[table])
        gone: list[Any] = [
            number for number in found.filter(operations == Operation.DELETE)["id"].to_pylist() if number in rows.ids
        ]
        assert sorted(gone) == sorted(rows.values)


class Replay:
    """Builds rows from the staged images of one row image, whose rows have the ids `ids`. A column that an image lacks keeps its value."""

    def __init__(self, kinds: tuple[Kind, ...], ids: range) -> None:
        self.kinds, self.ids = kinds, ids
        self.values: dict[int, list[Any]] = {}

    def apply(self, found: pa.Table) -> None:
        names = [f"c{index}" for index in range(len(self.kinds))]
        for row in found.to_pylist():
            if row["id"] in self.ids:
                values = self.values.setdefault(row["id"], [None] * len(names))
                for index, name in enumerate(names):
                    if _is_present(row, index + 1):
                        values[index] = row[name]


def _is_present(row: dict[str, Any], column: int) -> bool:
    """Returns whether the image has this column of the table. Without the columns that describe its gaps, an image has all columns."""
    bits = row.get(f"{PRESENT}{column // GROUP_COLUMNS}")
    return bits is None or bool(bits >> column % GROUP_COLUMNS & 1)


def assert_rows(rows: Replay, selected_rows: Rows) -> None:
    wanted = {number: values for number, values in selected_rows.items() if number in rows.ids}
    assert sorted(rows.values) == sorted(wanted)
    problems = []
    for index, kind in enumerate(rows.kinds):
        for number, values in rows.values.items():
            ours, theirs = printed(values[index], kind.declared), wanted[number][index]
            if kind.by_value and ours is not None:
                ours, theirs = json.loads(ours), json.loads(theirs)
            if ours != theirs:
                problems.append((kind.declared, ours, theirs))
    assert not problems
