"""Converts deltalake's storage options to Spark's paths and settings, for the object stores of the lake and of staged files. Pure
functions.

SQL statements for Spark contain the paths. The code that starts Spark uses the settings. Credentials are not among the settings, because
the command line, the log and the UI of Spark's process show its settings. The store's client in Spark reads the credentials from
environment variables.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from sluice.object_stores.azure import azure_options
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

AZURE, AZURE_OAUTH = "spark.hadoop.fs.azure.", "org.apache.hadoop.fs.azurebfs.oauth2."
AZURE_CREDENTIALS = {
    "account_key": "SLUICE_AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "SLUICE_AZURE_STORAGE_SAS_TOKEN",
    "client_secret": "SLUICE_AZURE_CLIENT_SECRET",
}
# For each store: the function that returns the store's options, and the environment variable of each credential among them.
CREDENTIALS_OF = {
    "s3": (known, CREDENTIALS),
    "azure": (azure_options, AZURE_CREDENTIALS),
    "google": (google_options, GOOGLE_CREDENTIALS),
}
# The endpoint that deltalake uses with the option `use_emulator`.
EMULATOR_ENDPOINT = "http://127.0.0.1:10000/devstoreaccount1"
# The host to which clients of Azure's public cloud log in. deltalake uses it by default.
PUBLIC_AUTHORITY = "https://login.microsoftonline.com"


def spark_path(path: str) -> str:
    """Returns the path, in which the scheme `s3` is replaced by `s3a`, the scheme of Hadoop's S3 client."""
    return S3.sub("s3a://", path, count=1)


def spark_settings(store: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the Spark settings for a store, "s3", "azure" or "google": the store's addresses and, for Azure and Google, the kind of
    credentials. The settings do not contain the credentials themselves.
    """
    if store == "s3":
        return _s3_settings(storage_options)
    if store == "azure":
        return _azure_settings(azure_options(storage_options))
    return _google_settings(google_options(storage_options))


def spark_environment(store: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the credentials as environment variables for Spark's process. Returns {} if Spark uses the role or account of its machine."""
    options_of, variables = CREDENTIALS_OF[store]
    given = options_of(storage_options)
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


def _azure_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Hadoop's client of Azure. Without credentials in `options`, the client uses the machine's managed
    identity.
    """
    return {f"{AZURE}{name}": value for name, value in {**_azure_account(options), **_azure_endpoint(options)}.items()}


def _azure_account(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the kind of credentials for Hadoop's client, and references to environment variables, which the client replaces by the
    credentials. If there are credentials of several kinds, chooses the same kind as deltalake.
    """
    if "account_key" in options:
        return {"account.auth.type": "SharedKey", "account.key": _variable("account_key")}
    client = {"account.oauth2.client.id": options["client_id"]} if "client_id" in options else {}
    oauth = {"account.auth.type": "OAuth", "account.oauth.provider.type": f"{AZURE_OAUTH}MsiTokenProvider", **client}
    authority = options.get("authority_host", PUBLIC_AUTHORITY).rstrip("/")
    if "federated_token_file" in options:
        return {
            **oauth,
            "account.oauth2.msi.authority": f"{authority}/",
            "account.oauth.provider.type": f"{AZURE_OAUTH}WorkloadIdentityTokenProvider",
            "account.oauth2.msi.tenant": options.get("tenant_id", ""),
            "account.oauth2.token.file": options["federated_token_file"],
        }
    if "client_secret" in options:
        return {
            **oauth,
            "account.oauth.provider.type": f"{AZURE_OAUTH}ClientCredsTokenProvider",
            "account.oauth2.client.endpoint": f"{authority}/{options.get('tenant_id', '')}/oauth2/token",
            "account.oauth2.client.secret": _variable("client_secret"),
        }
    if "sas_token" in options:
        return {"account.auth.type": "SAS", "sas.fixed.token": _variable("sas_token")}
    return oauth


def _variable(option: str) -> str:
    """Returns a reference to the environment variable of this credential. Hadoop replaces the reference by the variable's value."""
    return f"${{env.{AZURE_CREDENTIALS[option]}}}"


def _azure_endpoint(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings for the endpoint of an emulator. Its URL has the account in its path, it is a Blob endpoint, and the account has
    no directories. Returns {} for other endpoints: their host names the account, and Hadoop's client takes the host from the URL of the
    lake.
    """
    emulated = options.get("use_emulator", "").lower() in YES
    address = urllib.parse.urlsplit(options.get("endpoint") or (EMULATOR_ENDPOINT if emulated else ""))
    if not address.path.strip("/"):
        return {}
    return {
        "abfs.endpoint": address.netloc,
        "always.use.https": str(address.scheme == "https").lower(),
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
    }


def _google_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Google's client, which is not part of Hadoop. For an emulator, the key of a service account may have the
    emulator's address, and may say that no token is needed. deltalake reads the key in the same way.

    Parquet must not request several ranges in one read, because Google's client would then call a method of Hadoop 3.3 that Hadoop 3.4 does
    not have.
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
