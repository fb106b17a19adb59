"""Gives a DuckDB connection access to a lake in an object store. For S3 and Azure, loads DuckDB's extensions from their Python packages,
and creates a DuckDB secret from `storage_options`. The secret is only in memory, and DuckDB drops it with the connection.

DuckDB cannot use service accounts of Google Cloud Storage. Therefore deltalake reads tables in this store, and passes the rows to DuckDB
(`DeltaRows`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa

from sluice.console.toolchain.errors import SetupError
from sluice.extras import Extra, require
from sluice.object_stores.azure import AzureLocation, azure_location, is_azure
from sluice.object_stores.errors import StoreError
from sluice.object_stores.google import is_google
from sluice.object_stores.options import YES, known

REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")  # The environment variables from which deltalake takes the region.
S3_READERS = ("httpfs", "aws")  # DuckDB's extensions for S3. `aws` finds the credentials of the machine's role.
AZURE_READERS = ("azure",)
URL_SCHEMES = ("s3://", "s3a://")
WITHOUT_VIEWS: dict[Any, Any] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
HTTP, HTTPS = "http://", "https://"


def is_readable(path: str) -> bool:
    """Returns whether `sluice sql` can read a path: a local path, or a URL of S3, Azure or Google Cloud Storage."""
    return "://" not in path or path.startswith(URL_SCHEMES) or is_azure(path) or is_google(path)


class DeltaRows:
    """The rows of a Delta table, read by deltalake. DuckDB requests a new stream for each scan of the table."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._table = deltalake.DeltaTable(path, storage_options=dict(options) or None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a new stream of all rows. DuckDB calls this method of Arrow's C stream protocol to scan the table."""
        rows: Any = deltalake.QueryBuilder().register("t", self._table).execute("SELECT * FROM t")
        reader: Any = pa.RecordBatchReader.from_stream(rows)
        # Converts columns of the type string view, because DuckDB lets Arrow filter the rows, and Arrow cannot filter columns of this type.
        fields = [field.with_type(WITHOUT_VIEWS.get(field.type, field.type)) for field in reader.schema]
        stream: object = reader.cast(pa.schema(fields)).__arrow_c_stream__(requested_schema)
        return stream


def open_stores(
    connection: duckdb.DuckDBPyConnection, paths: Iterable[str], storage_options: Mapping[str, str]
) -> None:
    """Loads DuckDB's extensions for the stores of the given paths, and creates DuckDB secrets for them. `storage_options` must contain the
    secrets themselves, not references to them. Raises SetupError if a package is missing, or if DuckDB finds no credentials.

    With an account key or a SAS token, DuckDB reads only the Azure account of the first path, because such credentials belong to one
    account. With other credentials, DuckDB reads the account in the URL of each table.
    """
    stores = dict[bool, str]()
    for path in paths:
        if not is_google(path):
            stores.setdefault(is_azure(path), path)
    if True in stores:
        require(Extra.AZURE, SetupError)
        _open_store(connection, "Azure", AZURE_READERS, lambda: azure_secret(stores[True], storage_options))
    if False in stores:
        require(Extra.S3, SetupError)
        _open_store(connection, "S3", S3_READERS, lambda: s3_secret(storage_options))


def _open_store(
    connection: duckdb.DuckDBPyConnection,
    store: str,
    readers: Iterable[str],
    secret: Callable[[], Mapping[str, str]],
) -> None:
    for reader in readers:
        load_extension(connection, reader)
    try:
        settings = ", ".join(f"{name} {value}" for name, value in secret().items())
        connection.execute(f"CREATE SECRET lake_{store} ({settings})")
    except StoreError as error:
        raise SetupError(str(error)) from None
    # Does not show DuckDB's message, because it may quote the statement, which contains the credentials.
    except duckdb.Error as error:
        raise SetupError(
            f"DuckDB found no usable credentials for {store} ({type(error).__name__}): set them in "
            f"`storage_options`, or in the environment variables that the programs of {store} use."
        ) from None


def load_extension(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Loads a DuckDB extension from its Python package. Nothing is downloaded."""
    package = importlib.import_module(f"duckdb_extension_{name}")
    extension = next(Path(str(package.__file__)).parent.rglob(f"{name}.duckdb_extension"))
    connection.execute(f"LOAD {_text(str(extension))}")


def azure_secret(lake: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of a DuckDB secret for Azure, as SQL. If the options contain no credentials, DuckDB uses the credentials of the
    environment, of Azure's command line or of the machine's identity. Raises StoreError if the options are invalid.
    """
    location = azure_location(lake, storage_options)
    given = location.arguments
    if "client_secret" in given:
        options = {"PROVIDER": "service_principal", "ACCOUNT_NAME": _text(location.account)}
        names = ("tenant_id", "client_id", "client_secret")
        return {"TYPE": "azure", **options, **{name.upper(): _text(given.get(name, "")) for name in names}}
    if given.keys() & {"account_key", "sas_token"}:
        return {"TYPE": "azure", "CONNECTION_STRING": _text(_connection_string(location))}
    return {"TYPE": "azure", "PROVIDER": "credential_chain", "ACCOUNT_NAME": _text(location.account)}


def duckdb_url(path: str, storage_options: Mapping[str, str]) -> str:
    """Returns the URL with which DuckDB reads a table. For a table in Azure, leaves the account out of the URL if `storage_options` have an
    endpoint: DuckDB would ignore the endpoint if the URL named an account. Returns any other path unchanged.
    """
    location = azure_location(path, storage_options) if is_azure(path) else None
    return f"az://{location.path}" if location is not None and location.endpoint else path


def _connection_string(location: AzureLocation) -> str:
    """Returns an Azure connection string for a location with an account key or a SAS token."""
    given = location.arguments
    scheme = given.get("blob_storage_scheme", "https")
    parts = {"DefaultEndpointsProtocol": scheme, "AccountName": location.account}
    if "account_key" in given:
        parts["AccountKey"] = given["account_key"]
    else:
        parts["SharedAccessSignature"] = given["sas_token"].removeprefix("?")
    if location.endpoint:
        parts["BlobEndpoint"] = location.endpoint
    return ";".join(f"{name}={value}" for name, value in parts.items())


def s3_secret(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of a DuckDB secret for S3, as SQL. If the options contain no credentials, DuckDB uses the credentials of the
    environment, of AWS's configuration files or of the machine's role.
    """
    said = known(storage_options)
    settings = {"TYPE": "s3"}
    if "access_key_id" in said:
        settings["KEY_ID"] = _text(said["access_key_id"])
        settings["SECRET"] = _text(said.get("secret_access_key", ""))
    else:
        settings["PROVIDER"] = "credential_chain"
    if token := said.get("session_token"):
        settings["SESSION_TOKEN"] = _text(token)
    if region := said.get("region") or next(filter(None, map(os.environ.get, REGIONS)), ""):
        settings["REGION"] = _text(region)
    if endpoint := said.get("endpoint"):
        settings["ENDPOINT"] = _text(endpoint.removeprefix(HTTP).removeprefix(HTTPS).rstrip("/"))
        settings["USE_SSL"] = str(not endpoint.startswith(HTTP)).lower()
        settings["URL_STYLE"] = "'vhost'" if said.get("virtual_hosted", "").lower() in YES else "'path'"
    return settings


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
