"""Counts the connections of one listener against two limits: clients, and connections that have not authenticated yet. Used by `listener`.

Connections that have not authenticated never count against the limit of clients. If there are too many of them, the oldest one is ended:
a client authenticates within moments, so the oldest one is the least likely to be a client."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

UNAUTHENTICATED_MAX = 64


class ClientConnection:
    """One connection, with the sentence that it gets if the listener ends it before it has authenticated."""

    def __init__(self, channel: socket.socket, greeting_seconds: float) -> None:
        self.channel = channel
        """What to read and write: the TLS socket once the TLS handshake begins."""
        self.ended_because = ""
        self._greeting_ends = time.monotonic() + greeting_seconds

    def greeting_left(self) -> float:
        """Returns the seconds in which the connection must still authenticate. Raises TimeoutError when they are over, EOFError if the
        connection is ended.
        """
        if self.ended_because:
            raise EOFError
        left = self._greeting_ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def stop_reading(self) -> None:
        """Makes the thread that reads the connection see its end, so that it answers with the sentence."""
        with contextlib.suppress(OSError):
            # SSLSocket.shutdown would remove TLS before the other thread writes the sentence.
            socket.socket.shutdown(self.channel, socket.SHUT_RD)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        self.channel.close()


class Connections:
    """All connections of a listener. All methods may be called from any thread."""

    def __init__(self, clients_max: int, unauthenticated_max: int) -> None:
        self._clients_max, self._unauthenticated_max = clients_max, unauthenticated_max
        self._clients: set[ClientConnection] = set()
        self._unauthenticated: dict[ClientConnection, None] = {}  # oldest first
        self._lock = threading.Lock()

    def enter(self, connection: ClientConnection) -> bool:
        """Adds a connection that has not authenticated. Returns False if the oldest one is ended to make room for it."""
        with self._lock:
            oldest = None
            if len(self._unauthenticated) >= self._unauthenticated_max:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                oldest.ended_because = (
                    f"more than {self._unauthenticated_max} connections have not authenticated: try again"
                )
            self._unauthenticated[connection] = None
        if oldest is not None:
            oldest.stop_reading()
        return oldest is None

    def admit(self, connection: ClientConnection) -> str:
        """Counts a connection that has authenticated as a client. Returns the reason if it is refused, otherwise an empty text."""
        with self._lock:
            if connection in self._clients:
                return ""
            if connection.ended_because:
                return connection.ended_because
            if len(self._clients) >= self._clients_max:
                return (
                    f"{self._clients_max} clients are connected, the limit canal_server.connections_max: "
                    "close a client, or raise connections_max in the destination's file"
                )
            self._unauthenticated.pop(connection, None)
            self._clients.add(connection)
            return ""

    def leave(self, connection: ClientConnection) -> None:
        with self._lock:
            self._clients.discard(connection)
            self._unauthenticated.pop(connection, None)

    def end_all(self) -> None:
        with self._lock:
            found = [*self._clients, *self._unauthenticated]
        for connection in found:
            connection.end()
