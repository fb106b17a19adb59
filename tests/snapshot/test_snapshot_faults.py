"""Tests faults during the reading of a chunk: a clear error, no file, and a closed connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import (
    ConfigurationError,
    SluiceError,
    SourceConnectionError,
    TableChangedError,
    TableStoppedError,
)
from sluice.cdc_engine.snapshot.chunks import Chunk, chunks
from sluice.cdc_engine.snapshot.pace import PaceLimits, ReadPace
from sluice.cdc_engine.snapshot.read import ReadRules, read_chunk
from sluice.cdc_engine.snapshot.reader import RowReader, open_reader
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import run
from tests.snapshot.fix_reading import reading, source_of, versions

pytestmark = pytest.mark.servers

DATABASE = "snapshot_faults"
ALL = Chunk(number=1)
MANY_ROWS, WIDE_BYTES = 4000, 12_000  # The 48 MB are more than any socket buffers.


@pytest.fixture(scope="module")
def server(mysql80: DatabaseServer) -> DatabaseServer:
    numbers = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT"
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(
        mysql80,
        "SET cte_max_recursion_depth = 1000000",
        "CREATE TABLE large (id int PRIMARY KEY, filler longtext)",
        f"INSERT INTO large {numbers.format(MANY_ROWS)} i, REPEAT('x', {WIDE_BYTES}) FROM n",
        "CREATE TABLE small (id int PRIMARY KEY, word varchar(9) CHARACTER SET latin1)",
        "INSERT INTO small VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE huge (id int PRIMARY KEY, filler longblob)",
        "INSERT INTO huge VALUES (1, 'a'), (2, REPEAT('0123456789abcdef', 2097152)), (3, 'c')",
        database=DATABASE,
    )
    return mysql80


class AmidRows(ReadPace):
    """Calls `act` once, after the first rows of a chunk."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(PaceLimits())
        self._acts = [act]

    def after_rows(self, rows: int) -> None:
        while self._acts:
            self._acts.pop()()
        super().after_rows(rows)


def failing(
    server: DatabaseServer, table: TableVersion, folder: Path, act: Callable[[RowReader], None] | None = None
) -> SluiceError:
    """Returns the error of reading a whole table, and requires that no file is left."""
    with reading(server) as reader:
        pace = AmidRows(lambda: act(reader)) if act else None
        with pytest.raises(SluiceError) as raised:
            read_chunk(reader, table, ALL, folder / "chunk.parquet", ReadRules(pace=pace))
        assert list(folder.iterdir()) == []
        if act:
            with pytest.raises(SourceConnectionError):
                reader.texts("SELECT 1")
    return raised.value


def test_a_query_that_is_killed_within_its_rows_leaves_no_file_snapshot(server: DatabaseServer, tmp_path: Path) -> None:
    def kill(reader: RowReader) -> None:
        run(server, f"KILL QUERY {reader.thread_id}")

    error = failing(server, versions(server, DATABASE)["large"], tmp_path, kill)
    assert isinstance(error, SourceConnectionError)
    assert "interrupted" in str(error)


def test_a_connection_that_is_lost_within_its_rows_leaves_no_file_snapshot(
    server: DatabaseServer, tmp_path: Path
) -> None:
    def kill(reader: RowReader) -> None:
        run(server, f"KILL CONNECTION {reader.thread_id}")

    error = failing(server, versions(server, DATABASE)["large"], tmp_path, kill)
    assert isinstance(error, SourceConnectionError)


