"""Tests chunks of keys of every kind: on each server every row is in exactly one chunk at any moment, and chunks are
found over the index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.snapshot.chunks import Chunk, chunk_key, chunks
from sluice.cdc_engine.snapshot.reader import RowReader
from sluice.cdc_engine.snapshot.statements import quoted, rows_statement
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, run
from tests.snapshot.fix_reading import reading, versions

pytestmark = pytest.mark.servers

DATABASE = "snapshot_chunks"
MARIADB = ("mariadb1011", "mariadb114")
STRINGS = (
    "''",
    "'a'",
    "'A '",
    "'ä'",
    "'b'",
    "'B'",
    "'ß'",
    "'ss'",
    "'z  '",
    "'中'",
    "'a\\tb'",
    "'\\''",
    "'100'",
    "'99'",
    "'\\\\'",
)
NUMBERS = ("-7", "-1", "0", "1", "2", "3", "10", "100")
DATES = ("'0000-00-00'", "'2020-00-00'", "'0001-01-01'", "'1969-12-31'", "'2024-02-29'", "'9999-12-31'")
MOMENTS = (
    "'0000-00-00 00:00:00'",
    "'2020-05-00 10:11:12'",
    "'2024-02-29 12:34:56.5'",
    "'2024-02-29 12:34:56.500001'",
    "'2024-03-31 02:30:00'",
)
INSTANTS = ("0", "'1970-01-01 00:00:01'", "'2024-03-31 01:30:00'", "'2024-10-27 00:30:00.25'", "'2038-01-19 03:14:07'")
TIMES = ("'-838:59:59'", "'-00:00:01.5'", "'00:00:00'", "'23:59:59.25'", "'838:59:59'")
FLOATS = ("-3.4e38", "-0.1", "0", "-0e0", "1.4e-45", "0.1", "0.3", "16777216", "16777217", "3.4028234e38")
DOUBLES = (
    "-1.7976931348623157e308",
    "-0.1",
    "0",
    "4.9e-324",
    "0.1",
    "0.30000000000000004",
    "9007199254740993",
    "1e300",
)
DECIMALS = ("-99999.99999", "-0.00001", "0", "0.00001", "1", "1.5", "99999.99999")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keyed:
    """Describes a key. `columns` are the declared columns, `key` is the text in PRIMARY KEY (…), and `rows` are the values of each row's
    key columns.
    """

    columns: str
    rows: tuple[str, ...]
    key: str = "k"
    servers: tuple[str, ...] = SERVERS


KEYS = (
    *(Keyed(columns=f"k {declared}", rows=NUMBERS) for declared in ("tinyint", "int", "bigint")),
    Keyed(columns="k bigint unsigned", rows=("0", "9223372036854775807", "9223372036854775808", "18446744073709551615")),
    Keyed(columns="k int(5) unsigned zerofill", rows=NUMBERS[2:]),
    Keyed(columns="k decimal(10,5)", rows=DECIMALS),
    Keyed(columns="k decimal(65,30)", rows=("-1e-30", "0", "1e-30", "12345678901234567890123456789012345.000000000000000000000000000001")),
    Keyed(columns="k float", rows=FLOATS),
    Keyed(columns="k float(7,3)", rows=("-0.001", "0", "0.001", "1234.567", "1234.568")),
    Keyed(columns="k double", rows=DOUBLES),
    Keyed(columns="k date", rows=DATES),
    *(Keyed(columns=f"k datetime({digits})", rows=MOMENTS) for digits in (0, 3, 6)),
    *(Keyed(columns=f"k timestamp({digits})", rows=INSTANTS) for digits in (0, 6)),
    *(Keyed(columns=f"k time({digits})", rows=TIMES) for digits in (0, 2)),
    Keyed(columns="k year", rows=("0", "1901", "1970", "2000", "2155")),
    *(Keyed(columns=f"k bit({size})", rows=("0", "1", "2", str((1 << size) - 1), str(1 << size - 1))) for size in (8, 17, 64)),
    Keyed(columns="k enum('z','a','m','')", rows=("1", "2", "3", "4")),
    Keyed(columns="k set('z','a','m')", rows=("0", "1", "2", "5", "7")),
    Keyed(columns="k set(" + ",".join(f"'s{n}'" for n in range(64)) + ")",
          rows=("0", "1", "9007199254740992", "9007199254740993", "18446744073709551614", "18446744073709551615")),
    *(Keyed(columns=f"k {kind} COLLATE {collation}", rows=STRINGS)
      for kind in ("char(20)", "varchar(40)")
      for collation in ("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "latin1_swedish_ci", "latin1_bin", "utf8_general_ci",
                        "utf16_general_ci", "sjis_japanese_ci", "gbk_chinese_ci")),
    *(Keyed(columns=f"k varchar(40) COLLATE {collation}", rows=STRINGS, servers=("mysql80",))
      for collation in ("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_de_pb_0900_ai_ci")),
    *(Keyed(columns=f"k varchar(40) COLLATE {collation}", rows=STRINGS, servers=MARIADB)
      for collation in ("utf8mb4_unicode_nopad_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_nopad_bin")),
    Keyed(columns="k text COLLATE utf8mb4_general_ci", key="k(3)", rows=STRINGS),
    Keyed(columns="k varchar(40) COLLATE utf8mb4_unicode_ci", key="k(1)", rows=("'a'", "'b'", "'中'", "''", "'ä'", "'c'")),
    *(Keyed(columns=f"k {kind}", rows=("x''", "x'00'", "x'0000'", "x'61'", "x'6100'", "x'FF'", "x'FFFF'", "'`'"))
      for kind in ("binary(4)", "varbinary(9)")),
    Keyed(columns="k blob", key="k(2)", rows=("x''", "x'01'", "x'6161'", "x'62FF'")),
    Keyed(columns="k uuid", servers=MARIADB,
          rows=("'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'",
                "'f0910b91-9a8c-6c5f-0d2e-0123456789ab'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
                "'01910b91-9a8c-7c5f-8d2e-0123456789ab'")),
    Keyed(columns="k inet6", servers=MARIADB, rows=("'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:192.0.2.128'", "'fe80::1'")),
    Keyed(columns="k inet4", servers=MARIADB, rows=("'0.0.0.0'", "'9.1.1.1'", "'10.0.0.1'", "'255.255.255.255'")),
    Keyed(columns="a int, b varchar(9) COLLATE utf8mb4_general_ci, c date", key="a, b, c",
          rows=tuple(f"{a}, '{b}', '{c}'" for a in (-1, 0, 3) for b in ("", "x", "Y") for c in ("2020-01-01", "2021-01-01"))),
    Keyed(columns="b varchar(9) COLLATE utf8mb4_bin, a decimal(9,2)", key="a, b",
          rows=tuple(f"'{b}', {a}" for a in (1, 2.5) for b in "xyZ")),
    Keyed(columns="`we``ird \"na'me` int, `%s {}` int", key="`we``ird \"na'me`, `%s {}`", rows=("1, 1", "1, 2", "2, 1", "3, 0")),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Chunked:
    """The tables of a server. Each key has one table, in which the column `n` numbers the rows."""

    reader: RowReader
    tables: dict[str, TableVersion]
    keys: dict[str, Keyed]


@pytest.fixture(scope="module", params=SERVERS)
def chunked(request: pytest.FixtureRequest) -> Iterator[Chunked]:
    server: DatabaseServer = request.getfixturevalue(request.param)
    keys = {f"k{number}": key for number, key in enumerate(KEYS) if request.param in key.servers}
    statements = []
    for table, key in keys.items():
        rows = ", ".join(f"({number}, {row})" for number, row in enumerate(key.rows))
        columns = ", ".join(f"{column} NOT NULL" for column in _split(key.columns))
        statements += [
            f"CREATE TABLE {table} (n int, {columns}, PRIMARY KEY ({key.key})) CHARACTER SET utf8mb4",
            f"INSERT IGNORE INTO {table} VALUES {rows}",
        ]
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, "SET sql_mode = 'ALLOW_INVALID_DATES'", *statements, database=DATABASE)
    with reading(server) as reader:
        yield Chunked(reader, versions(server, DATABASE), keys)


def _split(columns: str) -> list[str]:
    """Splits the text at commas between columns, but not within a type."""
    return [part.replace("\0", ",") for part in _hidden(columns).split(", ")]


def _hidden(columns: str) -> str:
    depth, out = 0, []
    for sign in columns:
        depth += (sign == "(") - (sign == ")")
        out.append("\0" if sign == "," and depth else sign)
    return "".join(out)


def rows_of(reader: RowReader, table: TableVersion, chunk: Chunk, where: str = "") -> list[int]:
    statement = rows_statement(table, "`n`", chunk_key(reader, table), (chunk.after, chunk.up_to), where)
    return [int(row[0] or -1) for row in reader.texts(statement)]


def rows_there(reader: RowReader, table: TableVersion) -> list[int]:
    found = reader.texts(f"SELECT n FROM {quoted(table.database)}.{quoted(table.table)}")
    return sorted(int(row[0] or -1) for row in found)


@pytest.mark.parametrize("rows_per_chunk", [1, 2, 7])
def test_every_row_is_in_exactly_one_chunk_snapshot(chunked: Chunked, rows_per_chunk: int) -> None:
    for name, key in chunked.keys.items():
        table = chunked.tables[name]
        there = rows_there(chunked.reader, table)
        assert len(there) > 2, key
        parts = [rows_of(chunked.reader, table, chunk) for chunk in chunks(chunked.reader, table, rows_per_chunk)]
        assert sorted(row for part in parts for row in part) == there, (key, parts)
        assert [len(part) for part in parts] == [rows_per_chunk] * (len(there) // rows_per_chunk) + [
            len(there) % rows_per_chunk
        ], key


def test_chunks_continue_after_a_restart_as_they_would_have_snapshot(chunked: Chunked) -> None:
    for name in chunked.keys:
        table = chunked.tables[name]
        made = list(chunks(chunked.reader, table, 2))
        for index, chunk in enumerate(made):
            assert list(chunks(chunked.reader, table, 2, after=chunk)) == made[index + 1 :]


def test_rows_that_come_and_go_are_in_one_chunk_snapshot(chunked: Chunked) -> None:
    """A condition excludes one row, as if the row was deleted after the bounds of the chunks were chosen, or inserted after that."""
    for name in chunked.keys:
        table, reader = chunked.tables[name], chunked.reader
        there, made = rows_there(reader, table), list(chunks(reader, table, 3))
        moved = rows_of(reader, table, made[1])[0]
        where = f"n <> {moved} -- so that it is gone"
        left = [row for chunk in made for row in rows_of(reader, table, chunk, where)]
        assert sorted(left) == [row for row in there if row != moved], "a row that is deleted is in no chunk"
        with_new = [row for chunk in chunks(reader, table, 3, where) for row in rows_of(reader, table, chunk)]
        assert sorted(with_new) == there, "a row that is inserted is in one chunk"


def test_a_composite_key_is_divided_and_read_over_its_index_snapshot(mysql80: DatabaseServer) -> None:
    """One tenant has most of the rows. Reading a chunk of it touches the chunk's rows, and not all rows of the tenant."""
    numbers = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT"
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}_wide", f"CREATE DATABASE {DATABASE}_wide")
    run(
        mysql80,
        "SET cte_max_recursion_depth = 4000",
        "CREATE TABLE t (tenant int, id varchar(9), filler char(200), other int, PRIMARY KEY (tenant, id), KEY (other))",
        f"INSERT INTO t {numbers} 1 + (i % 10 = 0), LPAD(i, 9, '0'), 'x', i FROM n",
        "ANALYZE TABLE t",
        database=f"{DATABASE}_wide",
    )
    table = versions(mysql80, f"{DATABASE}_wide")["t"]
    with reading(mysql80) as reader:
        made = list(chunks(reader, table, 500))
        assert len(made) == 7
        key = chunk_key(reader, table)
        for chunk in made:
            statement = rows_statement(table, "`filler`", key, (chunk.after, chunk.up_to), "")
            reader.texts("FLUSH STATUS")
            rows = len(reader.texts(statement))
            touched = sum(int(row[1] or 0) for row in reader.texts("SHOW STATUS LIKE 'Handler_read%'"))
            assert touched <= rows + 20, (chunk, touched)


