"""Tests the configuration of a lake in an object store: the confs of docs/deployment.md can be loaded, and configurations that cannot work
are refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.stack.spark_server import pass_store_settings
from sluice.console.stack.stack import Stack
from sluice.orchestration.base.lake_settings import spark_settings, spark_stores, store_environment, store_settings
from tests.config.test_deployment_ha import CONFS, write

S3, AZURE, GCS, CLUSTER = CONFS[-4:]


@pytest.mark.spark
def test_s3_the_conf_of_the_page_gives_spark_and_deltalake_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(write(tmp_path, S3))
    with pytest.raises(ConfigurationError, match=r"LAKE_ACCESS_KEY is not set.*LAKE_SECRET_KEY is not set"):
        pass_store_settings(Stack(config, tmp_path / "conf", lambda _: None)._spark, config, "sluice up")
    monkeypatch.setenv("LAKE_ACCESS_KEY", "an access key")
    monkeypatch.setenv("LAKE_SECRET_KEY", "a secret key")
    stack = Stack(config, tmp_path / "conf", lambda _: None)
    pass_store_settings(stack._spark, config, "sluice up")
    assert store_settings(config)["spark.hadoop.fs.s3a.endpoint"] == "http://store:9000"
    assert store_environment(config) == {
        "AWS_ACCESS_KEY_ID": "an access key",
        "AWS_SECRET_ACCESS_KEY": "a secret key",
    }
    assert "secret key" not in str(stack._spark._settings)
    assert store_environment(config).items() <= stack._spark._environment().items()
    assert config.table_path("shop", "shop", "orders") == "s3://bucket/lake/shop/orders"
    inside = config.model_copy(update={"spark": config.spark.model_copy(update={"master": "local[2]"})})
    assert spark_settings(config, "shop").options == {}
    assert spark_settings(inside, "shop").options == store_settings(config)
    assert "secret key" not in repr(spark_settings(inside, "shop"))


@pytest.mark.spark
def test_azure_the_conf_of_the_page_gives_spark_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_ACCOUNT_KEY", "an account key")
    config = load_config(write(tmp_path, AZURE))
    stack = Stack(config, tmp_path / "conf", lambda _: None)
    assert stack._spark._extras == spark_stores(config) == ("azure",)
    pass_store_settings(stack._spark, config, "sluice up")
    assert store_environment(config) == {"SLUICE_AZURE_STORAGE_ACCOUNT_KEY": "an account key"}
    assert store_environment(config).items() <= stack._spark._environment().items()
    assert store_settings(config).items() <= stack._spark._settings.items()
    assert "an account key" not in str(stack._spark._settings)


@pytest.mark.parametrize(
    "url", ["az://lake/tables", "azure://lake/tables", "adl://lake/tables", "abfss://lake/tables", "ABFS://lake@shop/t"]
)
@pytest.mark.parametrize("setting", ["lake", "staging"])
def test_azure_a_url_that_spark_cannot_read_is_refused(tmp_path: Path, url: str, setting: str) -> None:
    """Defect 58: a lake with such a URL was accepted, and each table that Spark had to write failed."""
    with pytest.raises(ConfigurationError, match=r"write abfss://CONTAINER@ACCOUNT\.dfs\.core\.windows\.net/PATH"):
        load_config(write(tmp_path, f"{setting}: {url}\nstorage_options: {{azure_storage_account_name: shop}}\n"))


@pytest.mark.spark
def test_google_the_conf_of_the_page_gives_spark_the_account(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GCS))
    stack = Stack(config, tmp_path / "conf", lambda _: None)
    assert stack._spark._extras == spark_stores(config) == ("google",)
    pass_store_settings(stack._spark, config, "sluice up")
    keyfile = "spark.hadoop.fs.gs.auth.service.account.json.keyfile"
    assert stack._spark._settings[keyfile] == "/etc/sluice/account.json"


def test_google_a_lake_may_be_there_and_staged_batches_in_s3(tmp_path: Path) -> None:
    text = "lake: gs://bucket/lake\nstaging: s3://bucket/staged\nstorage_options: {aws_region: eu-central-1}\n"
    config = load_config(write(tmp_path, text))
    assert spark_stores(config) == ("s3", "google")
    settings = store_settings(config)
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert settings["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"


def test_google_azure_a_relative_path_of_credentials_is_refused(tmp_path: Path) -> None:
    """Defect 1014: Spark and deltalake looked for the file in the working directories of their processes."""
    options = "{google_service_account: account.json, azure_federated_token_file: token}"
    refused = "google_service_account, azure_federated_token_file must be an absolute path"
    with pytest.raises(ConfigurationError, match=refused):
        load_config(write(tmp_path, f"lake: gs://b/lake\nstorage_options: {options}"))


def test_google_a_token_which_deltalake_does_not_know_is_refused(tmp_path: Path) -> None:
    text = "lake: gs://bucket/lake\nstorage_options: {GOOGLE_BEARER_TOKEN: $TOKEN}\n"
    with pytest.raises(ConfigurationError, match="deltalake accepts no tokens of Google Cloud Storage"):
        load_config(write(tmp_path, text))


def test_s3_a_table_may_be_there_alone(tmp_path: Path) -> None:
    conf = write(tmp_path, "storage_options: {aws_region: eu-central-1}\n")
    shop = conf / "destinations" / "shop.yaml"
    shop.write_text(shop.read_text() + "tables: {shop.orders: {path: 's3://bucket/orders'}}\n")
    assert store_settings(load_config(conf)) == {"spark.hadoop.fs.s3a.endpoint.region": "eu-central-1"}


@pytest.mark.parametrize(
    "name", ["aws_secret_access_key", "AWS_ACCESS_KEY_ID", "session_token", "azure_storage_account_key"]
)
def test_s3_a_secret_in_conf_is_refused_and_not_shown(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name} must be \$NAME") as refused:
        load_config(write(tmp_path, f"storage_options: {{{name}: very-secret}}\n"))
    assert "very-secret" not in str(refused.value)


def test_s3_a_folder_in_an_object_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="only lake, staging and archive may be in an object store"):
        load_config(write(tmp_path, "data_dir: s3://bucket/staging\n"))


def test_s3_staged_batches_may_be_there_and_the_other_files_are_in_the_folder(tmp_path: Path) -> None:
    options = "{aws_region: eu-central-1, aws_secret_access_key: $LAKE_SECRET_KEY}"
    text = f"data_dir: /srv/sluice\nstaging: s3://bucket/staged/\nstorage_options: {options}\n"
    config = load_config(write(tmp_path, text))
    location = config.ledger_location("shop")
    assert str(config.destination_dir("shop")) == "/srv/sluice/engine/shop"
    assert location.staged_url("0123456789ab", "staging/1-2-3-4") == "s3://bucket/staged/shop/0123456789ab/1-2-3-4"
    assert location.sibling_url("uploaded") == "s3://bucket/staged/_sluice_uploaded/shop"
    assert ("aws_secret_access_key", "$LAKE_SECRET_KEY") in location.storage_options
    assert spark_stores(config) == ("s3",)
    local = load_config(write(tmp_path / "other", "staging: /mnt/shared\n"))
    assert str(local.destination_dir("shop")) == "/mnt/shared/shop"
    assert (
        local.ledger_location("shop").staged_url("l", "p"),
        local.ledger_location("shop").sibling_url("uploaded"),
    ) == (
        "",
        "",
    )
    assert local.ledger_location("shop").storage_options == ()


def test_s3_the_conf_of_the_cluster_has_staging_in_the_store_and_the_ledger_in_a_database(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, CLUSTER))
    location = config.ledger_location("shop")
    assert (location.staging, location.kind, str(location.directory)) == (
        "s3://bucket/staged",
        "sql",
        "/srv/sluice/engine/shop",
    )
