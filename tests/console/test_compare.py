"""The comparison finds every planted difference, and none where there is none."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from deltalake import write_deltalake

from console.demo import canonical
from console.demo.compare import Comparison, compare_table
from console.toolchain.database.server import DatabaseServer

DDL = """CREATE TABLE {}.thing (
    id BIGINT UNSIGNED NOT NULL, part CHAR(3) NOT NULL, small TINYINT, price DECIMAL(12,2), ratio FLOAT, exact DOUBLE,
    label VARCHAR(40), raw VARBINARY(20), padded BINARY(4), day DATE, moment DATETIME(6), instant TIMESTAMP(3) NULL,
    lasted TIME(2), grown YEAR, kind ENUM('a','b'), kinds SET('x','y','z'), one BIT(1), many BIT(12), doc JSON,
    PRIMARY KEY (id, part))"""
INSERT = """INSERT INTO {}.thing VALUES
    (18446744073709551615, 'a', -128, 1234567890.12, 0.1, 0.1, 'ünïcode 🚲', x'00ff', x'01', '2024-02-29',
     '2024-02-29 23:59:59.000001', '2024-02-29 23:59:59.123', '-838:59:58.25', 2155, 'b', 'x,z', 1, b'100000000001',
     '{{"b": [1, 2.5, null], "a": "é"}}'),
    (1, 'b', NULL, NULL, 16777217, 1e308, '', '', x'01020304', '0000-00-00', NULL, NULL, '00:00:00', 0, 'a', '', 0, 0, 'null')"""
ROWS: list[dict[str, Any]] = [
    {
        "id": Decimal(18446744073709551615),
        "part": "a",
        "small": -128,
        "price": Decimal("1234567890.12"),
        "ratio": 0.1,
        "exact": 0.1,
        "label": "ünïcode 🚲",
        "raw": b"\x00\xff",
        "padded": b"\x01\0\0\0",
        "day": dt.date(2024, 2, 29),
        "moment": dt.datetime(2024, 2, 29, 23, 59, 59, 1),  # noqa: DTZ001  a DATETIME
        "instant": dt.datetime(2024, 2, 29, 23, 59, 59, 123000, dt.UTC),
        "lasted": "-838:59:58.250000",
        "grown": 2155,
        "kind": "b",
        "kinds": "x,z",
        "one": True,
        "many": 0b100000000001,
        "doc": '{"a": "é", "b": [1, 2.5, null]}',
    },
    {
        "id": Decimal(1),
        "part": "b",
        "ratio": 16777217.0,
        "exact": 1e308,
        "label": "",
        "raw": b"",
        "padded": b"\1\2\3\4",
        "lasted": "00:00:00.000000",
        "grown": 0,
        "kind": "a",
        "kinds": "",
        "one": False,
        "many": 0,
        "doc": "null",
    },
]
FIELDS: list[tuple[str, pa.DataType]] = [
    ("id", pa.decimal128(20, 0)),
    ("part", pa.string()),
    ("small", pa.int8()),
    ("price", pa.decimal128(12, 2)),
    ("ratio", pa.float32()),
    ("exact", pa.float64()),
    ("label", pa.string()),
    ("raw", pa.binary()),
    ("padded", pa.binary()),
    ("day", pa.date32()),
    ("moment", pa.timestamp("us")),
    ("instant", pa.timestamp("us", "UTC")),
    ("lasted", pa.string()),
    ("grown", pa.int32()),
    ("kind", pa.string()),
    ("kinds", pa.string()),
    ("one", pa.bool_()),
    ("many", pa.int64()),
    ("doc", pa.string()),
    ("_sluice_order_key", pa.int64()),
]
SCHEMA = pa.schema(FIELDS)


class Shelf:
    """A database of its own in the shared server."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server, self.database = server, f"compare_{uuid.uuid4().hex[:8]}"
        self.run(f"CREATE DATABASE {self.database} DEFAULT CHARACTER SET utf8mb4")

    def run(self, sql: str) -> None:
        with self.server.connect(init_command="SET time_zone = '+00:00', sql_mode = ''") as connection:
            connection.cursor().execute(sql)

    def raw(self) -> pymysql.Connection[Any]:
        return self.server.connect(init_command="SET time_zone = '+00:00'", conv={})

    def compare(self, table: str, path: Path) -> Comparison:
        return compare_table(self.raw, self.database, table, str(path))


@pytest.fixture
def shelf(mysql80: DatabaseServer) -> Iterator[Shelf]:
    made = Shelf(mysql80)
    yield made
    made.run(f"DROP DATABASE {made.database}")


@pytest.fixture
def things(shelf: Shelf) -> Shelf:
    shelf.run(DDL.format(shelf.database))
    shelf.run(INSERT.format(shelf.database))
    return shelf


