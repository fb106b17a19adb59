"""Tests the limits of a listener: clients, connections that have not authenticated, and the time that these connections have."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.binlog.protobuf_fields import bytes_field
from sluice.cdc_engine.server.protocol import packets
from sluice.cdc_engine.server.protocol.listener import Address, CanalListener
from sluice.cdc_engine.server.protocol.packets import Packet, PacketType, parsed
from tests.canal_client.fix_served import CANAL, Destination
from tests.certificates import write_certificate
from tests.server.protocol.test_canal_protocol import received

GREETING_SECONDS = 1.0
LOGIN = packets.frame(PacketType.CLIENTAUTHENTICATION, bytes_field(1, b"canal"), version=False)
BYTES_SENT_MAX = 200


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


def listening(stack: contextlib.ExitStack, address: Address) -> CanalListener:
    listener = CanalListener(address)
    listener.serve("example", Destination([]))
    stack.callback(listener.close)
    return listener


def connected(stack: contextlib.ExitStack, listener: CanalListener) -> socket.socket:
    """Opens a connection, and reads the server's greeting."""
    client = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=30))
    assert packet_of(client).kind == PacketType.HANDSHAKE
    return client


def connected_with_tls(stack: contextlib.ExitStack, listener: CanalListener, ca_file: Path) -> ssl.SSLSocket:
    """Opens a connection with TLS, and reads the server's greeting."""
    context = ssl.create_default_context(cafile=str(ca_file))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    plain = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=30))
    client = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
    assert packet_of(client).kind == PacketType.HANDSHAKE
    return client


def packet_of(client: socket.socket) -> Packet:
    data = b""
    while len(data) < 4 or len(data) < 4 + packets.LENGTH.unpack(data[:4])[0]:
        part = client.recv(1)
        assert part, f"the server ended the connection after {data!r}"
        data += part
    return parsed(data[4:])


@pytest.mark.found
def test_a_client_above_the_limit_gets_the_reason_in_the_answer_to_its_authentication(
    stack: contextlib.ExitStack,
) -> None:
    """Defect 21: a connection above the limit of 64 was closed without a reason that Canal's clients show."""
    listener = listening(stack, Address(connections_max=2))
    clients = [connected(stack, listener) for _ in range(2)]
    for client in clients:
        client.sendall(LOGIN)
        assert packet_of(client).number(1) == 0
    third = connected(stack, listener)
    third.sendall(LOGIN)
    refused = packet_of(third)
    assert (refused.kind, refused.number(1)) == (PacketType.ACK, 503)
    assert "2 clients are connected" in refused.text(2)
    assert "connections_max" in refused.text(2)
    assert received(third) == b""
    clients[0].close()
    assert _admitted_again(stack, listener)


def _admitted_again(stack: contextlib.ExitStack, listener: CanalListener) -> bool:
    """Returns whether the listener admits another client. Tries several times, because the server notices the end of a client a moment
    later.
    """
    for _ in range(1000):
        client = connected(stack, listener)
        client.sendall(LOGIN)
        if packet_of(client).number(1) == 0:
            return True
        client.close()
    return False


@pytest.mark.found
def test_connections_that_do_not_authenticate_do_not_count_as_clients(stack: contextlib.ExitStack) -> None:
    """Defect 21: connections that never authenticated used all slots of a port."""
    listener = listening(stack, Address(connections_max=1, unauthenticated_max=2))
    silent = [connected(stack, listener) for _ in range(2)]
    client = connected(stack, listener)
    client.sendall(LOGIN)
    assert packet_of(client).number(1) == 0
    ended = packet_of(silent[0])
    assert (ended.kind, ended.number(1)) == (PacketType.ACK, 400)
    assert "more than 2 connections have not authenticated" in ended.text(2)
    silent[1].sendall(LOGIN)
    assert packet_of(silent[1]).number(1) == 503  # it was not ended: one connection was enough


