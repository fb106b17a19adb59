"""Tests that folders in each kind of store are written and removed in spite of errors that pass, and that an error that stays is raised."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.servers.azurite.server import ACCOUNT, AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import S3Server
from sluice.object_stores.errors import StoreError
from sluice.object_stores.files import file_system
from sluice.object_stores.folder import StoreFolder
from tests.parser.proxy import Proxy

STORES = ("s3", "azure", "google")
ROWS = b"rows of a file" * 1000
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def at(kind: str, port: int, request: pytest.FixtureRequest) -> StoreFolder:
    """Returns a new folder in a store of this kind. `port` is the port of the store, or of a proxy that passes requests to the store."""
    name = uuid.uuid4().hex[:12]
    if kind == "s3":
        s3: S3Server = request.getfixturevalue("s3_store")
        return StoreFolder(f"s3://{s3.bucket}/{name}", {**s3.options, "aws_endpoint_url": f"http://127.0.0.1:{port}"})
    if kind == "azure":
        azure: AzuriteServer = request.getfixturevalue("azurite")
        endpoint = {"azure_storage_endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}"}
        return StoreFolder(f"az://{azure.container}/{name}", {**azure.options, **endpoint})
    google: FakeGcsServer = request.getfixturevalue("fake_gcs")
    return StoreFolder(f"gs://{google.bucket}/{name}", google_options(port))


def google_options(port: int) -> dict[str, str]:
    account = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True, "client_email": "", "private_key": ""}
    return {"google_service_account_key": json.dumps({**account, "private_key_id": ""})}


def port_of(kind: str, request: pytest.FixtureRequest) -> int:
    servers = {"s3": "s3_store", "azure": "azurite", "google": "fake_gcs"}
    server: S3Server | AzuriteServer | FakeGcsServer = request.getfixturevalue(servers[kind])
    return server.port


def disconnect(proxy: Proxy, times: int) -> list[None]:
    """Makes the proxy interrupt this many connections when the first piece of a PUT passes. Returns a list with
    an item for each connection that is still to be interrupted."""
    left = [None] * times

    def requested(piece: bytes) -> bytes:
        if piece.startswith(b"PUT") and left:
            left.pop()
            raise ConnectionResetError
        return piece

    proxy.requested = requested
    return left


def refuse(proxy: Proxy, times: int) -> list[None]:
    """Makes the proxy replace this many answers by one that the service is unavailable. Returns a list with an item
    for each answer that is still to be replaced."""
    left = [None] * times

    def answered(piece: bytes) -> bytes:
        if left:
            left.pop()
            return REFUSED
        return piece

    proxy.tamper = answered
    return left


@pytest.mark.servers
@pytest.mark.store
@pytest.mark.parametrize("fault", [disconnect, refuse])
@pytest.mark.parametrize("kind", STORES)
def test_store_fault_a_file_is_uploaded_although_a_request_fails_once(
    kind: str,
    fault: Callable[[Proxy, int], list[None]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clients of the stores repeat a request after a temporary error."""
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # The server refuses checksums of parts.
    (file := tmp_path / "000001.parquet").write_bytes(ROWS)
    with Proxy(port_of(kind, request)) as proxy:
        store = at(kind, proxy.port, request)
        left = fault(proxy, 1)
        store.put_file(file)
    there = StoreFolder(store.url, at(kind, port_of(kind, request), request)._options)
    assert there.read(file.name) == ROWS
    assert not left, "no request failed"


@pytest.mark.servers
@pytest.mark.store
@pytest.mark.parametrize("kind", STORES)
def test_store_a_folder_is_removed_with_everything_below_it(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1012: a folder in Azure was removed by the client that can abort the process if a file no longer exists."""
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    store = at(kind, port_of(kind, request), request)
    for name in ("manifest.json", "a/1", "a/b/2"):
        store.write(name, b"x")
    store.remove_files(["a/1"])
    if kind == "azure":
        monkeypatch.setattr(store, "_store", NoRemovals(store))
    store.remove("manifest.json")
    assert store.sizes() == {}
    store.remove("manifest.json")


class NoRemovals:
    """Lists the files of a store. The methods that remove files are missing, so a call of one of them fails the test."""

    def __init__(self, store: StoreFolder) -> None:
        self.get_file_info = file_system(store.url, store._options)[0].get_file_info


@pytest.mark.servers
@pytest.mark.store
@pytest.mark.parametrize("kind", STORES)
def test_store_identity_a_missing_bucket_is_named_when_a_file_is_written(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Defect 1013: an upload to a missing bucket of Google raised nothing, and `write` raised FileNotFoundError."""
    (file := tmp_path / "000001.parquet").write_bytes(ROWS)
    there = at(kind, port_of(kind, request), request)
    store = StoreFolder(f"{there.url.partition('://')[0]}://no-such-bucket/a", there._options)
    for call in (lambda: store.put_file(file), lambda: store.write("a", b"1"), lambda: store.put_new("a", b"1")):
        with pytest.raises(StoreError, match="does not exist"):
            call()


class Refusal(BaseHTTPRequestHandler):
    """Answers every request as Google's XML API does if a bucket does not exist."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  names of the base class

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def test_google_a_missing_bucket_is_named_when_its_files_are_listed_and_copied(tmp_path: Path) -> None:
    """Defect 1013: the list of a missing bucket raised FileNotFoundError, and a copy from another store raised nothing."""
    (tmp_path / "1.parquet").write_bytes(ROWS)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        store = StoreFolder("gs://shop/lake", google_options(server.server_port))
        elsewhere = StoreFolder(tmp_path.as_uri(), {})
        for call in (store.sizes, store.remove, lambda: store.copy_file(elsewhere, "1.parquet", "1.parquet", 9)):
            with pytest.raises(StoreError, match=r"the bucket or container does not exist; create it"):
                call()
        store.remove_files(["a"])
    finally:
        server.shutdown()
        server.server_close()
