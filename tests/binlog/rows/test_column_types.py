"""Tests the register of column types: names for Spark, refusals that name the type, and the formats from before MySQL 5.6."""

from __future__ import annotations

import dataclasses
import datetime as dt
import struct
from typing import Any

import numpy as np
import pytest

from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, ValueRefusedError, Values, type_of
from sluice.cdc_engine.binlog.result_rows.result_types import result_type
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, RowEventKind, TableVersion
from sluice.cdc_engine.staging.staged_columns import staged_fills
from tests.binlog.rows.event_bytes import ID, block, event


def values(*items: bytes | None) -> Values:
    """Returns the items in one buffer, with the locations that a kernel would find. NULL has the location -1."""
    ends = np.cumsum([len(item or b"") for item in items])
    sizes = np.array([len(item or b"") for item in items], np.int64)
    starts = np.where([item is None for item in items], -1, ends - sizes)
    return Values(
        np.frombuffer(b"".join(item or b"" for item in items) or b"\0", np.uint8), starts.astype(np.int64), sizes
    )


def column(code: TypeCode, metadata: int = 0, **fields: Any) -> Column:
    return dataclasses.replace(Column(name="c", type_code=code, metadata=metadata), **fields)


@pytest.mark.parametrize(
    ("given", "spark"),
    [
        (column(TypeCode.TINY), "tinyint"),
        (column(TypeCode.TINY, unsigned=True), "smallint"),
        (column(TypeCode.SHORT, unsigned=True), "int"),
        (column(TypeCode.INT24), "int"),
        (column(TypeCode.LONG, unsigned=True), "bigint"),
        (column(TypeCode.LONGLONG), "bigint"),
        (column(TypeCode.LONGLONG, unsigned=True), "decimal(20,0)"),
        (column(TypeCode.NEWDECIMAL, 38 << 8 | 10), "decimal(38,10)"),
        (column(TypeCode.NEWDECIMAL, 39 << 8), "string"),
        (column(TypeCode.FLOAT, 4), "float"),
        (column(TypeCode.DOUBLE, 8), "double"),
        (column(TypeCode.BIT, 1), "boolean"),
        (column(TypeCode.BIT, 7 << 8 | 7), "bigint"),
        (column(TypeCode.BIT, 8 << 8), "decimal(20,0)"),
        (column(TypeCode.YEAR), "int"),
        (column(TypeCode.DATE), "date"),
        (column(TypeCode.DATETIME2, 6), "timestamp_ntz"),
        (column(TypeCode.TIMESTAMP2, 0), "timestamp"),
        (column(TypeCode.TIME2, 3), "string"),
        (column(TypeCode.VARCHAR, 40, charset="utf8mb4"), "string"),
        (column(TypeCode.VARCHAR, 40, charset="binary"), "binary"),
        (column(TypeCode.STRING, 16), "binary"),
        (column(TypeCode.BLOB, 2), "binary"),
        (column(TypeCode.BLOB, 2, charset="latin1"), "string"),
        (column(TypeCode.ENUM, 1, labels=("a",)), "string"),
        (column(TypeCode.SET, 1, labels=("a",)), "string"),
        (column(TypeCode.JSON, 4), "string"),
        (column(TypeCode.GEOMETRY, 4), "binary"),
        (column(TypeCode.VECTOR, 4), "binary"),
        (column(TypeCode.STRING, 16, charset="binary", mysql_type="uuid"), "string"),
        (column(TypeCode.VARCHAR_COMPRESSED, 41, charset="utf8mb4"), "string"),
    ],
    ids=lambda given: given if isinstance(given, str) else TypeCode(given.type_code).name,
)
def test_every_type_has_its_name_in_spark(given: Column, spark: str) -> None:
    assert type_of(given).spark == spark


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (column(TypeCode.BLOB, 4, charset="utf8mb4", mysql_type="xmltype"), "c is xmltype"),
        (Column(name="c", type_code=99), "type code 99"),
        (column(TypeCode.VARCHAR, 40, charset="klingon"), "charset klingon"),
        (column(TypeCode.ENUM, 1), "labels are unknown"),
    ],
)
def test_a_type_that_is_not_decoded_is_refused_by_its_name(given: Column, named: str) -> None:
    with pytest.raises(TypeUnsupportedError, match=named):
        type_of(given)


def test_the_old_temporal_formats_are_read() -> None:
    seconds = (1_700_000_000).to_bytes(4, "little")
    moment = (20240229_235958).to_bytes(8, "little")
    assert type_of(column(TypeCode.TIMESTAMP)).finish(values(seconds, b"\0" * 4, None)).to_pylist() == [
        dt.datetime.fromtimestamp(1_700_000_000, dt.UTC),
        None,
        None,
    ]
    assert type_of(column(TypeCode.DATETIME)).finish(values(moment, b"\0" * 8)).to_pylist() == [
        dt.datetime.fromisoformat("2024-02-29T23:59:58"),
        None,
    ]
    old_time = type_of(column(TypeCode.TIME)).finish(
        values((8385959).to_bytes(3, "little"), (-123).to_bytes(3, "little", signed=True))
    )
    assert old_time.to_pylist() == ["838:59:59", "-00:01:23"]


@pytest.mark.parametrize(
    ("year", "month", "day"), [(2023, 2, 29), (2024, 4, 31), (2024, 13, 1), (0, 1, 1), (2024, 0, 1), (2024, 1, 0)]
)
def test_days_that_do_not_exist_are_null(year: int, month: int, day: int) -> None:
    packed = (year << 9 | month << 5 | day).to_bytes(3, "little")
    assert type_of(column(TypeCode.DATE)).finish(values(packed)).to_pylist() == [None]


