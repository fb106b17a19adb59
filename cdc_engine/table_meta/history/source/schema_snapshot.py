"""Reads the current schemas of tables from the server's information_schema, over the caller's PyMySQL connection.

Views and sequences are left out. Row events of a sequence are recognized by their table map (`fitting.is_sequence`). For a table with
system versioning, the hidden columns `row_start` and `row_end` are added, because row events have these columns and information_schema
does not show them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from pymysql import MySQLError
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from sluice.cdc_engine.binlog.charsets.collations import charset_of_collation
from sluice.cdc_engine.binlog.charsets.statement_text import UNKNOWN
from sluice.cdc_engine.binlog.column_types.labels import HIDDEN_CHARACTER
from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END, ROW_START
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.foreign_keys import in_order
from sluice.cdc_engine.table_meta.change.initial_value import known_default
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects
from sluice.cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL, DeclaredType, declared_type
from sluice.cdc_engine.table_meta.ddl.default_value import EXPRESSION, Default, DefaultNotation, read_default
from sluice.cdc_engine.table_meta.ddl.foreign_key import CASCADE, SET_NULL
from sluice.cdc_engine.table_meta.ddl.lexer import TokenCursor, UnreadableError, tokens
from sluice.cdc_engine.table_meta.ddl.reader import defect_text, read_statement
from sluice.cdc_engine.table_meta.ddl.statement import CreateTable, Statement
from sluice.cdc_engine.table_meta.history.source.stored_object_queries import read_stored_objects
from sluice.cdc_engine.table_meta.history.source.system_zone import system_zone
from sluice.cdc_engine.table_meta.schema import (
    DdlServerFacts,
    DeclaredColumn,
    ForeignKey,
    TableSchema,
    kept_engine,
    rows_elsewhere,
    with_row_times,
)

# If a statement changes a schema during the reading, all schemas are read again. After this many readings, `stable_snapshot` raises an
# error.
ATTEMPTS_MAX = 5
# From these versions on, REFERENCES in a column definition creates a foreign key.
INLINE_MARIADB, INLINE_MYSQL = (10, 5), (9, 0)
# Before these versions, the server ignores ON DELETE and ON UPDATE of a foreign key if they come after MATCH.
MATCH_MARIADB, MATCH_MYSQL = (10, 5), (8, 0)

# Charsets with characters that the server prints as `?` in information_schema. A `?` in a label of an ENUM or SET may be such a character.
_WITHOUT_LIMIT = {"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"}
_SERVER = "SELECT VERSION(), @@character_set_server, @@lower_case_table_names, @@GLOBAL.explicit_defaults_for_timestamp, @@system_time_zone"
# innodb_native_foreign_keys is a variable of MySQL 9.6 and later. If it is OFF, MySQL instead of InnoDB executes foreign keys, and writes
# row events for the changes.
_NATIVE_FOREIGN_KEYS = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name = 'innodb_native_foreign_keys' AND Value IN ('OFF', '0')"
)
_DATABASES = "SELECT schema_name, default_character_set_name FROM information_schema.schemata"
_TABLES = (
    "SELECT table_schema, table_name, table_collation, engine, table_type, table_comment FROM information_schema.tables "
    "WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')"
)
_COLUMNS = (
    "SELECT table_schema, table_name, column_comment, column_name, column_type, character_set_name, is_nullable, {extra}, "
    "column_default FROM information_schema.columns WHERE table_schema IN %s ORDER BY table_schema, table_name, ordinal_position"
)
_EXTRA = "extra"
# The expression for the column EXTRA on a MariaDB with system-versioned tables. The expression adds ROW START or ROW END, which MariaDB
# shows in another column.
_EXTRA_OF_VERSIONED = (
    "IF(generation_expression IN ('ROW START', 'ROW END'), CONCAT(generation_expression, ', ', extra), extra)"
)
_KEYS = (
    "SELECT table_schema, table_name, column_name FROM information_schema.statistics "
    "WHERE index_name = 'PRIMARY' AND table_schema IN %s ORDER BY table_schema, table_name, seq_in_index"
)


_REFERENCES = (
    "SELECT table_schema, table_name, constraint_name, column_name, "
    "referenced_table_schema, referenced_table_name, referenced_column_name FROM information_schema.key_column_usage "
    "WHERE referenced_table_name IS NOT NULL AND table_schema IN %s "
    "ORDER BY table_schema, table_name, constraint_name, ordinal_position"
)
_ACTIONS = (
    "SELECT constraint_schema, table_name, constraint_name, delete_rule, update_rule "
    "FROM information_schema.referential_constraints WHERE constraint_schema IN %s"
)


@dataclasses.dataclass(frozen=True)
class SchemaSnapshot:
    """The schemas of the source's tables.

    - `databases`: (name, default charset).
    - `unreadable`: (database, table, reason) for tables whose columns cannot be parsed.
    - `elsewhere`: (database, table, reason) for tables whose rows can change without row events, because of the table's engine or because a
      MERGE table contains the table.
    - `stored_objects`: triggers and views, or None if they were not read.
    - `unknown_tables`: (database, table) for tables that may exist at the position where the stream begins, but whose columns at this
      position are unknown.
    """

    server: DdlServerFacts
    databases: tuple[tuple[str, str], ...]
    tables: tuple[TableSchema, ...]
    unreadable: tuple[tuple[str, str, str], ...] = ()
    elsewhere: tuple[tuple[str, str, str], ...] = ()
    stored_objects: StoredObjects | None = None
    unknown_tables: tuple[tuple[str, str], ...] = ()


def read_snapshot(connection: Connection[Any], captured: Callable[[str, str], bool]) -> SchemaSnapshot:
    """Returns the current schemas of the captured tables. Raises pymysql.MySQLError if a query fails."""
    with connection.cursor(Cursor) as cursor:
        facts = _rows(cursor, _SERVER)[0]
        server = _server(facts, logs_cascades=bool(_rows(cursor, _NATIVE_FOREIGN_KEYS)))
        if server.system_time_zone not in {"UTC", "GMT"}:
            server = dataclasses.replace(server, system_zone=system_zone(lambda query: _rows(cursor, query)[0]))
        notation = _notation(server.flavour, facts[0])
        # Thousands of tables have few different declarations of columns. Each declaration is parsed once.
        unnamed = functools.cache(functools.partial(_unnamed, notation))
        databases = tuple((name, charset_name(charset)) for name, charset in _rows(cursor, _DATABASES))
        shown = {(row[0], row[1]): row[2:] for row in _rows(cursor, _TABLES) if captured(row[0], row[1])}
        collations = {name: each[0] for name, each in shown.items()}
        engines = {name: found for name, each in shown.items() if (found := kept_engine(each[1] or ""))}
        versioned = {name for name, each in shown.items() if each[2] == "SYSTEM VERSIONED"}
        names = tuple(sorted({database for database, _ in collations}))
        columns: dict[tuple[str, str], list[Any]] = defaultdict(list)
        keys: dict[tuple[str, str], list[str]] = defaultdict(list)
        if names:
            statement = _COLUMNS.format(extra=_EXTRA_OF_VERSIONED if versioned else _EXTRA)
            for database, table, *column in _rows(cursor, statement, names):
                columns[database, table].append(column)
            for database, table, name in _rows(cursor, _KEYS, names):
                keys[database, table].append(name)
        foreign_keys = _foreign_keys(cursor, names, server.flavour) if names else {}
    tables, unreadable = [], []
    for name in sorted(collations):
        try:
            table = _table(name, collations[name], columns[name], keys[name], unnamed)
            keys_of_others = in_order(foreign_keys.get(name, ()))
            table = dataclasses.replace(
                table, foreign_keys=keys_of_others, engine=engines.get(name, ""), comment=shown[name][3] or ""
            )
            tables.append(with_row_times(table) if name in versioned else table)
        except UnreadableError as error:
            unreadable.append((*name, f"information_schema shows a column of a type that cannot be read: {error}"))
        except Exception as error:  # A defect of Sluice stops only this table.
            unreadable.append((*name, f"Sluice cannot follow the columns of the table: {defect_text(error)}"))
    whole = []
    with connection.cursor(Cursor) as cursor:
        for table in tables:
            try:
                whole.append(_with_whole_defaults(cursor, table, columns[table.database, table.table], notation))
            except MySQLError:
                raise
            except Exception as error:  # A defect of Sluice stops only this table.
                reason = f"Sluice cannot follow the defaults of the columns of the table: {defect_text(error)}"
                unreadable.append((table.database, table.table, reason))
        elsewhere = tuple(_elsewhere(cursor, engines, server.flavour))
    return SchemaSnapshot(server, databases, tuple(whole), tuple(unreadable), elsewhere)


def stable_snapshot(
    connection: Connection[Any],
    captured: Callable[[str, str], bool],
    position_now: Callable[[], Position],
    *,
    with_objects: bool = False,
) -> tuple[SchemaSnapshot, Position]:
    """Returns the schemas of the source's tables, and a position at which they apply. Locks nothing: it reads the schemas, the position,
    and the schemas again, until both readings of the schemas are equal.

    With `with_objects`, all triggers and views are read too. The account must be allowed to see them. Raises SourceConnectionError if the
    schema changed during every attempt.
    """

    def now() -> SchemaSnapshot:
        found = read_snapshot(connection, captured)
        if not with_objects:
            return found
        return dataclasses.replace(found, stored_objects=read_stored_objects(connection, found.server.flavour))

    before = now()
    for _ in range(ATTEMPTS_MAX):
        position = position_now()
        after = now()
        if after == before:
            return after, position
        before = after
    raise SourceConnectionError(
        f"a statement changed the schema of the source during each of {ATTEMPTS_MAX} attempts to read the schemas; "
        "try again when no statement changes tables"
    )


def charset_name(name: str) -> str:
    """Returns the current name of a charset. MySQL 5.7 and MariaDB call utf8mb3 `utf8`."""
    return "utf8mb3" if name == "utf8" else name


def _rows(cursor: Cursor, statement: str, databases: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    cursor.execute(statement, (databases,) if databases else None)
    return list(cursor.fetchall())


def _foreign_keys(cursor: Cursor, databases: tuple[str, ...], flavour: str) -> dict[tuple[str, str], list[ForeignKey]]:
    """Returns the foreign keys of each table. MariaDB 11 shows the actions of a foreign key in information_schema only to users who may
    change the table. Missing actions are read from SHOW CREATE TABLE.
    """
    columns: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for database, table, constraint, *column in _rows(cursor, _REFERENCES, databases):
        columns[database, table, constraint].append(column)
    actions = {(row[0], row[1], row[2]): row[3:] for row in _rows(cursor, _ACTIONS, databases)}
    found: dict[tuple[str, str], list[ForeignKey]] = defaultdict(list)
    for name in dict.fromkeys(name[:2] for name in columns if name not in actions):
        actions |= _shown_actions(cursor, name, flavour)
    for (database, table, constraint), parts in columns.items():
        on_delete, on_update = actions.get((database, table, constraint), ("", ""))
        found[database, table].append(
            ForeignKey(
                name=constraint,
                columns=tuple(part[0] for part in parts),
                parent=(parts[0][1], parts[0][2]),
                referenced=tuple(part[3] for part in parts),
                on_delete=on_delete if on_delete in {CASCADE, SET_NULL} else "",
                on_update=on_update if on_update in {CASCADE, SET_NULL} else "",
                doubt=""
                if (database, table, constraint) in actions
                else "the user may not see the foreign key's actions; grant SELECT on both tables to the user",
            )
        )
    return found


def _elsewhere(cursor: Cursor, engines: dict[tuple[str, str], str], flavour: str) -> Iterator[tuple[str, str, str]]:
    """Yields (database, table, reason) for tables whose rows can change without row events, because of the table's engine or because a
    MERGE table contains the table.
    """
    for name, engine in sorted(engines.items()):
        if not rows_elsewhere(engine):
            continue
        yield (*name, f"row events do not contain the rows of a table of ENGINE={engine}")
        statement: Statement | None = None
        if engine == "MRG_MYISAM":
            with contextlib.suppress(MySQLError):
                statement = _shown_table(cursor, name, flavour)
        for member in statement.union if isinstance(statement, CreateTable) else ():
            over = (
                f"the MERGE table {'.'.join(name)} contains the table, so rows can change without row events of "
                "the table"
            )
            yield (member.database or name[0], member.table, over)


def _shown_table(cursor: Cursor, name: tuple[str, str], flavour: str) -> Statement:
    """Parses the output of SHOW CREATE TABLE. Raises MySQLError if the server refuses the statement, for example because tables of a MERGE
    table are missing.
    """
    quoted = ".".join(_quoted(part) for part in name)
    return read_statement(str(_rows(cursor, f"SHOW CREATE TABLE {quoted}")[0][1]), flavour)


def _shown_actions(cursor: Cursor, name: tuple[str, str], flavour: str) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Returns the ON DELETE and ON UPDATE of a table's foreign keys, from SHOW CREATE TABLE, by (database, table, constraint). Returns {}
    if the output cannot be parsed.
    """
    statement = _shown_table(cursor, name, flavour)
    keys = statement.foreign_keys if isinstance(statement, CreateTable) else ()
    return {(*name, key.symbol): (key.on_delete, key.on_update) for key in keys}


