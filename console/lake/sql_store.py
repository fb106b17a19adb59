"""Gives a DuckDB connection access to a lake in S3: loads the packaged readers of stores, and creates a secret from `storage_options`.

The secret lives in memory, as long as the connection."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path

import duckdb

from sluice.console.toolchain.errors import SetupError
from sluice.extras import Extra, require
from sluice.object_stores.options import YES, known

REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")  # as deltalake reads them
READERS = ("httpfs", "aws")  # The second one finds the credentials of the machine's role.
URL_SCHEMES = ("s3://", "s3a://")
HTTP, HTTPS = "http://", "https://"


def is_readable(path: str) -> bool:
    """Returns whether `sluice sql` can read a path: a local one, or one in S3."""
    return "://" not in path or path.startswith(URL_SCHEMES)


def open_store(connection: duckdb.DuckDBPyConnection, storage_options: Mapping[str, str]) -> None:
    """Loads the readers of S3 and creates the secret. `storage_options`: with their values. Raises SetupError if a package is missing."""
    require(Extra.S3, SetupError)
    for reader in READERS:
        load_extension(connection, reader)
    settings = ", ".join(f"{name} {value}" for name, value in secret_settings(storage_options).items())
    try:
        connection.execute(f"CREATE SECRET lake ({settings})")
    except duckdb.Error as error:  # Its text may have the statement, and so the credentials.
        raise SetupError(
            f"DuckDB found no usable credentials for S3 ({type(error).__name__}): set them in `storage_options`, or in the environment "
            "as for AWS's own programs."
        ) from None


def load_extension(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Loads an extension of DuckDB from the package of its name. It downloads nothing."""
    package = importlib.import_module(f"duckdb_extension_{name}")
    extension = next(Path(str(package.__file__)).parent.rglob(f"{name}.duckdb_extension"))
    connection.execute(f"LOAD {_text(str(extension))}")


def secret_settings(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of DuckDB's secret, as SQL. Without credentials in the options, DuckDB takes those that the environment, the
    files of AWS or the machine's role give.
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
