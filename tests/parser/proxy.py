"""Provides a real TCP proxy in front of a server. It can interrupt connections, withhold bytes, or change them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

PIECE_BYTES = 65536


class Proxy:
    """Forwards 127.0.0.1:`port` to a server. `tamper` gets every piece that the server sends, and `requested` every piece that the client
    sends. Both return what is forwarded. If one of them raises an OSError, the connection is interrupted and the piece is lost.
    """

    def __init__(self, server_port: int) -> None:
        self.tamper: Callable[[bytes], bytes] = bytes
        self.requested: Callable[[bytes], bytes] = bytes
        self._server_port = server_port
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connection_count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def connect_to(self, server_port: int) -> None:
        """Sends new connections to another server. Open connections stay, as when a host name gets another address."""
        self._server_port = server_port

    def disconnect(self) -> None:
        """Ends every connection through the proxy at once. The proxy continues to accept new connections."""
        with self._lock:
            lines, self._open = self._open, []
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disconnect()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open_line(client)

    def _open_line(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port))
        except OSError:
            client.close()
            return
        with self._lock:
            self.connection_count += 1
            self._open += [client, server]
        threading.Thread(target=self._pump, args=(client, server, self._requested), daemon=True).start()
        threading.Thread(target=self._pump, args=(server, client, self._tampered), daemon=True).start()

    def _tampered(self, piece: bytes) -> bytes:
        return self.tamper(piece)

    def _requested(self, piece: bytes) -> bytes:
        return self.requested(piece)

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                target.sendall(change(piece))
        for line in (source, target):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
