"""Adds to fake-gcs-server what clients of Google Cloud Storage need and the server lacks.

- For deltalake, it adds PUT and DELETE of the XML API, with conditions, copies and multipart uploads, and translates them to requests of
  the JSON API.
- For deltalake, it also adds the parameter `start-after` of lists, by which deltalake finds the newest commits. The server ignores this
  parameter and lists all objects.
- For Hadoop's client, it adds moves, which become a copy and a DELETE.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import urllib.parse

from benchmarks.servers.behind_proxy.forwarding import ForwardingHandler, serve

CONDITION, COPY_SOURCE = "x-goog-if-generation-match", "x-goog-copy-source"
OBJECT = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
NAME = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
MOVE = re.compile(r"(?P<source>/storage/v1/b/(?P<bucket>[^/]+)/o/[^/]+)/moveTo/o/(?P<target>[^/]+)")
JSON_PATHS = ("/storage/", "/upload/", "/download/", "/batch/", "/_internal/", "/resumable/")
_uploads: dict[str, dict[int, bytes]] = {}
_numbers = itertools.count(1)


class _Handler(ForwardingHandler):
    def changed(self, content: bytes) -> bytes:
        """Returns the answer to a list request without the objects up to `start-after`. Returns any other answer unchanged."""
        parameters = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if "list-type" not in parameters or "start-after" not in parameters:
            return content
        last = parameters["start-after"][0].encode()

        def kept(found: re.Match[bytes]) -> bytes:
            name = NAME.search(found[0])
            return b"" if name is not None and name[1] <= last else found[0]

        return OBJECT.sub(kept, content)

    def handle_request(self) -> None:
        path, _, query = self.path.partition("?")
        words = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        bucket, _, name = path.removeprefix("/").partition("/")
        if move := MOVE.fullmatch(path):
            self._move(move, query)
        elif path.startswith(JSON_PATHS) or not name or self.command in {"GET", "HEAD"}:
            self.forward()
        elif "uploads" in words or "uploadId" in words:
            self._upload_part(bucket, name, words)
        elif self.command == "DELETE":
            answer, content = self.answer("DELETE", f"/storage/v1/b/{bucket}/o/{_quoted(name)}", b"")
            self._say(answer.status, content)
        elif self.headers.get(COPY_SOURCE):
            self._copy(bucket, name)
        else:
            self._put(bucket, name, self.body)

    def _put(self, bucket: str, name: str, content: bytes) -> None:
        query = f"uploadType=media&name={_quoted(name)}{self._condition()}"
        answer, found = self.answer("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", content)
        self._say_written(answer, found)

    def _copy(self, bucket: str, name: str) -> None:
        from_bucket, _, source = self.headers[COPY_SOURCE].removeprefix("/").partition("/")
        path = f"/storage/v1/b/{from_bucket}/o/{_quoted(source)}/copyTo/b/{bucket}/o/{_quoted(name)}"
        answer, found = self.answer("POST", f"{path}?{self._condition()}", b"")
        self._say_written(answer, found)

    def _move(self, move: re.Match[str], query: str) -> None:
        # The client's body is compressed. The empty body that is sent here is not.
        del self.headers["Content-Encoding"]
        path = f"{move['source']}/copyTo/b/{move['bucket']}/o/{move['target']}"
        answer, found = self.answer("POST", f"{path}?{query}", b"")
        if answer.status == http.client.OK:
            self.answer("DELETE", move["source"], b"")
        self._say(answer.status, found, {"Content-Type": "application/json"})

    def _condition(self) -> str:
        generation = self.headers.get(CONDITION)
        return "" if generation is None else f"&ifGenerationMatch={generation}"

    def _upload_part(self, bucket: str, name: str, words: dict[str, str]) -> None:
        upload = words.get("uploadId") or str(next(_numbers))
        if "uploads" in words:
            _uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            self._say(200, text.encode())
        elif self.command == "PUT":
            _uploads[upload][int(words["partNumber"])] = self.body
            self._say(200, b"", {"ETag": f'"{upload}-{words["partNumber"]}"'})
        elif self.command == "DELETE":
            _uploads.pop(upload, None)
            self._say(204, b"")
        else:
            parts = _uploads.pop(upload)
            self._put(bucket, name, b"".join(parts[number] for number in sorted(parts)))

    def _say_written(self, answer: http.client.HTTPResponse, found: bytes) -> None:
        if answer.status != http.client.OK:
            self._say(answer.status, found)
            return
        written = json.loads(found)
        written = written.get("resource", written)
        etag, generation = str(written.get("etag") or "etag"), str(written.get("generation") or 1)
        text = f"<CompleteMultipartUploadResult><ETag>{etag.strip(chr(34))}</ETag></CompleteMultipartUploadResult>"
        self._say(200, text.encode(), {"ETag": etag, "x-goog-generation": generation})

    def _say(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _quoted(name: str) -> str:
    """Returns an object's name, as it occurs in a path of the XML API, quoted so that it is a single segment of a path."""
    return urllib.parse.quote(urllib.parse.unquote(name), safe="")


if __name__ == "__main__":
    serve(_Handler)
