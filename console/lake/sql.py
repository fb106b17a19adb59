"""Implements `sluice sql`: runs one SQL query on the lake. DuckDB reads the Delta tables, so Spark need not run. The lake is local or in an
object store (`sql_store`).

Each captured table is a view `database.table`. A table's change log is `database.table__log`, and a table's history is
`database.table__history`. If several shards share one Delta table, they are one view `folder.table`, named after the Delta table's path in
the lake.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import datetime as dt
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import deltalake
import duckdb
from rich.console import Group
from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.console.lake.sql_store import DeltaRows, duckdb_url, is_readable, load_extension, open_stores
from sluice.console.toolchain.errors import SetupError
from sluice.object_stores.google import is_google
from sluice.object_stores.options import without_secrets
from sluice.orchestration.base.lake_settings import storage_options
from sluice.orchestration.base.ports import MergeFailedError
from sluice.spark_jobs.sql_text import double_quoted

SHOWN_ROWS_MAX = 100
# SHOW, DESCRIBE, VALUES and PRAGMA are SELECT for DuckDB.
READING = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
# DuckDB makes such statements, without a text, of a PIVOT.
OF_PIVOT = {duckdb.StatementType.CREATE, duckdb.StatementType.TRANSACTION}
FETCHED_ROWS = 10_000
Row = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class SqlTable:
    """A Delta table, and the database and name under which a query finds it. Names that differ only in letter case get a number at the end.
    `spelled` is then "database.table" without this number, otherwise empty.
    """

    database: str
    table: str
    path: str
    spelled: str = ""

    @property
    def name(self) -> str:
        return f"{double_quoted(self.database)}.{double_quoted(self.table)}"


class SqlAnswer:
    """The result of a query. The rows are read from the lake while the caller iterates over them. `left_out` has a message for each table
    for which no view could be created. `options` are the options of the object store, whose secrets errors must not show.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, left_out: Collection[str], options: dict[str, str]) -> None:
        self._cursor, self.left_out, self._options = cursor, tuple(left_out), options
        self.columns = [column[0] for column in cursor.description or ()]

    def rows(self) -> Iterator[Row]:
        """Yields the rows. Raises SetupError if DuckDB cannot compute or read a row, for example because a file was removed."""
        while fetched := self._fetched():
            yield from fetched

    def _fetched(self) -> list[Row]:
        try:
            return self._cursor.fetchmany(FETCHED_ROWS)
        except duckdb.Error as error:
            raise SetupError(_shown(_refused(error, (), ()), self._options)) from error


def lake_tables(config: SluiceConfig) -> list[SqlTable]:
    """Returns the Delta tables of all destinations, with their change logs and histories. Leaves out a local table that does not exist yet.

    If several destinations capture tables of the same name, the table of the first destination in alphabetical order keeps this name. The
    other tables are named `destination_database.table`. Names that differ only in letter case get a number, because DuckDB does not
    distinguish them.
    """
    found: dict[tuple[str, str], SqlTable] = {}
    for destination in sorted(config.destinations):
        for table in read_tables(config.destination_dir(destination)):
            for name, path in _paths(config, destination, table):
                database = _database(config, destination, table)
                if (other := found.get((database, name))) is not None and other.path != path:
                    database = f"{destination}_{database}"
                # Does not check whether a table in an object store exists, because this takes time. `_make_view` checks it for the tables
                # of the query.
                if path and ("://" in path or (Path(path) / "_delta_log").is_dir()):
                    found[database, name] = SqlTable(database, name, path)
    return _distinguished(found.values())


def _distinguished(tables: Collection[SqlTable]) -> list[SqlTable]:
    """Returns the tables, and appends `__1`, `__2`, … to names that differ only in letter case. All of these names get a number: DuckDB
    ignores letter case, so a name without a number could mean any of these tables.
    """
    same = defaultdict[tuple[str, str], list[SqlTable]](list)
    for table in tables:
        same[table.database.lower(), table.table.lower()].append(table)
    taken = set(same)
    apart: dict[SqlTable, SqlTable] = {}
    for those in same.values():
        for table in sorted(those, key=lambda each: (each.database, each.table)) if len(those) > 1 else ():
            names = (f"{table.table}__{number}" for number in itertools.count(1))
            name = next(each for each in names if (table.database.lower(), each.lower()) not in taken)
            taken.add((table.database.lower(), name.lower()))
            apart[table] = dataclasses.replace(table, table=name, spelled=f"{table.database}.{table.table}")
    return [apart.get(table, table) for table in tables]


