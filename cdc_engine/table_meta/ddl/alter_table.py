"""Parses ALTER TABLE after the table's name. ACTIONS has one entry for each kind of action.

An action that changes neither columns nor rows is skipped. An action that changes the schema becomes an item or a field of `AlterTable`. An
action that changes rows without row events becomes an entry of `AlterTable.rows_lost`.

An action without an entry is skipped if it has the form `name = value`, because it is an option of a storage engine. Any other action
without an entry makes the statement unreadable.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from sluice.cdc_engine.table_meta.ddl.column_definition import (
    ColumnDefinition,
    accept_default,
    read_charset,
    read_collation,
    read_column,
    read_comment,
)
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB
from sluice.cdc_engine.table_meta.ddl.default_value import read_default
from sluice.cdc_engine.table_meta.ddl.foreign_key import read_foreign_key
from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind, UnreadableError
from sluice.cdc_engine.table_meta.ddl.names import (
    PeriodName,
    is_vector_index,
    read_key_columns,
    read_table_name,
    read_table_names,
    skip_to_comma,
)
from sluice.cdc_engine.table_meta.ddl.statement import (
    AddColumn,
    AddForeignKey,
    AlterItem,
    AlterTable,
    ChangeColumn,
    DropColumn,
    DropForeignKey,
    DropKey,
    RenameColumn,
    SetCharset,
    SetDefault,
    SetKey,
    SetPeriod,
    SetVersioning,
    SetVisible,
    TableName,
)

ACTION_WORDS_MAX = 6


@dataclasses.dataclass
class _Alteration:
    flavour: str
    items: list[AlterItem] = dataclasses.field(default_factory=list)
    rows_lost: list[str] = dataclasses.field(default_factory=list)
    renames_to: TableName | None = None
    others: list[tuple[TableName, str]] = dataclasses.field(default_factory=list)
    engine: str = ""
    union: tuple[TableName, ...] = ()
    comment: str | None = None
    acted: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Action:
    """An action that is being parsed. `words` are the keywords that the action's pattern matched; the cursor is after these keywords."""

    cursor: TokenCursor
    words: str
    alteration: _Alteration

    @property
    def if_exists(self) -> bool:
        return self.words.endswith("IF EXISTS")

    def note(self, item: AlterItem) -> None:
        self.alteration.items.append(item)


def read_actions(cursor: TokenCursor, name: TableName, flavour: str, *, ignore: bool = False) -> AlterTable:
    """Parses the actions of an ALTER TABLE. `ignore` tells whether the statement is ALTER IGNORE, which deletes rows that violate a
    constraint. Raises UnreadableError at an unknown action.
    """
    alteration = _Alteration(flavour)
    if cursor.accept("WAIT"):
        cursor.next()
    cursor.accept("NOWAIT")
    while not cursor.at_end:
        _read_action(cursor, alteration)
        if not cursor.at_end and not cursor.accept_sign(",") and cursor.peek().kind is TokenKind.SIGN:
            raise cursor.unreadable()
    if ignore:
        alteration.rows_lost += [f"IGNORE {words}" for words in alteration.acted if not _HARMLESS.match(f"{words} ")]
    return AlterTable(
        "",
        name,
        tuple(alteration.items),
        tuple(alteration.rows_lost),
        alteration.renames_to,
        alters=len(alteration.acted) > (alteration.renames_to is not None),
        others=tuple(alteration.others),
        engine=alteration.engine,
        union=alteration.union,
        comment=alteration.comment,
    )


def _read_action(cursor: TokenCursor, alteration: _Alteration) -> None:
    leading = cursor.words(ACTION_WORDS_MAX)
    for pattern, read in ACTIONS:
        if match := pattern.match(leading):
            for _ in range(match[0].count(" ")):
                cursor.next()
            alteration.acted.append(match[0].strip())
            read(_Action(cursor, match[0].strip(), alteration))
            return
    if cursor.peek(1) != Token(TokenKind.SIGN, "="):
        raise cursor.unreadable()
    cursor.next()  # The name of an option of a storage engine, possibly in backquotes.
    _option(_Action(cursor, "", alteration))


def _skip(action: _Action) -> None:
    skip_to_comma(action.cursor)


def _skip_all(action: _Action) -> None:
    action.cursor.skip_all()


def _skip_nothing(_action: _Action) -> None:
    return


def _option(action: _Action) -> None:
    """Skips the value of one table option. Another option may follow without a comma."""
    action.cursor.accept_sign("=")
    if action.cursor.peek().text == "(":
        action.cursor.skip_parentheses()
    else:
        action.cursor.next()