def test_a_pause_of_a_snapshot_ends_the_chunk_snapshot(server: DatabaseServer, tmp_path: Path) -> None:
    class PausedError(Exception):
        pass

    def pause() -> None:
        raise PausedError

    with reading(server) as reader, pytest.raises(PausedError):
        read_chunk(
            reader,
            versions(server, DATABASE)["large"],
            ALL,
            tmp_path / "chunk.parquet",
            ReadRules(pace=AmidRows(pause)),
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE small DROP word", "Unknown column"),
        (
            "ALTER TABLE small MODIFY id bigint",
            "column id is int in the schema history, and the SELECT returns the column with the type code 8",
        ),
        (
            "ALTER TABLE small MODIFY id int unsigned",
            "column id is int in the schema history, and the SELECT returns the column as an unsigned number",
        ),
        (
            "ALTER TABLE small MODIFY word varchar(9) CHARACTER SET utf8mb4",
            "and the SELECT returns the column with the charset utf8mb4",
        ),
        ("RENAME TABLE small TO smaller", "doesn't exist"),
    ],
)
def test_a_table_that_changed_is_not_read_by_its_old_schema_snapshot(
    server: DatabaseServer, tmp_path: Path, change: str, said: str
) -> None:
    table = versions(server, DATABASE)["small"]
    run(server, change, database=DATABASE)
    try:
        error = failing(server, table, tmp_path)
        assert isinstance(error, TableChangedError)
        assert said in str(error)
    finally:
        run(server, "DROP TABLE IF EXISTS small, smaller", "CREATE TABLE small (id int PRIMARY KEY, word varchar(9) CHARACTER SET latin1)",
            "INSERT INTO small VALUES (1, 'a'), (2, 'b')", database=DATABASE)  # fmt: skip


def test_a_user_without_the_select_privilege_gets_that_reason_snapshot(server: DatabaseServer, tmp_path: Path) -> None:
    table = versions(server, DATABASE)["small"]
    run(server, "CREATE USER bare IDENTIFIED BY ''", f"GRANT SELECT ON {DATABASE}.large TO bare")
    try:
        reader = open_reader(source_of(server, "bare"))
        with (
            contextlib.closing(reader),
            pytest.raises(ConfigurationError, match=r"refused the user bare.*grant SELECT"),
        ):
            read_chunk(reader, table, ALL, tmp_path / "chunk.parquet")
    finally:
        run(server, "DROP USER bare")