def _database(config: SluiceConfig, destination: str, table: TableVersion) -> str:
    """Returns the database of a table's view. For a shard, it is the folder of the Delta table that the shards share."""
    shard = config.destinations[destination].shard(table.database, table.table)
    return table.database if shard is None else shard.into.rpartition("/")[0].replace("/", "_") or destination


def _paths(config: SluiceConfig, destination: str, table: TableVersion) -> list[tuple[str, str]]:
    """Returns (name in queries, path) of a table's current-state table, change log and history. The path of a Delta table that conf/ does
    not enable is empty. For a shard, returns only the common Delta table.
    """
    log, history = config.side_table_paths(destination, table.database, table.table)
    current_state = config.destinations[destination].table(table.database, table.table).current_state
    path = config.table_path(destination, table.database, table.table) if current_state else ""
    if shard := config.destinations[destination].shard(table.database, table.table):
        return [(shard.into.rpartition("/")[2], path)]
    return [(table.table, path), (f"{table.table}__log", log), (f"{table.table}__history", history)]


def run_query(config: SluiceConfig, question: str) -> SqlAnswer:
    """Runs a query on the lake. Raises SetupError if `sluice sql` cannot read the lake, if the lake has no table, or if the query fails. If
    DuckDB did not find a name, the message lists the tables.
    """
    if not is_readable(config.lake):
        raise SetupError(
            f"The lake is at {config.lake}, but `sluice sql` reads only local lakes and lakes in S3, Azure and Google Cloud "
            "Storage. docs/readers.md lists readers for other stores."
        )
    tables = lake_tables(config)
    if not tables:
        raise SetupError(f"The lake {config.lake} has no table yet; `sluice status` shows whether changes are merged.")
    connection, options = _connect(), dict[str, str]()
    if in_stores := [table.path for table in tables if "://" in table.path and is_readable(table.path)]:
        options = _storage_options(config)
        # The lake comes first, because `open_stores` uses the account of the first path, and the credentials in conf/ are for the account
        # of the lake. A table may have a path in another account.
        open_stores(connection, [*([config.lake] if "://" in config.lake else []), *in_stores], options)
    left_out: list[str] = []
    try:
        schemas = sorted({table.database.lower(): double_quoted(table.database) for table in tables}.values())
        for schema in schemas:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for table in _named(tables, question):
            try:
                _make_view(connection, table, options)
            # Continues without this table, because the query may not need it.
            except Exception as error:
                left_out.append(f"{table.database}.{table.table} cannot be read: {_shown(error, options)}")
        searched = ",".join(schemas).replace("'", "''")
        connection.execute(f"SET search_path = '{searched}'")
        _require_reading(question)
        # If `question` has no statement, DuckDB returns None, although the return type does not include None.
        cursor: duckdb.DuckDBPyConnection | None = connection.execute(question)
        if cursor is None:
            raise SetupError("The query has no statement; write a query, such as `sluice sql 'SHOW ALL TABLES'`.")
        return SqlAnswer(cursor, left_out, options)
    except duckdb.Error as error:
        raise SetupError(_shown(_refused(error, tables, left_out), options)) from error


def _shown(error: Exception, options: dict[str, str]) -> str:
    """Returns the text of an error without secrets. `options` are the options of the object store, or empty for a local lake."""
    return without_secrets(str(error), options) if options else str(error)


def _storage_options(config: SluiceConfig) -> dict[str, str]:
    try:
        return storage_options(config.storage_options)
    except MergeFailedError as error:
        raise SetupError(f"The lake at {config.lake} cannot be read: {error}") from error


def _refused(error: duckdb.Error, tables: Sequence[SqlTable], left_out: Sequence[str]) -> SetupError:
    """Converts DuckDB's error to the error of the command, whose message says what to do. If DuckDB did not find a name, the message lists
    the tables.
    """
    if not isinstance(error, duckdb.CatalogException):
        return SetupError(f"{error}\nDuckDB could not run the query; correct it and run it again.")
    known = ", ".join(f"{each.database}.{each.table}{f' ({each.spelled})' if each.spelled else ''}" for each in tables)
    lacking = "".join(f"\n{sentence}" for sentence in left_out)
    return SetupError(f"{error}{lacking}\nThe tables are: {known}")


