"""Tests options of Azure with the names that deltalake uses: what pyarrow and DuckDB get, and which options are secret."""

from __future__ import annotations

import re

import pytest

from sluice.console.lake.sql_store import azure_secret, duckdb_url
from sluice.object_stores.azure import azure_location, is_azure
from sluice.object_stores.errors import StoreError
from sluice.object_stores.files import file_system
from sluice.object_stores.options import without_secrets
from sluice.spark_jobs.object_store import spark_environment, spark_settings

LAKE = "abfss://lake@shop.dfs.core.windows.net/a/b/"


@pytest.mark.parametrize(
    ("url", "options", "account", "path", "arguments"),
    [
        (LAKE, {}, "shop", "lake/a/b", {}),
        ("az://lake/a", {"ACCOUNT_NAME": "shop", "sas_key": "?sig"}, "shop", "lake/a", {"sas_token": "?sig"}),
        ("azure://lake", {"azure_account_name": "shop", "access_key": "k"}, "shop", "lake", {"account_key": "k"}),
        (
            "abfss://lake/a",
            {"azure_storage_account_name": "shop", "azure_storage_endpoint": "http://h:1/shop"},
            "shop",
            "lake/a",
            {
                "blob_storage_authority": "h:1",
                "blob_storage_scheme": "http",
                "dfs_storage_authority": "h:1",
                "dfs_storage_scheme": "http",
            },
        ),
        (
            LAKE,
            {"azure_endpoint": "https://shop.blob.core.usgovcloudapi.net"},
            "shop",
            "lake/a/b",
            {
                "blob_storage_authority": ".blob.core.usgovcloudapi.net",
                "blob_storage_scheme": "https",
                "dfs_storage_authority": ".dfs.core.usgovcloudapi.net",
                "dfs_storage_scheme": "https",
            },
        ),
        (
            LAKE,
            {"azure_client_id": "i", "azure_tenant_id": "t", "azure_federated_token_file": "/run/token"},
            "shop",
            "lake/a/b",
            {},
        ),
        (
            LAKE,
            {"azure_client_id": "i", "azure_storage_client_secret": "s", "authority_id": "t"},
            "shop",
            "lake/a/b",
            {"client_id": "i", "client_secret": "s", "tenant_id": "t"},
        ),
    ],
)
def test_azure_options_by_any_of_their_names_reach_pyarrow(
    url: str, options: dict[str, str], account: str, path: str, arguments: dict[str, str]
) -> None:
    location = azure_location(url, options)
    assert (location.account, location.path, location.arguments) == (account, path, arguments)
    assert not arguments or str(arguments) not in repr(location)


@pytest.mark.found
def test_azure_pyarrow_accepts_the_options_of_a_workload_identity() -> None:
    """Defect 60: pyarrow refused the tenant of a workload identity, so the engine could not stage batches."""
    options = {"azure_client_id": "i", "azure_tenant_id": "t", "azure_federated_token_file": "/run/token"}
    assert file_system(LAKE, options)[1] == "lake/a/b"


def test_azure_a_url_without_an_account_says_which_option_names_it() -> None:
    with pytest.raises(StoreError, match=r"az://lake/a does not name an account: set azure_storage_account_name"):
        azure_location("az://lake/a", {})


