"""Limits the connections of one listener: the number of authenticated clients, and the number of connections that have not authenticated
yet. Used by `listener`.

If too many connections have not authenticated, the oldest of them is ended. A client authenticates directly after it connects, so the
oldest of these connections is probably not from a client.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

UNAUTHENTICATED_MAX = 64


class ClientConnection:
    """One connection to a listener. If `Connections` ends the connection before the client has authenticated, `ended_because` has the
    reason, which the listener sends to the client.
    """

    def __init__(self, channel: socket.socket, greeting_seconds: float) -> None:
        self.channel = channel
        """The socket to read from and write to. From the beginning of the TLS handshake on, the TLS socket."""
        self.ended_because = ""
        self._greeting_ends = time.monotonic() + greeting_seconds

    def greeting_left(self) -> float:
        """Returns how many seconds the client has left to authenticate. Raises TimeoutError if none are left, and EOFError if the listener
        has ended the connection.
        """
        if self.ended_because:
            raise EOFError
        left = self._greeting_ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def stop_reading(self) -> None:
        """Ends the receiving side of the connection, so that the thread that reads from it stops and sends `ended_because`."""
        with contextlib.suppress(OSError):
            # Calls the method of the plain socket. SSLSocket.shutdown would end TLS before the other thread has sent `ended_because`.
            socket.socket.shutdown(self.channel, socket.SHUT_RD)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        self.channel.close()


class Connections:
    """All connections of a listener. Thread-safe."""

    def __init__(self, clients_max: int, unauthenticated_max: int) -> None:
        self._clients_max, self._unauthenticated_max = clients_max, unauthenticated_max
        self._clients: set[ClientConnection] = set()
        self._unauthenticated: dict[ClientConnection, None] = {}  # In the order in which they connected.
        self._lock = threading.Lock()

    def enter(self, connection: ClientConnection) -> bool:
        """Adds a connection that has not authenticated yet. If there were already `unauthenticated_max` such connections, ends the oldest
        of them. Returns True if no connection had to be ended.
        """
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
        """Counts an authenticated connection as a client, and returns "". If the connection is refused, returns the reason instead."""
        with self._lock:
            if connection in self._clients:
                return ""
            if connection.ended_because:
                return connection.ended_because
            if len(self._clients) >= self._clients_max:
                return (
                    f"{self._clients_max} clients are connected, and canal_server.connections_max allows no more: "
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
