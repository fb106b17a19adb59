"""Adds `startFrom` to Azurite: the parameter of List Blobs by which deltalake finds the newest commits.

Azurite 3.35 ignores the parameter and lists all blobs, which makes deltalake read an older version of a table. This proxy leaves out the
blobs before `startFrom`. It is a separate program, because deltalake blocks Python's other threads while it waits. Its arguments are its
port on 127.0.0.1 and Azurite's port.
"""

from __future__ import annotations

import http.client
import re
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"
BLOB = re.compile(rb"<Blob>.*?</Blob>", re.DOTALL)
NAME = re.compile(rb"<Name>(.*?)</Name>", re.DOTALL)
OF_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(LOOPBACK, int(sys.argv[2]), timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in OF_CONNECTION - {"content-length"}:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            self._answer(answer, from_start(self.path, answer.read()))
        finally:
            connection.close()

    def _answer(self, answer: http.client.HTTPResponse, content: bytes) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in OF_CONNECTION:
                self.send_header(name, value)
        # The answer to HEAD has the Content-Length of a body, but no body.
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815  names of http.server

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


def from_start(path: str, content: bytes) -> bytes:
    """Returns the answer to List Blobs without the blobs before `startFrom`. Returns any other answer unchanged."""
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
    if asked.get("comp") != ["list"] or "startFrom" not in asked:
        return content
    first = asked["startFrom"][0].encode()

    def kept(blob: re.Match[bytes]) -> bytes:
        name = NAME.search(blob[0])
        return b"" if name is not None and name[1] < first else blob[0]

    return BLOB.sub(kept, content)


if __name__ == "__main__":
    ThreadingHTTPServer((LOOPBACK, int(sys.argv[1])), _Handler).serve_forever()