def test_a_select_may_be_silent_longer_than_a_query_snapshot(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_TIMEOUT_SECONDS", 0.2)
    with reading(server) as reader:
        slow = "id = 2 AND SLEEP(0.5) = 0"
        facts = read_chunk(
            reader, versions(server, DATABASE)["small"], ALL, tmp_path / "chunk.parquet", ReadRules(where=slow)
        )
    assert facts.rows == 1


def test_what_a_server_sets_for_every_session_changes_no_row_snapshot(server: DatabaseServer, tmp_path: Path) -> None:
    """The server's global settings limit rows and times, change quotes, pad values, convert text to ASCII, and set another time zone."""
    run(
        server,
        "CREATE TABLE IF NOT EXISTS plain (id int PRIMARY KEY, code char(9) CHARACTER SET latin1, at timestamp NULL)",
        "REPLACE INTO plain VALUES (1, 'ä', '2024-01-01'), (2, 'b', NULL), (3, 'c', NULL)",
        database=DATABASE,
    )
    table = versions(server, DATABASE)["plain"]
    names = (
        "sql_mode",
        "sql_select_limit",
        "max_join_size",
        "time_zone",
        "character_set_results",
        "max_execution_time",
    )
    values = ("'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,NO_ZERO_DATE'", "1", "1", "'-05:00'", "ascii", "1")
    with reading(server) as other:
        before = [other.texts(f"SELECT @@GLOBAL.{name}")[0][0] for name in names]
    run(server, *(f"SET GLOBAL {name} = {value}" for name, value in zip(names, values, strict=True)))
    try:
        with reading(server) as reader:
            (chunk, *rest) = chunks(reader, table, 3)
            read_chunk(reader, table, chunk, tmp_path / "chunk.parquet")
    finally:
        run(server, *(f"SET GLOBAL {name} = {_literal(value)}" for name, value in zip(names, before, strict=True)))
    assert [each.after for each in rest] == [("3",)]
    instants = [each and each.isoformat() for each in pq.read_table(tmp_path / "chunk.parquet")["at"].to_pylist()]
    assert pq.read_table(tmp_path / "chunk.parquet")["code"].to_pylist() == ["ä", "b", "c"]
    assert instants == ["2024-01-01T00:00:00+00:00", None, None]


def _literal(value: str | None) -> str:
    return value if value is not None and value.isdigit() else f"'{value}'"


def test_a_busy_source_is_seen_over_a_connection_of_its_own_snapshot(server: DatabaseServer, tmp_path: Path) -> None:
    with reading(server) as reader, reading(server) as querying:
        waits: list[float] = []
        answers = [querying.threads_running() + 99, querying.threads_running()]
        pace = ReadPace(PaceLimits(threads_running_max=98), lambda: answers.pop(0), wait=waits.append)
        read_chunk(reader, versions(server, DATABASE)["small"], ALL, tmp_path / "chunk.parquet", ReadRules(pace=pace))
    assert (len(waits), answers) == (1, [])


def test_a_mistake_in_where_is_the_servers_sentence_snapshot(server: DatabaseServer, tmp_path: Path) -> None:
    with reading(server) as reader, pytest.raises(ConfigurationError, match=r"condition.*SQL syntax"):
        read_chunk(
            reader, versions(server, DATABASE)["small"], ALL, tmp_path / "chunk.parquet", ReadRules(where="id <")
        )


def test_a_value_that_cannot_be_decoded_stops_the_table_or_goes_to_quarantine_snapshot(
    server: DatabaseServer, tmp_path: Path
) -> None:
    """conf/ sets another charset for the column than the source declares."""
    run(server, "INSERT INTO small VALUES (3, x'E4')", database=DATABASE)
    table, path = versions(server, DATABASE)["small"], tmp_path / "chunk.parquet"
    lying = {"word": "utf8mb4"}
    with reading(server) as reader, pytest.raises(TableStoppedError, match=r"word.*is not text in utf8"):
        read_chunk(reader, table, ALL, path, ReadRules(policy=ValuePolicy(charsets=lying)))
    with reading(server) as reader:
        facts = read_chunk(
            reader, table, ALL, path, ReadRules(policy=ValuePolicy(charsets=lying, undecodable="quarantine"))
        )
    assert [(each.raw, each.key) for each in facts.refused] == [(b"\xe4", {"id": 3})]
    assert pq.read_table(path).to_pydict() == {"id": [1, 2, 3], "word": ["a", "b", None]}
    run(server, "DELETE FROM small WHERE id = 3", database=DATABASE)


def test_a_row_larger_than_a_packet_and_a_chunk_without_rows_are_read_snapshot(
    server: DatabaseServer, tmp_path: Path
) -> None:
    table = versions(server, DATABASE)["huge"]
    with reading(server) as reader:
        found = []
        for chunk in chunks(reader, table, 1):
            facts = read_chunk(reader, table, chunk, tmp_path / f"{chunk.number}.parquet")
            found.append(
                (
                    facts.rows,
                    [
                        len(row or b"")
                        for row in pq.read_table(tmp_path / f"{chunk.number}.parquet")["filler"].to_pylist()
                    ],
                )
            )
        assert facts.bytes == (tmp_path / "4.parquet").stat().st_size
    assert found == [(1, [1]), (1, [32 << 20]), (1, [1]), (0, [])]


def test_a_chunk_is_never_wholly_in_memory_snapshot(server: DatabaseServer, tmp_path: Path) -> None:
    """The rows of the chunk have 48 MB. During the read, never more than half of that is in memory."""
    held: list[int] = []

    class Watching(ReadPace):
        def after_rows(self, rows: int) -> None:  # noqa: ARG002
            held.append(pa.total_allocated_bytes())

    with reading(server) as reader:
        facts = read_chunk(
            reader,
            versions(server, DATABASE)["large"],
            ALL,
            tmp_path / "1.parquet",
            ReadRules(pace=Watching(PaceLimits())),
        )
        groups = pq.ParquetFile(tmp_path / "1.parquet").metadata.num_row_groups
    assert (facts.rows, groups) == (MANY_ROWS, len(held))
    assert facts.received > MANY_ROWS * WIDE_BYTES
    assert len(held) >= 2
    assert max(held) < MANY_ROWS * WIDE_BYTES / 2