@pytest.mark.found
def test_all_of_the_greeting_has_one_deadline(stack: contextlib.ExitStack) -> None:
    """Defect 21: each byte that arrived restarted the deadline of a connection that has not authenticated."""
    listener = listening(stack, Address(access=CANAL, greeting_seconds=GREETING_SECONDS))
    client = connected(stack, listener)
    client.sendall(b"\0\0\xff\xff")
    assert _bytes_until_answered(client) < BYTES_SENT_MAX
    ended = packet_of(client)
    assert (ended.kind, ended.number(1)) == (PacketType.ACK, 400)
    assert "no authentication within 1 s" in ended.text(2)


def _bytes_until_answered(client: socket.socket) -> int:
    """Sends ten zero bytes per second until the server answers. Returns the number of bytes that were sent."""
    for sent in range(BYTES_SENT_MAX):
        if select.select([client], [], [], 0.1)[0]:
            return sent
        with contextlib.suppress(ConnectionError):
            client.sendall(b"\0")
    return BYTES_SENT_MAX


@pytest.mark.found
def test_a_connection_that_is_ended_while_tls_takes_its_socket_is_ended_at_once(
    stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 21: the listener closed the plain socket, whose descriptor already belonged to the TLS socket. The client used its slot for 10
    s more.
    """
    files = write_certificate(tmp_path, "127.0.0.1")
    address = Address(
        unauthenticated_max=1,
        greeting_seconds=600,
        certificate_file=files["server"],
        key_file=files["server_key"],
    )
    listener = listening(stack, address)
    tls: Any = listener._tls
    wrapped, evicted = threading.Event(), threading.Event()

    class Slow:
        def wrap_socket(self, channel: socket.socket, **options: Any) -> ssl.SSLSocket:
            wrapping: ssl.SSLSocket = tls.wrap_socket(channel, **options)
            wrapped.set()
            assert evicted.wait(30)
            return wrapping

    monkeypatch.setattr(listener, "_tls", Slow())
    silent = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=30))
    assert wrapped.wait(30)
    monkeypatch.setattr(listener, "_tls", tls)
    # When the listener greets the second connection, it has closed the first one.
    connected_with_tls(stack, listener, files["ca"])
    evicted.set()
    received(silent)


@pytest.mark.found
def test_a_client_with_tls_gets_the_reason_why_it_is_ended_as_the_oldest(
    stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    """Defect 89: OpenSSL wrote nothing after the server had stopped reading, so the client got an alert of TLS and no error 400."""
    files = write_certificate(tmp_path, "127.0.0.1")
    address = Address(unauthenticated_max=1, certificate_file=files["server"], key_file=files["server_key"])
    listener = listening(stack, address)
    silent = connected_with_tls(stack, listener, files["ca"])
    connected_with_tls(stack, listener, files["ca"])
    ended = packet_of(silent)
    assert (ended.kind, ended.number(1)) == (PacketType.ACK, 400)
    assert "more than 1 connections have not authenticated" in ended.text(2)


@pytest.mark.found
def test_a_tls_handshake_counts_for_both_bounds(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    """Test for defect 21: a client that begins TLS and does not continue is disconnected, and uses no slot."""
    files = write_certificate(tmp_path, "127.0.0.1")
    address = Address(unauthenticated_max=1, certificate_file=files["server"], key_file=files["server_key"])
    listener = listening(stack, address)
    silent = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=30))
    silent.sendall(b"\x16\x03")
    client = connected_with_tls(stack, listener, files["ca"])
    received(silent)  # Reads until the server closes the connection.
    client.sendall(LOGIN)
    assert packet_of(client).number(1) == 0


@pytest.mark.found
def test_a_tls_handshake_that_takes_too_long_is_ended(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    """Test for defect 21: the deadline for the authentication includes the TLS handshake."""
    files = write_certificate(tmp_path, "127.0.0.1")
    keys = (files["server"], files["server_key"])
    address = Address(greeting_seconds=GREETING_SECONDS, certificate_file=keys[0], key_file=keys[1])
    listener = listening(stack, address)
    client = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=30))
    client.sendall(b"\x16\x03\x01\x40\x00")
    assert _bytes_until_answered(client) < BYTES_SENT_MAX
