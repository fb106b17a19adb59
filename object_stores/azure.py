"""Parses URLs and `storage_options` of Azure Blob Storage and Data Lake Storage. `files`, `options` and `sluice sql` use this module.
deltalake accepts several names for one option, and most of these names also with the prefix `azure_storage_` or `azure_`. This module gives
each option one name (NAMES).
"""

from __future__ import annotations

import dataclasses
import os
import re
import urllib.parse
from collections.abc import Mapping

from sluice.object_stores.errors import StoreError

URL = re.compile(r"(?:abfss?|az(?:ure)?|adl)://(?P<container>[^/@]+)(?:@(?P<account>[^./]+)\.[^/]*)?/?(?P<path>.*)")
PREFIX = re.compile(r"^azure_(?:storage_)?")
# deltalake's name of an option, in lower case and without its prefix → this module's name.
NAMES = {
    "account_name": "account_name",
    **dict.fromkeys(("account_key", "access_key", "master_key"), "account_key"),
    **dict.fromkeys(("sas_key", "sas_token"), "sas_token"),
    "client_id": "client_id",
    "client_secret": "client_secret",
    **dict.fromkeys(("tenant_id", "authority_id"), "tenant_id"),
    "authority_host": "authority_host",
    "federated_token_file": "federated_token_file",
    "endpoint": "endpoint",
    "allow_http": "allow_http",
    "use_emulator": "use_emulator",
}
SECRETS = frozenset({"account_key", "sas_token", "client_secret"})
# pyarrow's AzureFileSystem accepts these options by the same names.
PASSED = ("account_key", "sas_token", "client_id", "client_secret", "tenant_id")
# These options are not passed to pyarrow and obstore if `storage_options` has the token file of a workload identity. pyarrow and obstore do
# not accept a workload identity as arguments, but find it in the environment variables of the pod.
WORKLOAD_IDENTITY = ("client_id", "tenant_id")
# The environment variable with the URL at which service principals and workload identities log in. pyarrow, DuckDB and obstore read the URL
# from this variable. pyarrow and DuckDB have no other setting for the URL.
AUTHORITY_HOST = "AZURE_AUTHORITY_HOST"


@dataclasses.dataclass(frozen=True)
class AzureLocation:
    """A folder in a container. `path` is the container and the path in it. `arguments` are the arguments of pyarrow's AzureFileSystem, with
    credentials. `endpoint` is the URL of the account's Blob service, or empty for Azure's own service.
    """

    account: str
    path: str
    arguments: Mapping[str, str] = dataclasses.field(repr=False)
    endpoint: str = ""


def azure_name(option: str) -> str:
    """Returns this module's name for an option of deltalake, or "" if the option is not one of Azure's."""
    return NAMES.get(PREFIX.sub("", option.lower()), "")


def azure_options(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns Azure's options by this module's names. Removes the question mark from a SAS token. Leaves out options of other stores. The
    caller has resolved the secrets in `storage_options`.
    """
    known = {name: value for option, value in storage_options.items() if (name := azure_name(option))}
    return {name: value.removeprefix("?") if name == "sas_token" else value for name, value in known.items()}


def is_azure(url: str) -> bool:
    """Returns whether a URL is one of Azure's."""
    return URL.fullmatch(url) is not None


def azure_location(url: str, storage_options: Mapping[str, str]) -> AzureLocation:
    """Returns the account, the path and the credentials for a URL. The caller has resolved the secrets in `storage_options`. If
    `storage_options` has no credentials, pyarrow uses those of the environment, or the machine's managed identity.

    Raises StoreError if the URL is not one of Azure's, if the account is unknown, or if `storage_options` and the environment name
    different hosts for logins.
    """
    match = URL.fullmatch(url)
    if match is None:
        raise StoreError(f"{url} is not a URL of Azure, such as abfss://container@account.dfs.core.windows.net/path")
    known = azure_options(storage_options)
    account = match["account"] or known.get("account_name")
    if not account:
        raise StoreError(f"{url} does not name an account: set azure_storage_account_name in `storage_options`")
    host = known.get("authority_host", "")
    if host and os.environ.get(AUTHORITY_HOST, "").rstrip("/") != host.rstrip("/"):
        raise StoreError(
            f"`storage_options` have azure_authority_host: set the environment variable {AUTHORITY_HOST} of every process of Sluice to "
            f"{host} too, because pyarrow and DuckDB read the host for logins only from this variable"
        )
    left_out = WORKLOAD_IDENTITY if "federated_token_file" in known else ()
    given = {name: known[name] for name in PASSED if name in known and name not in left_out}
    if token := given.get("sas_token", ""):
        given["sas_token"] = f"?{token}"  # pyarrow appends the token to URLs as it is.
    path = f"{match['container']}/{match['path']}".rstrip("/")
    endpoint = known.get("endpoint", "")
    return AzureLocation(account, path, {**given, **_endpoint(endpoint, account)}, endpoint)


def _endpoint(endpoint: str, account: str) -> dict[str, str]:
    """Returns pyarrow's arguments for an endpoint, which is https://account.blob.HOST, or http://host:port/account of an emulator. If the
    authority in these arguments begins with a dot, pyarrow puts the account before the authority. Otherwise pyarrow puts the account into
    the path.
    """
    if not endpoint:
        return {}
    address = urllib.parse.urlsplit(endpoint)
    blob = address.netloc.removeprefix(account) if address.netloc.startswith(f"{account}.") else address.netloc
    dfs = re.sub(r"^\.blob\.", ".dfs.", blob)
    authorities = {"blob_storage_authority": blob, "dfs_storage_authority": dfs}
    return authorities | dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), address.scheme)