class _Notation(enum.Enum):
    """The form in which information_schema shows a DEFAULT."""

    EXPRESSION = "MariaDB"  # An expression, as in a DDL statement.
    TEXT = "MySQL 5.7"  # A constant without its quotes.
    HEXADECIMAL = "MySQL 8.0"  # Like TEXT, but a binary string is shown as 0x616263, truncated at its first zero byte.


def _notation(flavour: str, version: str) -> _Notation:
    if flavour == MARIADB:
        return _Notation.EXPRESSION
    return _Notation.TEXT if version.startswith("5.") else _Notation.HEXADECIMAL


def _server(row: tuple[Any, ...], *, logs_cascades: bool) -> DdlServerFacts:
    version, charset, lower_case, explicit_timestamps, time_zone = row
    flavour = MARIADB if "mariadb" in version.lower() else MYSQL
    numbers = tuple(int(number) for number in re.findall(r"\d+", version.removeprefix("5.5.5-"))[:2])
    return DdlServerFacts(
        flavour=flavour,
        charset=charset_name(charset),
        lower_case_names=int(lower_case) > 0,
        explicit_timestamps=bool(int(explicit_timestamps)),
        system_time_zone=time_zone,
        inline_references=numbers >= (INLINE_MARIADB if flavour == MARIADB else INLINE_MYSQL),
        match_ends=numbers < (MATCH_MARIADB if flavour == MARIADB else MATCH_MYSQL),
        logs_cascades=logs_cascades,
    )


