"""Tests table maps: every field is read as it was written, and invalid bytes raise BinlogFormatError and nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.events.table_map import Field, TableMap, parse_table_map
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.console.toolchain.database.server import DatabaseServer
from tests.binlog.events.table_map_writer import ColumnBytes, bitmap, column_bytes, packed, packed_text, table_map_body

PLAIN = [TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG, TypeCode.YEAR, TypeCode.DATE]
COLUMNS = st.one_of(
    st.tuples(st.sampled_from(PLAIN), st.just(0)),
    st.tuples(
        st.sampled_from([TypeCode.BLOB, TypeCode.JSON, TypeCode.GEOMETRY]),
        st.integers(1, 4),
    ),
    st.tuples(st.sampled_from([TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.SET]), st.integers(1, 8)),
    st.tuples(st.just(TypeCode.ENUM), st.integers(1, 2)),
    st.tuples(st.sampled_from([TypeCode.TIME2, TypeCode.DATETIME2, TypeCode.TIMESTAMP2]), st.integers(0, 6)),
    st.tuples(st.just(TypeCode.VARCHAR), st.integers(0, 65535)),
    st.tuples(st.just(TypeCode.STRING), st.integers(0, 1023)),
    st.tuples(
        st.just(TypeCode.NEWDECIMAL), st.builds(lambda p, s: p << 8 | min(p, s), st.integers(1, 65), st.integers(0, 30))
    ),
    st.tuples(st.just(TypeCode.BIT), st.builds(lambda n: n // 8 << 8 | n % 8, st.integers(1, 64))),
)
NUMERIC = {*PLAIN, TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.NEWDECIMAL} - {TypeCode.DATE}
NAME = st.text(min_size=1, max_size=20)


@st.composite
def table_maps(draw: st.DrawFn) -> tuple[bytes, TableMap]:
    """Draws the body of a table map, and what the parser must read from it, with full metadata."""
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=300))
    codes = [code for code, _ in columns]
    count = len(columns)

    def flags(size: int) -> list[bool]:
        return draw(st.lists(st.booleans(), min_size=size, max_size=size))

    nullable, visible, signs = flags(count), flags(count), iter(flags(count))
    numeric = [index for index, code in enumerate(codes) if code in NUMERIC]
    unsigned = {index: next(signs) for index in numeric}
    names = draw(st.lists(NAME, min_size=count, max_size=count))
    labels = [
        tuple(draw(st.lists(NAME, min_size=1, max_size=4))) if code in {TypeCode.ENUM, TypeCode.SET} else ()
        for code in codes
    ]
    key = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=4))
    database, table = draw(NAME), draw(NAME)
    fields = [
        (Field.SIGNEDNESS, bitmap([unsigned[index] for index in numeric], lowest_first=False)),
        (Field.COLUMN_NAME, b"".join(packed_text(name.encode()) for name in names)),
        (Field.ENUM_LABELS, _labels(codes, labels, TypeCode.ENUM)),
        (Field.SET_LABELS, _labels(codes, labels, TypeCode.SET)),
        (Field.ENUM_AND_SET_DEFAULT_CHARSET, packed(255)),
        (Field.SIMPLE_PRIMARY_KEY, b"".join(packed(index) for index in key)),
        (Field.VISIBILITY, bitmap(visible, lowest_first=False)),
        (draw(st.integers(13, 255)), draw(st.binary(max_size=300))),  # a field that newer servers may add
    ]
    body = table_map_body(
        database,
        table,
        [column_bytes(code, metadata, nullable=null) for (code, metadata), null in zip(columns, nullable, strict=True)],
        draw(st.permutations(fields)),
    )
    expected = TableMap(
        table_id=77,
        database=database,
        table=table,
        type_codes=tuple(codes),
        metadata=tuple(metadata for _, metadata in columns),
        nullable=tuple(nullable),
        unsigned=tuple(unsigned.get(index, False) for index in range(count)),
        labelled=tuple(255 for label in labels if label),
        names=tuple(names),
        labels=tuple(labels),
        primary_key=tuple(key),
        key_prefixes=(0,) * len(key),
        visible=tuple(visible),
    )
    return body, expected


def _labels(codes: list[TypeCode], labels: list[tuple[str, ...]], kind: TypeCode) -> bytes:
    mine = [label for code, label in zip(codes, labels, strict=True) if code == kind]
    return b"".join(packed(len(label)) + b"".join(packed_text(text.encode()) for text in label) for label in mine)


@given(table_maps())
def test_everything_that_was_written_is_read(written: tuple[bytes, TableMap]) -> None:
    body, expected = written
    assert parse_table_map(body) == expected


@given(table_maps(), st.data())
def test_damaged_bytes_give_a_format_error_or_a_table_map(written: tuple[bytes, TableMap], data: st.DataObject) -> None:
    body = bytearray(written[0])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(0, len(body)))
    for lying in (body, body[:length]):
        try:
            table_map = parse_table_map(lying)
            table_map.collations(mariadb=data.draw(st.booleans()))
        except BinlogFormatError:
            continue
        if table_map.unreadable:
            assert table_map.names is None
        assert table_map.column_count == len(table_map.metadata) == len(table_map.nullable)


LONG = ColumnBytes(TypeCode.LONG)


@pytest.mark.parametrize(
    "body",
    [
        table_map_body("d", "t", []),
        table_map_body("d", "t", [LONG])[:-1],
        table_map_body("d", "t", [ColumnBytes(TypeCode.LONG, b"\x01")]),
        table_map_body("d", "t", [ColumnBytes(TypeCode.VARCHAR, b"\x01")]),
        table_map_body("d", "t", [LONG], [(Field.SIGNEDNESS, b"")]),
        table_map_body("d", "t", [LONG], [(Field.COLUMN_NAME, b"")]),
        table_map_body("d", "t", [LONG], [(Field.COLUMN_NAME, b"\x02\xff\xff")]),
        table_map_body("d", "t", [LONG], [(Field.SIMPLE_PRIMARY_KEY, b"\x01")]),
        table_map_body("d", "t", [LONG], [(Field.PRIMARY_KEY_WITH_PREFIX, b"\x00")]),
        table_map_body("d", "t", [LONG], [(Field.DEFAULT_CHARSET, b"\x08\x00")]),
        table_map_body("d", "t", [LONG], [(Field.VISIBILITY, b"")]),
        table_map_body("d", "t", [LONG], [(Field.GEOMETRY_TYPE, b"\x01")]),
        table_map_body("d", "t", [LONG]) + b"\x04\x09a",
        table_map_body("d", "t", [LONG], [(Field.SIGNEDNESS, b"\x00\x00")]),
        table_map_body("d", "t", [LONG], [(Field.VISIBILITY, b"\x00\x00")]),
        table_map_body("d", "t", [LONG], [(Field.COLUMN_NAME, b"\x01a\x01b")]),
        table_map_body("d", "t", [LONG], [(Field.SET_LABELS, b"\x01\x01a")]),
        table_map_body("d", "t", [LONG], [(Field.ENUM_AND_SET_COLUMN_CHARSET, b"\x08")]),
    ],
)
@pytest.mark.found
def test_a_table_map_that_does_not_fit_names_its_table(body: bytes) -> None:
    """Defect 31: a table map that did not fit stopped the whole destination, and no message named the table."""
    table_map = parse_table_map(body)
    assert (table_map.name, table_map.column_count) == ("d.t", 0)
    assert table_map.unreadable


@pytest.mark.parametrize("body", [b"", table_map_body("d", "t", [LONG]).replace(b"\x01d\x00", b"\x01d\x01")])
def test_a_table_map_whose_names_cannot_be_read_is_a_format_error(body: bytes) -> None:
    with pytest.raises(BinlogFormatError):
        parse_table_map(body)


def test_a_charset_for_a_column_that_is_not_there_is_a_format_error() -> None:
    columns = [ColumnBytes(TypeCode.VARCHAR, b"\x0a\x00"), LONG]
    for field in ((Field.DEFAULT_CHARSET, b"\x08\x01\x21"), (Field.COLUMN_CHARSET, b"\x08\x21")):
        with pytest.raises(BinlogFormatError, match="character set"):
            parse_table_map(table_map_body("d", "t", columns, [field])).collations(mariadb=False)


VECTOR = ColumnBytes(TypeCode.VECTOR, b"\x04")
VARCHAR = ColumnBytes(TypeCode.VARCHAR, b"\x78\x00")
LATIN1, BINARY, UTF8MB4 = 8, 63, 255


@pytest.mark.found
@pytest.mark.parametrize(
    ("columns", "field", "expected"),
    [
        ([LONG, VECTOR, VARCHAR], (Field.COLUMN_CHARSET, [BINARY, UTF8MB4]), (0, 0, UTF8MB4)),
        ([VARCHAR, VECTOR, LONG], (Field.COLUMN_CHARSET, [LATIN1, BINARY]), (LATIN1, 0, 0)),
        ([VECTOR, VARCHAR, VARCHAR], (Field.DEFAULT_CHARSET, [UTF8MB4, 0, BINARY]), (0, UTF8MB4, UTF8MB4)),
        ([VARCHAR, VARCHAR, VECTOR], (Field.DEFAULT_CHARSET, [LATIN1, 2, BINARY]), (LATIN1, LATIN1, 0)),
        ([VECTOR, VECTOR, VARCHAR], (Field.DEFAULT_CHARSET, [BINARY, 2, LATIN1]), (0, 0, LATIN1)),
    ],
)
def test_mysql_counts_vector_among_the_character_columns(
    columns: list[ColumnBytes], field: tuple[int, list[int]], expected: tuple[int, ...]
) -> None:
    """Defect 31: a VECTOR column shifted the character sets of the columns next to it."""
    value = b"".join(packed(number) for number in field[1])
    table_map = parse_table_map(table_map_body("d", "t", columns, [(field[0], value)]))
    assert table_map.collations(mariadb=False) == expected


@pytest.mark.found
def test_a_charset_that_falls_on_a_vector_is_a_format_error() -> None:
    """Test for defect 31: a server that counts VECTOR columns in another way is noticed, because the character set of VECTOR is always
    binary.
    """
    field = (Field.DEFAULT_CHARSET, packed(UTF8MB4))
    with pytest.raises(BinlogFormatError, match="column 1, whose type has no character set"):
        parse_table_map(table_map_body("d", "t", [VECTOR, VARCHAR], [field])).collations(mariadb=False)


def test_a_type_that_is_not_known_leaves_the_name_of_the_table() -> None:
    table_map = parse_table_map(table_map_body("d", "t", [LONG, ColumnBytes(20, b"\x03")]))
    assert (table_map.name, table_map.column_count) == ("d.t", 0)
    assert "type code 20" in table_map.unreadable


def test_a_field_not_known_is_stepped_over() -> None:
    body = table_map_body("d", "t", [LONG], [(99, b"\x01\x02"), (Field.COLUMN_NAME, b"\x01a"), (13, b"")])
    assert parse_table_map(body).names == ("a",)


@pytest.mark.servers
@pytest.mark.parametrize("server", ["mysql80", "mariadb114"])
def test_a_year_has_its_own_sign_bit(server: str, request: pytest.FixtureRequest) -> None:
    """The columns of type YEAR and BIT are between numeric columns. If they were counted wrongly, every column after them would get a
    wrong sign.
    """
    source: DatabaseServer = request.getfixturevalue(server)
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.binlog_row_metadata")
        (before,) = cursor.fetchall()[0]
        cursor.execute("SET GLOBAL binlog_row_metadata = FULL")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("DROP DATABASE IF EXISTS map_signs")
        cursor.execute("CREATE DATABASE map_signs")
        connection.select_db("map_signs")
        cursor.execute(
            "CREATE TABLE s (a int, y year, b int unsigned, t bit(3), c tinyint, f float unsigned, d date, e bigint unsigned)"
        )
        cursor.execute("INSERT INTO s (a) VALUES (1)")
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {before}")
        cursor.execute("SHOW MASTER STATUS")
        data = (source.data_folder / cursor.fetchall()[0][0]).read_bytes()
    (table_map,) = _table_maps(data)
    assert table_map.unsigned == (False, True, True, False, False, True, False, True)
    assert table_map.names == ("a", "y", "b", "t", "c", "f", "d", "e")


def _table_maps(data: bytes) -> list[TableMap]:
    found, at = [], 4
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 9)[0]
        if data[at + 4] == 19:
            found.append(parse_table_map(data[at + 19 : at + size - 4]))
        at += size
    return found
