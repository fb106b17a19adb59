"""Connects to a server: frames, handshake and authentication. `client` sends its requests through this module.

A frame consists of a length (4 bytes, big-endian) and a Packet of this length. An ack and a rollback have no answer. But if the server
refuses an ack or a rollback, it sends a refusal, which the client reads as the answer to its next request. From then on the client cannot
match answers to requests, and must close the connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import socket
import ssl
import struct
from typing import Any

from google.protobuf.message import DecodeError

from sluice.canal_client import messages
from sluice.canal_client.errors import (
    CanalAuthenticationError,
    CanalConnectionError,
    CanalProtocolError,
    CanalServerError,
)
from sluice.canal_client.messages import PacketType

LENGTH = struct.Struct(">I")
FRAME_BYTES_MAX = 1 << 30
# The time-out that the client requests, in ms. The server may close a connection on which nothing is sent for this long.
NET_TIMEOUT_MS = 3_600_000
PLAIN = {0, 1}  # The compression codes of packets without compression.
FULL = 503  # Sluice's error code if the server has the maximum number of clients.


@dataclasses.dataclass(frozen=True)
class Login:
    """The credentials and options of a connection. If `tls` is None, the connection has no TLS. `connect_seconds` is the time-out of
    opening the connection, and of each wait for the server during the login.
    """

    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    connect_seconds: float = 10.0


def token(password: str, seed: bytes) -> bytes:
    """Returns the proof that the client knows the password, as hex text: SHA1(seed + SHA1(SHA1(password))) XOR SHA1(password). Returns no
    bytes for an empty password.
    """
    if not password:
        return b""
    once = _sha1(password.encode())
    mask = _sha1(seed + _sha1(once))
    return bytes(left ^ right for left, right in zip(once, mask, strict=True)).hex().encode()


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()  # The protocol requires SHA-1.


class Channel:
    """A connection to a server. The constructor connects and authenticates. It raises CanalConnectionError if no connection is established,
    for example because TLS fails or because the server has the maximum number of clients. It raises CanalAuthenticationError if the server
    refuses the login, and CanalProtocolError if the server does not speak Canal's protocol.
    """

    def __init__(self, host: str, port: int, login: Login) -> None:
        self.address = f"{host}:{port}"
        try:
            self._socket: socket.socket = socket.create_connection((host, port), timeout=login.connect_seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise CanalConnectionError(
                f"no server answers at {self.address} ({_why(error)}): check that the server runs and can be reached"
            ) from error
        try:
            if login.tls is not None:
                self._socket = login.tls.wrap_socket(self._socket, server_hostname=host)
            self._come_in(login)
        except (ssl.SSLError, ssl.CertificateError) as error:
            self.close()
            raise CanalConnectionError(
                f"TLS with {self.address} failed ({_why(error)}): check the server's certificate, and whether "
                "the server expects TLS"
            ) from error
        except OSError as error:
            self.close()
            raise CanalConnectionError(
                f"the login at {self.address} did not complete ({_why(error)}): connect again"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def local_address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def request(self, kind: PacketType, body: Any, expected: PacketType, answer: Any, seconds: float) -> Any:
        """Sends the message `body` in a packet of the type `kind`. Returns the message in the server's answer, parsed with the class
        `answer`. Raises CanalServerError if the server refuses the request. Raises CanalConnectionError if the connection ends or no answer
        comes within `seconds`. Raises CanalProtocolError if the answer's packet is not of the type `expected`.
        """
        packet = self._exchanged(kind, body, seconds)
        if packet.type == PacketType.ACK:
            found = _parsed(messages.Ack, packet.body, self.address)
            if found.error_code or expected != PacketType.ACK:
                raise CanalServerError(found.error_code, found.error_message)
            return found
        if packet.type != expected:
            raise CanalProtocolError(
                f"{self.address} answered with a packet of type {packet.type} instead of {expected.name}: check which "
                "server listens at this address"
            )
        return _parsed(answer, packet.body, self.address)

    def send(self, kind: PacketType, body: Any) -> None:
        """Sends a request that has no answer. Raises CanalConnectionError if the connection has ended."""
        try:
            self._write(kind, body)
        except OSError as error:
            raise self._ended(error) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _come_in(self, login: Login) -> None:
        packet = self._read()
        if packet.type == PacketType.ACK:
            raise self._refusal(_parsed(messages.Ack, packet.body, self.address))
        if packet.type != PacketType.HANDSHAKE or packet.version != 1:
            raise CanalProtocolError(
                f"the server at {self.address} does not speak Canal's protocol: correct host and port"
            )
        seed = _parsed(messages.Handshake, packet.body, self.address).seeds
        who = messages.ClientAuth(
            username=login.user,
            password=token(login.password, seed),
            net_read_timeout=NET_TIMEOUT_MS,
            net_write_timeout=NET_TIMEOUT_MS,
        )
        self._write(PacketType.CLIENTAUTHENTICATION, who)
        packet = self._read()
        answer = _parsed(messages.Ack, packet.body, self.address)
        if packet.type != PacketType.ACK:
            raise CanalProtocolError(
                f"{self.address} answered the login with a packet of type {packet.type}: check which server listens at this address"
            )
        if answer.error_code == FULL:
            raise self._refusal(answer)
        if answer.error_code:
            raise CanalAuthenticationError(
                f"{self.address} refuses the login of {login.user!r} ({answer.error_message}): correct user and password"
            )

    def _refusal(self, answer: Any) -> CanalConnectionError:
        """Returns the error for a server that refuses the connection, or that refuses the login because it has the maximum number of
        clients. The error is a CanalConnectionError, because another server, or this server at a later time, may accept the client.
        """
        said = answer.error_message or "the server gave no reason"
        return CanalConnectionError(f"{self.address} refuses connections now ({answer.error_code}): {said}")

    def _exchanged(self, kind: PacketType, body: Any, seconds: float) -> Any:
        try:
            self._socket.settimeout(seconds)
            self._write(kind, body)
            return self._read()
        except TimeoutError as error:
            raise CanalConnectionError(f"{self.address} did not answer within {seconds:g} s: connect again") from error
        except OSError as error:
            raise self._ended(error) from error

    def _ended(self, error: OSError) -> CanalConnectionError:
        return CanalConnectionError(f"the connection to {self.address} ended ({_why(error)}): connect again")

    def _write(self, kind: PacketType, body: Any) -> None:
        packet = messages.Packet(type=int(kind), body=body.SerializeToString()).SerializeToString()
        self._socket.sendall(LENGTH.pack(len(packet)) + packet)

    def _read(self) -> Any:
        (size,) = LENGTH.unpack(self._bytes(LENGTH.size))
        if not 0 < size <= FRAME_BYTES_MAX:
            raise CanalProtocolError(
                f"{self.address} sent a frame of {size} bytes: the server does not speak Canal's protocol, or "
                "expects TLS"
            )
        packet = _parsed(messages.Packet, self._bytes(size), self.address)
        if packet.compression not in PLAIN:
            raise CanalProtocolError(
                f"{self.address} compresses its packets, which this client cannot read: disable compression "
                "in the server"
            )
        return packet

    def _bytes(self, size: int) -> bytes:
        data, read = bytearray(size), 0
        view = memoryview(data)
        while read < size:
            count = self._socket.recv_into(view[read:])
            if not count:
                raise ConnectionError("closed by the server")
            read += count
        return bytes(data)


def _parsed(kind: Any, data: bytes, address: str) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise CanalProtocolError(
            f"{address} sent an invalid {kind.DESCRIPTOR.name} message: check that a server of Canal's protocol listens at this address"
        ) from error


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
