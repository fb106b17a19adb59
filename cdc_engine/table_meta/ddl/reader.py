"""Parses a DDL statement of the binlog. Pure functions.

FORMS has one entry per form of statement: a pattern for the keywords at the beginning, and a function that parses the rest. A statement
without an entry becomes `Unread`, and its tables stop in SCHEMA_UNKNOWN. To support such a form, add an entry, or extend the function of
its entry. Statements that are parsed, but that Sluice does not follow, stop tables in DDL_UNSUPPORTED: see `table_meta.history.effects`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from sluice.cdc_engine.binlog.charsets.statement_text import Literals, has_no_character
from sluice.cdc_engine.table_meta.ddl.alter_table import read_actions
from sluice.cdc_engine.table_meta.ddl.column_definition import accept_default, read_charset, read_collation
from sluice.cdc_engine.table_meta.ddl.create_table import read_create_table
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB
from sluice.cdc_engine.table_meta.ddl.lexer import Notation, Token, TokenCursor, TokenKind, UnreadableError, tokens
from sluice.cdc_engine.table_meta.ddl.names import read_table_name
from sluice.cdc_engine.table_meta.ddl.routine_call import CallRules, calls_routine
from sluice.cdc_engine.table_meta.ddl.row_change import changed_tables
from sluice.cdc_engine.table_meta.ddl.statement import (
    OF_SESSION,
    AddColumn,
    AlterTable,
    ChangeColumn,
    CreateStoredObject,
    CreateTable,
    DropDatabase,
    DropKey,
    DropTables,
    Nothing,
    Query,
    RenameTables,
    SetDatabase,
    Statement,
    StatementRowChange,
    TableName,
    Truncate,
    Unread,
    names_in,
)
from sluice.cdc_engine.table_meta.ddl.stored_object import read_stored_object, words_of

LEADING_WORDS_MAX = 8
# Bits of sql_mode, which are the same on all servers. https://dev.mysql.com/doc/dev/mysql-server/latest/system__variables_8h.html, mariadb:
# sql/sql_class.h
REAL_AS_FLOAT, ANSI_QUOTES, IGNORE_SPACE, ORACLE, MAXDB = 1, 4, 8, 512, 4096
NO_BACKSLASH_ESCAPES, STRICT = 1 << 20, 1 << 21 | 1 << 22


@dataclasses.dataclass(frozen=True)
class FormReading:
    """The arguments of the function that parses a form of statement. `kind` has the form's keywords, and the cursor is after these
    keywords. `words` are all names and keywords of the statement, in lower case. `strict` tells whether the session refused invalid values.
    `calls` has the rules by which a call of a routine is recognized.
    """

    cursor: TokenCursor
    kind: str
    flavour: str
    words: frozenset[str]
    strict: bool
    calls: CallRules


Reader = Callable[[FormReading], Statement]


def read_statement(
    statement: str,
    flavour: str,
    sql_mode: int = 0,
    literals: Literals = Literals(),  # noqa: B008 - immutable
) -> Statement:
    """Parses one statement. Never raises: returns `Unread` if the statement cannot be parsed, or if the parser has a defect."""
    try:
        return _read_statement(statement, flavour, sql_mode, literals)
    except UnreadableError as error:
        return Unread(leading_words(statement), str(error), text=statement)
    except Exception as error:
        # Errors of any kind are caught, because a defect of the parser must not stop the stream.
        return Unread(leading_words(statement), defect_text(error), text=statement)


def leading_words(statement: str) -> str:
    """Returns the first two words of a statement that could not be parsed, so that an operator can recognize the statement."""
    return " ".join(re.findall(r"[A-Za-z_]+", statement)[:2]).upper()


def defect_text(error: Exception) -> str:
    """Returns a sentence for an operator about an exception that is a defect of Sluice."""
    return f"this is a defect of Sluice: report it ({type(error).__name__}: {error})"


def _read_statement(statement: str, flavour: str, sql_mode: int, literals: Literals) -> Statement:
    found = _tokens_under(statement, flavour, sql_mode, literals.client)
    while found and found[-1] == Token(TokenKind.SIGN, ";"):
        found.pop()
    calls = CallRules(flavour=flavour, ignore_space=bool(sql_mode & IGNORE_SPACE), oracle=bool(sql_mode & ORACLE))
    read = _read_form(
        FormReading(TokenCursor(found, literals), "", flavour, words_of(found), bool(sql_mode & STRICT), calls)
    )
    if isinstance(read, Unread) and not read.names and has_no_character(statement):
        return dataclasses.replace(read, text=statement)
    if _defines_columns(read) and (sql_mode & MAXDB or (flavour == MARIADB and sql_mode & ORACLE)):
        reason = "the session had sql_mode ORACLE or MAXDB, in which types have other meanings"
        return Unread(read.kind, reason, names=names_in(read))
    return read


def _defines_columns(statement: Statement) -> bool:
    if isinstance(statement, AlterTable):
        return any(isinstance(item, AddColumn | ChangeColumn) for item in statement.items)
    return isinstance(statement, CreateTable) and bool(statement.columns)


def _tokens_under(statement: str, flavour: str, sql_mode: int, client: str) -> list[Token]:
    """Splits the statement into tokens, by the rules of the session's sql_mode."""
    notation = Notation(
        ansi_quotes=bool(sql_mode & ANSI_QUOTES),
        backslash_escapes=not sql_mode & NO_BACKSLASH_ESCAPES,
        mariadb=flavour == MARIADB,
        client=client,
    )
    found = tokens(statement, notation)
    # Under REAL_AS_FLOAT, REAL means FLOAT. REAL is a reserved word, so without quotes it is always the type.
    if sql_mode & REAL_AS_FLOAT:
        found = [Token(TokenKind.WORD, "FLOAT") if token.word == "REAL" else token for token in found]
    return found


