"""Tests the limits of what a client can cost the server: bytes of a fetch, fields of a packet, seconds of silence. Each bound is reached
without a socket.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest

from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, number_field
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX
from sluice.cdc_engine.server.protocol import packets
from sluice.cdc_engine.server.protocol.connections import UNAUTHENTICATED_MAX, ClientConnection
from sluice.cdc_engine.server.protocol.listener import (
    SEND_BYTES,
    SILENCE_SECONDS,
    WRITE_SECONDS,
    Address,
    _answered,
    _write,
)
from sluice.cdc_engine.server.protocol.packets import PacketType
from sluice.cdc_engine.server.protocol.session import FETCH_BYTES_MAX, ClientAnswer
from tests.server.protocol.test_canal_protocol import GET, SUBSCRIPTION, Example, admitted


class FakeChannel:
    """A client that has sent `data` and then disappears. It records what the server does with the socket, in order."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.calls: list[tuple[str, Any]] = []

    def settimeout(self, seconds: float) -> None:
        self.calls.append(("timeout", seconds))

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.calls.append(("option", (level, option, value)))

    def recv(self, size: int) -> bytes:
        self.calls.append(("recv", size))
        part, self.data = self.data[:size], self.data[size:]
        return part

    def sendall(self, view: memoryview) -> None:
        self.calls.append(("sent", len(view)))

    def of(self, kind: str) -> list[Any]:
        return [value for one, value in self.calls if one == kind]


def frame(data: bytes) -> bytes:
    return packets.LENGTH.pack(len(data)) + data


def fetched(units: int, *, counts_entries: bool) -> tuple[list[int], int]:
    """Returns the limits of a client's get: bytes, and entries."""
    example = Example()
    example.counts_entries = counts_entries
    example.subscribe(1001, "")
    fields = SUBSCRIPTION[4:] + number_field(3, units)
    admitted(example).answered(number_field(3, PacketType.GET) + bytes_field(5, fields))
    return [requested for requested, _ in example.calls], example.entries_max


@pytest.mark.parametrize(("units", "bytes_max"), [(1 << 20, FETCH_BYTES_MAX), (3, 3 * 1024), (0, 1024), (-5, 1024)])
def test_a_fetch_is_bounded_whatever_a_client_requests(units: int, bytes_max: int) -> None:
    assert fetched(units, counts_entries=False) == ([bytes_max], BATCH_EVENTS_MAX)


@pytest.mark.seeds
@pytest.mark.parametrize(("units", "entries_max"), [(1 << 30, BATCH_EVENTS_MAX), (3, 3), (0, 1), (-5, 1)])
def test_a_fetch_of_entries_is_bounded_in_entries_and_in_bytes(units: int, entries_max: int) -> None:
    assert fetched(units, counts_entries=True) == ([FETCH_BYTES_MAX], entries_max)


def test_a_packet_of_more_fields_than_the_protocol_has_is_refused() -> None:
    most = number_field(1, 7) * packets.FIELDS_MAX
    assert packets.parsed(most).kind == 0
    with pytest.raises(packets.PacketError, match=f"more than {packets.FIELDS_MAX} fields"):
        packets.parsed(most + number_field(1, 7))


@pytest.mark.parametrize(
    ("wanted", "silence", "write"),
    [(0.0, SILENCE_SECONDS, WRITE_SECONDS), (2.5, 2.5, 2.5), (1e9, SILENCE_SECONDS, WRITE_SECONDS)],
)
def test_a_client_is_waited_for_as_long_as_it_says_up_to_a_bound(wanted: float, silence: float, write: float) -> None:
    channel: Any = FakeChannel(frame(GET))
    session = admitted(Example())
    session.read_seconds = session.write_seconds = wanted
    assert _answered(ClientConnection(channel, 0.0), session)
    assert channel.of("timeout") == [silence, silence, write]


def test_each_piece_of_a_packet_is_acknowledged_at_once() -> None:
    """The stock client sends length and packet separately, and waits for the ACK of the first, which the kernel would delay by 40 ms."""
    channel: Any = FakeChannel(frame(GET))
    _answered(ClientConnection(channel, 0.0), admitted(Example()))
    assert channel.of("option") == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)] * len(channel.of("recv"))
    kinds = [kind for kind, _ in channel.calls if kind in {"option", "recv"}]
    assert kinds == ["option", "recv"] * 2, "the option holds for one answer of the kernel"


def test_a_long_answer_is_written_in_pieces_that_each_have_the_time_of_a_write() -> None:
    channel: Any = FakeChannel()
    _write(channel, ClientAnswer((b"x", bytes(2 * SEND_BYTES + 1))))
    assert channel.of("sent") == [1, SEND_BYTES, SEND_BYTES, 1]


def test_an_address_bounds_the_connections_that_have_not_authenticated() -> None:
    assert Address().unauthenticated_max == UNAUTHENTICATED_MAX == 64
