"""Reads the source for a comparison: sends queries to the server, and returns the results as Arrow data. Uses one connection, which
executes one statement at a time. Writes nothing.

Each statement is a consistent read of its own without locks. If the server can find the rows of a chunk by an index on the key, each
statement reads only one chunk, so that no statement runs for long.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.text_rows import text_blocks
from sluice.cdc_engine.source.reader import IDENTITY
from sluice.cdc_engine.source.server import Source
from sluice.equality.canonical import Canonical, quoted
from sluice.equality.chunks import is_integer
from sluice.equality.table_plan import ComparisonPlan
from sluice.spark_jobs.sql_text import double_quoted

KEYS_A_STATEMENT = 200
SESSION = (
    "SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 600",
    "SET NAMES utf8mb4",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
# Statements that remove the time limit of queries: the first one on MySQL, the second one on MariaDB.
UNLIMITED = ("SET max_execution_time = 0", "SET max_statement_time = 0")
NULL = "NULL"  # The literal of NULL in SQL.
# `read_view` tries at most this many times to open a transaction at an exact position. An attempt fails if the end of the binlog moves
# while the transaction is opened. Only tables without a key are compared in a read view. If no attempt succeeds, their comparison is
# undecided.
POSITION_TRIES = 200
READ_VIEW = "START TRANSACTION WITH CONSISTENT SNAPSHOT"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinlogEnd:
    """The end of the source's binlog at one moment. `gtid_set` is the executed set at that moment, or empty if the server has no GTIDs."""

    server_uuid: str
    file: str
    offset: int
    gtid_set: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


class SourceSide:
    """A connection to the source for comparisons. Methods raise SourceConnectionError if the source does not answer, and ConfigurationError
    if the source refuses the account.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._connect()

    def connect_again(self) -> None:
        """Closes the connection and opens a new one. After an error, the old one may have unread rows, or an open transaction whose reads
        show an earlier state of the source.
        """
        self._connection.close()
        self._connect()

    def _connect(self) -> None:
        self._connection = SourceConnection(self._source)
        for statement in SESSION:
            self._connection.rows(statement)
        for statement in UNLIMITED:
            with contextlib.suppress(SourceConnectionError):  # Each kind of server knows only one of the two variables.
                self._connection.rows(statement)

    def __enter__(self) -> SourceSide:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def whole_doubles(self) -> bool:
        """Whether the server prints a double without a fraction in a JSON document as `1.0`. MySQL 5.7 prints `1`."""
        return self._connection.mariadb or not self._connection.server_version.startswith("5.")

    def query(self, function: Any) -> Any:
        """Calls `function` with the PyMySQL connection, and returns the result of `function`."""
        return self._connection.query(function)

    def identity(self) -> str:
        """Returns the identity of the connected server in the form that positions use: a UUID, or `mariadb-` and the server id."""
        mariadb = self._connection.mariadb
        found = self._connection.rows(IDENTITY[mariadb])[0]["identity"]
        return f"mariadb-{found}" if mariadb else str(found)

    def end(self) -> BinlogEnd:
        """Returns the end of the binlog. Every transaction that was committed before this call is before this position."""
        status = self._connection.first_of("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
        if not status:
            raise SourceConnectionError(
                f"{self._source.address} did not report the end of its binlog: enable log_bin on the server, and grant "
                f"REPLICATION CLIENT to the user {self._source.user}"
            )
        file, offset = str(status[0]["File"]), int(status[0]["Position"])
        if not self._connection.mariadb:
            return BinlogEnd(
                server_uuid=self.identity(),
                file=file,
                offset=offset,
                gtid_set=str(status[0].get("Executed_Gtid_Set") or "").replace("\n", ""),
            )
        row = self._connection.rows("SELECT BINLOG_GTID_POS(%s, %s) AS executed", (file, offset))[0]
        return BinlogEnd(server_uuid=self.identity(), file=file, offset=offset, gtid_set=str(row["executed"] or ""))

    def bounds(self, plan: ComparisonPlan) -> tuple[int | None, int | None]:
        """Returns the least and the greatest value of the first key column. Returns (None, None) if the column is not an integer or the
        table has no rows.
        """
        if not plan.key or not is_integer(plan.key_columns[0]):
            return None, None
        column = quoted(plan.key[0])
        row = self._connection.rows(f"SELECT MIN({column}) + 0 AS low, MAX({column}) + 0 AS high FROM {_table(plan)}")[
            0
        ]
        return (None, None) if row["low"] is None else (int(row["low"]), int(row["high"]))

    def row_count(self, database: str, table: str) -> int:
        """Returns the exact number of rows of a table, which the server determines with COUNT(*)."""
        counted = text_blocks(self._connection, f"SELECT COUNT(*) FROM {quoted(database)}.{quoted(table)}")
        return sum(int(block[0][0].as_py()) for block in counted)

    def rows(self, plan: ComparisonPlan, conditions: Iterable[str]) -> pa.RecordBatchReader:
        """Returns the rows that match any of the conditions, with each value as the text that the server sends. Sends one statement per
        condition. An empty condition selects all rows. The server's answer is read while the caller consumes the rows.
        """
        statements = [_select(plan, condition) for condition in conditions]
        return _reader(plan, (block for statement in statements for block in text_blocks(self._connection, statement)))

    def rows_of_keys(self, plan: ComparisonPlan, keys: Sequence[Sequence[str]]) -> pa.RecordBatchReader:
        """Returns the rows whose keys the server's collation considers equal to `keys`. Each key has one SQL literal (`literal`) per key
        column.
        """
        return self.rows(plan, key_conditions([column.compared for column in plan.key_columns], keys))

    @contextlib.contextmanager
    def read_view(self) -> Iterator[BinlogEnd | None]:
        """Opens a transaction that sees the source at an exact position, and yields this position. Yields None if transactions are
        committed so fast that no attempt succeeds.
        """
        for _ in range(POSITION_TRIES):
            before = self.end()
            self._connection.rows(READ_VIEW)
            if self.end() == before:
                break
            self._connection.rows("ROLLBACK")
        else:
            yield None
            return
        yield before
        self._connection.rows("ROLLBACK")


def key_conditions(names: Sequence[str], keys: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields SQL conditions that together select the rows of the keys. Each condition is for a statement of its own. `names` are the key's
    columns as MySQL's expressions. Each entry of `keys` has one SQL literal per column.
    """
    for key in keys:
        if NULL in key:  # `IN` never matches NULL.
            yield " AND ".join(f"{name} <=> {value}" for name, value in zip(names, key, strict=True))
    keys_sql = [f"({', '.join(key)})" for key in keys if NULL not in key]
    for at in range(0, len(keys_sql), KEYS_A_STATEMENT):
        yield f"({', '.join(names)}) IN ({', '.join(keys_sql[at : at + KEYS_A_STATEMENT])})"


