"""Describes a statement for Canal's entries: the kind of the statement, and the table that the entry's header names."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

from sluice.cdc_engine.binlog.charsets.statement_text import Literals
from sluice.cdc_engine.binlog.entries.numbers import EventType
from sluice.cdc_engine.binlog.events.statements import without_comments
from sluice.cdc_engine.contracts import LoggedStatement
from sluice.cdc_engine.instance.consumers.forms import ALL_ENTRIES, ShownEntries
from sluice.cdc_engine.sink.event_sink import CapturedTables
from sluice.cdc_engine.table_meta.ddl.reader import ORACLE, read_statement
from sluice.cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    CreateStoredObject,
    CreateTable,
    DropDatabase,
    DropStoredObjects,
    DropTables,
    Nothing,
    RenameTables,
    SetDatabase,
    Statement,
    TableName,
    Truncate,
    Unread,
)

_NAME = r"(?:`(?:[^`]|``)+`|[\w$\x80-\uffff]+)(?:\s*\.\s*(?:`(?:[^`]|``)+`|[\w$\x80-\uffff]+))?"
_INDEX = re.compile(
    rf"(CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?(?:ONLINE\s+|OFFLINE\s+)?(?:UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)?INDEX\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
    rf".*?\sON\s+({_NAME})",
    re.IGNORECASE | re.DOTALL,
)
_ACTION = re.compile(
    rf"ALTER\s+(?:ONLINE\s+|OFFLINE\s+|IGNORE\s+)*TABLE\s+(?:IF\s+EXISTS\s+)?{_NAME}\s*(.*)", re.IGNORECASE | re.DOTALL
)
_ACTIONS: tuple[tuple[str, EventType | None], ...] = (
    (r"ADD\s+(?:CONSTRAINT\s+(?:\S+\s+)?)?(?:UNIQUE|PRIMARY|INDEX|KEY|FULLTEXT|SPATIAL)\b", EventType.CINDEX),
    (r"ADD\s+(?:CONSTRAINT\s+(?:\S+\s+)?)?FOREIGN\b", None),
    (r"DROP\s+(?:INDEX|KEY|CONSTRAINT|PRIMARY|FOREIGN|CHECK)\b", EventType.DINDEX),
    (r"RENAME\s+(?!COLUMN\b|INDEX\b|KEY\b)", EventType.RENAME),
)


@dataclasses.dataclass(frozen=True)
class StatementDescription:
    """What an entry of Canal says about a statement. The entry's header names `schema` and `table`. `tables` are all tables that the
    statement concerns, as (database, table).
    """

    kind: EventType
    schema: str = ""
    table: str = ""
    tables: tuple[tuple[str, str], ...] = ()


@functools.lru_cache(maxsize=256)
def described(statement: LoggedStatement) -> StatementDescription | None:
    """Describes a statement, or returns None for a statement that Canal does not send to clients, such as GRANT, ALTER DATABASE, or a
    statement about views, triggers or procedures.
    """
    text = without_comments(statement.text)
    index = _INDEX.match(text)
    if index:
        kind = EventType.CINDEX if index[1].upper() == "CREATE" else EventType.DINDEX
        return _of(kind, statement, _table_name(index[2]))
    session = statement.session
    literals = Literals(session.client, session.connection)
    # Removes sql_mode ORACLE, because `read_statement` would refuse such a statement of MariaDB: its types have other meanings. A
    # description has no types.
    read = read_statement(statement.text, session.flavour, session.sql_mode & ~ORACLE, literals)
    return _of_read(read, statement, text)


def _of_read(read: Statement, statement: LoggedStatement, text: str) -> StatementDescription | None:  # noqa: PLR0911  a case a line
    match read:
        case CreateTable():
            return _of(EventType.CREATE, statement, read.name)
        case AlterTable():
            return _altered(read, statement, text)
        case DropTables():
            return _of(EventType.ERASE, statement, *read.names)
        case Truncate():
            return _of(EventType.TRUNCATE, statement, read.name)
        case RenameTables():
            (old, new), *others = read.pairs
            return _of(EventType.RENAME, statement, new, old, *(name for pair in others for name in pair))
        case SetDatabase() if not read.creates:
            return None
        case SetDatabase() | DropDatabase():
            return StatementDescription(EventType.QUERY, read.name or statement.database)
        case Nothing() | CreateStoredObject() | DropStoredObjects():
            return None
        case Unread() if read.names:
            kind = EventType.CREATE if read.kind.startswith("CREATE") else EventType.ALTER
            return _of(kind, statement, *read.names)
    return StatementDescription(EventType.QUERY)


def _altered(read: AlterTable, statement: LoggedStatement, text: str) -> StatementDescription | None:
    kind: EventType | None = EventType.ALTER
    action = _ACTION.match(text)
    for pattern, named in _ACTIONS if action else ():
        if action and re.match(pattern, action[1], re.IGNORECASE):
            kind = named
            break
    if kind is None and not read.items:
        return None
    if read.renames_to is not None and kind is EventType.RENAME:
        return _of(kind, statement, read.renames_to, read.name)
    return _of(kind or EventType.ALTER, statement, read.name)


def _of(kind: EventType, statement: LoggedStatement, *names: TableName) -> StatementDescription:
    tables = tuple((name.database or statement.database, name.table) for name in names)
    return StatementDescription(kind, *tables[0], tables)


def _table_name(text: str) -> TableName:
    parts = [part.strip("`").replace("``", "`") for part in re.findall(r"`(?:[^`]|``)+`|[^`.\s]+", text)]
    return TableName(parts[0], parts[1]) if len(parts) > 1 else TableName("", parts[0])


def wanted_statements(tables: CapturedTables, shown: ShownEntries = ALL_ENTRIES) -> Callable[[LoggedStatement], bool]:
    """Returns a function that selects the statements that a consumer gets. A statement is selected if Canal sends such statements, if its
    kind is in `shown`, and if it concerns a table that `tables` keeps, or no table at all.
    """

    def wants(statement: LoggedStatement) -> bool:
        found = described(statement) if shown.statements else None
        if found is not None and found.kind is EventType.QUERY and not shown.others:
            return False
        return found is not None and (not found.tables or any(tables.keeps(*each) for each in found.tables))

    return wants
