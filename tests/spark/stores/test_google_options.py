"""Tests Google Cloud Storage without a server: the accounts, Spark's settings, and the file system on a store in memory."""

from __future__ import annotations

import json

import pyarrow.fs as pafs
import pytest
from obstore.store import MemoryStore

from sluice.object_stores import folder
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.google_files import GoogleHandler
from sluice.spark_jobs.object_store import GOOGLE_TOKENS, spark_environment, spark_settings

AUTH, ADDRESS = "spark.hadoop.fs.gs.auth.", "spark.hadoop.fs.gs.storage.root.url"
KEY = json.dumps({"type": "service_account", "private_key": "very-secret"})
EMULATOR = json.dumps({"gcs_base_url": "http://127.0.0.1:4443", "disable_oauth": True, "private_key": ""})


@pytest.mark.parametrize(
    "options",
    [
        {"google_service_account": "/no/such/account.json"},
        {"google_application_credentials": "/no/such/account.json"},
        {"google_service_account_key": "the content of another file"},
    ],
)
def test_google_an_account_that_cannot_be_read_is_an_error_of_the_store(options: dict[str, str]) -> None:
    with pytest.raises(StoreError, match=r"^gs://lake/shop: .*account file") as reported:
        StoreFolder("gs://lake/shop", options)
    assert "another file" not in str(reported.value)
    assert "Debug source" not in str(reported.value)


@pytest.mark.parametrize(
    ("options", "settings", "environment"),
    [
        ({}, {AUTH + "type": "APPLICATION_DEFAULT"}, {}),
        (
            {"google_application_credentials": "/etc/user.json"},
            {AUTH + "type": "APPLICATION_DEFAULT"},
            {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/user.json"},
        ),
        (
            {"google_service_account": "/etc/account.json", "google_base_url": "https://store/"},
            {
                AUTH + "type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                AUTH + "service.account.json.keyfile": "/etc/account.json",
                ADDRESS: "https://store/",
            },
            {},
        ),
        (
            {"service_account_key": KEY},
            {AUTH + "type": "ACCESS_TOKEN_PROVIDER", AUTH + "access.token.provider": GOOGLE_TOKENS},
            {"SLUICE_GOOGLE_SERVICE_ACCOUNT_KEY": KEY},
        ),
        ({"google_skip_signature": "true"}, {AUTH + "type": "UNAUTHENTICATED"}, {}),
        (
            {"google_service_account_key": EMULATOR},
            {AUTH + "type": "UNAUTHENTICATED", ADDRESS: "http://127.0.0.1:4443/"},
            {"SLUICE_GOOGLE_SERVICE_ACCOUNT_KEY": EMULATOR},
        ),
        (
            {"service_account_key": "no key"},
            {AUTH + "type": "ACCESS_TOKEN_PROVIDER", AUTH + "access.token.provider": GOOGLE_TOKENS},
            {"SLUICE_GOOGLE_SERVICE_ACCOUNT_KEY": "no key"},
        ),
        ({"aws_region": "eu-central-1", "token": "of-amazon"}, {AUTH + "type": "APPLICATION_DEFAULT"}, {}),
    ],
)
def test_google_options_become_settings_and_secrets_become_environment(
    options: dict[str, str], settings: dict[str, str], environment: dict[str, str]
) -> None:
    found = spark_settings("google", options)
    assert found.pop("spark.hadoop.parquet.hadoop.vectored.io.enabled") == "false"
    assert {name: value for name, value in found.items() if not name.endswith(".impl")} == settings
    assert spark_environment("google", options) == environment
    assert "very-secret" not in str(found)


class NoCopies(GoogleHandler):
    """A store that cannot copy files."""

    def copy_file(self, src: str, dest: str) -> None:
        raise OSError(f"{src} is larger than a copy to {dest} may be")


def test_a_file_that_the_store_cannot_copy_in_one_request_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    files = pafs.PyFileSystem(NoCopies(MemoryStore()))
    monkeypatch.setattr(folder, "file_system", lambda url, _: (files, url.partition("://")[2]))
    monkeypatch.setattr(folder, "COPIED_BYTES_MAX", 3)
    staged, table = StoreFolder("gs://lake/staged", {}), StoreFolder("gs://lake/shop", {})
    staged.write("000001.parquet", b"rows")
    table.copy_file(staged, "000001.parquet", "copied.parquet", 4)
    assert table.read("copied.parquet") == b"rows"
    with pytest.raises(StoreError, match="larger than a copy"):
        table.copy_file(staged, "000001.parquet", "again.parquet", 3)
