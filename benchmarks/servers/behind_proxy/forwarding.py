"""Forwards requests to an HTTP server. Proxies that change some requests or answers are subclasses of the handler here.

A proxy is a separate program, because deltalake blocks Python's other threads while it waits. The program's arguments are its own port on
127.0.0.1 and the port of the server.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from sluice.console.toolchain.ports import LOOPBACK

OF_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class ForwardingHandler(BaseHTTPRequestHandler):
    """Forwards each request to the server at `server_port`, and sends the server's answer to the client. Subclasses override `changed`, or
    handle some requests.
    """

    protocol_version = "HTTP/1.1"
    server_port: ClassVar[int]

    def handle_request(self) -> None:
        """Answers one request. The body is in `self.body`."""
        self.forward()

    def changed(self, content: bytes) -> bytes:
        """Returns the content that the client gets instead of the server's `content`."""
        return content

    def forward(self) -> None:
        """Sends the request to the server, and the server's answer to the client."""
        answer, content = self.answer(self.command, self.path, self.body)
        content = self.changed(content)
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in OF_CONNECTION:
                self.send_header(name, value)
        # An answer to HEAD has the Content-Length of a body, but no body.
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, command: str, path: str, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """Sends a request to the server, with the client's headers. Returns the answer and its content."""
        connection = http.client.HTTPConnection(LOOPBACK, self.server_port, timeout=60)
        try:
            connection.putrequest(command, path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in OF_CONNECTION:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def _serve(self) -> None:
        self.body = self._read()
        self.handle_request()

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = list[bytes]()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _serve  # noqa: N815  names of http.server

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def serve(handler: type[ForwardingHandler]) -> None:
    """Serves until the process is killed."""
    handler.server_port = int(sys.argv[2])
    ThreadingHTTPServer((LOOPBACK, int(sys.argv[1])), handler).serve_forever()
