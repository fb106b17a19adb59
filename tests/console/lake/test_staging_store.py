"""Tests that `sluice check` finds a bucket of staged batches that is missing, and permissions that the engine needs there."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import http
import threading
import types
import urllib.parse
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.servers.azurite.server import ACCOUNT, KEY, AzuriteServer
from benchmarks.servers.behind_proxy.forwarding import ForwardingHandler
from sluice.cdc_engine.config import SluiceConfig
from sluice.console.lake.store import store_findings
from sluice.console.toolchain.ports import LOOPBACK
from sluice.object_stores.errors import NO_BUCKET
from sluice.object_stores.folder import StoreFolder
from tests.orchestration.fix_location import make_config
from tests.store_conf import SECRETS, StoreConf, store_conf

pytestmark = [pytest.mark.servers, pytest.mark.store]
STORES = {"s3": "s3_store", "azure": "azurite", "google": "fake_gcs"}


def config_of(folder: Path, there: StoreConf) -> SluiceConfig:
    """Returns a configuration with a local lake, and with staged batches in the store that `there` describes."""
    staged = {name: value for name, value in there.settings.items() if name != "lake"}
    return make_config(folder).model_copy(update=staged)


@pytest.mark.found
@pytest.mark.parametrize("store", STORES)
def test_store_check_says_that_the_bucket_of_staged_batches_is_missing(
    request: pytest.FixtureRequest, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 41: a missing file and a missing bucket looked the same to the check, so it reported nothing."""
    server = request.getfixturevalue(STORES[store])
    there = store_conf(server, monkeypatch)
    missing = dataclasses.replace(there, url=there.url.replace("lake", "no-such-bucket", 1))
    config = config_of(tmp_path, missing)
    (problem,), _ = store_findings(config, starts_spark=False)
    assert f"staging {config.staging} cannot be written: " in problem
    assert NO_BUCKET in problem


@pytest.mark.parametrize("store", STORES)
def test_store_check_leaves_no_file_among_staged_batches(
    request: pytest.FixtureRequest, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = store_conf(request.getfixturevalue(STORES[store]), monkeypatch)
    config = config_of(tmp_path, there)
    assert store_findings(config, starts_spark=False) == ([], [])
    assert StoreFolder(config.staging, there.options).sizes() == {}


def sas_token(permissions: str) -> str:
    """Returns a token of the account that allows reading (r), writing (w, c), listing (l) or deleting (d) of blobs."""
    given = {"sp": permissions, "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": ""}
    given |= {"sv": "2021-12-02", "ses": ""}
    text = "\n".join([ACCOUNT, *given.values(), ""])
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    words = {name: value for name, value in given.items() if value}
    return urllib.parse.urlencode({**words, "sig": base64.b64encode(digest).decode()})


def with_token(azurite: AzuriteServer, token: str, folder: Path, patch: pytest.MonkeyPatch) -> SluiceConfig:
    """Returns a configuration with staged batches in Azure. It contains a SAS token instead of the account's key."""
    there = store_conf(azurite, patch)
    patch.setenv("LAKE_TOKEN", token)
    options = {name: value for name, value in there.options.items() if "key" not in name}
    return config_of(folder, dataclasses.replace(there, named={**options, "azure_storage_sas_token": "$LAKE_TOKEN"}))


@pytest.mark.found
@pytest.mark.secret
@pytest.mark.parametrize("mark", ["", "?"])
def test_azure_check_says_that_the_token_does_not_allow_to_write_staged_batches(
    azurite: AzuriteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    """Defect 42: a token without a leading question mark became a folder in URLs. If a token had a question mark, errors showed its
    signature.
    """
    token = mark + sas_token("rl")
    config = with_token(azurite, token, tmp_path, monkeypatch)
    (problem,), _ = store_findings(config, starts_spark=False)
    assert f"staging {config.staging} cannot be written: " in problem
    assert "AuthorizationPermissionMismatch" in problem
    signature = token.partition("sig=")[2].partition("&")[0]
    assert signature not in problem
    assert urllib.parse.unquote(signature) not in problem


@pytest.mark.secret
@pytest.mark.parametrize(
    ("act", "permissions", "why"),
    [
        ("read", "wcld", "AuthorizationPermissionMismatch"),
        ("written", "rwcd", "ListBlobsByHierarchy failed"),  # pyarrow lists a folder before it writes a file.
        ("removed", "rwcl", "500 Internal Server Error"),  # This is how Azurite refuses a batch of deletions.
    ],
)
def test_azure_check_says_what_the_token_does_not_allow(
    azurite: AzuriteServer, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, permissions: str, why: str
) -> None:
    config = with_token(azurite, sas_token(permissions), tmp_path, monkeypatch)
    (problem,), _ = store_findings(config, starts_spark=False)
    assert f"staging {config.staging} cannot be {act}: " in problem
    assert why in problem


class Refusing(ForwardingHandler):
    """Forwards requests to a store, except the requests for which the credentials are meant to have no permission."""

    act = ""

    def handle_request(self) -> None:
        if self._act() != self.act:
            if "Authorization" not in self.headers:
                # fake-gcs-server answers only requests with its own host name. A request to S3 keeps the name, because the client has
                # signed it.
                self.headers.replace_header("Host", f"{LOOPBACK}:{self.server_port}")
            self.forward()
            return
        content = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response_only(http.HTTPStatus.FORBIDDEN)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _act(self) -> str:
        parameters = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        if self.command == "DELETE" or "delete" in parameters:
            return "removed"
        if self.command in {"GET", "HEAD"}:
            return "listed" if "list-type" in parameters else "read"
        return "written"


@pytest.fixture
def refusing(store: str, act: str, request: pytest.FixtureRequest) -> Iterator[ThreadingHTTPServer]:
    """Starts a proxy of the store that refuses one kind of request."""
    there = {"act": act, "server_port": request.getfixturevalue(STORES[store]).port}
    server = ThreadingHTTPServer((LOOPBACK, 0), type("RefusingOne", (Refusing,), there))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.secret
@pytest.mark.parametrize("act", ["written", "read", "listed", "removed"])
@pytest.mark.parametrize("store", ["s3", "google"])
def test_store_check_says_what_the_credentials_do_not_allow(
    request: pytest.FixtureRequest,
    refusing: ThreadingHTTPServer,
    store: str,
    act: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = request.getfixturevalue(STORES[store])
    port = f":{refusing.server_address[1]}"
    options = {name: value.replace(f":{server.port}", port) for name, value in server.options.items()}
    there = store_conf(types.SimpleNamespace(root=server.root, options=options), monkeypatch)
    config = config_of(tmp_path, there)
    (problem,), _ = store_findings(config, starts_spark=False)
    assert f"staging {config.staging} cannot be {act}: " in problem
    assert not any(options[name] in problem for name in options.keys() & SECRETS)
