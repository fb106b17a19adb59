"""Parses table map events, which describe the table of the row events that follow, and the layout of the table's row images.

The parser calls this module for every table map with new bytes. `table_meta` uses the result. Every length is checked. mysql-replication's
TableMapEvent is not used, because it queries the live server for names, assigns the signedness bits to wrong columns if the table has a
YEAR column, and lacks newer fields.

MySQL (class Table_map_event in libs/mysql/binlog/event/rows_event.h) and MariaDB since 10.5 write this layout:
- table id (6 bytes), flags (2 bytes)
- database name and table name, each as a length byte, the text, and NUL
- number of columns (length-encoded), then a type byte per column
- metadata (its length, length-encoded; then 0, 1 or 2 bytes per column)
- a bitmap of the nullable columns
- optional fields, each as type (1 byte), length (length-encoded) and value

MySQL 8 always writes the optional fields for signedness, charsets and geometry types, and the other optional fields with
binlog_row_metadata=FULL. MariaDB writes only the optional fields that binlog_row_metadata requests. MySQL 5.7 writes no optional fields.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator

from sluice.cdc_engine.binlog.charsets.collations import charset_of_id
from sluice.cdc_engine.binlog.events.byte_cursor import ByteCursor
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.errors import BinlogFormatError

BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB's COMPRESSED columns have these type codes.
COLUMNS_MAX = 4096  # MySQL and MariaDB do not allow more columns in a table.

_ONE_BYTE: frozenset[int] = frozenset(
    {
        *(TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.BLOB, TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB),
        *(TypeCode.JSON, TypeCode.GEOMETRY, TypeCode.TIME2, TypeCode.DATETIME2, TypeCode.TIMESTAMP2),
        *(BLOB_COMPRESSED, TypeCode.VECTOR),
    }
)
_LITTLE_ENDIAN: frozenset[int] = frozenset({TypeCode.VARCHAR, TypeCode.BIT, VARCHAR_COMPRESSED})
_BIG_ENDIAN: frozenset[int] = frozenset({TypeCode.NEWDECIMAL})
_REAL_TYPE: frozenset[int] = frozenset({TypeCode.STRING, TypeCode.VAR_STRING, TypeCode.ENUM, TypeCode.SET})
_NONE: frozenset[int] = frozenset(
    {
        *(TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG, TypeCode.YEAR),
        *(TypeCode.DATE, TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP),
    }
)
# These types have a bit in the signedness bitmap. In MySQL and MariaDB, YEAR has a bit, which is always set, and BIT has no bit.
NUMERIC: frozenset[int] = frozenset(
    {
        *(TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG),
        *(TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.NEWDECIMAL, TypeCode.YEAR),
    }
)
_BINARY_COLLATION = 63
CHARACTER: frozenset[int] = frozenset(
    {
        *(TypeCode.STRING, TypeCode.VAR_STRING, TypeCode.VARCHAR, TypeCode.BLOB),
        *(VARCHAR_COMPRESSED, BLOB_COMPRESSED),
    }
)
LABELLED: frozenset[int] = frozenset({TypeCode.ENUM, TypeCode.SET})
# Types that have no characters, but for which MySQL or MariaDB writes a charset in a table map. The charset is always `binary`.
_COUNTED_BY_MYSQL: frozenset[int] = frozenset({TypeCode.VECTOR})
_COUNTED_BY_MARIADB: frozenset[int] = frozenset({TypeCode.GEOMETRY})
# Type code → the highest valid metadata. Kernels use metadata as a number of bytes or digits, and cannot process a higher number.
_METADATA_MAX: dict[int, int] = {
    **dict.fromkeys((TypeCode.BLOB, TypeCode.JSON, TypeCode.GEOMETRY, BLOB_COMPRESSED, TypeCode.VECTOR), 4),
    **dict.fromkeys((TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB), 4),
    **dict.fromkeys((TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.SET), 8),
    **dict.fromkeys((TypeCode.TIME2, TypeCode.DATETIME2, TypeCode.TIMESTAMP2), 6),
    TypeCode.ENUM: 2,
    TypeCode.NEWDECIMAL: 65 << 8 | 65,
    TypeCode.BIT: 8 << 8 | 7,
}


@dataclasses.dataclass(frozen=True)
class Charsets:
    """The collations of the character columns, or of the ENUM and SET columns, as the server logs them. `each` has one collation per
    column. If `each` is None, a column has the collation in `others`, or else the collation `default`. Entries of `others`: (index among
    these columns, collation).
    """

    each: tuple[int, ...] | None = None
    default: int = 0
    others: tuple[tuple[int, int], ...] = ()

    def spread(self, count: int) -> tuple[int, ...]:
        """Returns the collation of each column. `count`: the number of columns that the logged field describes. Raises BinlogFormatError if
        the logged collations are for more or fewer columns.
        """
        if self.each is not None:
            if len(self.each) != count:
                raise BinlogFormatError(f"a table map gives {len(self.each)} character sets for {count} string columns")
            return self.each
        others = dict(self.others)
        if any(index >= count for index in others):
            raise BinlogFormatError(
                f"a table map gives the character set of string column {max(others) + 1}, and the table has {count}"
            )
        return tuple(others.get(index, self.default) for index in range(count))


class Field(enum.IntEnum):
    """The types of a table map's optional fields."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_LABELS = 5
    ENUM_LABELS = 6
    GEOMETRY_TYPE = 7
    SIMPLE_PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11
    VISIBILITY = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableMap:
    """A parsed table map event. Tuples have one entry per column, except where a field below says otherwise. None means that the server did
    not log the optional field.

    - `type_codes`: MYSQL_TYPE_*. For ENUM and SET, this is the code of ENUM or SET, although the event has the code of STRING.
    - `metadata`, by type: for FLOAT, DOUBLE, ENUM and SET, how many bytes the value has. For blobs, JSON, GEOMETRY and VECTOR, how many
      bytes the length prefix of the value has. For VARCHAR and STRING, the maximum number of bytes. For BIT, whole bytes << 8 | additional
      bits. For NEWDECIMAL, precision << 8 | scale. For TIME2, DATETIME2 and TIMESTAMP2, the fraction digits. For all others 0.
    - `charsets`: the collations of the character columns; see the method `collations`. `labelled`: the collation ids of the ENUM and SET
      columns.
    - `labels`: the labels of each column; empty for a column that is neither ENUM nor SET.
    - `primary_key`: indices of the key's columns. If it is empty, the table has no primary key, or the server did not log the key (`names`
      is then None). `key_prefixes`: how many characters of each key column are in the key; 0 means all.
    - `geometry_types`: OGC numbers of the geometry columns.
    - `unreadable`: why only `table_id`, `database` and `table` could be parsed. Empty if the whole event could be parsed.
    """

    table_id: int
    database: str
    table: str
    type_codes: tuple[int, ...] = ()
    metadata: tuple[int, ...] = ()
    nullable: tuple[bool, ...] = ()
    unsigned: tuple[bool, ...] | None = None
    charsets: Charsets | None = None
    labelled: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    labels: tuple[tuple[str, ...], ...] | None = None
    primary_key: tuple[int, ...] = ()
    key_prefixes: tuple[int, ...] = ()
    geometry_types: tuple[int, ...] = ()
    visible: tuple[bool, ...] | None = None
    unreadable: str = ""

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def column_count(self) -> int:
        return len(self.type_codes)

    def collations(self, *, mariadb: bool) -> tuple[int, ...] | None:
        """Returns the collation id of each column, or None if no collation was logged. A column gets 0 if its collation was not logged, or
        if its type has no collation.

        MySQL counts VECTOR columns among the character columns, and MariaDB counts GEOMETRY columns. The event does not say which server
        wrote it, so the caller passes `mariadb`. Raises BinlogFormatError if the number of collations does not fit the columns. Also raises
        it if a VECTOR or GEOMETRY column has a collation other than binary: the logged collations then belong to other columns.
        """
        if self.charsets is None and self.labelled is None:
            return None
        counted = _COUNTED_BY_MARIADB if mariadb else _COUNTED_BY_MYSQL
        character = _columns_of(self.type_codes, CHARACTER | counted)
        spread = dict(zip(character, self.charsets.spread(len(character)), strict=True)) if self.charsets else {}
        for index in _columns_of(self.type_codes, counted):
            if spread.pop(index, _BINARY_COLLATION) != _BINARY_COLLATION:
                raise BinlogFormatError(
                    f"a table map gives a character set for column {index + 1}, whose type has no character set"
                )
        spread |= dict(zip(_columns_of(self.type_codes, LABELLED), self.labelled or (), strict=False))
        return tuple(spread.get(index, 0) for index in range(self.column_count))