def _read_form(reading: FormReading) -> Statement:
    cursor = reading.cursor
    leading = cursor.words(LEADING_WORDS_MAX)
    for pattern, reader in FORMS:
        if match := pattern.match(leading):
            for _ in range(match[0].count(" ")):
                cursor.next()
            return _read(reader, dataclasses.replace(reading, kind=match[0].strip()))
    return Unread(leading.strip(), "Sluice does not know statements that begin with these words", words=reading.words)


def _read(reader: Reader, reading: FormReading) -> Statement:
    try:
        return reader(reading)
    except UnreadableError as error:
        return Unread(reading.kind, str(error), words=reading.words)


def _read_nothing(reading: FormReading) -> Statement:
    return Nothing(reading.kind)


def _read_row_change(reading: FormReading) -> Statement:
    cursor = reading.cursor
    index = cursor.index
    try:
        names = changed_tables(cursor, reading.kind)
    except UnreadableError:
        names = ()
    if reading.kind in {"INSERT", "REPLACE", "LOAD"}:
        # Calls are searched only after the table's name, because `t (a, b)` would look like a call.
        index = cursor.index
    cursor.skip_all()
    calls = reading.kind == "CALL" or calls_routine(cursor.since(index), reading.calls)
    return StatementRowChange(reading.kind, reading.words, names, calls)


def _read_analyzed(reading: FormReading) -> Statement:
    """Parses MariaDB's ANALYZE [FORMAT = JSON] before a statement. MariaDB executes the statement and writes it to the binlog with this
    prefix.
    """
    if reading.cursor.accept("FORMAT"):
        reading.cursor.accept_sign("=")
        reading.cursor.next()
    return _read_form(reading)


def _read_set_statement(reading: FormReading) -> Statement:
    """Parses MariaDB's SET STATEMENT variable = value, … FOR statement."""
    while not reading.cursor.accept("FOR"):
        if reading.cursor.at_end:
            raise reading.cursor.unreadable()
        reading.cursor.next()
    return _read_form(reading)


