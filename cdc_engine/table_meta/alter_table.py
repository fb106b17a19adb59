"""ALTER TABLE behind its name: one entry of ACTIONS per kind of action. Called by `ddl`.

An action either leaves columns and rows alone, adds columns, sets the default charset, or is not handled yet: then its first words are
noted, and the table stops. An action that no entry matches makes the statement unreadable.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from cdc_engine.table_meta.column_definition import ColumnDefinition, read_charset, read_collation, read_column
from cdc_engine.table_meta.lexer import TokenCursor, TokenKind
from cdc_engine.table_meta.names import skip_to_comma
from cdc_engine.table_meta.statement import AlterTable, TableName

ACTION_WORDS_MAX = 5


@dataclasses.dataclass
class _Alteration:
    flavour: str
    additions: list[ColumnDefinition] = dataclasses.field(default_factory=list)
    charset: str | None = None
    unsupported: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Action:
    """`words`: what the pattern matched; the cursor stands behind it."""

    cursor: TokenCursor
    words: str
    alteration: _Alteration


def read_actions(cursor: TokenCursor, name: TableName, flavour: str) -> AlterTable:
    """Raises UnreadableError at an action that is not known."""
    alteration = _Alteration(flavour)
    if cursor.accept("WAIT"):
        cursor.next()
    cursor.accept("NOWAIT")
    while not cursor.at_end:
        _read_action(cursor, alteration)
        if not cursor.at_end and not cursor.accept_sign(",") and cursor.peek().kind is TokenKind.SIGN:
            raise cursor.unreadable()
    return AlterTable(
        "", name, tuple(alteration.additions), charset=alteration.charset, unsupported=tuple(alteration.unsupported)
    )


def read_index_drop(cursor: TokenCursor) -> str:
    """The name of an index that is dropped: what makes that unsupported, empty where nothing does."""
    return "DROP PRIMARY KEY" if cursor.expect_name().upper() == "PRIMARY" else ""


def _read_action(cursor: TokenCursor, alteration: _Alteration) -> None:
    leading = cursor.words(ACTION_WORDS_MAX)
    for pattern, read in ACTIONS:
        if match := pattern.match(leading):
            for _ in range(match[0].count(" ")):
                cursor.next()
            read(_Action(cursor, match[0].strip(), alteration))
            return
    raise cursor.unreadable()


def _skip(action: _Action) -> None:
    skip_to_comma(action.cursor)


def _skip_all(action: _Action) -> None:
    action.cursor.skip_all()


def _skip_nothing(_action: _Action) -> None:
    return


def _option(action: _Action) -> None:
    """One table option; the next one may follow without a comma."""
    action.cursor.accept_sign("=")
    if action.cursor.peek().text == "(":
        action.cursor.skip_parentheses()
    else:
        action.cursor.next()


def _unsupported(action: _Action) -> None:
    action.alteration.unsupported.append(action.words)
    skip_to_comma(action.cursor)


def _add_columns(action: _Action) -> None:
    cursor, if_not_exists = action.cursor, "EXISTS" in action.words
    several = cursor.accept_sign("(")
    while True:
        column = read_column(cursor, action.alteration.flavour)
        column.if_not_exists = if_not_exists
        action.alteration.additions.append(column)
        if not several:
            return
        if cursor.accept_sign(")"):
            return
        cursor.expect_sign(",")


def _add_constraint(action: _Action) -> None:
    if action.cursor.peek().word not in {"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"}:
        action.cursor.expect_name()
    if action.cursor.peek().word == "PRIMARY":
        action.alteration.unsupported.append("ADD PRIMARY KEY")
    skip_to_comma(action.cursor)


def _drop_index(action: _Action) -> None:
    if unsupported := read_index_drop(action.cursor):
        action.alteration.unsupported.append(unsupported)


def _charset(action: _Action) -> None:
    action.alteration.charset = read_charset(action.cursor)


def _collation(action: _Action) -> None:
    action.alteration.charset = read_collation(action.cursor) or action.alteration.charset


def _order_by(action: _Action) -> None:
    """ORDER BY a, b DESC: a comma goes on with the list where a bare column follows."""
    cursor = action.cursor
    while True:
        cursor.expect_name()
        if cursor.peek().word in {"ASC", "DESC"}:
            cursor.next()
        behind = cursor.peek(2)
        if cursor.peek().text != "," or not (
            behind.text == "," or behind.kind is TokenKind.END or behind.word in {"ASC", "DESC"}
        ):
            return
        cursor.next()


_OPTIONS = (
    r"(?:AUTO_INCREMENT|AUTOEXTEND_SIZE|AVG_ROW_LENGTH|CHECKSUM|COMMENT|COMPRESSION|CONNECTION|DATA DIRECTORY|DELAY_KEY_WRITE"
    r"|ENCRYPTED|ENCRYPTION|ENCRYPTION_KEY_ID|ENGINE|ENGINE_ATTRIBUTE|INDEX DIRECTORY|INSERT_METHOD|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS"
    r"|PACK_KEYS|PAGE_CHECKSUM|PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|PASSWORD|ROW_FORMAT|SECONDARY_ENGINE"
    r"|SECONDARY_ENGINE_ATTRIBUTE|STATS_AUTO_RECALC|STATS_PERSISTENT|STATS_SAMPLE_PAGES|STORAGE|TABLE_CHECKSUM|TABLESPACE"
    r"|TRANSACTIONAL|TYPE|UNION|ALGORITHM|LOCK)"
)
_ACTIONS: tuple[tuple[str, Callable[[_Action], None]], ...] = (
    (r"ADD (?:INDEX|KEY|UNIQUE|FULLTEXT|SPATIAL|FOREIGN|CHECK|VECTOR INDEX|VECTOR KEY) ", _skip),
    (r"ADD PRIMARY KEY ", _unsupported),
    (r"ADD CONSTRAINT ", _add_constraint),
    (r"ADD PARTITION ", _skip_all),
    (r"ADD (?:SYSTEM VERSIONING|PERIOD FOR) ", _unsupported),
    (r"ADD (?:COLUMN )?(?:IF NOT EXISTS )?", _add_columns),
    (r"DROP (?:INDEX|KEY|FOREIGN KEY|CONSTRAINT|CHECK) (?:IF EXISTS )?", _drop_index),
    (r"DROP (?:PRIMARY KEY|PARTITION|SYSTEM VERSIONING|PERIOD FOR|COLUMN) ", _unsupported),
    (r"DROP ", _unsupported),
    (r"(?:DEFAULT )?(?:CHARACTER SET|CHAR SET|CHARSET) ", _charset),
    (r"(?:DEFAULT )?COLLATE ", _collation),
    (r"RENAME (?:INDEX|KEY) ", _skip),
    (r"RENAME (?:COLUMN |TO |AS )?", _unsupported),
    (r"ALTER (?:INDEX|CHECK|CONSTRAINT|COLUMN) ", _skip),
    (r"ALTER ", _skip),
    (r"(?:CHANGE|MODIFY) (?:COLUMN )?", _unsupported),
    (r"CONVERT (?:TO |PARTITION |TABLE )", _unsupported),
    (r"(?:DISCARD|IMPORT|EXCHANGE|TRUNCATE) ", _unsupported),
    (r"(?:DISABLE|ENABLE) KEYS ", _skip_nothing),
    (r"(?:WITH|WITHOUT) VALIDATION ", _skip_nothing),
    (r"(?:FORCE|SECONDARY_LOAD|SECONDARY_UNLOAD) ", _skip_nothing),
    (r"ORDER BY ", _order_by),
    (r"(?:PARTITION BY|REMOVE PARTITIONING) ", _skip_all),
    (r"(?:REORGANIZE|COALESCE|ANALYZE|CHECK|OPTIMIZE|REBUILD|REPAIR) PARTITION ", _skip_all),
    (rf"{_OPTIONS} ", _option),
)
ACTIONS: tuple[tuple[re.Pattern[str], Callable[[_Action], None]], ...] = tuple(
    (re.compile(pattern), read) for pattern, read in _ACTIONS
)
