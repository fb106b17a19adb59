"""Tests that the rows that a snapshot reads equal the rows of the stream, in every byte of every column of every type, on each server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY, ValuePolicy
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.snapshot.chunks import chunks
from sluice.cdc_engine.snapshot.read import ReadRules, read_chunk
from sluice.cdc_engine.snapshot.reader import RowReader
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, Pipeline, images, run
from tests.fidelity.test_matrix import TYPED, create, inserts, tables
from tests.snapshot.fix_reading import reading, versions

pytestmark = pytest.mark.servers

DATABASE = "snapshot_fidelity"
ROWS_PER_CHUNK = 4
DATES = "dates"  # The table that shows how its policy handles invalid dates.
POLICIES = {f"{DATABASE}.{DATES}": ValuePolicy(zero_dates="text")}
DATE_TYPES = ("date", *(f"{kind}({digits}) NULL" for kind in ("datetime", "timestamp") for digits in (0, 1, 3, 6)))
NO_DATES = ("'2020-00-00'", "'2020-05-00'", "'2023-02-30'", "'0000-05-01'", "'0001-01-01'", "'9999-12-31'", "0", "NULL")
TEXT = "Aé~ßŽЖΩ中あア한글€  "


def read(reader: RowReader, table: TableVersion, folder: Path) -> pa.Table:
    """Reads all chunks of a table by its key."""
    parts = []
    for chunk in chunks(reader, table, ROWS_PER_CHUNK):
        path = folder / f"{table.table}.{chunk.number}.parquet"
        facts = read_chunk(reader, table, chunk, path, ReadRules(policy=POLICIES.get(table.name, DEFAULT_POLICY)))
        parts.append(pq.read_table(path))
        assert facts.rows == parts[-1].num_rows
    return pa.concat_tables(parts).sort_by("id")


def differing(found: pa.Table, staged: pa.Table, by_value: set[str]) -> list[tuple[str, Any, Any]]:
    """Returns the column, the values that were read and the values that were staged for each column that differs. Floats are compared by
    their bytes.
    """
    fields = [field for field in staged.schema if not field.name.startswith("_sluice_")]
    assert [(field.name, field.type) for field in found.schema] == [(field.name, field.type) for field in fields]
    pairs = [
        (name, _comparable(found, name, by_value), _comparable(staged, name, by_value)) for name in found.schema.names
    ]
    return [(name, ours.to_pylist(), theirs.to_pylist()) for name, ours, theirs in pairs if not ours.equals(theirs)]


def _comparable(table: pa.Table, name: str, by_value: set[str]) -> Any:
    column = table[name].combine_chunks()
    if name in by_value:
        return pa.array([text and json.dumps(json.loads(text, parse_int=float)) for text in column.to_pylist()])
    widths = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return column.view(widths[column.type]) if column.type in widths else column


def charsets(server: DatabaseServer) -> list[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW CHARACTER SET")
        names = [str(row[0]) for row in cursor.fetchall()]
    return [name for name in names if (known := charset_of_name(name)) is not None and known.codec]


def more_tables(server: DatabaseServer) -> tuple[list[str], list[str]]:
    """Returns the statements that create more tables, and the statements that fill these tables. They have invalid dates, and strings of
    every charset in every string type.
    """
    dates = ", ".join(f"d{index} {kind}" for index, kind in enumerate(DATE_TYPES))
    names = charsets(server)
    texts = ", ".join(
        f"{name}_{kind.strip('()0123456789')} {kind} CHARACTER SET {name}"
        for name in names
        for kind in ("char(20)", "varchar(40)", "text")
    )
    values = [
        ", ".join(
            [
                literal if "timestamp" not in kind or len(literal) < 5 else "'2024-02-29 12:34:56.123456'"
                for kind in DATE_TYPES
            ]
        )
        for literal in NO_DATES
    ]
    return [
        f"CREATE TABLE {DATES} (id int PRIMARY KEY, {dates})",
        f"CREATE TABLE texts (id int PRIMARY KEY, {texts})",
    ], [
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"INSERT INTO {DATES} VALUES {', '.join(f'({row}, {line})' for row, line in enumerate(values))}",
        *(
            f"INSERT INTO texts VALUES ({row}{f', {literal}' * 3 * len(names)})"
            for row, literal in enumerate((f"'{TEXT}'", "''", "' '", "NULL"))
        ),
    ]


@pytest.mark.parametrize("name", SERVERS)
def test_a_snapshot_reads_every_type_as_the_stream_decodes_it_fidelity(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    kinds, (made, filled) = tables(name), more_tables(server)
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *TYPED, *(create(table, each) for table, each in kinds.items()), *made, database=DATABASE)
    pipeline = Pipeline.of(server, DATABASE, tmp_path)
    lines = [line for table, each in kinds.items() for line in inserts(table, each, 0)]
    run(server, *lines, *filled, database=DATABASE)
    staged = pipeline.staged(policies=POLICIES)
    problems = []
    known = versions(server, DATABASE)
    with reading(server) as reader:
        for table in (known[name] for name in (*kinds, DATES, "texts")):
            by_value = {f"c{index}" for index, kind in enumerate(kinds.get(table.table, ())) if kind.by_value}
            streamed = images(staged, table.table).sort_by("id")
            assert streamed.num_rows >= ROWS_PER_CHUNK
            problems += differing(read(reader, table, tmp_path), streamed, by_value)
    assert not problems


@pytest.mark.parametrize("name", SERVERS)
def test_a_snapshot_reads_short_labels_fidelity(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Defect 57: MariaDB sends the number of an ENUM or SET with short labels in four bytes. Snapshots expected eight bytes, and read such
    a table again without end.
    """
    server: DatabaseServer = request.getfixturevalue(name)
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    columns = "e enum('y', 'n'), f enum('a') NOT NULL, s set('p'), b enum('x') CHARACTER SET binary"
    run(server, f"CREATE TABLE short (id int PRIMARY KEY, {columns})", database=DATABASE)
    run(
        server,
        "INSERT INTO short VALUES (1, 'y', 'a', 'p', 'x'), (2, 0, 0, 0, 0), (3, NULL, 1, NULL, NULL)",
        database=DATABASE,
    )
    with reading(server) as reader:
        rows = read(reader, versions(server, DATABASE)["short"], tmp_path).select(list("efsb")).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("y", "a", "p", "x"), ("", "", "", ""), (None, "a", None, None)]