def _read_create_table(reading: FormReading) -> Statement:
    name = read_table_name(reading.cursor)
    index = reading.cursor.index
    try:
        statement = read_create_table(reading.cursor, name, reading.flavour)
    except UnreadableError as error:
        return Unread(reading.kind, str(error), names=(name,))
    if statement.sequence:
        return Nothing(reading.kind)
    if statement.selects:
        reading.cursor.skip_all()
        calls = _select_calls(reading, index)
        statement = dataclasses.replace(statement, select_words=reading.words, select_calls=calls)
    return dataclasses.replace(
        statement, kind=reading.kind, replaces="REPLACE" in reading.kind, if_not_exists="EXISTS" in reading.kind
    )


def _read_temporary_table(reading: FormReading) -> Statement:
    """Parses CREATE TEMPORARY TABLE. MariaDB logs the statement with its SELECT, which may call a function that writes to other tables."""
    index = reading.cursor.index
    reading.cursor.skip_all()
    return Query(reading.kind, reading.words, _select_calls(reading, index))


def _select_calls(reading: FormReading, begin: int) -> bool:
    """Returns whether the SELECT of a CREATE TABLE calls a routine. `begin` is the index of a token before the SELECT. The cursor is at the
    end of the statement.
    """
    found = reading.cursor.since(begin)
    begin = next((index for index, token in enumerate(found) if token.word in _QUERIES), len(found))
    return calls_routine(found[begin:], reading.calls)


def _read_stored_object(reading: FormReading) -> Statement:
    try:
        read = read_stored_object(reading.cursor, reading.kind, reading.calls)
    # A statement that creates a trigger or view changes no row. If it cannot be parsed, only the effect of the trigger or view on later
    # statements is unknown.
    except UnreadableError:
        return CreateStoredObject(reading.kind)
    return read or Nothing(reading.kind)


def _read_alter_table(reading: FormReading) -> Statement:
    """Parses ALTER TABLE. With IGNORE, MariaDB deletes rows that violate a constraint, and converts values as without strict mode."""
    name = read_table_name(reading.cursor)
    ignore = " IGNORE " in reading.kind
    try:
        statement = read_actions(reading.cursor, name, reading.flavour, ignore=ignore)
    except UnreadableError as error:
        return Unread(reading.kind, str(error), names=(name,))
    return dataclasses.replace(statement, kind=reading.kind, strict=reading.strict and not ignore)


def _read_truncate(reading: FormReading) -> Statement:
    return Truncate(reading.kind, read_table_name(reading.cursor))


def _read_drop_table(reading: FormReading) -> Statement:
    names = [read_table_name(reading.cursor)]
    while reading.cursor.accept_sign(","):
        names.append(read_table_name(reading.cursor))
    return DropTables(reading.kind, tuple(names), if_exists="EXISTS" in reading.kind)


def _read_rename_table(reading: FormReading) -> Statement:
    pairs: list[tuple[TableName, TableName]] = []
    while True:
        old = read_table_name(reading.cursor)
        if reading.cursor.accept("WAIT"):
            reading.cursor.next()
        reading.cursor.accept("NOWAIT")
        reading.cursor.expect("TO")
        pairs.append((old, read_table_name(reading.cursor)))
        if not reading.cursor.accept_sign(","):
            return RenameTables(reading.kind, tuple(pairs), if_exists="EXISTS" in reading.kind)


def _read_drop_index(reading: FormReading) -> Statement:
    """Parses DROP INDEX. Only a drop of the index `PRIMARY` affects the lake."""
    is_key = reading.cursor.expect_name().upper() == "PRIMARY"
    reading.cursor.expect("ON")
    name = read_table_name(reading.cursor)
    return AlterTable(reading.kind, name, (DropKey(),)) if is_key else Nothing(reading.kind)


def _read_database(reading: FormReading) -> Statement:
    cursor = reading.cursor
    name = None
    if cursor.peek().word not in {"CHARACTER", "CHARSET", "CHAR", "COLLATE", "DEFAULT"}:
        name = cursor.expect_name()
    try:
        charset = _database_charset(cursor, reading.flavour)
    except UnreadableError:
        # The charset of the database is unknown, so a table stops if it is created later and its CREATE TABLE names no charset.
        charset = ""
    return SetDatabase(reading.kind, name, charset, creates=reading.kind.startswith("CREATE"))


