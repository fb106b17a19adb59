"""Parses one column definition of a DDL statement.

`_ATTRIBUTES` lists the known attributes. An unknown attribute of the form `name = value` belongs to a storage engine of MariaDB, and is
skipped. Any other unknown attribute makes the statement unreadable, because it could change the column.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from sluice.cdc_engine.binlog.charsets.collations import charset_of_collation, charset_of_name
from sluice.cdc_engine.binlog.charsets.statement_text import Literals, LiteralUnknownError
from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END, ROW_START
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB, DeclaredType, read_type, read_type_attribute
from sluice.cdc_engine.table_meta.ddl.default_value import Default, read_default, skip_value
from sluice.cdc_engine.table_meta.ddl.foreign_key import ForeignKeyDefinition, read_references
from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind, UnreadableError

NATIONAL_CHARSET = "utf8mb3"
COMMENT_CHARSET = "utf8mb3"  # The servers store comments in this charset.
# Clauses that may follow the last column of an ALTER without a comma.
_PARTITIONS = re.compile(r"PARTITION BY |REMOVE PARTITIONING ")
FIRST = ""  # The value of `after` for a column that becomes the first column of the table.


@dataclasses.dataclass
class ColumnDefinition:
    """A parsed column definition.

    - `charset`: the column's own charset, or None if the charset of the table applies.
    - `after`: the column after which this column is placed, or FIRST if this column comes first. With None, an added column comes last, and
      a changed column stays where it is.
    - `says_null`: whether the definition contains NULL. A TIMESTAMP without NULL is NOT NULL if explicit_defaults_for_timestamp is off.
    - `literals`: converts the labels of an ENUM or SET, and the DEFAULT, to the column's charset.
    """

    name: str
    type: DeclaredType
    charset: str | None = None
    nullable: bool = True
    says_null: bool = False
    primary: bool = False
    unique: bool = False
    generated: str = ""
    versioned: bool = False
    visible: bool = True
    auto_increment: bool = False
    default: Default | None = None
    after: str | None = None
    if_not_exists: bool = False
    comment: str = ""
    literals: Literals = Literals()  # noqa: RUF009 - immutable
    references: ForeignKeyDefinition | None = None


def read_column(cursor: TokenCursor, flavour: str) -> ColumnDefinition:
    """Parses name, type and attributes, up to the next comma or parenthesis. Raises UnreadableError at an unknown element."""
    name = cursor.expect_last_name()
    first = cursor.peek().word
    second = cursor.peek(1).word
    column = ColumnDefinition(name, read_type(cursor, flavour), literals=cursor.literals)
    if first in {"NATIONAL", "NCHAR", "NVARCHAR"}:
        column.charset = NATIONAL_CHARSET
    elif first == "JSON" and flavour == MARIADB:
        column.charset = "utf8mb4"
    elif first == "SERIAL" and second != "DEFAULT":
        column.nullable, column.auto_increment = False, True
    while not cursor.at_end and cursor.peek().text not in {",", ")"} and not _PARTITIONS.match(cursor.words(2)):
        _read_attribute(cursor, column)
    return column


def read_charset(cursor: TokenCursor) -> str:
    """Parses the name after CHARACTER SET. Raises UnreadableError for an unknown charset. Where DEFAULT is allowed, the caller skips it
    first (`accept_default`).
    """
    cursor.accept_sign("=")
    name = cursor.expect_name()
    charset = charset_of_name(name)
    if charset is None:
        raise UnreadableError(f"the character set {name!r} is unknown to Sluice")
    return charset.name


def read_comment(cursor: TokenCursor) -> str:
    """Parses the text after COMMENT. Returns "" if the bytes of the text are not valid characters. Invalid characters are no error, because
    a comment changes no row.
    """
    cursor.accept_sign("=")
    try:
        return cursor.literals.stored(cursor.next().text, COMMENT_CHARSET)
    except LiteralUnknownError:
        return ""


def accept_default(cursor: TokenCursor) -> bool:
    """Skips DEFAULT where the name of a charset or collation is expected (MySQL 5.7, MariaDB). Returns whether DEFAULT was there."""
    equals = cursor.peek().text == "="
    if cursor.peek(int(equals)).word != "DEFAULT":
        return False
    cursor.accept_sign("=")
    return cursor.accept("DEFAULT")


def read_collation(cursor: TokenCursor) -> str | None:
    """Parses the name after COLLATE, and returns the collation's charset. Returns None for a collation of MariaDB that fits any Unicode
    charset, because such a collation does not determine the charset. Raises UnreadableError for an unknown collation.
    """
    cursor.accept_sign("=")
    name = cursor.expect_name()
    charset = charset_of_collation(name)
    if charset is None and not name.lower().startswith("uca1400_"):
        raise UnreadableError(f"the collation {name!r} is unknown to Sluice")
    return charset.name if charset else None


def _read_attribute(cursor: TokenCursor, column: ColumnDefinition) -> None:
    for words, apply in _ATTRIBUTES:
        if cursor.accept(*words):
            apply(cursor, column)
            return
    if cursor.peek(1) == Token(TokenKind.SIGN, "=") and cursor.peek().word != "COMPRESSED":
        cursor.expect_name()  # The name of an attribute that belongs to a storage engine of MariaDB.
        _one_token(cursor, column)
        return
    column.type = read_type_attribute(cursor, column.type)


def _set_charset(cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.charset = read_charset(cursor)


def _set_collation(cursor: TokenCursor, column: ColumnDefinition) -> None:
    if not accept_default(cursor):  # In MariaDB, DEFAULT means the charset's default collation.
        column.charset = read_collation(cursor) or column.charset


def _fixed_charset(name: str) -> Callable[[TokenCursor, ColumnDefinition], None]:
    def apply(_cursor: TokenCursor, column: ColumnDefinition) -> None:
        column.charset = name

    return apply


def _not_null(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.nullable = False


def _null(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.nullable = column.says_null = True  # The last NULL or NOT NULL applies.


def _primary(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.primary, column.nullable = True, False


def _unique(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.unique = True


def _serial_default(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.nullable, column.auto_increment = False, True


def _auto_increment(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.nullable, column.auto_increment = False, True


def _invisible(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.visible = False


def _generated(cursor: TokenCursor, column: ColumnDefinition) -> None:
    if cursor.accept("ROW"):
        column.generated = ROW_START if cursor.accept("START") else ROW_END
        column.nullable = False
        if column.generated == ROW_END:
            cursor.expect("END")
        return
    cursor.skip_parentheses()
    column.generated = "virtual"


def _versioned(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.versioned = True


def _stored(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.generated = "stored"


def _first(_cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.after = FIRST


def _after(cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.after = cursor.expect_name()


def _nothing(_cursor: TokenCursor, _column: ColumnDefinition) -> None:
    return


def _one_token(cursor: TokenCursor, _column: ColumnDefinition) -> None:
    cursor.accept_sign("=")
    cursor.next()


def _comment(cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.comment = read_comment(cursor)


def _on_update(cursor: TokenCursor, _column: ColumnDefinition) -> None:
    skip_value(cursor)


def _check(cursor: TokenCursor, _column: ColumnDefinition) -> None:
    cursor.skip_parentheses()


def _constraint(cursor: TokenCursor, _column: ColumnDefinition) -> None:
    if cursor.peek().word != "CHECK":
        cursor.expect_name()


def _references(cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.references = read_references(cursor, (column.name,))


def _default(cursor: TokenCursor, column: ColumnDefinition) -> None:
    column.default = read_default(cursor)


Attribute = Callable[[TokenCursor, ColumnDefinition], None]
# The first match is used, so a longer sequence of keywords comes before its prefix.
_ATTRIBUTES: tuple[tuple[tuple[str, ...], Attribute], ...] = (
    (("NOT", "NULL"), _not_null),
    (("NULL",), _null),
    (("CHARACTER", "SET"), _set_charset),
    (("CHAR", "SET"), _set_charset),
    (("CHARSET",), _set_charset),
    (("COLLATE",), _set_collation),
    (("ASCII",), _fixed_charset("latin1")),
    (("UNICODE",), _fixed_charset("ucs2")),
    (("BYTE",), _fixed_charset("binary")),
    (("BINARY",), _nothing),
    (("PRIMARY", "KEY"), _primary),
    (("PRIMARY",), _primary),
    (("UNIQUE", "KEY"), _unique),
    (("UNIQUE",), _unique),
    (("KEY",), _primary),
    (("SERIAL", "DEFAULT", "VALUE"), _serial_default),
    (("DEFAULT",), _default),
    (("ON", "UPDATE"), _on_update),
    (("AUTO_INCREMENT",), _auto_increment),
    (("GENERATED", "ALWAYS", "AS"), _generated),
    (("AS",), _generated),
    (("VIRTUAL",), _nothing),
    (("STORED",), _stored),
    (("PERSISTENT",), _stored),
    (("WITH", "SYSTEM", "VERSIONING"), _versioned),
    (("WITHOUT", "SYSTEM", "VERSIONING"), _nothing),
    (("INVISIBLE",), _invisible),
    (("VISIBLE",), _nothing),
    (("COMMENT",), _comment),
    (("CONSTRAINT",), _constraint),
    (("CHECK",), _check),
    (("NOT", "ENFORCED"), _nothing),
    (("NOT", "SECONDARY"), _nothing),
    (("ENFORCED",), _nothing),
    (("REFERENCES",), _references),
    (("COLUMN_FORMAT",), _one_token),
    (("STORAGE",), _one_token),
    (("ENGINE_ATTRIBUTE",), _one_token),
    (("SECONDARY_ENGINE_ATTRIBUTE",), _one_token),
    (("SRID",), _one_token),
    (("REF_SYSTEM_ID",), _one_token),
    (("FIRST",), _first),
    (("AFTER",), _after),
)
