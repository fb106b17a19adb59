"""Listens for clients of Canal's protocol: one listener per address, which several destinations may share, and one thread per client.

`connections` limits the number of connections. This also limits the memory, because each connection keeps only one small packet and
one delivery in memory. The listener ends a connection if the client does not authenticate within GREETING_SECONDS, sends nothing for
SILENCE_SECONDS, or does not read an answer within WRITE_SECONDS. A listener uses the loopback address unless conf/ names another address.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.errors import ConfigurationError, UnknownDestinationError
from sluice.cdc_engine.server.protocol.connections import UNAUTHENTICATED_MAX, ClientConnection, Connections
from sluice.cdc_engine.server.protocol.packets import FRAME_BYTES_MAX, LENGTH, refusal
from sluice.cdc_engine.server.protocol.session import (
    AUTHENTICATION,
    PACKET,
    Access,
    ClientAnswer,
    ClientSession,
    Served,
)

logger = logging.getLogger(__name__)

ACCEPT_AGAIN_SECONDS = 0.1
# The time limit for the TLS handshake, the server's greeting and the client's authentication together.
GREETING_SECONDS = 10.0
# The time limit for sending a client the reason why its connection ends.
FAREWELL_SECONDS = 1.0
# If a client sends nothing for this long, its connection is ended. A client may request a shorter time-out.
SILENCE_SECONDS = 3600.0
WRITE_SECONDS = 60.0  # A connection is ended if the client does not read an answer within this time.
BACKLOG = 64
SEND_BYTES = 1 << 18


class CannotListenError(ConfigurationError):
    """Raised if another process uses the port, or if this host does not have the address. Listening is tried again."""

    code = "CANNOT_LISTEN"


ANYONE = Access()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """The address to listen on, and the settings and limits for its clients. `port` 0 means any free port."""

    host: str = "127.0.0.1"
    port: int = 0
    access: Access = ANYONE
    certificate_file: Path | None = None
    key_file: Path | None = None
    connections_max: int = 64
    unauthenticated_max: int = UNAUTHENTICATED_MAX
    greeting_seconds: float = GREETING_SECONDS


class CanalListener:
    """Serves destinations by name until `close` is called. The constructor raises CannotListenError if it cannot listen at the address, and
    ConfigurationError if the certificate or its key cannot be used.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._served: dict[str, Served] = {}
        self._connections = Connections(address.connections_max, address.unauthenticated_max)
        self._lock = threading.Lock()
        self._tls = _tls_of(address)
        try:
            self._socket = _listening(address.host, address.port)
        except OSError as error:
            host = f"[{address.host}]" if ":" in address.host else address.host
            raise CannotListenError(
                f"canal_server cannot listen at {host}:{address.port} ({error.strerror}): if another process uses the port, "
                "set another canal_server.port; if this host does not have the address, correct canal_server.host"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name=f"canal-{self.port}", daemon=True).start()

    def serve(self, destination: str, served: Served) -> None:
        with self._lock:
            self._served[destination] = served

    def withdraw(self, destination: str) -> bool:
        """Stops serving a destination. Returns whether this was the last destination of the listener."""
        with self._lock:
            self._served.pop(destination, None)
            return not self._served

    def close(self) -> None:
        """Closes the socket and ends every connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._connections.end_all()

    def _served_as(self, destination: str) -> Served:
        with self._lock:
            if destination not in self._served:
                raise UnknownDestinationError(f"can't find destination:{destination[:64]}")
            return self._served[destination]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return  # The listener was closed.
                # The process has no free file descriptor, or the client has already disconnected. Tries again after a pause.
                threading.Event().wait(ACCEPT_AGAIN_SECONDS)
                continue
            connection = ClientConnection(client, self.address.greeting_seconds)
            if not self._connections.enter(connection):
                logger.warning(
                    "port %d: more than %d connections have not authenticated, so the oldest one is ended",
                    self.port,
                    self.address.unauthenticated_max,
                )
            threading.Thread(
                target=self._talk, args=(connection,), name=f"canal-client-{self.port}", daemon=True
            ).start()

    def _talk(self, connection: ClientConnection) -> None:
        session = ClientSession(self.address.access, self._served_as, lambda: self._admitted(connection))
        try:
            self._greet(connection, session)
            while _answered(connection, session):
                pass
        except (OSError, EOFError) as error:
            logger.debug("a client of port %d has disconnected", self.port)
            if not session.authenticated:
                self._say_goodbye(connection, error)
        finally:
            self._connections.leave(connection)
            connection.end()

    def _greet(self, connection: ClientConnection, session: ClientSession) -> None:
        connection.channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.channel.settimeout(connection.greeting_left())
        if self._tls is not None:
            # `wrap_socket` takes the descriptor away from the plain socket. So `connection` gets the TLS socket before the handshake.
            # Otherwise `stop_reading` could not end a handshake that waits.
            connection.channel = tls = self._tls.wrap_socket(
                connection.channel, server_side=True, do_handshake_on_connect=False
            )
            # Raises EOFError if `stop_reading` was called before `connection` got the TLS socket. That call had no effect on the plain
            # socket, which no longer has a descriptor.
            connection.greeting_left()
            tls.do_handshake()
        _write(connection.channel, ClientAnswer((session.greeting(),)))

    def _admitted(self, connection: ClientConnection) -> str:
        refused = self._connections.admit(connection)
        if refused:
            logger.warning("port %d refuses a client: %s", self.port, refused)
        return refused

    def _say_goodbye(self, connection: ClientConnection, error: BaseException) -> None:
        """Sends the client the reason why the listener ends a connection that has not authenticated. Sends nothing if the client ended the
        connection.
        """
        because = connection.ended_because
        if not because and isinstance(error, TimeoutError):
            because = f"no authentication within {self.address.greeting_seconds:g} s"
        if because:
            with contextlib.suppress(OSError):
                connection.channel.settimeout(FAREWELL_SECONDS)
                connection.channel.sendall(refusal(AUTHENTICATION, because))


def _listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address of IPv4 or IPv6. At `::`, it listens for both, if the operating system permits that."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=BACKLOG)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=both)


def _answered(connection: ClientConnection, session: ClientSession) -> bool:
    """Reads one packet and writes its answer. Returns False if the connection must end."""
    channel = connection.channel
    size = LENGTH.unpack(_read(connection, session, LENGTH.size))[0]
    if not 0 < size <= FRAME_BYTES_MAX:
        said = f"a packet of {size} bytes is refused: the maximum is {FRAME_BYTES_MAX}"
        _write(channel, ClientAnswer((refusal(PACKET if session.authenticated else AUTHENTICATION, said),)))
        return False
    answer = session.answered(_read(connection, session, size))
    channel.settimeout(_seconds(session.write_seconds, WRITE_SECONDS))
    _write(channel, answer)
    return not answer.closes


def _seconds(wanted: float, most: float) -> float:
    return min(wanted, most) if wanted > 0 else most


def _read(connection: ClientConnection, session: ClientSession, size: int) -> bytes:
    """Reads `size` bytes. Raises EOFError if the client has disconnected. Raises TimeoutError if the client sends nothing for the time-out,
    or does not authenticate within the time limit.
    """
    data = bytearray()
    while len(data) < size:
        connection.channel.settimeout(
            _seconds(session.read_seconds, SILENCE_SECONDS) if session.authenticated else connection.greeting_left()
        )
        _acknowledge_at_once(connection.channel)
        part = connection.channel.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _acknowledge_at_once(client: socket.socket) -> None:
    """Turns off delayed TCP acknowledgements. Canal's client writes a packet in two small pieces, and waits for the acknowledgement of the
    first piece, which the kernel would delay by 40 ms.
    """
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is not None:
        client.setsockopt(socket.IPPROTO_TCP, quick, 1)


def _write(channel: socket.socket, answer: ClientAnswer) -> None:
    for part in answer.parts:
        view = memoryview(part)
        while view:
            channel.sendall(view[:SEND_BYTES])  # Sends the answer in pieces, because the time-out applies to each call.
            view = view[SEND_BYTES:]


def _tls_of(address: Address) -> ssl.SSLContext | None:
    if address.certificate_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without this option, OpenSSL refuses to write after `stop_reading`, so the client would not get `ended_because`. A client that ends in
    # the middle of a packet is noticed by the packet's length.
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    try:
        context.load_cert_chain(address.certificate_file, address.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"canal_server.certificate_file or key_file cannot be used ({error}): name PEM files that can be read"
        ) from error
    return context


_listeners: dict[tuple[str, int], CanalListener] = {}
_lock = threading.Lock()


def listen(address: Address, destination: str, served: Served) -> Callable[[], None]:
    """Serves a destination at an address. Returns a function that stops serving the destination. Raises ConfigurationError if another
    destination uses the address with other settings, or if the certificate cannot be used. Raises CannotListenError if the address cannot
    be used.
    """
    key = (address.host, address.port)
    with _lock:
        listener = _listeners.get(key) if address.port else None
        if listener is None:
            listener = CanalListener(address)
            _listeners[address.host, listener.port] = listener
        elif listener.address != address:
            raise ConfigurationError(
                f"two destinations share the Canal server at {address.host}:{address.port}, but their "
                "canal_server settings differ: give both destinations the same settings, or give one of them "
                "another port"
            )
        listener.serve(destination, served)

    def end() -> None:
        with _lock:
            if listener.withdraw(destination):
                _listeners.pop((address.host, listener.port), None)
                listener.close()

    return end