def _rows_lost_all(action: _Action) -> None:
    """Records an action on partitions or on a tablespace that removes or inserts rows, and skips the rest of the statement. No other action
    can follow: commas in this action separate names of partitions.
    """
    action.alteration.rows_lost.append(action.words)
    action.cursor.skip_all()


def _exchange(action: _Action) -> None:
    """Parses EXCHANGE PARTITION p WITH TABLE t, which swaps the rows of the partition and the table."""
    cursor = action.cursor
    action.alteration.rows_lost.append(f"{action.words} PARTITION")
    while not cursor.accept("WITH", "TABLE"):
        if cursor.at_end:
            raise cursor.unreadable()
        cursor.next()
    action.alteration.others.append((read_table_name(cursor), f"{action.words} PARTITION"))
    cursor.skip_all()


def _convert_partition(action: _Action) -> None:
    """Parses CONVERT PARTITION or CONVERT TABLE of MariaDB. CONVERT PARTITION p TO TABLE t creates a table from a partition's rows. CONVERT
    TABLE t TO PARTITION p … removes the table t with its rows.
    """
    cursor = action.cursor
    action.alteration.rows_lost.append(action.words)
    if action.words == "CONVERT PARTITION":
        cursor.expect_name()
        cursor.expect("TO")
        cursor.expect("TABLE")
    action.alteration.others.append((read_table_name(cursor), action.words))
    cursor.skip_all()


def _engine(action: _Action) -> None:
    action.cursor.accept_sign("=")
    action.alteration.engine = action.cursor.expect_name()


def _union(action: _Action) -> None:
    action.cursor.accept_sign("=")
    action.alteration.union = read_table_names(action.cursor)


def _versioning(action: _Action) -> None:
    action.note(SetVersioning(not action.words.startswith("DROP")))


def _add_period(action: _Action) -> None:
    """Parses ADD PERIOD FOR name (begin, end), which makes both columns NOT NULL. Skips SYSTEM_TIME, the period of system versioning."""
    name = action.cursor.expect_name()
    columns = read_key_columns(action.cursor)
    if name.upper() != "SYSTEM_TIME":
        action.note(SetPeriod(columns, if_not_exists="EXISTS" in action.words))


def _add_columns(action: _Action) -> None:
    cursor, if_not_exists = action.cursor, action.words.endswith("NOT EXISTS")
    several = cursor.accept_sign("(")
    while True:
        if (several or is_vector_index(cursor)) and _read_constraint(action):
            pass
        else:
            column = read_column(action.cursor, action.alteration.flavour)
            column.if_not_exists = if_not_exists
            action.note(AddColumn(column))
            if column.unique or column.primary:
                action.alteration.acted.append("ADD UNIQUE")
            _note_references(action, column)
        if not several or cursor.accept_sign(")"):
            return
        cursor.expect_sign(",")


_INDEX = re.compile(r"(?:INDEX|KEY|PRIMARY|UNIQUE|FULLTEXT|SPATIAL|FOREIGN|CONSTRAINT|CHECK) ")


def _read_constraint(action: _Action) -> bool:
    """Parses an index or constraint in a list of columns: ADD (a int, KEY (a)). Returns whether there was one."""
    if not _INDEX.match(action.cursor.words(1)) and not is_vector_index(action.cursor):
        return False
    action.alteration.acted.append(f"ADD {action.cursor.peek().word}")
    if action.cursor.accept("PRIMARY", "KEY"):
        _add_key(action)
    elif action.cursor.peek().word == "FOREIGN":
        _add_foreign_key(action)
    elif action.cursor.accept("CONSTRAINT"):
        _add_constraint(action)
    else:
        skip_to_comma(action.cursor)
    return True


def _note_references(action: _Action, column: ColumnDefinition) -> None:
    if column.references is not None:
        action.note(AddForeignKey(column.references))


def _add_foreign_key(action: _Action, symbol: str = "") -> None:
    action.note(AddForeignKey(read_foreign_key(action.cursor, symbol)))


def _add_key(action: _Action) -> None:
    columns = read_key_columns(action.cursor)
    for name in columns:
        if isinstance(name, PeriodName):
            raise UnreadableError(f"a key with the period {name} WITHOUT OVERLAPS is supported in CREATE TABLE only")
    action.note(SetKey(columns, if_not_exists=action.words.endswith("NOT EXISTS")))


def _add_constraint(action: _Action) -> None:
    symbol = ""
    if action.cursor.peek().word not in {"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"}:
        symbol = action.cursor.expect_name()
    if action.cursor.accept("PRIMARY", "KEY"):
        _add_key(action)
    elif action.cursor.peek().word == "FOREIGN":
        _add_foreign_key(action, symbol)
    else:
        skip_to_comma(action.cursor)


