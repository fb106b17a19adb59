"""The sockets of Canal's protocol: one listener an address, shared by the destinations that name it, and a thread a client.

Memory is bounded by the connections allowed: a client's packet is small, an answer is one delivery. Who does not speak in time, or does not
read what it asked for, is gone. Nothing listens beyond the loopback unless conf/ says so.
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

from cdc_engine.errors import ConfigurationError, UnknownDestinationError
from cdc_engine.server.protocol.packets import FRAME_BYTES_MAX, LENGTH, refusal
from cdc_engine.server.protocol.session import AUTHENTICATION, PACKET, Access, Answer, Served, Session

logger = logging.getLogger(__name__)

ACCEPT_AGAIN_SECONDS = 0.1
GREETING_SECONDS = 10.0  # a stranger has so long to say who it is
SILENCE_SECONDS = 3600.0  # of a client that does not ask for less
WRITE_SECONDS = 60.0  # for one answer to be taken
BACKLOG = 64
SEND_BYTES = 1 << 18


class CannotListenError(ConfigurationError):
    """Somebody else has the port, or this host has no such address: it is tried again."""

    code = "CANNOT_LISTEN"


ANYONE = Access()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """Where to listen, and who may come in. `port` 0: any that is free."""

    host: str = "127.0.0.1"
    port: int = 0
    access: Access = ANYONE
    certificate_file: Path | None = None
    key_file: Path | None = None
    connections_max: int = 64


class Listener:
    """Serves destinations by name until `close`. Raises CannotListenError, ConfigurationError."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._served: dict[str, Served] = {}
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._tls = _tls_of(address)
        try:
            self._socket = socket.create_server((address.host, address.port), backlog=BACKLOG)
        except OSError as error:
            raise CannotListenError(
                f"canal_server cannot listen at {address.host}:{address.port} ({error.strerror}): choose another port"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name=f"canal-{self.port}", daemon=True).start()

    def serve(self, destination: str, served: Served) -> None:
        with self._lock:
            self._served[destination] = served

    def withdraw(self, destination: str) -> bool:
        """Whether nothing is served any more."""
        with self._lock:
            self._served.pop(destination, None)
            return not self._served

    def close(self) -> None:
        """Ends every connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            _end(client)

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
                    return  # closed
                threading.Event().wait(ACCEPT_AGAIN_SECONDS)  # no descriptor is free, or the client is gone already
                continue
            with self._lock:
                full = len(self._clients) >= self.address.connections_max
                if not full:
                    self._clients.add(client)
            if full:
                _refuse(client, f"more than {self.address.connections_max} clients are connected")
                continue
            threading.Thread(target=self._talk, args=(client,), name=f"canal-client-{self.port}", daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        channel = client
        try:
            client.settimeout(GREETING_SECONDS)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                channel = self._tls.wrap_socket(client, server_side=True)  # takes the descriptor away from `client`
                with self._lock:
                    self._clients.discard(client)
                    self._clients.add(channel)
            _converse(channel, Session(self.address.access, self._served_as))
        except (OSError, EOFError):
            logger.debug("a client of port %d is gone", self.port)
        finally:
            with self._lock:
                self._clients.difference_update((client, channel))
            _end(channel)


def _converse(channel: socket.socket, session: Session) -> None:
    _write(channel, Answer((session.greeting(),)))
    while True:
        channel.settimeout(
            _seconds(session.read_seconds, SILENCE_SECONDS) if session.authenticated else GREETING_SECONDS
        )
        size = LENGTH.unpack(_read(channel, LENGTH.size))[0]
        if not 0 < size <= FRAME_BYTES_MAX:
            said = f"a packet of {size} bytes is not taken: {FRAME_BYTES_MAX} are the most"
            _write(channel, Answer((refusal(PACKET if session.authenticated else AUTHENTICATION, said),)))
            return
        answer = session.answered(_read(channel, size))
        channel.settimeout(_seconds(session.write_seconds, WRITE_SECONDS))
        _write(channel, answer)
        if answer.closes:
            return


def _seconds(wanted: float, most: float) -> float:
    return min(wanted, most) if wanted > 0 else most


def _read(channel: socket.socket, size: int) -> bytes:
    """Raises EOFError where the client is gone, TimeoutError where it is silent."""
    data = bytearray()
    while len(data) < size:
        _acknowledge_at_once(channel)
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _acknowledge_at_once(client: socket.socket) -> None:
    """The stock client writes a packet in two small pieces and waits for the first to be acknowledged, which the kernel delays by 40 ms."""
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is not None:
        client.setsockopt(socket.IPPROTO_TCP, quick, 1)


def _write(channel: socket.socket, answer: Answer) -> None:
    for part in answer.parts:
        view = memoryview(part)
        while view:
            channel.sendall(view[:SEND_BYTES])  # the timeout is for each
            view = view[SEND_BYTES:]


def _refuse(client: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        client.settimeout(1.0)
        client.sendall(refusal(PACKET, why))
    _end(client)


def _end(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
    client.close()


def _tls_of(address: Address) -> ssl.SSLContext | None:
    if address.certificate_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(address.certificate_file, address.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"canal_server.certificate_file or key_file cannot be used: {error}") from error
    return context


_listeners: dict[tuple[str, int], Listener] = {}
_lock = threading.Lock()


def listen(address: Address, destination: str, served: Served) -> Callable[[], None]:
    """Serves a destination there; the answer ends it. Raises ConfigurationError where another one says otherwise who may come in."""
    key = (address.host, address.port)
    with _lock:
        listener = _listeners.get(key) if address.port else None
        if listener is None:
            listener = Listener(address)
            _listeners[address.host, listener.port] = listener
        elif listener.address != address:
            raise ConfigurationError(
                f"two destinations listen at {address.host}:{address.port} and differ in canal_server: say the same, or another port"
            )
        listener.serve(destination, served)

    def end() -> None:
        with _lock:
            if listener.withdraw(destination):
                _listeners.pop((address.host, listener.port), None)
                listener.close()

    return end