def test_a_table_without_a_key_and_one_without_rows_are_one_chunk_snapshot(mysql80: DatabaseServer) -> None:
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}_one", f"CREATE DATABASE {DATABASE}_one")
    run(mysql80, "CREATE TABLE keyless (n int)", "CREATE TABLE bare (n int PRIMARY KEY)", "INSERT INTO keyless VALUES (1), (1)",
        database=f"{DATABASE}_one")  # fmt: skip
    tables = versions(mysql80, f"{DATABASE}_one")
    with reading(mysql80) as reader:
        for table in tables.values():
            (only,) = chunks(reader, table, 1)
            assert only == Chunk(number=1)
            assert rows_of(reader, table, only) == rows_there(reader, table)
            assert list(chunks(reader, table, 1, after=only)) == []


def test_a_declared_key_with_null_is_seen_in_the_first_chunk_snapshot(mysql80: DatabaseServer) -> None:
    """A key that conf/ names may be NULL in rows. These rows are read, and then refused as the stream refuses them, but never left out."""
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}_null", f"CREATE DATABASE {DATABASE}_null")
    run(mysql80, "CREATE TABLE t (n int, a int, b int)", "INSERT INTO t VALUES (1, 1, 1), (2, NULL, 1), (3, 2, NULL), (4, 2, 2), (5, 2, 2)",
        database=f"{DATABASE}_null")  # fmt: skip
    table = dataclasses.replace(versions(mysql80, f"{DATABASE}_null")["t"], key=("a", "b"))
    with reading(mysql80) as reader:
        parts = [sorted(rows_of(reader, table, chunk)) for chunk in chunks(reader, table, 1)]
    assert parts == [[1, 2, 3], [4, 5], []]
