"""Options of Azure as deltalake names them: what pyarrow and DuckDB get, and what is a secret."""

from __future__ import annotations

import pytest

from sluice.console.lake.sql_store import azure_secret
from sluice.object_stores.azure import azure_location, is_azure
from sluice.object_stores.errors import StoreError
from sluice.object_stores.options import without_secrets

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


def test_azure_a_url_without_an_account_says_which_option_names_it() -> None:
    with pytest.raises(StoreError, match=r"az://lake/a does not name an account: set azure_storage_account_name"):
        azure_location("az://lake/a", {})


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