@dataclasses.dataclass
class _LoggedFields:
    """The values of a table map's optional fields, collected while the fields are parsed. `enum_labels` has one list per ENUM column, and
    `set_labels` one per SET column.
    """

    unsigned: tuple[bool, ...] | None = None
    charsets: Charsets | None = None
    labelled: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    enum_labels: list[list[bytes]] | None = None
    set_labels: list[list[bytes]] | None = None
    primary_key: tuple[int, ...] = ()
    key_prefixes: tuple[int, ...] = ()
    geometry_types: tuple[int, ...] = ()
    visible: tuple[bool, ...] | None = None


def parse_table_map(body: bytes | bytearray | memoryview) -> TableMap:
    """Parses a table map event. `body` is the event without the common header of 19 bytes and without checksum.

    If the part after the table's name is invalid, the result has only the table id, the names of database and table, and the reason
    (`unreadable`). The function raises no error for such an event, because the table may be one that is not captured. Raises
    BinlogFormatError if the table id or one of these two names cannot be parsed.
    """
    cursor = ByteCursor(bytes(body), "the table map")
    table_id = cursor.integer(6)
    cursor.integer(2)
    database, table = _name(cursor), _name(cursor)
    named = TableMap(table_id=table_id, database=database, table=table)
    try:
        return _with_columns(named, cursor)
    except BinlogFormatError as error:
        return dataclasses.replace(named, unreadable=str(error))


