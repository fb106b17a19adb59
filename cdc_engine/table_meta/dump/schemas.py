"""Makes records of the schema history from a file: a dump of `mysqldump --no-data`, or a saved `schema.jsonl`. A backfill uses such a file
if the destination's own schema history does not cover the interval.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.errors import ConfigurationError, MetaError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.evolution import CannotFollowError, created
from sluice.cdc_engine.table_meta.ddl.reader import defect_text, read_statement
from sluice.cdc_engine.table_meta.ddl.statement import CreateTable, SetDatabase, Statement, TableName, Unread
from sluice.cdc_engine.table_meta.dump.statements import database_of, statements_of, used_database
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind, SchemaRepository
from sluice.cdc_engine.table_meta.history.kept.table_records import snapshot_records
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, TableSchema, rows_elsewhere

# The largest dump in bytes that `records_in` reads. A larger file is refused, because it probably is a dump with rows.
DUMP_BYTES_MAX = 64 << 20
SAVED_HISTORY = ".jsonl"


def records_in(
    path: Path, position: Position, captured: Callable[[str, str], bool], flavour: str
) -> list[HistoryRecord]:
    """Returns the records of the schema history in a file. The records of a saved `schema.jsonl` keep their positions. The schemas of a
    dump apply from `position` on, and only the tables for which `captured` returns True are read. Raises ConfigurationError if the file
    cannot be used.
    """
    try:
        if path.suffix == SAVED_HISTORY:
            return SchemaRepository(path.resolve(strict=True)).look()
        if path.stat().st_size > DUMP_BYTES_MAX:
            raise ConfigurationError(
                f"--schemas {path} has more than {DUMP_BYTES_MAX >> 20} MiB: create the dump with `mysqldump --no-data`"
            )
        dump = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError, MetaError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"--schemas {path} cannot be read: {why}; name a dump of `mysqldump --no-data`, or a saved schema.jsonl"
        ) from error
    found = dumped_schemas(dump, captured, flavour, str(path))
    # A dump does not say which triggers and views existed at the position. So a row change in statement format counts as a statement that
    # may write to any table.
    objects = HistoryRecord(kind=RecordKind.OBJECTS, position=position, content={"complete": False})
    return [*snapshot_records(found, position), objects]


def dumped_schemas(dump: str, captured: Callable[[str, str], bool], flavour: str, name: str = "") -> SchemaSnapshot:
    """Returns the schemas of the captured tables in a dump. `name` is the name of the dump in errors. Raises ConfigurationError if the dump
    does not name the database of a table.
    """
    database, tables = database_of(dump), _DumpedTables(captured, flavour)
    for text in statements_of(dump):
        used = used_database(text)
        if used is not None:
            database = used
            continue
        statement = read_statement(text, flavour)
        if isinstance(statement, CreateTable) and not (statement.name.database or database):
            raise ConfigurationError(
                f"--schemas {name} does not say which database {statement.name.table} belongs to: dump with --databases"
            )
        tables.take(statement, database)
    return tables.snapshot()


class _DumpedTables:
    """Collects databases and tables from the statements of a dump."""

    def __init__(self, captured: Callable[[str, str], bool], flavour: str) -> None:
        self._captured, self._flavour = captured, flavour
        self._charsets: dict[str, str] = {}
        self._tables: dict[tuple[str, str], TableSchema] = {}
        self._unreadable: dict[tuple[str, str], str] = {}

    def take(self, statement: Statement, database: str) -> None:
        match statement:
            case SetDatabase(name=name, charset=charset):
                self._charsets[name or database] = charset or ""
            case CreateTable(name=name):
                self._take_table(statement, name.database or database)
            case Unread(kind=kind, names=names, reason=reason) if kind.startswith("CREATE"):
                self._unreadable |= {(each.database or database, each.table): reason for each in names}

    def _take_table(self, statement: CreateTable, database: str) -> None:
        name = (database, statement.name.table)
        if not self._captured(*name):
            return

        def known(other: TableName) -> TableSchema | None:
            return self._tables.get((other.database or database, other.table))

        try:
            self._tables[name] = created(statement, database, self._charsets.get(database), known)
        except CannotFollowError as error:
            self._unreadable[name] = error.reason
        except Exception as error:  # Errors of any kind are caught, so that a defect of Sluice affects only this table.
            self._unreadable[name] = f"Sluice cannot follow the columns of the table: {defect_text(error)}"

    def snapshot(self) -> SchemaSnapshot:
        """Returns the schemas of the collected tables. Also returns, with a reason, each table that could not be read, and each table whose
        storage engine does not store the table's own rows (`rows_elsewhere`), for example MERGE.
        """
        elsewhere = (
            (
                *name,
                f"a table with ENGINE={table.engine} does not store its own rows, so its row events do not show its contents",
            )
            for name, table in self._tables.items()
            if rows_elsewhere(table.engine)
        )
        unreadable = ((*name, reason) for name, reason in self._unreadable.items() if self._captured(*name))
        return SchemaSnapshot(
            DdlServerFacts(flavour=self._flavour, charset=""),
            tuple(self._charsets.items()),
            tuple(self._tables.values()),
            tuple(unreadable),
            tuple(elsewhere),
        )