def _drop_column(action: _Action) -> None:
    action.note(DropColumn(action.cursor.expect_last_name(), action.if_exists))
    if action.cursor.peek().word in {"RESTRICT", "CASCADE"}:
        action.cursor.next()


def _drop_key(action: _Action) -> None:
    action.note(DropKey())


def _drop_index(action: _Action) -> None:
    if action.cursor.expect_name().upper() == "PRIMARY":
        action.note(DropKey())


def _drop_foreign_key(action: _Action) -> None:
    name = action.cursor.expect_last_name()
    if name.upper() == "PRIMARY" and "CONSTRAINT" in action.words:
        action.note(DropKey())
    else:
        action.note(DropForeignKey(name, "FOREIGN" in action.words, action.if_exists))


def _change_column(action: _Action) -> None:
    name = action.cursor.expect_last_name()
    definition = read_column(action.cursor, action.alteration.flavour)
    action.note(ChangeColumn(name, definition, action.if_exists))
    _note_references(action, definition)


def _modify_column(action: _Action) -> None:
    definition = read_column(action.cursor, action.alteration.flavour)
    action.note(ChangeColumn(definition.name, definition, action.if_exists))
    _note_references(action, definition)


def _rename_column(action: _Action) -> None:
    name = action.cursor.expect_name()
    action.cursor.expect("TO")
    action.note(RenameColumn(name, action.cursor.expect_name(), action.if_exists))


def _alter_column(action: _Action) -> None:
    """Parses ALTER COLUMN. SET DEFAULT and DROP DEFAULT affect only future rows. SET VISIBLE and SET INVISIBLE change what SELECT *
    returns.
    """
    name = action.cursor.expect_last_name()
    if action.cursor.accept("SET", "DEFAULT"):
        action.note(SetDefault(name, read_default(action.cursor), action.if_exists))
    elif action.cursor.peek().word == "DROP" and action.cursor.peek(1).word == "DEFAULT":
        action.note(SetDefault(name, None, action.if_exists))
    if action.cursor.peek().word == "SET" and action.cursor.peek(1).word in {"VISIBLE", "INVISIBLE"}:
        action.note(SetVisible(name, action.cursor.peek(1).word == "VISIBLE"))
    skip_to_comma(action.cursor)


def _rename_table(action: _Action) -> None:
    action.cursor.accept_sign("=")
    action.alteration.renames_to = read_table_name(action.cursor)


def _convert(action: _Action) -> None:
    charset = None if action.cursor.accept("DEFAULT") else read_charset(action.cursor)
    if action.cursor.accept("COLLATE") and not accept_default(action.cursor):
        charset = read_collation(action.cursor) or charset
    action.note(SetCharset(charset, converts=True))


def _charset(action: _Action) -> None:
    charset = None if accept_default(action.cursor) else read_charset(action.cursor)
    action.note(SetCharset(charset))


def _collation(action: _Action) -> None:
    """Parses COLLATE. In MySQL, COLLATE = DEFAULT means the database's charset. In MariaDB, it changes nothing."""
    if accept_default(action.cursor):
        if action.alteration.flavour != MARIADB:
            action.note(SetCharset(None))
    elif charset := read_collation(action.cursor):
        action.note(SetCharset(charset))


def _comment(action: _Action) -> None:
    action.alteration.comment = read_comment(action.cursor)


def _order_by(action: _Action) -> None:
    """Skips ORDER BY a, b DESC. A comma may also begin the next action. The list continues after a comma only if a name follows, alone or
    with ASC or DESC.
    """
    cursor = action.cursor
    while True:
        cursor.expect_name()
        while cursor.accept_sign("."):
            cursor.expect_name()
        if cursor.peek().word in {"ASC", "DESC"}:
            cursor.next()
        behind = cursor.peek(2)
        if cursor.peek().text != "," or not (
            behind.text in {",", "."} or behind.kind is TokenKind.END or behind.word in {"ASC", "DESC"}
        ):
            return
        cursor.next()


