"""Tests that `sluice check` finds a bucket of staged batches that is missing, and permissions that the engine needs there."""

from __future__ import annotations

import base64
import hashlib
import hmac
import urllib.parse
import uuid
from pathlib import Path

import pytest

from benchmarks.servers.azurite.server import ACCOUNT, KEY, AzuriteServer
from sluice.cdc_engine.config import SluiceConfig
from sluice.console.lake.store import store_findings
from sluice.object_stores.errors import NO_BUCKET
from sluice.object_stores.folder import StoreFolder
from tests.orchestration.fix_location import make_config

pytestmark = [pytest.mark.servers, pytest.mark.store]
STORES = {"s3": ("s3://", "s3_store"), "azure": ("az://", "azurite"), "google": ("gs://", "fake_gcs")}
SECRETS = {"aws_access_key_id", "aws_secret_access_key", "azure_storage_account_key", "google_service_account_key"}


def staged_at(folder: Path, staging: str, options: dict[str, str], patch: pytest.MonkeyPatch) -> SluiceConfig:
    """Returns a conf with a local lake and a store of staged batches. Secrets are in variables."""
    patch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # The S3 server refuses checksums of parts.
    named = dict(options)
    for name in options.keys() & SECRETS:
        patch.setenv(name.upper(), options[name])
        named[name] = f"${name.upper()}"
    return make_config(folder).model_copy(update={"staging": staging, "storage_options": named})


@pytest.mark.found
@pytest.mark.parametrize("store", STORES)
def test_store_check_says_that_the_bucket_of_staged_batches_is_missing(
    request: pytest.FixtureRequest, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 41: a missing file and a missing bucket looked the same to the check, so it reported nothing."""
    scheme, fixture = STORES[store]
    server = request.getfixturevalue(fixture)
    config = staged_at(tmp_path, f"{scheme}no-such-bucket/staged", server.options, monkeypatch)
    (problem,), _ = store_findings(config, starts_spark=False)
    assert f"staging {config.staging} cannot be written: " in problem
    assert NO_BUCKET in problem


@pytest.mark.parametrize("store", STORES)
def test_store_check_leaves_no_file_among_staged_batches(
    request: pytest.FixtureRequest, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, fixture = STORES[store]
    server = request.getfixturevalue(fixture)
    bucket = getattr(server, "bucket", "") or server.container
    config = staged_at(tmp_path, f"{scheme}{bucket}/{uuid.uuid4().hex[:12]}", server.options, monkeypatch)
    assert store_findings(config, starts_spark=False) == ([], [])
    assert StoreFolder(config.staging, server.options).sizes() == {}


def sas_token(permissions: str) -> str:
    """Returns a token of the account that allows reading (r), writing (w, c), listing (l) or deleting (d) of blobs."""
    given = {"sp": permissions, "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": ""}
    given |= {"sv": "2021-12-02", "ses": ""}
    text = "\n".join([ACCOUNT, *given.values(), ""])
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    words = {name: value for name, value in given.items() if value}
    return urllib.parse.urlencode({**words, "sig": base64.b64encode(digest).decode()})


@pytest.mark.found
@pytest.mark.secret
@pytest.mark.parametrize("mark", ["", "?"])
def test_azure_check_says_that_the_token_does_not_allow_to_write_staged_batches(
    azurite: AzuriteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    """Defect 42: a token without a question mark became a folder in URLs, and errors showed the signature of a token with one."""
    token = mark + sas_token("rl")
    monkeypatch.setenv("LAKE_TOKEN", token)
    options = {name: value for name, value in azurite.options.items() if "key" not in name}
    options |= {"azure_storage_sas_token": "$LAKE_TOKEN"}
    staging = f"az://{azurite.container}/{uuid.uuid4().hex[:12]}"
    config = make_config(tmp_path).model_copy(update={"staging": staging, "storage_options": options})
    (problem,), _ = store_findings(config, starts_spark=False)
    assert f"staging {staging} cannot be written: " in problem
    assert "AuthorizationPermissionMismatch" in problem
    signature = token.partition("sig=")[2].partition("&")[0]
    assert signature not in problem
    assert urllib.parse.unquote(signature) not in problem