def test_every_day_of_the_calendar_is_itself() -> None:
    first, count = dt.date(1, 1, 1), dt.date(9999, 12, 31).toordinal()
    days = [first + dt.timedelta(days=number) for number in range(0, count, 13)] + [dt.date(9999, 12, 31)]
    packed = [(day.year << 9 | day.month << 5 | day.day).to_bytes(3, "little") for day in days]
    assert type_of(column(TypeCode.DATE)).finish(values(*packed)).to_pylist() == days


def test_latin1_is_what_mysql_calls_so() -> None:
    text = type_of(column(TypeCode.VARCHAR, 40, charset="latin1")).finish(values(b"\x80\x81\xe4 \x9f", b"plain", None))
    assert text.to_pylist() == ["€\x81ä Ÿ", "plain", None]


@pytest.mark.parametrize(
    ("given", "item", "reason"),
    [
        (column(TypeCode.ENUM, 1, labels=("a", "b")), b"\x03", "above the 2 known labels"),
        (column(TypeCode.SET, 1, labels=("a", "b")), b"\x04", "bits for labels above the 2 known labels"),
        (column(TypeCode.VARCHAR, 40, charset="ascii"), b"a\x80", "not ascii|does not define"),
        (column(TypeCode.VARCHAR, 40, charset="utf8mb4"), b"\xed\xa0\x80", "is not text in utf8"),
        (column(TypeCode.VARCHAR, 40, charset="gbk"), b"\x81", "is not text in gbk"),
        (column(TypeCode.VARCHAR, 40, charset="hebrew"), b"\xfb", "hebrew does not define"),
        (column(TypeCode.STRING, 2), b"abc", "longer than the 2 bytes"),
        (column(TypeCode.JSON, 4), b"\x00\x01", "not a JSON document"),
    ],
)
def test_a_value_that_its_type_does_not_allow_is_refused_with_its_row(given: Column, item: bytes, reason: str) -> None:
    good = {TypeCode.ENUM: b"\x01", TypeCode.SET: b"\x01", TypeCode.JSON: b"\x04\x00"}.get(
        TypeCode(given.type_code), b"a"
    )
    with pytest.raises(ValueRefusedError, match=reason) as caught:
        type_of(given).finish(values(None, good, item))
    assert caught.value.row == 2


@pytest.mark.found
@pytest.mark.parametrize(
    ("charset", "given", "select"),
    [
        ("utf8mb4", column(TypeCode.STRING, 5, charset="binary", mysql_type="binary(5)"), b"abc\0\0"),
        ("binary", column(TypeCode.STRING, 20, charset="utf8mb4", mysql_type="char(5)"), b"abc"),
    ],
    ids=["binary as text", "char as bytes"],
)
def test_a_charset_in_conf_gives_the_stream_the_value_of_a_snapshot_fidelity(
    charset: str, given: Column, select: bytes
) -> None:
    """Defect 1208: with `charsets` for a BINARY, the stream left out its trailing zero bytes. For a CHAR, both added zero bytes."""
    known = ValuePolicy(charsets={"c": charset}).corrected(given)
    by_stream = type_of(known).finish(values(b"abc", None, b"")).to_pylist()
    by_snapshot = result_type(known, given.charset).finish(values(select, None)).to_pylist()
    assert by_stream[:2] == by_snapshot == [select if charset == "binary" else select.decode(), None]
    assert [len(each or "") for each in by_stream] == [len(select), 0, len(select.removeprefix(b"abc")) and 5]


@pytest.mark.found
def test_a_charset_in_conf_applies_to_labels_and_defaults_fidelity() -> None:
    """Defect 1209: with `charsets` for an ENUM, the lake had the label in the declared charset, and a comparison reported each row."""
    written = "ü".encode().decode("latin1")
    kind = column(TypeCode.ENUM, 1, charset="latin1", labels=(written, "é"), default=(written,), mysql_type="enum")
    known = ValuePolicy(charsets={"c": "utf8mb4"}).corrected(kind)
    assert type_of(known).finish(values(b"\x01", b"\x02")).to_pylist() == ["ü", "é"]
    assert known.default == ("ü",)
    octets = column(TypeCode.VARCHAR, 5, charset="binary", default=("C3BC",), mysql_type="varbinary(5)")
    table = TableVersion(database="shop", table="t", columns=(ID, octets), key=("id",), version="v1")
    assert ValuePolicy(charsets={"c": "utf8mb4"}).corrected(octets).default == ("ü",)
    assert ValuePolicy(charsets={"c": "ascii"}).corrected(octets).default == ()
    decoder = RowDecoder(table, policy=ValuePolicy(charsets={"c": "utf8mb4"}))
    assert staged_fills(decoder, (("c", "C3BC"),)) == (("c", "ü"),)


def test_a_vector_of_mysql_9_is_its_floats_as_bytes_fidelity() -> None:
    """The bytes are as in the server's table map and row image: metadata 4, a length of four bytes, then the floats."""
    vectors = [struct.pack("<3f", 1.0, -2.5, 3.4e38), struct.pack("<f", 0.1), struct.pack("<16383f", *range(16383))]
    table = TableVersion(
        database="shop",
        table="places",
        columns=(ID, column(TypeCode.VECTOR, 4, mysql_type="vector(16383)")),
        key=("id",),
        version="v1",
    )
    images = [b"\x00" + struct.pack("<iI", n, len(vector)) + vector for n, vector in enumerate(vectors)]
    images.append(b"\x02" + struct.pack("<i", 3))  # NULL
    rows = event(RowEventKind.INSERT, [], columns=2) + b"".join(images)
    (batch,) = RowDecoder(table).chunks(block([(table, RowEventKind.INSERT, rows)]), np.arange(1))
    assert batch["c"].to_pylist() == [*vectors, None]
    assert batch["id"].to_pylist() == [0, 1, 2, 3]