@pytest.mark.found
def test_azure_a_host_of_logins_that_pyarrow_and_duckdb_would_not_use_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect 64: in a government cloud, Spark always logged in at the host of the public cloud, whatever `azure_authority_host` said."""
    options = {"client_id": "i", "client_secret": "s", "tenant_id": "t", "azure_authority_host": GOVERNMENT}
    monkeypatch.delenv("AZURE_AUTHORITY_HOST", raising=False)
    with pytest.raises(
        StoreError, match=f"set the environment variable AZURE_AUTHORITY_HOST .* to {re.escape(GOVERNMENT)} too"
    ):
        azure_location(LAKE, options)
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"{GOVERNMENT}/")
    assert "client_secret" in azure_location(LAKE, options).arguments


@pytest.mark.parametrize("url", ["s3://lake/a", "gs://lake/a", "/lake/a", "file:///lake"])
def test_azure_other_urls_are_not_of_azure(url: str) -> None:
    assert not is_azure(url)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {"PROVIDER": "credential_chain", "ACCOUNT_NAME": "'shop'"}),
        (
            {"account_key": "k'1"},
            {"CONNECTION_STRING": "'DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=k''1'"},
        ),
        (
            {"sas_token": "?sig=1", "endpoint": "http://h:1/shop"},
            {
                "CONNECTION_STRING": "'DefaultEndpointsProtocol=http;AccountName=shop;SharedAccessSignature=sig=1;"
                "BlobEndpoint=http://h:1/shop'"
            },
        ),
        (
            {"client_id": "i", "client_secret": "s", "tenant_id": "t"},
            {
                "PROVIDER": "service_principal",
                "ACCOUNT_NAME": "'shop'",
                "TENANT_ID": "'t'",
                "CLIENT_ID": "'i'",
                "CLIENT_SECRET": "'s'",
            },
        ),
    ],
)
def test_azure_options_become_a_secret_of_duckdb(options: dict[str, str], settings: dict[str, str]) -> None:
    assert azure_secret(LAKE, options) == {"TYPE": "azure", **settings}


def test_azure_errors_show_the_account_and_no_secret() -> None:
    options = {
        "azure_storage_account_name": "shop-account",
        "azure_storage_account_key": "secret-key",
        "sas_token": "secret-sas",
    }
    shown = without_secrets("shop-account refused secret-key and secret-sas", options)
    assert shown == "shop-account refused *** and ***"


GOVERNMENT = "https://login.microsoftonline.us"
OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2."


@pytest.mark.parametrize(
    ("options", "settings", "environment"),
    [
        (
            {"azure_storage_account_name": "shop", "azure_storage_access_key": "very-secret"},
            {"account.auth.type": "SharedKey", "account.key": "${env.SLUICE_AZURE_STORAGE_ACCOUNT_KEY}"},
            {"SLUICE_AZURE_STORAGE_ACCOUNT_KEY": "very-secret"},
        ),
        (
            {"sas_key": "?very-secret"},
            {"account.auth.type": "SAS", "sas.fixed.token": "${env.SLUICE_AZURE_STORAGE_SAS_TOKEN}"},
            {"SLUICE_AZURE_STORAGE_SAS_TOKEN": "very-secret"},
        ),
        (
            {"azure_client_id": "i", "azure_client_secret": "very-secret", "azure_tenant_id": "t"},
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}ClientCredsTokenProvider",
                "account.oauth2.client.endpoint": "https://login.microsoftonline.com/t/oauth2/token",
                "account.oauth2.client.id": "i",
                "account.oauth2.client.secret": "${env.SLUICE_AZURE_CLIENT_SECRET}",
            },
            {"SLUICE_AZURE_CLIENT_SECRET": "very-secret"},
        ),
        (
            {"azure_client_id": "i", "azure_tenant_id": "t", "azure_federated_token_file": "/run/token"},
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}WorkloadIdentityTokenProvider",
                "account.oauth2.msi.authority": "https://login.microsoftonline.com/",
                "account.oauth2.client.id": "i",
                "account.oauth2.msi.tenant": "t",
                "account.oauth2.token.file": "/run/token",
            },
            {},
        ),
        (
            {
                "client_id": "i",
                "client_secret": "very-secret",
                "tenant_id": "t",
                "azure_storage_authority_host": f"{GOVERNMENT}/",
            },
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}ClientCredsTokenProvider",
                "account.oauth2.client.endpoint": f"{GOVERNMENT}/t/oauth2/token",
                "account.oauth2.client.id": "i",
                "account.oauth2.client.secret": "${env.SLUICE_AZURE_CLIENT_SECRET}",
            },
            {"SLUICE_AZURE_CLIENT_SECRET": "very-secret"},
        ),
        (
            {"client_id": "i", "tenant_id": "t", "federated_token_file": "/run/token", "authority_host": GOVERNMENT},
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}WorkloadIdentityTokenProvider",
                "account.oauth2.msi.authority": f"{GOVERNMENT}/",
                "account.oauth2.client.id": "i",
                "account.oauth2.msi.tenant": "t",
                "account.oauth2.token.file": "/run/token",
            },
            {},
        ),
        (
            {"azure_client_id": "i", "aws_secret_access_key": "of-amazon"},
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}MsiTokenProvider",
                "account.oauth2.client.id": "i",
            },
            {},
        ),
        (
            {"account_key": "very-secret", "azure_storage_use_emulator": "true"},
            {
                "account.auth.type": "SharedKey",
                "account.key": "${env.SLUICE_AZURE_STORAGE_ACCOUNT_KEY}",
                "abfs.endpoint": "127.0.0.1:10000",
                "always.use.https": "false",
                "account.hns.enabled": "false",
                "fns.account.service.type": "BLOB",
            },
            {"SLUICE_AZURE_STORAGE_ACCOUNT_KEY": "very-secret"},
        ),
        (
            {"account_key": "very-secret", "azure_endpoint": "https://shop.blob.core.usgovcloudapi.net"},
            {"account.auth.type": "SharedKey", "account.key": "${env.SLUICE_AZURE_STORAGE_ACCOUNT_KEY}"},
            {"SLUICE_AZURE_STORAGE_ACCOUNT_KEY": "very-secret"},
        ),
    ],
)
def test_azure_options_become_settings_of_spark_and_secrets_become_environment(
    options: dict[str, str], settings: dict[str, str], environment: dict[str, str]
) -> None:
    found = spark_settings("azure", options)
    assert found == {f"spark.hadoop.fs.azure.{name}": value for name, value in settings.items()}
    assert spark_environment("azure", options) == environment


@pytest.mark.found
@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, LAKE),
        ({"azure_storage_endpoint": "https://shop.blob.core.usgovcloudapi.net"}, "az://lake/a/b"),
    ],
)
def test_azure_duckdb_uses_the_endpoint_of_the_options(options: dict[str, str], url: str) -> None:
    """Defect 59: if the URL of the lake named the account, `sluice sql` looked for data files at the account's public endpoint."""
    assert duckdb_url(LAKE, options) == url