def literal(column: Canonical, value: Any) -> str:
    """Converts a key's value from the canonical form, in which source and lake are compared, to a literal in MySQL's SQL."""
    match value:
        case None:
            return NULL
        case bytes() | bytearray():
            # The introducer _utf8mb4 makes the server compare the literal by the column's collation.
            return f"{'' if column.is_bytes else '_utf8mb4 '}x'{bytes(value).hex()}'"
        case bool():
            return str(int(value))
        case float():
            return repr(value)
        case int():
            return str(value)
    if column.type == "TIMESTAMPTZ":
        return f"'{value.replace(tzinfo=None)}'"
    return f"{value:f}" if column.type.startswith("DECIMAL") else f"'{value}'"


def _table(plan: ComparisonPlan) -> str:
    return f"{quoted(plan.database)}.{quoted(plan.table)}"


def _select(plan: ComparisonPlan, condition: str) -> str:
    columns = ", ".join(column.select for column in plan.columns)
    return f"SELECT {columns} FROM {_table(plan)}{f' WHERE {condition}' if condition else ''}"


def _reader(plan: ComparisonPlan, blocks: Iterator[list[Any]]) -> pa.RecordBatchReader:
    schema = pa.schema([(column.name, _arrow(column)) for column in plan.columns])
    batches = (
        pa.RecordBatch.from_arrays(
            [
                array.cast(field.type) if field.type != array.type else array
                for array, field in zip(block, schema, strict=True)
            ],
            schema=schema,
        )
        for block in blocks
    )
    return pa.RecordBatchReader.from_batches(schema, batches)


def _arrow(column: Canonical) -> pa.DataType:
    return pa.binary() if column.type == "BLOB" else pa.string()


def canonical_rows(plan: ComparisonPlan) -> str:
    """Returns DuckDB's SELECT list that converts the server's text to the canonical form, in which source and lake are compared."""
    return ", ".join(
        f"{column.from_text.replace('{}', double_quoted(column.name))} AS {double_quoted(column.name)}"
        for column in plan.columns
    )