def _with_columns(named: TableMap, cursor: ByteCursor) -> TableMap:
    """Parses the part of a table map event after the table's name. Returns `named` with the columns. Raises BinlogFormatError if this part
    is invalid.
    """
    count = cursor.packed()
    if not 0 < count <= COLUMNS_MAX:
        raise BinlogFormatError(f"the table map has {count} columns, and a table can have 1 to {COLUMNS_MAX}")
    types = cursor.take(count)
    codes, metadata = _layout(types, ByteCursor(cursor.take(cursor.packed()), "the metadata of the table map"))
    nullable = _bits(cursor.take((count + 7) // 8), count, lowest_first=True)
    fields = _LoggedFields()
    for field, value in _fields(cursor):
        if field in _READERS:
            content = ByteCursor(value, f"field {field} of the table map")
            _READERS[field](fields, content, codes)
            if content.left:
                raise BinlogFormatError(f"{content.what} has {content.left} bytes more than the columns need")
    return dataclasses.replace(
        named,
        type_codes=codes,
        metadata=metadata,
        nullable=nullable,
        unsigned=fields.unsigned,
        charsets=fields.charsets,
        labelled=fields.labelled,
        names=fields.names,
        labels=_labels(codes, fields),
        primary_key=fields.primary_key,
        key_prefixes=fields.key_prefixes,
        geometry_types=fields.geometry_types,
        visible=fields.visible,
    )


def _name(cursor: ByteCursor) -> str:
    text = cursor.text(cursor.integer(1))
    if cursor.integer(1) != 0:
        raise BinlogFormatError(f"the name {text!r} in a table map is not ended by a zero byte")
    return text


def _layout(types: bytes, metadata: ByteCursor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the type code of each column, and the metadata of each column as an integer. Raises BinlogFormatError if a type code or the
    metadata is invalid.
    """
    pairs = [_column_layout(code, metadata) for code in types]
    for code, value in pairs:
        if value > _METADATA_MAX.get(code, value) or (code == TypeCode.NEWDECIMAL and value & 0xFF > value >> 8):
            raise BinlogFormatError(
                f"{metadata.what} has the value {value}, which is not valid for a column of type {code}"
            )
    if metadata.left:
        raise BinlogFormatError(f"{metadata.what} has {metadata.left} bytes more than the columns need")
    return tuple(code for code, _ in pairs), tuple(value for _, value in pairs)


def _column_layout(code: int, metadata: ByteCursor) -> tuple[int, int]:
    if code in _NONE:
        return code, 0
    if code in _ONE_BYTE:
        return code, metadata.integer(1)
    if code in _LITTLE_ENDIAN:
        return code, metadata.integer(2)
    if code in _BIG_ENDIAN:
        return code, metadata.integer(1) << 8 | metadata.integer(1)
    if code in _REAL_TYPE:
        return _real_type(metadata.integer(1), metadata.integer(1))
    raise _unknown_type(code)


def _real_type(first: int, second: int) -> tuple[int, int]:
    """Decodes the two metadata bytes of a column with the type code STRING to (real type code, metadata). For an ENUM or SET, the first
    byte is the real type code. For a CHAR, the first byte also has the two high bits of the length, inverted.
    """
    code = first | 0x30
    if code not in _REAL_TYPE:
        raise _unknown_type(code)
    return code, second | ((first & 0x30) ^ 0x30) << 4


def _unknown_type(code: int) -> BinlogFormatError:
    return BinlogFormatError(f"the table map has a column of type code {code}, which is not known")


def _fields(cursor: ByteCursor) -> Iterator[tuple[int, bytes]]:
    while cursor.left:
        field = cursor.integer(1)
        yield field, cursor.take(cursor.packed())


def _bits(value: bytes, count: int, *, lowest_first: bool) -> tuple[bool, ...]:
    """Returns the first `count` bits of a bitmap. In optional fields, the first bit is the highest bit of a byte; in other bitmaps of the
    event, the lowest (`lowest_first`).
    """
    if len(value) != (count + 7) // 8:
        raise BinlogFormatError(f"a bitmap in a table map has {len(value)} bytes for {count} columns")
    offsets = range(8) if lowest_first else range(7, -1, -1)
    bits = [bool(octet >> index & 1) for octet in value for index in offsets]
    return tuple(bits[:count])


def _columns_of(codes: tuple[int, ...], kinds: frozenset[int]) -> list[int]:
    return [index for index, code in enumerate(codes) if code in kinds]


def _read_signedness(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    numeric = _columns_of(codes, NUMERIC)
    bits = dict(zip(numeric, _bits(value.rest(), len(numeric), lowest_first=False), strict=True))
    fields.unsigned = tuple(bits.get(index, False) for index in range(len(codes)))


def _read_visibility(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    fields.visible = _bits(value.rest(), len(codes), lowest_first=False)


def _read_names(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    names = tuple(value.text(value.packed()) for _ in codes)
    fields.names = names


def _default_charset(value: ByteCursor) -> Charsets:
    """Parses a default collation and the (column, collation) pairs of the columns with another collation. A column is given by its index
    among the columns that the field describes: the character columns, or the ENUM and SET columns.
    """
    default, *others = _each(value) or (0,)
    if len(others) % 2:
        raise BinlogFormatError(f"{value.what} ends between a column and its charset")
    return Charsets(default=default, others=tuple(zip(others[::2], others[1::2], strict=True)))


def _each(value: ByteCursor) -> tuple[int, ...]:
    numbers = []
    while value.left:
        numbers.append(value.packed())
    return tuple(numbers)


def _exactly(value: ByteCursor, count: int) -> tuple[int, ...]:
    numbers = _each(value)
    if len(numbers) != count:
        raise BinlogFormatError(f"{value.what} has {len(numbers)} entries for {count} columns")
    return numbers


def _read_default_charset(fields: _LoggedFields, value: ByteCursor, _codes: tuple[int, ...]) -> None:
    fields.charsets = _default_charset(value)


def _read_column_charset(fields: _LoggedFields, value: ByteCursor, _codes: tuple[int, ...]) -> None:
    fields.charsets = Charsets(each=_each(value))


def _read_labelled_default_charset(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    fields.labelled = _default_charset(value).spread(len(_columns_of(codes, LABELLED)))


def _read_labelled_column_charset(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    fields.labelled = _exactly(value, len(_columns_of(codes, LABELLED)))


def _label_lists(value: ByteCursor, count: int) -> list[list[bytes]]:
    return [[value.take(value.packed()) for _ in range(value.packed())] for _ in range(count)]


def _read_set_labels(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    fields.set_labels = _label_lists(value, codes.count(TypeCode.SET))


def _read_enum_labels(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    fields.enum_labels = _label_lists(value, codes.count(TypeCode.ENUM))


def _read_geometry_types(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    fields.geometry_types = _exactly(value, codes.count(TypeCode.GEOMETRY))


def _read_primary_key(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    fields.primary_key = _checked_key(_each(value), value, codes)
    fields.key_prefixes = (0,) * len(fields.primary_key)


def _read_primary_key_with_prefix(fields: _LoggedFields, value: ByteCursor, codes: tuple[int, ...]) -> None:
    numbers = _each(value)
    if len(numbers) % 2:
        raise BinlogFormatError(f"{value.what} ends between a key column and its prefix")
    fields.primary_key = _checked_key(numbers[::2], value, codes)
    fields.key_prefixes = numbers[1::2]


def _checked_key(key: tuple[int, ...], value: ByteCursor, codes: tuple[int, ...]) -> tuple[int, ...]:
    if any(index >= len(codes) for index in key) or len(set(key)) != len(key):
        raise BinlogFormatError(
            f"{value.what} has the key columns {key}, which are not different columns of a table with {len(codes)} columns"
        )
    return key


_READERS: dict[int, Callable[[_LoggedFields, ByteCursor, tuple[int, ...]], None]] = {
    Field.SIGNEDNESS: _read_signedness,
    Field.DEFAULT_CHARSET: _read_default_charset,
    Field.COLUMN_CHARSET: _read_column_charset,
    Field.COLUMN_NAME: _read_names,
    Field.SET_LABELS: _read_set_labels,
    Field.ENUM_LABELS: _read_enum_labels,
    Field.GEOMETRY_TYPE: _read_geometry_types,
    Field.SIMPLE_PRIMARY_KEY: _read_primary_key,
    Field.PRIMARY_KEY_WITH_PREFIX: _read_primary_key_with_prefix,
    Field.ENUM_AND_SET_DEFAULT_CHARSET: _read_labelled_default_charset,
    Field.ENUM_AND_SET_COLUMN_CHARSET: _read_labelled_column_charset,
    Field.VISIBILITY: _read_visibility,
}


def _labels(codes: tuple[int, ...], fields: _LoggedFields) -> tuple[tuple[str, ...], ...] | None:
    """Returns the labels of each column, decoded with the charset of the column. Returns None if the server did not log the labels of all
    ENUM and SET columns, or did not log the names of the columns.
    """
    waiting: dict[int, Iterator[list[bytes]]] = {
        TypeCode.ENUM: iter(fields.enum_labels or ()),
        TypeCode.SET: iter(fields.set_labels or ()),
    }
    collations = iter(fields.labelled or ())
    labels: list[tuple[str, ...]] = []
    for code in codes:
        if code not in LABELLED:
            labels.append(())
            continue
        raw, collation = next(waiting[code], None), next(collations, 0)
        if raw is None:
            return None
        labels.append(tuple(_label(text, collation) for text in raw))
    return tuple(labels) if fields.names is not None else None


def _label(raw: bytes, collation: int) -> str:
    charset = charset_of_id(collation)
    try:
        return raw.decode((charset.codec if charset else "") or "ascii")
    except UnicodeDecodeError as error:
        named = charset.name if charset else f"collation {collation}"
        raise BinlogFormatError(f"a label of an enum or set, {raw!r}, cannot be read as {named}") from error