def lay(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> Path:
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema=schema), mode="overwrite")
    return path


def test_equal_tables_of_every_type_are_equal_in_any_order(things: Shelf, tmp_path: Path) -> None:
    found = things.compare("thing", lay(tmp_path / "thing", ROWS[::-1]))
    assert found == Comparison(2, 0, ())


PLANTED: list[tuple[str, Any]] = [
    ("small", -127),
    ("price", Decimal("1234567890.13")),
    ("ratio", 0.10000001),
    ("exact", 0.1 + 2**-56),
    ("label", "ünicode 🚲"),
    ("raw", b"\x00\xfe"),
    ("padded", b"\x01\0\0"),
    ("day", dt.date(2024, 3, 1)),
    ("moment", dt.datetime(2024, 2, 29, 23, 59, 59, 2)),  # noqa: DTZ001  a DATETIME
    ("instant", dt.datetime(2024, 2, 29, 23, 59, 59, 124000, dt.UTC)),
    ("lasted", "-838:59:58.240000"),
    ("grown", 1900),
    ("kind", "a"),
    ("kinds", "x,y"),
    ("one", False),
    ("many", 0b100000000000),
    ("doc", '{"a": "é", "b": [1, 2.5, 0]}'),
    ("small", None),
]


@pytest.mark.parametrize(("column", "value"), PLANTED, ids=lambda part: str(part)[:20])
def test_a_changed_value_is_found_with_its_key_and_column(
    things: Shelf, tmp_path: Path, column: str, value: Any
) -> None:
    found = things.compare("thing", lay(tmp_path / "thing", [{**ROWS[0], column: value}, ROWS[1]]))
    assert found.difference_count == 1
    sentence = found.differences[0]
    assert "id=18446744073709551615, part='a'" in sentence
    assert f": {column} is " in sentence


def test_a_missing_a_surplus_and_a_doubled_row_are_found(things: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    assert "missing in Delta" in things.compare("thing", lay(path, ROWS[:1])).differences[0]
    surplus = things.compare("thing", lay(path, [*ROWS, {**ROWS[1], "id": Decimal(2)}]))
    assert "id=2" in surplus.differences[0]
    assert "MySQL does not have" in surplus.differences[0]
    assert things.compare("thing", lay(path, [*ROWS, ROWS[0]])).difference_count == 1


def test_a_missing_table_and_a_missing_column_are_found(things: Shelf, tmp_path: Path) -> None:
    assert "there is no Delta table" in things.compare("thing", tmp_path / "nothing").differences[0]
    without = pa.schema([field for field in SCHEMA if field.name != "doc"])
    assert "no column doc" in things.compare("thing", lay(tmp_path / "thing", ROWS, without)).differences[0]


def log_row(number: int, operation: str) -> dict[str, Any]:
    return {"number": number, "_sluice_operation": operation}


LOG_FIELDS: list[tuple[str, pa.DataType]] = [("number", pa.int32()), ("_sluice_operation", pa.string())]
LOG = pa.schema(LOG_FIELDS)


def test_the_change_log_of_a_table_without_a_key_is_replayed(shelf: Shelf, tmp_path: Path) -> None:
    shelf.run(f"CREATE TABLE {shelf.database}.heap (number INT)")
    shelf.run(f"INSERT INTO {shelf.database}.heap VALUES (1), (1), (3), (NULL)")
    log = [
        log_row(1, "insert"),
        log_row(1, "insert"),
        log_row(2, "insert"),
        log_row(2, "update_preimage"),
        log_row(3, "update_postimage"),
        log_row(4, "insert"),
        log_row(4, "delete"),
        {"number": None, "_sluice_operation": "insert"},
    ]
    path = tmp_path / "heap"
    assert shelf.compare("heap", lay(path, log, LOG)).equal
    for planted in [log[:-1], log[1:], [*log, log[0]], [*log, log_row(4, "delete")], [*log, log_row(9, "insert")]]:
        assert shelf.compare("heap", lay(path, planted, LOG)).difference_count == 1, planted


def test_a_type_that_cannot_be_compared_is_said() -> None:
    with pytest.raises(ValueError, match="geometry"):
        canonical.kind_of("geometry")


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("00:00:00", 0), ("-00:00:00.5", -500_000), ("838:59:59", 3_020_399_000_000), ("01:02:03.000004", 3_723_000_004)],
)
def test_a_time_is_signed_microseconds(text: str, microseconds: int) -> None:
    assert canonical.duration(text) == microseconds


def test_zero_and_partial_dates_are_null() -> None:
    assert canonical.day("0000-00-00") is canonical.day("2024-05-00") is None
    assert canonical.moment("0000-00-00 00:00:00.000000") is canonical.moment("2024-00-01 10:00:00") is None
    assert canonical.moment("1970-01-01 00:00:00.000001") == 1
