"""Tests Canal's protocol on the wire: fixed byte sequences, errors by their numbers, clients without a login, wrong lengths, and random
bytes.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, number_field
from sluice.cdc_engine.errors import BatchNotFoundError, ConfigurationError, NotSubscribedError
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX
from sluice.cdc_engine.server.protocol import packets
from sluice.cdc_engine.server.protocol.listener import Address, CanalListener, listen
from sluice.cdc_engine.server.protocol.packets import Packet, PacketType, parsed
from sluice.cdc_engine.server.protocol.session import Access, ClientSession
from sluice.cdc_engine.server.protocol.token import knows_password
from sluice.secret_values import SecretLocation
from tests.certificates import write_certificate

HASH = "e3619321c1a937c46a0d8bd1dac39f93b27d4458"  # the hash of the password "canal"
SEED = bytes.fromhex("0102030405060708")
TOKEN = b"7de44690d8e53782cb61804a2455c284a3bbfb06"
SUBSCRIPTION = bytes.fromhex("18042a0f0a076578616d706c65120431303031")
GET = bytes.fromhex("18062a210a076578616d706c6512043130303118e80720ffffffffffffffffff0128023000")
ACK_5 = bytes.fromhex("18082a110a076578616d706c651204313030311805")
ROLLBACK = bytes.fromhex("180c2a0f0a076578616d706c65120431303031")
ENTRY = bytes_field(2, b"\xaa")


class Example:
    """Replaces a destination and its consumer in tests of a session. `get` returns `content` as batch 1, and `calls` records the calls."""

    def __init__(self) -> None:
        self.subscribed: dict[int, str] = {}
        self.calls: list[Any] = []
        self.content: Any = None
        self.undelivered = ""
        self.entries_max = 0
        self.counts_entries = False

    def subscribe(self, client_id: int, client_filter: str) -> Example:
        self.subscribed[client_id] = client_filter
        return self

    def unsubscribe(self, client_id: int) -> None:
        self.subscribed.pop(client_id, None)

    def service(self, client_id: int) -> Example:
        if client_id not in self.subscribed:
            raise NotSubscribedError(f"ClientIdentity:{client_id} should subscribe first")
        return self

    def messages(self, content: bytes) -> bytes:
        return content

    def get(
        self, bytes_max: int, timeout_seconds: float = 0.0, *, entries_max: int = BATCH_EVENTS_MAX
    ) -> tuple[int, Any]:
        self.calls.append((bytes_max, timeout_seconds))
        self.entries_max = entries_max
        return (1, self.content) if self.content is not None else (-1, None)

    def ack(self, batch_id: int) -> None:
        if batch_id == 9:
            raise BatchNotFoundError("ack error , clientId:1001 batchId:9 is not exist , please check")
        self.calls.append(batch_id)

    def rollback(self, batch_id: int | None = None) -> None:
        self.calls.append(("rollback", batch_id))

    def stop_waiting(self) -> None:
        """Does nothing, because nobody waits."""


def reported(*parts: bytes) -> Packet:
    return parsed(b"".join(parts)[4:])


def admitted(example: Example) -> ClientSession:
    session = ClientSession(Access(), lambda _name: example)
    session.authenticated = True
    return session


def test_the_vectors_of_the_protocol() -> None:
    assert packets.handshake(SEED).hex() == "00000010" + "10011801" + "2a0a" + "1208" + SEED.hex()
    assert packets.ack().hex() == "00000004" + "1001" + "1803"
    assert packets.refusal(400, "x").hex() == "0000000c" + "1001" + "1803" + "2a06" + "089003" + "120178"
    assert packets.no_messages().hex() == "00000011" + "1001" + "1807" + "2a0b" + "08ffffffffffffffffff01"
    assert (packets.messages_head(1, 3) + ENTRY).hex() == "00000009" + "1807" + "2a05" + "0801" + "1201aa"


def test_a_token_proves_the_password_and_nothing_else_does() -> None:
    assert knows_password(TOKEN, SEED, HASH)
    assert not knows_password(TOKEN, bytes(8), HASH)
    assert not any(knows_password(wrong, SEED, HASH) for wrong in (b"", b"zz", TOKEN[:-2], HASH.encode()))
    assert knows_password(b"", SEED, "")


def test_an_unauthenticated_client_is_refused_and_disconnected() -> None:
    session = ClientSession(
        Access(user="canal", password_hash=SecretLocation(command=("echo", HASH)).reference), lambda _name: Example()
    )
    session.seed = SEED
    for first in (SUBSCRIPTION, b"\x18\x02\x2a\x07" + b"\x0a\x05canal", b""):
        answer = session.answered(first)
        assert answer.closes
        assert reported(*answer.parts).number(1) == 400
    body = bytes_field(1, b"canal") + bytes_field(2, TOKEN) + number_field(3, 3_600_000)
    answer = session.answered(number_field(3, 2) + bytes_field(5, body))
    assert (answer.parts, session.authenticated, session.read_seconds) == ((packets.ack(),), True, 3600.0)


def test_subscribe_get_ack_and_roll_back() -> None:
    example = Example()
    session = admitted(example)
    assert reported(*session.answered(GET).parts).number(1) == 400  # The client is not subscribed.
    assert session.answered(SUBSCRIPTION).parts == (packets.ack(),)
    assert session.answered(GET).parts == (packets.no_messages(),)
    example.content = ENTRY
    assert b"".join(session.answered(GET).parts).hex() == "00000009" + "1807" + "2a05" + "0801" + "1201aa"
    assert session.answered(ACK_5).parts == session.answered(ROLLBACK).parts == ()
    assert example.calls == [(1000 * 1024, 0.0), (1000 * 1024, 0.0), 5, ("rollback", None)]


@pytest.mark.parametrize(
    ("kind", "fields", "code", "said"),
    [
        (PacketType.SUBSCRIPTION, b"", 401, "destination or clientId is null. Sub:"),
        (PacketType.GET, bytes_field(1, b"example"), 401, "destination or clientId is null. Get: example"),
        (PacketType.CLIENTACK, SUBSCRIPTION[4:], 402, "batchId should assign value. Ack: example"),
        (PacketType.CLIENTACK, SUBSCRIPTION[4:] + b"\x18\x09", 400, "is not exist , please check"),
        (PacketType.SUBSCRIPTION, b"\x0a\x01x\x12\x0599999", 400, "not a number up to"),
        (PacketType.DUMP, b"", 400, "packet type: DUMP is NOT supported!"),
        (99, b"", 400, "packet type: 99 is NOT supported!"),
    ],
)
def test_canal_errors_by_their_numbers(kind: int, fields: bytes, code: int, said: str) -> None:
    example = Example()
    example.subscribe(1001, "")
    answer = admitted(example).answered(number_field(3, kind) + bytes_field(5, fields))
    refused = reported(*answer.parts)
    assert (refused.number(1), answer.closes) == (code, False)
    assert said in refused.text(2)


def test_a_get_waits_as_long_as_it_says() -> None:
    example = Example()
    example.subscribe(1001, "")
    for given, unit, seconds in ((0, 0, 3600.0), (1500, 2, 1.5), (2, 3, 2.0), (-1, 2, 0.0), (9, 6, 3600.0)):
        fields = SUBSCRIPTION[4:] + b"\x18\x01" + number_field(4, given) + number_field(5, unit)
        admitted(example).answered(number_field(3, PacketType.GET) + bytes_field(5, fields))
        assert example.calls.pop() == (1024, seconds)


@pytest.mark.found
@pytest.mark.parametrize("unit", [-1, 7])
def test_a_get_whose_unit_is_not_known_waits_milliseconds_as_in_canal(unit: int) -> None:
    """Defect 1069: if a program gives `get` only a time-out, canal-python sends the unit -1. The server then ended the connection."""
    example = Example()
    example.subscribe(1001, "")
    fields = SUBSCRIPTION[4:] + number_field(3, 1) + number_field(4, 1500) + number_field(5, unit)
    answer = admitted(example).answered(number_field(3, PacketType.GET) + bytes_field(5, fields))
    assert (example.calls, answer.closes) == ([(1024, 1.5)], False)


@pytest.fixture
def listener() -> Iterator[CanalListener]:
    made = CanalListener(
        Address(
            access=Access(user="canal", password_hash=SecretLocation(command=("echo", HASH)).reference),
            connections_max=2,
        )
    )
    made.serve("example", Example())
    yield made
    made.close()


def received(client: socket.socket) -> bytes:
    """Returns all bytes until the server closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(1 << 16):
            data += part
    return data