def _table(
    name: tuple[str, str],
    collation: str | None,
    columns: list[Any],
    key: list[str],
    unnamed: Callable[..., DeclaredColumn],
) -> TableSchema:
    charset = charset_of_collation(collation or "")
    return TableSchema(
        database=name[0],
        table=name[1],
        charset=charset.name if charset else "",
        columns=tuple(
            dataclasses.replace(unnamed(*shown), name=column, comment=comment or "")
            for comment, column, *shown in columns
        ),
        key=tuple(key),
    )


def _unnamed(notation: _Notation, *shown: Any) -> DeclaredColumn:
    """Returns a column whose name and comment are empty. `shown` has the column's values in information_schema: column_type,
    character_set_name, is_nullable, extra and column_default.
    """
    column_type, charset, nullable, extra, default = shown
    column = _column(column_type, charset, nullable, extra)
    return dataclasses.replace(column, default=_default(column, extra, default, notation))


def _column(column_type: str, charset: str | None, nullable: str, extra: str) -> DeclaredColumn:
    declared = declared_type(column_type)
    # A column without a charset gets `binary`, because MySQL shows no charset for an ENUM in the charset binary. Types that need no
    # charset lose it below.
    charset = charset_name(charset) if charset else "binary"
    if charset in _WITHOUT_LIMIT:
        declared = dataclasses.replace(
            declared, labels=tuple(label.replace(UNKNOWN, HIDDEN_CHARACTER) for label in declared.labels)
        )
    has_none = not declared.has_charset and not declared.is_binary_string
    shown = extra.upper()
    generated = next((kind for kind in ("virtual", "stored") if f"{kind.upper()} GENERATED" in shown), "")
    generated = next((kind for kind in (ROW_START, ROW_END) if shown.startswith(kind.upper())), generated)
    return DeclaredColumn(
        name="",
        type=declared.text,
        charset="" if has_none else charset,
        nullable=nullable == "YES",
        generated=generated,
        visible="INVISIBLE" not in extra.upper(),
    )