def _require_reading(question: str) -> None:
    """Raises SetupError if a query has a statement that could change tables, settings or files. Raises duckdb.Error if it is no SQL."""
    if question.encode(errors="ignore").decode() != question:
        raise SetupError(
            "The query has characters that are not in the encoding of the locale; use a UTF-8 locale, and write it again."
        )
    for statement in duckdb.extract_statements(question):
        reads = statement.type in READING or (statement.type in OF_PIVOT and not statement.query)
        # EXPLAIN ANALYZE executes its statement, and of the statements that it may have, COPY writes a file.
        if not reads or (
            statement.type == duckdb.StatementType.EXPLAIN and re.search(r"\bCOPY\b", question, re.IGNORECASE)
        ):
            raise SetupError("`sluice sql` only reads the lake. Use SELECT. To change rows, change them in the source.")


def _connect() -> duckdb.DuckDBPyConnection:
    """Returns a DuckDB connection that can read Delta tables. DuckDB's extension for Delta comes from a Python package, so DuckDB downloads
    nothing.
    """
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    # Otherwise a name that no table has would mean a variable of this program.
    connection.execute("SET python_enable_replacements = false")
    load_extension(connection, "delta")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _named(tables: Sequence[SqlTable], question: str) -> Sequence[SqlTable]:
    """Returns the tables whose names occur in the query, or all tables if no name occurs, as in SHOW ALL TABLES. Only these tables get
    views, because creating a view reads a Delta log.
    """
    words = set(re.findall(r"\w+", question.lower()))
    named = [table for table in tables if set(re.findall(r"\w+", table.table.lower())) <= words]
    return named or tables


def _make_view(connection: duckdb.DuckDBPyConnection, table: SqlTable, options: dict[str, str]) -> None:
    if is_google(table.path):
        rows = f"rows of {table.database}.{table.table}"
        connection.register(rows, DeltaRows(table.path, options))
        connection.execute(f"CREATE VIEW {table.name} AS SELECT * FROM {double_quoted(rows)}")
        return
    _refuse_misread(table, options)
    path = duckdb_url(table.path, options).replace("'", "''")
    connection.execute(f"CREATE VIEW {table.name} AS SELECT * FROM delta_scan('{path}')")


def _refuse_misread(table: SqlTable, options: dict[str, str]) -> None:
    """Raises SetupError if a table has both partitions and column mapping, because DuckDB returns NULL for its partition columns
    (docs/readers.md).
    """
    metadata = deltalake.DeltaTable(table.path, storage_options=options or None).metadata()
    if metadata.partition_columns and metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        raise SetupError(
            f"{table.database}.{table.table} has partitions and column mapping, so DuckDB would return NULL for its "
            "partition columns; use another reader of docs/readers.md"
        )


def render(answer: SqlAnswer) -> Group:
    """Formats the rows for the terminal. If there are more than SHOWN_ROWS_MAX rows, shows only the first ones, and a line that says so."""
    shown = Table(*answer.columns)
    for at, row in enumerate(answer.rows()):
        if at == SHOWN_ROWS_MAX:
            return Group(shown, f"the first {SHOWN_ROWS_MAX} rows; --csv and --json have all")
        shown.add_row(*("" if value is None else _text(value) for value in row))
    return Group(shown)


def write_csv(answer: SqlAnswer, out: TextIO) -> None:
    """Writes the rows as CSV, with a header line. NULL is an empty field."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(["" if value is None else _text(value) for value in row] for row in answer.rows())


def write_json(answer: SqlAnswer, out: TextIO) -> None:
    """Writes the rows as a JSON list of objects. A value that JSON cannot represent becomes text. Of columns with the same name, the second
    one becomes `NAME_1`, because an object has each name once.
    """
    out.write("[")
    names = list[str]()
    for name in answer.columns:
        others = (f"{name}_{number}" for number in itertools.count(1))
        names.append(
            name if name not in names else next(each for each in others if each not in {*answer.columns, *names})
        )
    for at, row in enumerate(answer.rows()):
        record = _for_json(dict(zip(names, row, strict=True)))
        out.write((",\n " if at else "\n ") + json.dumps(record, default=_text, ensure_ascii=False))
    out.write("\n]\n")


def _for_json(value: Any) -> Any:
    """Returns a value with text instead of numbers and keys that JSON does not know, such as NaN, and a date as the key of a MAP."""
    if isinstance(value, dict):
        known = str | int | float | None
        return {key if isinstance(key, known) else _text(key): _for_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_for_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: object) -> str:
    """Converts a value to text: bytes as base64, a time in ISO 8601, and any other value by `str`."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode("ascii")
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)