def test_a_lying_length_is_refused_before_it_costs_anything(listener: CanalListener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as client:
        client.sendall(b"\x7f\xff\xff\xff")
        frames = received(client)
    assert b"the maximum is" in frames
    assert b"Traceback" not in frames


def test_random_bytes_of_unknown_clients_end_their_connections_and_nothing_else_canal(listener: CanalListener) -> None:
    chance = random.Random(13)  # noqa: S311  no secret
    for attempt in range(60):
        with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as client:
            body = chance.randbytes(chance.randrange(1, 200))
            framed = attempt % 2 == 0
            client.sendall((packets.LENGTH.pack(len(body)) if framed else b"") + body)
            with contextlib.suppress(OSError):  # The connection may be closed already.
                client.shutdown(socket.SHUT_WR)
            assert b"Traceback" not in received(client)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as client:
        assert parsed(client.recv(20)[4:]).raw(2)


def test_random_bytes_of_a_client_are_answered_and_never_raise_canal() -> None:
    chance = random.Random(14)  # noqa: S311  no secret
    session = admitted(Example())
    vectors = [SUBSCRIPTION, GET, ACK_5, ROLLBACK]
    for _ in range(5000):
        frame = bytearray(chance.choice(vectors))
        for _ in range(chance.randrange(1, 6)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        for part in session.answered(bytes(frame)).parts:
            assert b"defect" not in part


def test_two_destinations_share_an_address_only_if_they_agree() -> None:
    address = Address(host="127.0.0.1", port=0)
    end = listen(address, "one", Example())
    try:
        with pytest.raises(ConfigurationError, match="cannot listen at"):
            CanalListener(Address(host="127.0.0.1", port=_port_of("one")))
    finally:
        end()


@pytest.mark.found
@pytest.mark.parametrize(
    ("host", "reached"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"]), ("127.0.0.1", ["127.0.0.1"])]
)
def test_a_server_listens_at_addresses_of_ipv6_too_canal(host: str, reached: list[str]) -> None:
    """Defect 1179: with the host `::` or `::1`, the server never listened, and the advice was to correct the host."""
    with contextlib.closing(CanalListener(Address(host=host))) as listener:
        for address in reached:
            with socket.create_connection((address, listener.port), timeout=30) as client:
                assert client.recv(1) == b"\0"


def _port_of(_destination: str) -> int:
    from sluice.cdc_engine.server.protocol import listener  # noqa: PLC0415  the register of those that listen

    return next(iter(listener._listeners))[1]


def test_a_client_comes_in_by_tls_canal(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, "127.0.0.1")
    address = Address(access=Access(), certificate_file=files["server"], key_file=files["server_key"])
    listener = CanalListener(address)
    context = ssl.create_default_context(cafile=str(files["ca"]))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with contextlib.closing(listener), socket.create_connection(("127.0.0.1", listener.port), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            assert client.recv(1) == b"\0"
            client.sendall(b"\0\0\0\4")
            client.sendall(b"\xff" * 4)  # The server reads these bytes, and they are not a packet.
            assert b"Traceback" not in received(client)
        with (
            socket.create_connection(("127.0.0.1", listener.port), timeout=30) as second,
            context.wrap_socket(second, server_hostname="127.0.0.1") as client,
        ):
            assert client.recv(1) == b"\0"
            listener.close()
            received(client)  # The end of the server closes the connection.


def test_what_cannot_be_shown_is_refused_again_and_not_gone_over_canal(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_content: bytes) -> bytes:
        raise ConfigurationError("no entry")

    example = Example()
    session = admitted(example)
    session.answered(SUBSCRIPTION)
    example.content = ENTRY
    monkeypatch.setattr(example, "messages", none)
    assert b"no entry" in b"".join(session.answered(GET).parts)
    assert example.calls[-1] == ("rollback", None)


@pytest.mark.found
def test_what_cannot_be_shown_to_a_client_is_the_reason_of_its_status_canal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1181: if the entries of a delivery could not be made, for example because the condition of `rows` cannot be evaluated for a
    row, each get of the client failed, but `sluice status` showed the client as IN_STEP without a reason.
    """
    example = Example()
    session = admitted(example)
    session.answered(SUBSCRIPTION)
    example.content = ENTRY
    with monkeypatch.context() as broken:
        broken.setattr(example, "messages", mock.Mock(side_effect=ConfigurationError("no entry")))
        session.answered(GET)
        assert example.undelivered == "no entry"
        broken.setattr(example, "messages", mock.Mock(side_effect=KeyError("ours")))
        session.answered(GET)
        assert example.undelivered == "KeyError: 'ours'"
    session.answered(GET)
    assert not example.undelivered