def _default(column: DeclaredColumn, extra: str, shown: str | None, notation: _Notation) -> tuple[str | None, ...]:
    declared = declared_type(column.type)
    try:
        default = _shown_default(shown, extra, notation, declared)
    except (UnreadableError, ValueError):
        return ()
    if (
        default
        and default.value
        and UNKNOWN in default.value
        and column.charset not in ("", "ascii", "latin1", "utf8mb3")
    ):
        return ()  # The server prints `?` for a character outside utf8mb3.
    definition = ColumnDefinition(
        column.name,
        declared,
        column.charset,
        nullable=column.nullable,
        generated=column.generated,
        auto_increment="auto_increment" in extra,
        default=default,
    )
    known = known_default(definition)
    return () if known and HIDDEN_CHARACTER in (known[0] or "") else known


def _shown_default(shown: str | None, extra: str, notation: _Notation, declared: DeclaredType) -> Default | None:
    """Returns the default of a column as information_schema shows it. Raises UnreadableError or ValueError if the text cannot be parsed or
    is incomplete.
    """
    if shown is None:
        return None
    default = read_default(TokenCursor(tokens(shown))) if notation is _Notation.EXPRESSION else Default(shown)
    if _is_truncated(shown, default, notation, declared):
        raise ValueError("information_schema does not show the whole default")
    if notation is _Notation.EXPRESSION:
        return default
    if "DEFAULT_GENERATED" in extra:
        return EXPRESSION
    if declared.is_binary_string:
        return Default(shown.removeprefix("0x"), DefaultNotation.BYTES)
    return read_default(TokenCursor(tokens(shown))) if declared.base == "bit" else Default(shown)


