"""Provides folders and stores with tables for readers, with the URL and the settings that each reader needs there."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping

import duckdb
import pytest

from benchmarks.servers.azurite.server import ACCOUNT, KEY, AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from sluice.console.lake.sql_store import load_extension
from sluice.console.toolchain.ports import LOOPBACK


@dataclasses.dataclass(frozen=True)
class Location:
    """A folder or a store with tables. `root` is its URL for Sluice, deltalake and Polars, with `options`. `of_duckdb` and `of_spark35` are
    its URLs for other readers. DuckDB gets access by an extension and a secret.
    """

    root: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    of_duckdb: str = ""
    of_spark35: str = ""
    extension: str = ""
    secret: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Variables that DuckDB needs.

    def connect_duckdb(self) -> duckdb.DuckDBPyConnection:
        """Returns a DuckDB that can read tables here."""
        connection = duckdb.connect()
        for name in filter(None, ("delta", self.extension)):
            load_extension(connection, name)
        if self.secret:
            connection.execute(f"CREATE SECRET ({self.secret})")
        return connection

    def for_duckdb(self, path: str) -> str:
        return f"{self.of_duckdb or self.root}/{path}"

    def for_spark35(self, path: str) -> str:
        return f"{self.of_spark35 or self.root}/{path}"


def in_s3(request: pytest.FixtureRequest, folder: str) -> Location:
    store: S3Server = request.getfixturevalue("s3_store")
    path = f"{store.bucket}/{folder}"
    return Location(
        f"s3://{path}",
        store.options,
        of_spark35=f"s3a://{path}",
        extension="httpfs",
        secret=f"TYPE s3, REGION '{REGION}', {_keys(store.port)}",
    )


def in_azure(request: pytest.FixtureRequest, folder: str) -> Location:
    """Returns a location in Azurite. Azurite has only a Blob endpoint, so DuckDB uses the scheme az, and Spark 3.5 the scheme wasb."""
    store: AzuriteServer = request.getfixturevalue("azurite")
    account = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={store.options['azure_storage_endpoint']}"
    return Location(
        f"{store.root}/{folder}",
        store.options,
        of_duckdb=f"az://{store.container}/{folder}",
        of_spark35=f"{store.wasb_root}/{folder}",
        extension="azure",
        secret=f"TYPE azure, CONNECTION_STRING 'DefaultEndpointsProtocol=http;{account}'",
        # DuckDB's Delta reader ignores the endpoint of Azurite's account, unless this variable names it.
        environment={"AZURITE_BLOB_STORAGE_URL": f"http://{LOOPBACK}:{store.port}"},
    )


def in_google(request: pytest.FixtureRequest, folder: str) -> Location:
    store: FakeGcsServer = request.getfixturevalue("fake_gcs")
    return Location(
        f"{store.root}/{folder}", store.options, extension="httpfs", secret=f"TYPE gcs, {_keys(store.port)}"
    )


def _keys(port: int) -> str:
    """Returns the settings of a DuckDB secret for a server on this machine."""
    address = f"ENDPOINT '{LOOPBACK}:{port}', URL_STYLE 'path', USE_SSL false"
    return f"KEY_ID '{ACCESS_KEY}', SECRET '{SECRET_KEY}', {address}"


STORES = {"S3": in_s3, "Azure": in_azure, "Google Cloud Storage": in_google}


def located(request: pytest.FixtureRequest, store: str) -> Location:
    """Returns a new folder in a store."""
    return STORES[store](request, uuid.uuid4().hex[:12])
