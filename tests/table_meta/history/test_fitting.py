"""Tests the comparison of a table map with the schema history. If both agree, the table map gets the history's version of the table. If
they differ, the table stops with a message that shows both.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.binlog.events.table_map import Field, TableMap, parse_table_map
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.table_meta.history.fitting import fit
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema
from tests.binlog.events.table_map_writer import ColumnBytes, packed_text, table_map_body, table_map_of

COLUMNS = (
    DeclaredColumn(name="id", type="bigint unsigned", nullable=False),
    DeclaredColumn(name="name", type="varchar(20)", charset="utf8mb4"),
    DeclaredColumn(name="price", type="decimal(10,2)"),
    DeclaredColumn(name="kind", type="enum('a','b')", charset="latin1"),
    DeclaredColumn(name="at", type="timestamp(3)"),
    DeclaredColumn(name="ref", type="uuid", charset="binary"),
)
SCHEMA = TableSchema(database="shop", table="orders", charset="utf8mb4", columns=COLUMNS, key=("id",))
# With each value of binlog_row_metadata, MySQL writes this metadata: the signs of `id` and `price`, and the charsets of `name` and `ref`.
MINIMAL: list[tuple[int, bytes]] = [(Field.SIGNEDNESS, b"\x80"), (Field.COLUMN_CHARSET, b"\xfc\xff\x00\x3f")]
FULL: list[tuple[int, bytes]] = [
    *MINIMAL,
    (Field.COLUMN_NAME, b"".join(packed_text(column.name.encode()) for column in COLUMNS)),
    (Field.ENUM_LABELS, b"\x02\x01a\x01b"),
    (Field.ENUM_AND_SET_DEFAULT_CHARSET, b"\x08"),
    (Field.SIMPLE_PRIMARY_KEY, b"\x00"),
]


def changed(index: int, **changes: object) -> TableSchema:
    columns = list(COLUMNS)
    columns[index] = dataclasses.replace(columns[index], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(SCHEMA, columns=tuple(columns))


@pytest.mark.parametrize("fields", [[], MINIMAL, FULL])
def test_what_agrees_has_the_version_of_the_history(fields: list[tuple[int, bytes]]) -> None:
    version, learnt = fit(table_map_of(SCHEMA, fields), SCHEMA)
    assert learnt is None
    assert version == SCHEMA.version()


DIFFERENCES: list[tuple[TableSchema, list[tuple[int, bytes]], str]] = [
    (
        dataclasses.replace(SCHEMA, columns=COLUMNS[:-1]),
        [],
        r"has 6 columns \(.*\), and the schema history has 5 \(id bigint unsigned, ",
    ),
    (
        changed(0, type="int unsigned"),
        [],
        r"column 1 \(id\): the table map has bigint .*, and the schema history has int unsigned",
    ),
    (changed(0, type="bigint"), MINIMAL, "has an unsigned number, and the schema history has a signed number"),
    (changed(1, type="varchar(21)"), MINIMAL, r"has varchar\(20\) .*, and the schema history has varchar\(21\)"),
    (
        changed(1, charset="utf8mb3"),
        [],
        r"metadata 80\), and the schema history has varchar\(20\) \(type code 15, metadata 60\)",
    ),
    (changed(2, type="decimal(10,3)"), [], r"has decimal\(10,2\) .*, and the schema history has decimal\(10,3\)"),
    (changed(4, type="timestamp"), [], r"has timestamp\(3\) .*, and the schema history has timestamp "),
    (changed(4, type="datetime(3)"), [], r"has timestamp\(3\) .*, and the schema history has datetime\(3\)"),
    (changed(5, type="binary(15)"), [], "metadata 16.*metadata 15"),
    (changed(3, type=f"enum({','.join(repr(str(number)) for number in range(300))})"), [], "type code 247, metadata 1"),
    (changed(3, type="set('a','b')"), [], "type code 248"),
]


@pytest.mark.parametrize(("schema", "fields", "sentence"), DIFFERENCES)
def test_a_difference_stops_the_table_and_shows_both_sides(
    schema: TableSchema, fields: list[tuple[int, bytes]], sentence: str
) -> None:
    with pytest.raises(TableStoppedError, match=sentence) as stopped:
        fit(table_map_of(SCHEMA, fields), schema)
    assert stopped.value.state == "SCHEMA_MISMATCH"


@pytest.mark.parametrize("fields", [[], MINIMAL, FULL])
def test_columns_that_an_outer_join_lets_be_null_are_those_of_the_history_fidelity(
    fields: list[tuple[int, bytes]],
) -> None:
    """In an UPDATE … LEFT JOIN, the table map says that all columns may be NULL, and the table continues."""
    joined = dataclasses.replace(SCHEMA, columns=tuple(dataclasses.replace(each, nullable=True) for each in COLUMNS))
    assert fit(table_map_of(joined, fields), SCHEMA) == (SCHEMA.version(), None)
    strict = dataclasses.replace(SCHEMA, columns=tuple(dataclasses.replace(each, nullable=False) for each in COLUMNS))
    version, learnt = fit(table_map_of(strict, fields), SCHEMA)
    assert learnt is None
    assert [column.nullable for column in version.columns] == [False, True, True, True, False, True]


def test_a_charset_of_the_same_width_is_compared_if_the_metadata_has_it() -> None:
    schema = TableSchema(
        database="d",
        table="t",
        charset="latin1",
        columns=(DeclaredColumn(name="a", type="varchar(5)", charset="latin1"),),
    )
    koi8r = table_map_of(schema, [(Field.DEFAULT_CHARSET, b"\x07")])
    with pytest.raises(
        TableStoppedError, match="has the character set koi8r, and the schema history has the character set latin1"
    ):
        fit(koi8r, schema)


@pytest.mark.parametrize("schema", [case[0] for case in DIFFERENCES])
def test_full_metadata_overrules_the_history_and_is_to_be_recorded(schema: TableSchema) -> None:
    version, learnt = fit(table_map_of(SCHEMA, FULL), schema)
    if learnt is None:
        pytest.fail("a difference was not seen")
    assert version == learnt.version()
    assert [column.name for column in version.columns] == [column.name for column in COLUMNS]
    assert fit(table_map_of(SCHEMA, FULL), learnt) == (version, None)


def test_full_metadata_shows_names_labels_and_key_that_differ() -> None:
    for schema in (
        changed(1, name="title"),
        changed(3, type="enum('a','c')"),
        dataclasses.replace(SCHEMA, key=("name",)),
    ):
        assert fit(table_map_of(SCHEMA, FULL), schema)[1] is not None


def test_a_unique_key_reported_as_the_primary_key_is_none() -> None:
    """If there is no primary key, a server reports the first unique NOT NULL key as one. The history knows that there is none."""
    keyless = dataclasses.replace(SCHEMA, key=())
    assert fit(table_map_of(SCHEMA, FULL), keyless) == (keyless.version(), None)


def test_a_table_that_is_not_in_the_history_needs_full_metadata() -> None:
    with pytest.raises(TableStoppedError, match="binlog_row_metadata is not FULL") as stopped:
        fit(table_map_of(SCHEMA, MINIMAL), None)
    assert stopped.value.state == "SCHEMA_UNKNOWN"
    version, learnt = fit(table_map_of(SCHEMA, FULL), None)
    assert learnt is not None
    assert [column.mysql_type for column in version.columns] == [
        *("bigint unsigned", "varchar(20)", "decimal(10,2)", "enum('a','b')", "timestamp(3)", "binary(16)"),
    ]
    assert version.key == ("id",)


def test_an_unknown_type_stops_only_destinations_that_capture_the_table() -> None:
    table_map = parse_table_map(table_map_body("shop", "orders", [ColumnBytes(20)]))
    with pytest.raises(TableStoppedError, match="type code 20") as stopped:
        fit(table_map, SCHEMA)
    assert stopped.value.state == "TYPE_UNSUPPORTED"


@pytest.mark.found
def test_charsets_that_do_not_fit_stop_the_table() -> None:
    """Defect 31: two character sets for one column stopped the destination instead of the table."""
    columns = [ColumnBytes(3), ColumnBytes(15, b"\x1e\x00")]
    table_map = parse_table_map(table_map_body("shop", "orders", columns, [(Field.COLUMN_CHARSET, b"\x08\x21")]))
    with pytest.raises(TableStoppedError, match="2 character sets for 1 string columns; update Sluice") as stopped:
        fit(table_map, SCHEMA)
    assert (stopped.value.database, stopped.value.table) == ("shop", "orders")
    assert stopped.value.state == "TYPE_UNSUPPORTED"


@pytest.mark.parametrize(("declared", "old"), [("timestamp", 7), ("datetime", 12), ("time", 11)])
def test_a_table_from_before_mysql_56_keeps_its_old_formats(declared: str, old: int) -> None:
    schema = TableSchema(database="d", table="t", charset="", columns=(DeclaredColumn(name="a", type=declared),))
    table_map = parse_table_map(table_map_body("d", "t", [ColumnBytes(old)]))
    version, _ = fit(table_map, schema)
    assert version.columns[0].type_code == old
    with pytest.raises(TableStoppedError):
        fit(table_map, dataclasses.replace(schema, columns=(DeclaredColumn(name="a", type=f"{declared}(3)"),)))


def test_mariadb_counts_a_geometry_among_the_character_columns() -> None:
    columns = [
        ColumnBytes(TypeCode.GEOMETRY, b"\x04"),
        ColumnBytes(TypeCode.VARCHAR, b"\x05\x00"),
        ColumnBytes(TypeCode.BLOB, b"\x02"),
    ]
    reported: TableMap = parse_table_map(table_map_body("d", "t", columns, [(Field.DEFAULT_CHARSET, b"\x3f\x01\x08")]))
    assert reported.collations(mariadb=True) == (0, 8, 63)
    assert reported.collations(mariadb=False) == (0, 63, 8)
