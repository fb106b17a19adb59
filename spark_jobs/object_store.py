"""Converts deltalake's storage options to Spark's paths and settings, for the object stores of the lake and of staged files. Pure
functions.

`sql_text` uses the paths. The code that starts Spark uses the settings. The store's client reads credentials from environment variables.
Settings would show credentials in the process's command line, its log and its UI.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sluice.object_stores.google import google_options
from sluice.object_stores.options import CREDENTIALS, YES, known

S3 = re.compile(r"^s3://")
GOOGLE, GOOGLE_AUTH = "spark.hadoop.fs.gs.", "spark.hadoop.fs.gs.auth."
# Google's client reads a key only from a file. Spark loads this class of Sluice instead, which reads the key from an environment variable.
GOOGLE_TOKENS = "dev.sluice.storage.EnvironmentTokens"
GOOGLE_CREDENTIALS = {
    "service_account_key": "SLUICE_GOOGLE_SERVICE_ACCOUNT_KEY",
    "application_credentials": "GOOGLE_APPLICATION_CREDENTIALS",
}


def spark_path(path: str) -> str:
    """Returns the path with `s3a`, the URL scheme of Hadoop's S3 client."""
    return S3.sub("s3a://", path, count=1)


def spark_settings(store: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the Spark settings for a store, "s3" or "google": the store's addresses and, for Google, the kind of credentials. The
    settings do not contain the credentials themselves.
    """
    return _s3_settings(storage_options) if store == "s3" else _google_settings(google_options(storage_options))


def spark_environment(store: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the credentials as environment variables for Spark's process. Returns none if Spark uses the role or
    account of its machine.
    """
    given = known(storage_options) if store == "s3" else google_options(storage_options)
    variables = CREDENTIALS if store == "s3" else GOOGLE_CREDENTIALS
    return {variable: given[name] for name, variable in variables.items() if name in given}


def _s3_settings(storage_options: Mapping[str, str]) -> dict[str, str]:
    said, settings = known(storage_options), {}
    if region := said.get("region"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := said.get("endpoint"):
        virtual = said.get("virtual_hosted", "").lower() in YES
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        settings["spark.hadoop.fs.s3a.path.style.access"] = str(not virtual).lower()
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    return settings


def _google_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Google's client, which is not part of Hadoop. As in deltalake, the key of a service account may name the
    address of an emulator, and may say that the emulator needs no token.

    Parquet must not request several ranges in one read, because Google's client would then call a method of Hadoop 3.3 that Hadoop 3.4
    does not have.
    """
    key = _parsed(options.get("service_account_key", ""))
    settings = {
        f"{GOOGLE}impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
    }
    if address := options.get("base_url") or key.get("gcs_base_url"):
        settings[f"{GOOGLE}storage.root.url"] = f"{str(address).rstrip('/')}/"
    if options.get("skip_signature", "").lower() in YES or key.get("disable_oauth"):
        return {**settings, f"{GOOGLE_AUTH}type": "UNAUTHENTICATED"}
    if "service_account_key" in options:
        tokens = {f"{GOOGLE_AUTH}access.token.provider": GOOGLE_TOKENS}
        return {**settings, **tokens, f"{GOOGLE_AUTH}type": "ACCESS_TOKEN_PROVIDER"}
    if file := options.get("service_account"):
        keyfile = {f"{GOOGLE_AUTH}service.account.json.keyfile": file}
        return {**settings, **keyfile, f"{GOOGLE_AUTH}type": "SERVICE_ACCOUNT_JSON_KEYFILE"}
    return {**settings, f"{GOOGLE_AUTH}type": "APPLICATION_DEFAULT"}


def _parsed(key: str) -> dict[str, Any]:
    """Returns the content of a service account's key. Returns an empty dict if it cannot be parsed; the store's client reports this."""
    try:
        content = json.loads(key or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
