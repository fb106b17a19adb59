"""Parses the declared type of a column, from a DDL statement or from information_schema.columns.column_type. Converts the type to the type
code and metadata that a table map has.

Both servers have many spellings of a type. The parser converts them to one canonical text, close to MySQL 8.0's (`int unsigned`,
`varchar(20)`, `enum('a','b')`). So a column has the same type text, whether its schema comes from a statement or from information_schema.
Display widths and zerofill are dropped, except in `tinyint(1)`, which many clients treat as a boolean. Pure functions.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from sluice.cdc_engine.binlog.charsets.statement_text import raw_literal
from sluice.cdc_engine.binlog.events.table_map import BLOB_COMPRESSED, VARCHAR_COMPRESSED
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.table_meta.ddl.default_value import bytes_of
from sluice.cdc_engine.table_meta.ddl.lexer import TokenCursor, TokenKind, UnreadableError, tokens

# The flavours of DDL. MYSQL_5 stands for MySQL before 8.0, which reads a few types such as TEXT(0) in another way than MySQL 8.0.
MYSQL, MYSQL_5, MARIADB = "mysql", "mysql 5", "mariadb"
OLD_UUID = "uuid /* old */"  # The name of the UUID type in MariaDB's information_schema before 10.11.5.

# Spelling → canonical name. The longest sequence of words that matches is used.
_NAMES = {
    **dict.fromkeys(("TINYINT", "INT1"), "tinyint"),
    **dict.fromkeys(("SMALLINT", "INT2"), "smallint"),
    **dict.fromkeys(("MEDIUMINT", "INT3", "MIDDLEINT"), "mediumint"),
    **dict.fromkeys(("INT", "INTEGER", "INT4"), "int"),
    **dict.fromkeys(("BIGINT", "INT8"), "bigint"),
    **dict.fromkeys(("BOOL", "BOOLEAN"), "boolean"),
    **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC", "FIXED"), "decimal"),
    **dict.fromkeys(("FLOAT", "FLOAT4"), "float"),
    **dict.fromkeys(("DOUBLE", "DOUBLE PRECISION", "REAL", "FLOAT8"), "double"),
    **dict.fromkeys(("CHAR", "CHARACTER"), "char"),
    **dict.fromkeys(("NCHAR", "NATIONAL CHAR", "NATIONAL CHARACTER"), "nchar"),
    **dict.fromkeys(("VARCHAR", "VARCHARACTER", "CHAR VARYING", "CHARACTER VARYING"), "varchar"),
    **dict.fromkeys(
        ("NVARCHAR", "NATIONAL VARCHAR", "NATIONAL VARCHARACTER", "NCHAR VARCHAR", "NCHAR VARYING"), "nvarchar"
    ),
    **dict.fromkeys(("NATIONAL CHAR VARYING", "NATIONAL CHARACTER VARYING"), "nvarchar"),
    **dict.fromkeys(
        ("LONG", "LONG VARCHAR", "LONG CHAR VARYING", "LONG CHARACTER VARYING", "LONG VARCHARACTER"), "mediumtext"
    ),
    "LONG VARBINARY": "mediumblob",
    **dict.fromkeys(("GEOMETRYCOLLECTION", "GEOMCOLLECTION"), "geomcollection"),
    **{
        name.upper(): name
        for name in (
            *(
                "bit",
                "binary",
                "varbinary",
                "date",
                "time",
                "datetime",
                "timestamp",
                "year",
                "json",
                "enum",
                "set",
                "serial",
            ),
            *("tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob"),
            *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
            *("uuid", "inet4", "inet6", "vector"),
        )
    },
}
_NAME_WORDS_MAX = 3


def is_type(word: str) -> bool:
    """Returns whether the keyword can begin the name of a type."""
    return any(name.partition(" ")[0] == word for name in _NAMES)


_PLAIN = {
    "tinyint": TypeCode.TINY,
    "smallint": TypeCode.SHORT,
    "mediumint": TypeCode.INT24,
    "int": TypeCode.LONG,
    "bigint": TypeCode.LONGLONG,
    "date": TypeCode.DATE,
    "year": TypeCode.YEAR,
}
_BLOB_PREFIX_BYTES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_BLOBS = {f"{size}{kind}": width for size, width in _BLOB_PREFIX_BYTES.items() for kind in ("text", "blob")}
_FRACTIONAL = {"time": TypeCode.TIME2, "datetime": TypeCode.DATETIME2, "timestamp": TypeCode.TIMESTAMP2}
_SPATIAL = {
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geomcollection"),
}
_FIXED_BYTES = {"uuid": 16, "inet6": 16, "inet4": 4}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BINARY_OF = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_NUMBERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double"}
_NATIONAL = {"nchar": "char", "nvarchar": "varchar"}
# The lengths of types that are declared without a length.
_LENGTHS = {"bit": 1, "char": 1, "nchar": 1, "binary": 1, "vector": 2048}
FLOAT_DIGITS_MAX = 24  # The maximum number of binary digits of a FLOAT. FLOAT(25) and above create a DOUBLE.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeclaredType:
    """A declared type. `base` is the type's canonical name without attributes. `length` is the number of characters, bytes, bits, digits or
    fraction digits, or -1 if none is declared. `scale` is the number of digits after the decimal point, or -1 if none is declared. `labels`
    are the labels of an ENUM or SET.
    """

    base: str
    length: int = -1
    scale: int = -1
    unsigned: bool = False
    labels: tuple[str, ...] = ()
    compressed: bool = False

    @property
    def has_charset(self) -> bool:
        """Whether the type's values are text in a character set."""
        return self.base in _TEXTS or self.base in {"enum", "set"}

    @property
    def is_binary_string(self) -> bool:
        """Whether the type's values are byte strings, whose charset is `binary`."""
        return self.base in _FIXED_BYTES or self.base in _BINARY_OF.values() or self.base == "vector"

    @property
    def is_number(self) -> bool:
        return self.base in _NUMBERS

    def as_binary(self) -> DeclaredType:
        """Returns the type that the server creates for this text type with CHARACTER SET binary."""
        return dataclasses.replace(self, base=_BINARY_OF.get(self.base, self.base))

    @property
    def text(self) -> str:
        arguments = [str(number) for number in (self.length, self.scale) if number >= 0]
        arguments += [quoted(label) for label in self.labels]
        inside = f"({','.join(arguments)})" if arguments else ""
        return f"{self.base}{inside}{' unsigned' if self.unsigned else ''}{' compressed' if self.compressed else ''}"

    def layout(self, bytes_max: int) -> tuple[int, int]:
        """Returns the type code and metadata that a table map has for the type. `bytes_max` is the length of the longest character of the
        column's charset in bytes.
        """
        if self.base in _PLAIN:
            return _PLAIN[self.base], 0
        if self.base in _BLOBS:
            return (BLOB_COMPRESSED if self.compressed else TypeCode.BLOB), _BLOBS[self.base]
        if self.base in _FRACTIONAL:
            return _FRACTIONAL[self.base], max(self.length, 0)
        if self.base in _SPATIAL:
            return TypeCode.GEOMETRY, 4
        if self.base in _FIXED_BYTES:
            return TypeCode.STRING, _FIXED_BYTES[self.base]
        return self._sized_layout(bytes_max)

    def _sized_layout(self, bytes_max: int) -> tuple[int, int]:
        label_count = len(self.labels)
        set_bytes = (label_count + 7) // 8
        varchar = VARCHAR_COMPRESSED if self.compressed else TypeCode.VARCHAR
        length_bytes = self._byte_length(bytes_max) + self.compressed
        layouts: dict[str, tuple[int, int]] = {
            "float": (TypeCode.FLOAT, 4),
            "double": (TypeCode.DOUBLE, 8),
            "decimal": (TypeCode.NEWDECIMAL, self.length << 8 | max(self.scale, 0)),
            "bit": (TypeCode.BIT, self.length // 8 << 8 | self.length % 8),
            "json": (TypeCode.JSON, 4),
            "vector": (TypeCode.VECTOR, 4),
            "enum": (TypeCode.ENUM, 1 if label_count < 256 else 2),
            "set": (TypeCode.SET, set_bytes if set_bytes <= 4 else 8),
            "varchar": (varchar, length_bytes),
            "varbinary": (varchar, length_bytes),
        }
        return layouts.get(self.base, (TypeCode.STRING, length_bytes))

    def _byte_length(self, bytes_max: int) -> int:
        return self.length * (bytes_max if self.base in _TEXTS else 1)


def quoted(text: str) -> str:
    """Returns a text as a string literal, as MySQL prints it."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\0", "\\0").replace("'", "''")
    return f"'{escaped}'"


_SAME_AS = {
    "boolean": DeclaredType(base="tinyint", length=1),
    "serial": DeclaredType(base="bigint", unsigned=True),
}


@functools.lru_cache(maxsize=4096)
def declared_type(text: str) -> DeclaredType:
    """Parses a `column_type` of information_schema. Raises UnreadableError if the type is unknown."""
    if OLD_UUID in text:
        raise UnreadableError(
            "the column is a UUID column from before MariaDB 10.11.5, whose bytes have another order; "
            "rewrite the table with ALTER TABLE … FORCE"
        )
    cursor = TokenCursor(tokens(text))
    declared = read_type(cursor, MYSQL)
    while not cursor.at_end:
        declared = read_type_attribute(cursor, declared)
    return declared


def read_type(cursor: TokenCursor, flavour: str) -> DeclaredType:
    """Parses a type's name and arguments, without the attributes after them. NCHAR and NVARCHAR become char and varchar."""
    base = _read_qualified(cursor) if flavour == MARIADB and cursor.peek(1).text == "." else _read_base(cursor)
    if base in {"enum", "set"}:
        return DeclaredType(base=base, labels=_read_labels(cursor))
    length, scale = _read_arguments(cursor)
    if base == "json" and flavour == MARIADB:
        return DeclaredType(base="longtext")
    # TEXT(0) creates a text in MariaDB and in MySQL before 8.0, and a tinytext in MySQL 8.0.
    if length == 0 and flavour in {MARIADB, MYSQL_5} and base in _BLOBS:
        length = -1
    return _canonical(base, length, scale)


# MariaDB's qualifiers of type names (`mariadb_schema.date`) → the types that have another meaning with the qualifier.
_MODES = {"MARIADB_SCHEMA": {}, "ORACLE_SCHEMA": {"date": "datetime"}, "MAXDB_SCHEMA": {"timestamp": "datetime"}}
_QUALIFIED = {"date", "timestamp", "datetime", "time"}  # The types whose meaning can depend on the qualifier.


def _read_qualified(cursor: TokenCursor) -> str:
    mode = _MODES.get(cursor.peek().word)
    if mode is None:
        raise UnreadableError(f"the type {cursor.peek().text[:40]!r} is unknown to Sluice")
    cursor.next()
    cursor.expect_sign(".")
    base = _read_base(cursor)
    if mode and base not in _QUALIFIED:
        raise UnreadableError(f"the type {base} is unknown to Sluice if a qualifier such as oracle_schema precedes it")
    return mode.get(base, base)


def _read_base(cursor: TokenCursor) -> str:
    for count in range(_NAME_WORDS_MAX, 0, -1):
        spelling = cursor.words(count).strip()
        if spelling.count(" ") == count - 1 and spelling in _NAMES:
            for _ in range(count):
                cursor.next()
            return _NAMES[spelling]
    raise UnreadableError(f"the type {cursor.peek().text[:40]!r} is unknown to Sluice")


def _read_labels(cursor: TokenCursor) -> tuple[str, ...]:
    cursor.expect_sign("(")
    labels = []
    while True:
        token = cursor.next()
        if (raw := bytes_of(token)) is not None:
            labels.append(raw_literal(raw))
        elif token.kind is TokenKind.STRING:
            labels.append(token.text.rstrip(" "))  # The server removes blanks at the end of a label.
        else:
            raise cursor.unreadable(token)
        if cursor.accept_sign(")"):
            return tuple(labels)
        cursor.expect_sign(",")


def _read_arguments(cursor: TokenCursor) -> tuple[int, int]:
    if not cursor.accept_sign("("):
        return -1, -1
    length = _read_length(cursor)
    scale = cursor.expect_number() if cursor.accept_sign(",") else -1
    cursor.expect_sign(")")
    return length, scale


def _read_length(cursor: TokenCursor) -> int:
    """Parses a length. The servers read decimal(19.5) as decimal(19)."""
    if re.fullmatch(r"\d+\.\d*", cursor.peek().text):
        return int(cursor.next().text.partition(".")[0])
    return cursor.expect_number()


def _canonical(base: str, length: int, scale: int) -> DeclaredType:
    if base in _SAME_AS:
        return _SAME_AS[base]
    if base == "tinyint":
        return DeclaredType(base=base, length=1 if length == 1 else -1)
    if base in _PLAIN:
        return DeclaredType(base=base)
    if base == "decimal":
        return DeclaredType(base=base, length=length if length > 0 else 10, scale=max(scale, 0))
    if base in {"float", "double"} and max(length, scale) == 0:
        return DeclaredType(base=base)
    if base == "float" and scale < 0:
        return DeclaredType(base="double" if length > FLOAT_DIGITS_MAX else "float")
    if base in _FRACTIONAL:
        return DeclaredType(base=base, length=length if length > 0 else -1)
    if base == "bit" and length == 0:
        length = 1  # MariaDB accepts BIT(0); MySQL refuses it.
    return DeclaredType(
        base=_NATIONAL.get(base, base), length=_LENGTHS.get(base, -1) if length < 0 else length, scale=scale
    )


def fitted(declared: DeclaredType, bytes_max: int) -> DeclaredType:
    """Returns the type that the server creates for TEXT(n) or BLOB(n): the smallest text or blob type that can store n characters or
    bytes. `bytes_max` is the length of the charset's longest character in bytes. Any other type is returned unchanged.
    """
    if declared.base not in {"text", "blob"} or declared.length < 0:
        return declared
    size_bytes = declared.length * (bytes_max if declared.base == "text" else 1)
    size = next((name for name, width in _BLOB_PREFIX_BYTES.items() if size_bytes < 1 << 8 * width), "long")
    return dataclasses.replace(declared, base=size + declared.base, length=-1)


def read_type_attribute(cursor: TokenCursor, declared: DeclaredType) -> DeclaredType:
    """Parses one attribute that belongs to the type, for example UNSIGNED."""
    if cursor.accept("UNSIGNED") or cursor.accept("ZEROFILL"):
        return dataclasses.replace(declared, unsigned=declared.is_number)
    if cursor.accept("SIGNED"):
        return declared
    if cursor.accept("COMPRESSED"):
        if cursor.accept_sign("="):
            cursor.next()
        return dataclasses.replace(declared, compressed=True)
    raise cursor.unreadable()
