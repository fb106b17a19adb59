"""Tests that no bytes from a connection make the kernel read beyond its buffer.

The compiled code checks no bounds, so the same source runs here as plain Python over a buffer that refuses every read outside it.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog import little_endian
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.parser.scan import gtid_kernel as scan_gtid
from sluice.cdc_engine.parser.scan import kernel as scan_kernel
from sluice.cdc_engine.parser.scan import state as at
from sluice.cdc_engine.parser.scan.state import ScanMemory, ScanStatus
from tests.binlog.plain_kernels import Guarded, plain
from tests.parser.scan.event_factory import EventFactory, as_buffer, packets, scanner, varlen

PLAIN = plain(little_endian, scan_gtid, scan_kernel)


def plain_crc32(buffer: Guarded, begin: int, end: int) -> int:
    assert 0 <= begin <= end <= buffer.shape[0]
    return 0


PLAIN.crc32 = plain_crc32  # type: ignore[attr-defined]


def legal() -> bytes:
    make = EventFactory(checksum=False)
    events = [make.rotate("binlog.000008"), make.gtid(1, time_us=5, original_us=4), make.query("BEGIN")]
    events += [make.table_map(5), make.rows(5), make.rows(5, 23), make.xid(), make.mariadb_gtid(3), make.table_map(5)]
    events += [
        make.query("COMMIT"),
        make.tagged_gtid(300, "night", [(7, varlen(1 << 60))]),
        make.query("BEGIN"),
        make.table_map(5),
    ]
    events += [make.rows(5, 25), make.query("COMMIT"), make.event(27, b"abc", artificial=True), make.query("DROP x")]
    return packets(events)


LEGAL = legal()
KNOWN_TYPES = [2, 16, 19, 23, 25, 30, 32, 33, 34, 42, 162]
mutations = st.lists(st.tuples(st.integers(0, len(LEGAL) - 1), st.integers(0, 255)), max_size=12)


def run_plain(data: bytes, checksum: int, overhead: int) -> None:
    """Drives the kernel as the Scanner does, until the kernel stops. Everything that it hands over is skipped."""
    memory = ScanMemory.make()
    memory.events, memory.ends = memory.events[:, :64].copy(), memory.ends[:, :64].copy()
    memory.state[at.CHECKSUM], memory.state[at.OVERHEAD], memory.state[at.LIMIT] = checksum, overhead, len(data)
    memory.state[at.OPEN] = 1
    memory.remember_table(np.frombuffer(b"\x05" + bytes(5) + b"\x01\x00", np.uint8), 0)
    for _ in range(200):
        arrays = (memory.events, memory.ends, memory.tables, memory.pool, memory.sources, memory.queries)
        verdict = PLAIN.scan(Guarded(data), memory.state, *arrays)
        if verdict != ScanStatus.HAND_OVER:
            break
        assert memory.state[at.EVENT] + memory.state[at.EVENT_LENGTH] <= len(data)
    assert 0 <= memory.state[at.AT] <= len(data)


def test_the_plain_kernel_reads_the_legal_stream() -> None:
    run_plain(LEGAL, 0, 5)


@settings(max_examples=300, deadline=None)
@given(mutations, st.integers(0, len(LEGAL)), st.sampled_from([0, 4]), st.sampled_from([0, 5]))
def test_a_damaged_stream_is_never_read_outside(
    changes: list[tuple[int, int]], end: int, checksum: int, overhead: int
) -> None:
    data = bytearray(LEGAL)
    for index, value in changes:
        data[index] = value
    run_plain(bytes(data[:end]), checksum, overhead)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([0, 4]), st.sampled_from([0, 5]))
def test_garbage_is_never_read_outside(data: bytes, checksum: int, overhead: int) -> None:
    run_plain(data, checksum, overhead)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.sampled_from(KNOWN_TYPES), st.integers(0, 255)), st.integers(-9, 9), st.binary(max_size=70))
def test_an_event_of_any_type_and_body_is_never_read_outside(event_type: int, lie: int, body: bytes) -> None:
    """`lie` is the error in the event's stated length. Values up to 6 count as 0, so most lengths are correct."""
    length = 19 + len(body) + (lie if abs(lie) > 6 else 0)
    event = bytes(4) + bytes([event_type]) + bytes(4) + max(0, length).to_bytes(4, "little") + bytes(6) + body
    run_plain(event, 0, 0)
    run_plain((len(event) + 1).to_bytes(3, "little") + b"\x00\x00" + event, 0, 5)


tagged_fields = st.lists(
    st.tuples(st.sampled_from(range(14)), st.integers(0, 1 << 62).map(varlen) | st.binary(max_size=20))
)


@settings(max_examples=300, deadline=None)
@given(tagged_fields, st.integers(0, 70), st.integers(0, 9))
def test_a_tagged_gtid_of_any_fields_is_never_read_outside_fidelity(
    fields: list[tuple[int, bytes]], end: int, change: int
) -> None:
    """`change` is the index of a byte near the beginning of the event's body. The test increases this byte by one."""
    event = bytearray(EventFactory(checksum=False).tagged_gtid(5, "night", fields))
    event[19 + change] = (event[19 + change] + 1) & 0xFF
    event = event[: len(event) - end % max(1, len(event) - 19)]
    event[9:13] = len(event).to_bytes(4, "little")
    run_plain(bytes(event), 0, 0)


@settings(max_examples=300, deadline=None)
@given(mutations, st.integers(0, len(LEGAL)))
def test_a_damaged_stream_ends_in_one_of_our_errors(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(LEGAL)
    for index, value in changes:
        data[index] = value
    scan = scanner(checksum=False)
    try:
        list(scan.feed(as_buffer(bytes(data[:end])), 0, end))
    except SluiceError:
        return
    assert scan.consumed <= end


def test_the_guard_would_notice() -> None:
    with pytest.raises(AssertionError, match="read of byte"):
        Guarded(b"abc")[3]
    assert sys.modules[scan_kernel.__name__] is scan_kernel
