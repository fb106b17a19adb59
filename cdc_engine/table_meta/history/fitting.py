"""Compares a table map with the schema history: finds the table version with which the table map's rows are decoded, or says why no version
fits. Pure functions.

If the table map and the history agree, the history adds what the table map lacks: the declared types, and the column names, which a table
map has only with binlog_row_metadata=FULL. A difference means that the history lacks a statement, so values would get into the wrong
columns. In this case, a table map with full metadata replaces the schema of the history. With any other table map, the table stops.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.binlog.charsets.collations import charset_of_id
from sluice.cdc_engine.binlog.events.table_map import CHARACTER, LABELLED, NUMERIC, TableMap
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN_END, ROW_END
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.evolution import SCHEMA_MISMATCH, SCHEMA_UNKNOWN
from sluice.cdc_engine.table_meta.ddl.declared_type import declared_type
from sluice.cdc_engine.table_meta.history.derived_type import derived_type
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema, table_version

# Storage formats of MySQL 5.5 and earlier. A table keeps these formats until it is rebuilt. The formats have no metadata, and only MariaDB
# stores fractions of a second in them.
_OLD_FORMATS = {
    TypeCode.TIMESTAMP2: TypeCode.TIMESTAMP,
    TypeCode.DATETIME2: TypeCode.DATETIME,
    TypeCode.TIME2: TypeCode.TIME,
}
# `is_sequence` recognizes a MariaDB sequence by its columns: four columns of one integer type (BIGINT before 11.5), then increment, cache
# size, cycle option and cycle count.
_INTEGERS = {TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG}
_BOUNDS, _SETTINGS = 4, (TypeCode.LONGLONG, TypeCode.LONGLONG, TypeCode.TINY, TypeCode.LONGLONG)
_COLUMNS_SHOWN_MAX = 8
VECTOR_ITEM_BYTES = 4
# Sizes in bytes of INET4 (4), and of UUID and INET6 (16). In a table map, they look like BINARY, so a BINARY of such a size may be one.
HIDING_BYTES = {4, 16}


def fit(
    table_map: TableMap, schema: TableSchema | None, *, mariadb: bool = False
) -> tuple[TableVersion, TableSchema | None]:
    """Returns the table version that decodes the rows after a table map, and the schema that the history must record. The second value is
    None if the table map agrees with `schema`. If `schema` is None or differs, both values come from the table map, which must have full
    metadata.

    Raises TableStoppedError with one of these states:
    - TYPE_UNSUPPORTED: the table map cannot be parsed, or contradicts itself.
    - SCHEMA_MISMATCH: the table map differs from `schema`, and its own metadata is not sufficient for a schema.
    - SCHEMA_UNKNOWN: `schema` is None, and the table map's metadata is not sufficient for a schema.
    """
    columns = _readable_columns(table_map, mariadb=mariadb)
    problem = "" if schema is None else mismatch(table_map, columns, schema, mariadb=mariadb)
    if schema is not None and not problem:
        return _confirmed(table_map, schema), None
    found = _from_map(table_map, columns, schema.charset if schema else "")
    if found is not None and not (mariadb and (_has_row_times(found) or any(_hides_another(each) for each in columns))):
        return found.version(), found
    if schema is None:
        reason = (
            "the schema history does not have the table at this position, and its table map does not fully describe the "
            "columns (binlog_row_metadata is not FULL, or MariaDB does not show the exact types)"
        )
        raise TableStoppedError(table_map.database, table_map.table, SCHEMA_UNKNOWN, reason)
    raise TableStoppedError(table_map.database, table_map.table, SCHEMA_MISMATCH, problem)


def _readable_columns(table_map: TableMap, *, mariadb: bool) -> tuple[Column, ...]:
    """Returns the columns of a table map. Raises TableStoppedError (TYPE_UNSUPPORTED) if the table map cannot be parsed or contradicts
    itself.
    """
    reason = table_map.unreadable
    if not reason:
        try:
            return _map_columns(table_map, mariadb=mariadb)
        except BinlogFormatError as error:
            reason = str(error)
    way_out = "update Sluice and resume the table, or leave the table out with `exclude`"
    raise TableStoppedError(table_map.database, table_map.table, TableState.TYPE_UNSUPPORTED, f"{reason}; {way_out}")


def mismatch(table_map: TableMap, columns: tuple[Column, ...], schema: TableSchema, *, mariadb: bool = False) -> str:
    """Returns the first difference between a table map and a schema, as a sentence with both sides, or "" if they agree. `columns` are the
    columns of the table map.
    """
    if table_map.column_count != len(schema.columns):
        return (
            f"the table map has {table_map.column_count} columns ({_shown([column.mysql_type for column in columns])}), and the "
            f"schema history has {len(schema.columns)} ({_shown([f'{column.name} {column.type}' for column in schema.columns])})"
        )
    for index, (mapped, declared) in enumerate(zip(columns, schema.columns, strict=True)):
        if difference := _column_difference(table_map, mapped, declared, mariadb=mariadb):
            return f"column {index + 1} ({declared.name}): {difference}"
    mapped_key = _mapped_key(table_map)
    if mapped_key is not None:
        # Compares the keys without the column of the row's end time, which the key of a table with system versioning always contains.
        ends = {column.name for column in schema.columns if column.generated in {ROW_END, HIDDEN_END}}
        mapped_key = tuple(name for name in mapped_key if name not in ends)
    # Compares the keys only if the schema has a primary key. Otherwise the table map has the first unique key instead.
    if schema.key and mapped_key is not None and mapped_key != schema.key:
        return (
            f"the table map has the primary key {_shown(mapped_key)}, and the schema history has {_shown(schema.key)}"
        )
    return ""


def _column_difference(table_map: TableMap, mapped: Column, declared: DeclaredColumn, *, mariadb: bool) -> str:
    expected = declared.column()
    sides = (
        ("", mapped.name, expected.name, table_map.names is not None),
        ("", _layout(mapped), _layout(expected), not _same_layout(mapped, expected, mariadb=mariadb)),
        ("", _sign(mapped), _sign(expected), table_map.unsigned is not None and _has_sign(expected)),
        ("the character set ", mapped.charset, expected.charset, bool(mapped.charset and expected.charset)),
        ("the labels ", _shown(mapped.labels), _shown(expected.labels), table_map.labels is not None),
    )
    for what, map_side, history_side, in_map in sides:
        if in_map and map_side != history_side:
            return f"the table map has {what}{map_side}, and the schema history has {what}{history_side}"
    return ""


# The type codes of TIMESTAMP. If explicit_defaults_for_timestamp is off, a TIMESTAMP is NOT NULL by default, although its definition does
# not contain NOT NULL. So for these types, the table map decides whether the column is nullable.
_TIMESTAMPS = (TypeCode.TIMESTAMP, TypeCode.TIMESTAMP2)


def _same_layout(mapped: Column, expected: Column, *, mariadb: bool) -> bool:
    if (mapped.type_code, mapped.metadata) == (expected.type_code, expected.metadata):
        return True
    if mariadb and expected.type_code == TypeCode.VECTOR:
        length_bytes = VECTOR_ITEM_BYTES * declared_type(expected.mysql_type).length
        return (mapped.type_code, mapped.metadata) == (TypeCode.VARCHAR, length_bytes)
    old = mapped.type_code == _OLD_FORMATS.get(TypeCode(expected.type_code), -1)
    return old and (mariadb or expected.metadata == 0)


def _hides_another(column: Column) -> bool:
    """Returns whether a column of a table map may have another type than it seems: MariaDB's UUID and INET types look like BINARY, and
    times in MariaDB's old format do not show whether they have a fraction.
    """
    if column.type_code in _OLD_FORMATS.values():
        return True
    return column.type_code == TypeCode.STRING and column.charset == "binary" and column.metadata in HIDING_BYTES


def _has_row_times(schema: TableSchema) -> bool:
    """Returns whether a schema from a table map may belong to a table with system versioning. The table map does not say which columns
    have the begin and end times of a row, so the names, types and key of the columns decide.
    """
    times = [column.name for column in schema.columns if column.type == "timestamp(6)" and not column.nullable]
    return [column.name for column in schema.columns[-2:]] == ["row_start", "row_end"] or (
        len(times) > 1 and bool(set(schema.key) & set(times))
    )


def _layout(column: Column) -> str:
    return f"{column.mysql_type} (type code {column.type_code:d}, metadata {column.metadata})"


def _has_sign(column: Column) -> bool:
    return column.type_code in NUMERIC and column.type_code != TypeCode.YEAR


def _sign(column: Column) -> str:
    return "an unsigned number" if column.unsigned else "a signed number"


def _shown(items: tuple[str, ...] | list[str]) -> str:
    more = f", … {len(items) - _COLUMNS_SHOWN_MAX} more" if len(items) > _COLUMNS_SHOWN_MAX else ""
    return ", ".join(items[:_COLUMNS_SHOWN_MAX]) + more


def _confirmed(table_map: TableMap, schema: TableSchema) -> TableVersion:
    """Returns the table version with the columns of the schema history in the layout of the table map. The layout of the table map differs
    from the layout of the schema only in old storage formats, in MariaDB's VECTOR, and in NOT NULL of a TIMESTAMP.

    The table map's NULL flag is used only for a TIMESTAMP. For other columns, the server also sets the flag if the statement has the table
    on the inner side of an outer join.
    """
    columns = tuple(
        dataclasses.replace(declared.column(), type_code=int(code), metadata=metadata)
        for declared, code, metadata in zip(schema.columns, table_map.type_codes, table_map.metadata, strict=True)
    )
    columns = tuple(
        dataclasses.replace(column, nullable=column.nullable and (mapped or column.type_code not in _TIMESTAMPS))
        for column, mapped in zip(columns, table_map.nullable, strict=True)
    )
    return table_version(schema.database, schema.table, columns, schema.key)


def _map_columns(table_map: TableMap, *, mariadb: bool) -> tuple[Column, ...]:
    """Returns the columns of a table map. Names, signs, charsets and labels may be missing, if the table map does not have them."""
    collations = table_map.collations(mariadb=mariadb) or (0,) * table_map.column_count
    return tuple(_map_column(table_map, index, collation) for index, collation in enumerate(collations))


def _map_column(table_map: TableMap, index: int, collation: int) -> Column:
    code = table_map.type_codes[index]
    charset = charset_of_id(collation)
    column = Column(
        name=table_map.names[index] if table_map.names else "",
        type_code=code,
        metadata=table_map.metadata[index],
        unsigned=bool(table_map.unsigned and table_map.unsigned[index]) and code != TypeCode.YEAR,
        charset=charset.name if charset else "",
        labels=table_map.labels[index] if table_map.labels else (),
        nullable=table_map.nullable[index],
    )
    return dataclasses.replace(column, mysql_type=derived_type(column, charset.bytes_max if charset else 0))


def is_sequence(table_map: TableMap) -> bool:
    """Returns whether a table map has the columns of a MariaDB sequence, whose row events look like row events of a table."""
    bounds = table_map.type_codes[:_BOUNDS]
    return (
        table_map.type_codes[_BOUNDS:] == _SETTINGS
        and len(set(bounds)) == 1
        and set(bounds) <= _INTEGERS
        and not any(table_map.nullable)
        and (table_map.names is None or table_map.names[0] == "next_not_cached_value")
    )


def _mapped_key(table_map: TableMap) -> tuple[str, ...] | None:
    if table_map.names is None:
        return None
    return tuple(table_map.names[index] for index in table_map.primary_key)


def _from_map(table_map: TableMap, columns: tuple[Column, ...], default_charset: str) -> TableSchema | None:
    """Returns the schema that the metadata of a table map describes, or None if the metadata is not full."""
    key = _mapped_key(table_map)
    if table_map.names is None or key is None:
        return None
    for column in columns:
        open_charset = column.type_code in CHARACTER | LABELLED and not column.charset
        if open_charset or (column.type_code in LABELLED and not column.labels):
            return None
    visible = table_map.visible or (True,) * len(columns)
    declared = tuple(
        DeclaredColumn(
            name=column.name,
            type=column.mysql_type,
            charset=column.charset,
            nullable=column.nullable,
            generated="unknown",
            visible=seen,
        )
        for column, seen in zip(columns, visible, strict=True)
    )
    return TableSchema(
        database=table_map.database, table=table_map.table, charset=default_charset, columns=declared, key=key
    )