def _database_charset(cursor: TokenCursor, flavour: str) -> str | None:
    """Parses the charset of a database, or returns None if the statement has none. CHARACTER SET DEFAULT means the charset of the session
    (collation_server). COLLATE DEFAULT means the same in MySQL, and changes nothing in MariaDB.
    """
    charset: str | None = None
    while not cursor.at_end:
        if cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET"):
            charset = OF_SESSION if accept_default(cursor) else read_charset(cursor)
        elif cursor.accept("COLLATE"):
            default = charset if flavour == MARIADB else OF_SESSION
            charset = default if accept_default(cursor) else read_collation(cursor) or charset
        else:
            cursor.next()
    return charset


def _read_drop_database(reading: FormReading) -> Statement:
    return DropDatabase(reading.kind, reading.cursor.expect_name())


_QUERIES = {"SELECT", "WITH", "VALUES", "TABLE"}
_ROUTINES = (
    r"(?:VIEW|ALGORITHM|DEFINER|SQL|PROCEDURE|FUNCTION|AGGREGATE|TRIGGER|EVENT|USER|ROLE|SERVER|SEQUENCE|PACKAGE|RESOURCE|TABLESPACE"
    r"|UNDO|LOGFILE|SPATIAL REFERENCE|INSTANCE|PREPARE|LIBRARY|JSON (?:RELATIONAL )?DUALITY|MATERIALIZED|MASKING|CATALOG)"
)
_FORMS: tuple[tuple[str, Reader], ...] = (
    (r"CREATE (?:OR REPLACE )?TEMPORARY TABLE ", _read_temporary_table),
    (r"CREATE (?:OR REPLACE )?TEMPORARY SEQUENCE ", _read_nothing),
    (r"DROP TEMPORARY ", _read_nothing),
    (r"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?", _read_create_table),
    (r"ALTER (?:ONLINE |OFFLINE )?(?:IGNORE )?TABLE (?:IF EXISTS )?", _read_alter_table),
    (r"TRUNCATE (?:TABLE )?", _read_truncate),
    (r"DROP (?:TABLE|TABLES) (?:IF EXISTS )?", _read_drop_table),
    (r"RENAME (?:TABLE|TABLES) (?:IF EXISTS )?", _read_rename_table),
    (r"CREATE (?:OR REPLACE )?(?:ONLINE |OFFLINE )?(?:UNIQUE |FULLTEXT |SPATIAL |VECTOR )?INDEX ", _read_nothing),
    (r"DROP (?:ONLINE |OFFLINE )?INDEX (?:IF EXISTS )?", _read_drop_index),
    (r"CREATE (?:OR REPLACE )?(?:DATABASE|SCHEMA) (?:IF NOT EXISTS )?", _read_database),
    (r"ALTER (?:DATABASE|SCHEMA) ", _read_database),
    (r"DROP (?:DATABASE|SCHEMA) (?:IF EXISTS )?", _read_drop_database),
    (rf"(?:CREATE|ALTER|DROP) (?:OR REPLACE )?{_ROUTINES} ", _read_stored_object),
    (r"SET STATEMENT ", _read_set_statement),
    (r"(?:OPTIMIZE|CHECK|CHECKSUM|REPAIR|ANALYZE (?:NO_WRITE_TO_BINLOG |LOCAL )?(?:TABLE|TABLES)) ", _read_nothing),
    (r"ANALYZE ", _read_analyzed),
    (
        r"(?:GRANT|REVOKE|SET|FLUSH|RESET|PURGE|USE|KILL|LOCK|UNLOCK|INSTALL|UNINSTALL|CHANGE|RENAME USER|CACHE) ",
        _read_nothing,
    ),
    (r"(?:BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|XA|PREPARE|EXECUTE|DEALLOCATE) ", _read_nothing),
    (r"(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|MERGE|WITH|CALL|DO|SELECT|VALUES|IMPORT) ", _read_row_change),
)
FORMS: tuple[tuple[re.Pattern[str], Reader], ...] = tuple((re.compile(pattern), reader) for pattern, reader in _FORMS)