def _is_truncated(shown: str, default: Default, notation: _Notation, declared: DeclaredType) -> bool:
    """Returns whether information_schema may show only a part of the default, because the default is a float with many digits, or bytes
    that are not text.
    """
    if declared.base == "float" and declared.scale < 0:
        return len(re.sub(r"[-+.]|e.*", "", shown).strip("0")) > FLOAT_DIGITS_SHOWN
    if not declared.is_binary_string or default.notation is not DefaultNotation.STRING:
        return False
    if notation is _Notation.HEXADECIMAL:
        return shown.startswith("0x")
    value = default.value or ""
    return notation is _Notation.TEXT or "?" in value or not value.isascii()


def _with_whole_defaults(cursor: Cursor, table: TableSchema, shown: list[Any], notation: _Notation) -> TableSchema:
    """Returns the table with complete defaults. If information_schema truncates the default of a nullable column, queries DEFAULT(column).
    For a NOT NULL column this query needs a table with rows, so the default comes from SHOW CREATE TABLE if possible.
    """
    truncated = [
        column
        for column, (*_, extra, default) in zip(table.columns, shown, strict=False)
        if not column.default and default is not None and "GENERATED" not in extra
        and _is_truncated(default, Default(default), notation, declared_type(column.type))
    ]  # fmt: skip
    if not truncated:
        return table
    queried = [column for column in truncated if column.nullable]
    whole = (
        dict(zip((column.name for column in queried), _queried_defaults(cursor, table, queried), strict=True))
        if queried
        else {}
    )
    if notation is not _Notation.EXPRESSION and len(queried) < len(truncated):
        whole |= _printed(cursor, table, [column for column in truncated if not column.nullable])
    columns = tuple(dataclasses.replace(each, default=whole.get(each.name, each.default)) for each in table.columns)
    return dataclasses.replace(table, columns=columns)


def _printed(cursor: Cursor, table: TableSchema, columns: list[DeclaredColumn]) -> dict[str, tuple[str | None, ...]]:
    """Returns the defaults that SHOW CREATE TABLE prints for columns of bytes, such as VARBINARY, by column. Leaves out a default that
    is not all ASCII or contains `?`, because the server prints other bytes as `?`.
    """
    try:
        statement = _shown_table(cursor, (table.database, table.table), MYSQL)
    except MySQLError:  # The account does not have the privilege.
        return {}
    read = {each.name: each.default for each in statement.columns} if isinstance(statement, CreateTable) else {}
    found: dict[str, tuple[str | None, ...]] = {}
    for column in columns:
        default, declared = read.get(column.name), declared_type(column.type)
        text = default.value if default is not None and default.notation is DefaultNotation.STRING else None
        if declared.is_binary_string and text is not None and text.isascii() and UNKNOWN not in text:
            bytes_as_hex = Default(text.encode().hex(), DefaultNotation.BYTES)
            definition = ColumnDefinition(column.name, declared, column.charset, nullable=False, default=bytes_as_hex)
            found[column.name] = known_default(definition)
    return found


def _queried_defaults(
    cursor: Cursor, table: TableSchema, columns: list[DeclaredColumn]
) -> list[tuple[str | None, ...]]:
    values = [
        f"DEFAULT({_quoted(column.name)}) * 1e0"
        if column.type.startswith("float")
        else f"LOWER(HEX(DEFAULT({_quoted(column.name)})))"
        for column in columns
    ]
    relation = f"{_quoted(table.database)}.{_quoted(table.table)}"
    try:
        (row,) = _rows(cursor, f"SELECT {', '.join(values)} FROM (SELECT 1) AS one LEFT JOIN {relation} ON FALSE")
    except MySQLError:  # The account may not read the table.
        return [() for _ in columns]
    return [() if value is None else (value if isinstance(value, str) else repr(value),) for value in row]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


FLOAT_DIGITS_SHOWN = 5  # The servers show at least this many digits of a float.
