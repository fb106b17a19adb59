"""Adds the parameter `startFrom` of List Blobs to Azurite. deltalake finds the newest commits by this parameter.

Azurite 3.35 ignores the parameter and lists all blobs. As a result, deltalake would read an older version of a table. This proxy leaves out
the blobs before `startFrom`.
"""

from __future__ import annotations

import re
import urllib.parse

from benchmarks.servers.behind_proxy.forwarding import ForwardingHandler, serve

BLOB = re.compile(rb"<Blob>.*?</Blob>", re.DOTALL)
NAME = re.compile(rb"<Name>(.*?)</Name>", re.DOTALL)


class _Handler(ForwardingHandler):
    def changed(self, content: bytes) -> bytes:
        """Returns the answer to List Blobs without the blobs before `startFrom`. Returns any other answer unchanged."""
        parameters = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if parameters.get("comp") != ["list"] or "startFrom" not in parameters:
            return content
        first = parameters["startFrom"][0].encode()

        def kept(blob: re.Match[bytes]) -> bytes:
            name = NAME.search(blob[0])
            return b"" if name is not None and name[1] < first else blob[0]

        return BLOB.sub(kept, content)


if __name__ == "__main__":
    serve(_Handler)
