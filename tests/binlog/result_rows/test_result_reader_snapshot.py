"""Tests that the reader returns the rows that were sent in the binary protocol, however the bytes are divided. PyMySQL reads the same
packets for comparison.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pymysql.connections import Connection

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.result_rows.decoder import ResultDecoder
from sluice.cdc_engine.binlog.result_rows.result_reader import ResultReader, ServerRefusedError
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.errors import SluiceError, SourceConnectionError
from tests.binlog.result_rows.results import COLUMNS, EOF, Value, in_pieces, packets, result, row_payload, version

ERROR = b"\xff" + (1317).to_bytes(2, "little") + b"#70100Query execution was interrupted"
SMALL_BUFFER = 64

blobs = st.none() | st.binary(max_size=400)
rows = st.lists(
    st.tuples(
        st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        st.none() | st.integers(0, 65535),
        blobs,
        st.none() | st.binary(max_size=80),
    ),
    max_size=40,
)
pieces = st.lists(st.integers(1, 300), max_size=60)


def read(data: bytes, sizes: list[int], buffer_bytes: int = limits.READ_BUFFER_BYTES) -> list[tuple[Value, ...]]:
    decoder = ResultDecoder(version())
    reader = ResultReader(in_pieces(data, sizes), buffer_bytes)
    assert decoder.differences(reader.sent_columns()) == ""
    return [tuple(row.values()) for batch in reader.batches(decoder) for row in batch.to_pylist()]


def payloads_by_pymysql(data: bytes, count: int) -> list[bytes]:
    """Returns the payloads as PyMySQL divides and joins the packets."""
    connection: Any = object.__new__(Connection)
    connection._rfile, connection._next_seq_id, connection._read_timeout = io.BytesIO(data), 1, None
    connection._current_timeout, connection.encoding, connection._result = None, "utf8", None
    return [bytes(connection._read_packet().get_all_data()) for _ in range(count)]


@given(sent=rows, sizes=pieces, buffer_bytes=st.sampled_from([SMALL_BUFFER, 1000, 1 << 16]))
def test_rows_are_what_was_sent_snapshot(sent: list[Any], sizes: list[int], buffer_bytes: int) -> None:
    data = result(sent)
    assert read(data, sizes, buffer_bytes) == sent
    payloads = payloads_by_pymysql(data, len(sent) + len(COLUMNS) + 3)
    assert payloads[-1] == EOF
    assert payloads[len(COLUMNS) + 2 : -1] == [row_payload(row) for row in sent]


@example(sent=[], index=18, change=254, sizes=[1 << 16] * 40)  # a NULL name
@given(sent=rows, index=st.integers(0, 1 << 20), change=st.integers(1, 255), sizes=pieces)
def test_damaged_bytes_are_refused_or_read_never_more_snapshot(
    sent: list[Any], index: int, change: int, sizes: list[int]
) -> None:
    """Whatever value one byte gets, the kernel reads nothing outside the buffer. Otherwise it would end the process."""
    data = bytearray(result(sent))
    data[index % len(data)] ^= change
    decoder, reader = ResultDecoder(version()), ResultReader(in_pieces(bytes(data), sizes), SMALL_BUFFER)
    try:
        reader.sent_columns()
        found = sum(batch.num_rows for batch in reader.batches(decoder))
    except (SluiceError, ServerRefusedError):
        return
    assert found <= len(sent) + 1


@pytest.mark.parametrize(
    "size", [limits.PACKET_BYTES_MAX - 30, limits.PACKET_BYTES_MAX, 2 * limits.PACKET_BYTES_MAX + 5]
)
def test_a_row_of_many_packets_is_one_row_snapshot(size: int) -> None:
    large = bytes(range(256)) * (size // 256 + 1)
    sent = [(1, 2, b"small", None), (2, None, large[:size], b""), (3, 4, None, b"after")]
    assert read(result(sent), [1 << 20] * 40) == sent


def test_a_payload_that_fills_its_packet_is_followed_by_an_empty_one_snapshot() -> None:
    rest = len(row_payload((2, 3, b"x" * (1 << 16), b"")))
    blob = b"y" * (limits.PACKET_BYTES_MAX - rest + (1 << 16) - 1 + 1)
    exact = (2, 3, blob, b"")
    assert len(row_payload(exact)) == limits.PACKET_BYTES_MAX
    assert len(list(packets([row_payload(exact)]))) == 2
    assert read(result([exact, (4, 5, None, b"z")]), [999_999] * 20) == [exact, (4, 5, None, b"z")]


def test_an_error_within_the_rows_is_the_servers_snapshot() -> None:
    with pytest.raises(ServerRefusedError, match="interrupted") as raised:
        read(result([(1, 2, b"", b"")] * 3, end=ERROR), [7] * 100)
    assert raised.value.code == 1317


def test_a_connection_that_ends_within_the_rows_is_reported_snapshot() -> None:
    whole = result([(1, 2, b"abc", b"def")])
    for end in (0, 3, len(whole) // 2, len(whole) - 1):
        with pytest.raises(SourceConnectionError, match="closed the connection"):
            read(whole[:end], [])


def test_a_packet_out_of_order_is_no_row_snapshot() -> None:
    data = bytearray(result([(1, 2, b"abc", b"def")]))
    data[-len(EOF) - 1] ^= 1
    with pytest.raises(SourceConnectionError, match="not a row"):
        read(bytes(data), [])


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (Column(name="word", type_code=15, charset="latin1", mysql_type="varchar(80)"), "charset binary"),
        (Column(name="word", type_code=3, mysql_type="int"), "type code 253"),
    ],
)
def test_a_column_that_is_not_the_schemas_is_named_snapshot(column: Column, why: str) -> None:
    table = version()
    changed = type(table)(database="shop", table="orders", columns=(*table.columns[:3], column))
    sent = ResultReader(in_pieces(result([]), [])).sent_columns()
    assert why in ResultDecoder(changed).differences(sent)
    assert "4 columns instead of 5" in ResultDecoder(version(column)).differences(sent)