_OPTIONS = (
    r"(?:AUTO_INCREMENT|AUTOEXTEND_SIZE|AVG_ROW_LENGTH|CHECKSUM|COMMENT|COMPRESSION|CONNECTION|DATA DIRECTORY|DELAY_KEY_WRITE"
    r"|ENCRYPTED|ENCRYPTION|ENCRYPTION_KEY_ID|ENGINE_ATTRIBUTE|INDEX DIRECTORY|INSERT_METHOD|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS"
    r"|PACK_KEYS|PAGE_CHECKSUM|PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|PASSWORD|ROW_FORMAT|SECONDARY_ENGINE"
    r"|SECONDARY_ENGINE_ATTRIBUTE|STATS_AUTO_RECALC|STATS_PERSISTENT|STATS_SAMPLE_PAGES|STORAGE|TABLE_CHECKSUM|TABLESPACE"
    r"|TRANSACTIONAL|ALGORITHM|LOCK)"
)
# Actions with which ALTER IGNORE deletes no rows.
_HARMLESS = re.compile(
    rf"(?:ADD (?:COLUMN|INDEX|KEY|FULLTEXT|SPATIAL|VECTOR|FOREIGN)|RENAME|ALTER|DISABLE|ENABLE|FORCE|WITH|ORDER|DEFAULT"
    rf"|DROP (?:INDEX|KEY|FOREIGN|CONSTRAINT|CHECK)|CHARACTER|CHAR|CHARSET|COLLATE|ENGINE|TYPE|{_OPTIONS}) "
    r"|ADD (?:IF NOT EXISTS )?\Z"
)
_CHARACTER_SET = r"(?:CHARACTER SET|CHAR SET|CHARSET) "
_ACTIONS: tuple[tuple[str, Callable[[_Action], None]], ...] = (
    (r"ADD (?:INDEX|KEY|UNIQUE|FULLTEXT|SPATIAL|CHECK|VECTOR INDEX|VECTOR KEY) ", _skip),
    (r"ADD (?=FOREIGN KEY )", _add_foreign_key),
    (r"ADD PRIMARY KEY (?:IF NOT EXISTS )?", _add_key),
    (r"ADD CONSTRAINT (?:IF NOT EXISTS )?", _add_constraint),
    (r"ADD PARTITION ", _skip_all),
    (r"(?:ADD|WITH) SYSTEM VERSIONING ", _versioning),
    (r"ADD PERIOD (?:IF NOT EXISTS )?FOR ", _add_period),
    (r"ADD (?:COLUMN )?(?:IF NOT EXISTS )?", _add_columns),
    (r"DROP (?:CONSTRAINT )?PRIMARY KEY ", _drop_key),
    (r"DROP (?:FOREIGN KEY|CONSTRAINT) (?:IF EXISTS )?", _drop_foreign_key),
    (r"DROP (?:INDEX|KEY|CHECK) (?:IF EXISTS )?", _drop_index),
    (r"DROP PARTITION ", _rows_lost_all),
    (r"DROP SYSTEM VERSIONING ", _versioning),
    (r"DROP PERIOD (?:IF EXISTS )?FOR ", _skip),
    (r"DROP (?:COLUMN )?(?:IF EXISTS )?", _drop_column),
    (rf"(?:DEFAULT )?{_CHARACTER_SET}", _charset),
    (r"(?:DEFAULT )?COLLATE ", _collation),
    (r"RENAME (?:INDEX|KEY) (?:IF EXISTS )?", _skip),
    (r"RENAME COLUMN (?:IF EXISTS )?", _rename_column),
    (r"RENAME (?:TO |AS )?", _rename_table),
    (r"ALTER (?:INDEX|KEY|CHECK|CONSTRAINT) ", _skip),
    (r"ALTER (?:COLUMN )?(?:IF EXISTS )?", _alter_column),
    (r"CHANGE (?:COLUMN )?(?:IF EXISTS )?", _change_column),
    (r"MODIFY (?:COLUMN )?(?:IF EXISTS )?", _modify_column),
    (rf"CONVERT TO {_CHARACTER_SET}", _convert),
    (r"CONVERT (?:PARTITION |TABLE )", _convert_partition),
    (r"EXCHANGE ", _exchange),
    (r"(?:DISCARD|IMPORT|TRUNCATE) ", _rows_lost_all),
    (r"(?:DISABLE|ENABLE) KEYS ", _skip_nothing),
    (r"(?:WITH|WITHOUT) VALIDATION ", _skip_nothing),
    (r"FORCE ", _skip_nothing),
    (r"ORDER BY ", _order_by),
    (r"(?:PARTITION BY|REMOVE PARTITIONING|UPGRADE PARTITIONING|SECONDARY_LOAD|SECONDARY_UNLOAD) ", _skip_all),
    (r"(?:REORGANIZE|COALESCE|ANALYZE|CHECK|OPTIMIZE|REBUILD|REPAIR) PARTITION ", _skip_all),
    (r"(?:ENGINE|TYPE) ", _engine),
    (r"UNION ", _union),
    (r"COMMENT ", _comment),
    (rf"{_OPTIONS} ", _option),
)
ACTIONS: tuple[tuple[re.Pattern[str], Callable[[_Action], None]], ...] = tuple(
    (re.compile(pattern), read) for pattern, read in _ACTIONS
)
