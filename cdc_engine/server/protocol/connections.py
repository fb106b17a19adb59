"""The connections of one listener, in two bounds: clients, and connections that have not authenticated yet. Used by `listener`.

Connections that have not authenticated never take the place of a client. Where there are too many of them the oldest one is ended: a client
authenticates within moments, so the oldest one is the least likely to be a client.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

UNAUTHENTICATED_MAX = 64


class Connection:
    """One connection, and the sentence that it gets where the listener ends it before it has authenticated."""

    def __init__(self, channel: socket.socket, greeting_seconds: float) -> None:
        self.channel = channel
        """What to read and write: the TLS socket once the TLS handshake begins."""
        self.ended_because = ""
        self._greeting_ends = time.monotonic() + greeting_seconds

    def greeting_left(self) -> float:
        """Seconds until the connection must have authenticated. Raises TimeoutError when they are over, EOFError where it is ended."""
        if self.ended_because:
            raise EOFError
        left = self._greeting_ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def stop_reading(self) -> None:
        """The thread that reads the connection sees its end, and answers with the sentence."""
        with contextlib.suppress(OSError):
            # SSLSocket.shutdown would take TLS away from the thread that is to write the sentence.
            socket.socket.shutdown(self.channel, socket.SHUT_RD)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        self.channel.close()


class Connections:
    """All methods may be called from any thread."""

    def __init__(self, clients_max: int, unauthenticated_max: int) -> None:
        self._clients_max, self._unauthenticated_max = clients_max, unauthenticated_max
        self._clients: set[Connection] = set()
        self._unauthenticated: dict[Connection, None] = {}  # the oldest one first
        self._lock = threading.Lock()

    def enter(self, connection: Connection) -> bool:
        """Adds one that has not authenticated. False where the oldest one is ended for it."""
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

    def admit(self, connection: Connection) -> str:
        """Counts a connection that has authenticated as a client. Returns the reason where it may not come in, else an empty text."""
        with self._lock:
            if connection in self._clients:
                return ""
            if connection.ended_because:
                return connection.ended_because
            if len(self._clients) >= self._clients_max:
                return (
                    f"{self._clients_max} clients are connected, which is canal_server.connections_max: "
                    "close one of them, or raise connections_max in the destination's file"
                )
            self._unauthenticated.pop(connection, None)
            self._clients.add(connection)
            return ""

    def leave(self, connection: Connection) -> None:
        with self._lock:
            self._clients.discard(connection)
            self._unauthenticated.pop(connection, None)

    def end_all(self) -> None:
        with self._lock:
            found = [*self._clients, *self._unauthenticated]
        for connection in found:
            connection.end()
