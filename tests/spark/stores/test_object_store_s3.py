"""Tests that deltalake's options of a store become settings of Spark, and that an error shows no secret of them. No server is used."""

from __future__ import annotations

import pytest

from sluice.object_stores.options import known, without_secrets
from sluice.spark_jobs.object_store import spark_environment, spark_path, spark_settings
from sluice.spark_jobs.sql_text import delta_path

PREFIX = "spark.hadoop.fs.s3a."


@pytest.mark.parametrize(
    ("path", "of_spark"),
    [
        ("s3://bucket/lake/a", "s3a://bucket/lake/a"),
        ("s3a://bucket/lake", "s3a://bucket/lake"),
        ("gs://bucket/lake", "gs://bucket/lake"),
        ("abfss://lake@account.dfs.core.windows.net/a", "abfss://lake@account.dfs.core.windows.net/a"),
        ("/srv/s3://odd", "/srv/s3://odd"),
    ],
)
def test_s3_a_path_is_shown_as_spark_names_it(path: str, of_spark: str) -> None:
    assert spark_path(path) == of_spark
    assert delta_path(path) == f"delta.`{of_spark}`"


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"AWS_REGION": "eu-central-1"}, {"endpoint.region": "eu-central-1"}),
        (
            {"endpoint": "http://minio:9000", "allow_http": "true"},
            {"endpoint": "http://minio:9000", "path.style.access": "true", "connection.ssl.enabled": "false"},
        ),
        (
            {"aws_endpoint_url": "https://store", "aws_virtual_hosted_style_request": "True"},
            {"endpoint": "https://store", "path.style.access": "false", "connection.ssl.enabled": "true"},
        ),
    ],
)
def test_s3_the_location_of_a_store_becomes_settings(options: dict[str, str], settings: dict[str, str]) -> None:
    secrets = {"aws_access_key_id": "AKIA-one", "secret_access_key": "secret-one", "AWS_SESSION_TOKEN": "token-one"}
    assert spark_settings("s3", {**options, **secrets}) == {PREFIX + name: value for name, value in settings.items()}


@pytest.mark.found
def test_s3_the_endpoint_of_s3_alone_counts_in_every_client() -> None:
    """Defect 1186: only deltalake used the option `aws_endpoint_url_s3`, which is AWS's own name. Staged batches and Spark's merges went to
    Amazon's S3 instead of the store in which deltalake merged small tables.
    """
    endpoint, names = "http://minio:9000", ("aws_endpoint_url_s3", "AWS_ENDPOINT_URL_S3")
    for options in ({name: endpoint} for name in names):
        assert known(options) == {"endpoint": endpoint}
        assert spark_settings("s3", options)[f"{PREFIX}endpoint"] == endpoint
        assert endpoint in without_secrets(f"no answer from {endpoint}", options), "it is no secret"
    assert known({"endpoint_url_s3": endpoint}) == {}, "deltalake does not know it without aws_"


@pytest.mark.found
@pytest.mark.parametrize("other", ["endpoint", "aws_endpoint_url", "AWS_ENDPOINT_URL"])
def test_s3_the_endpoint_of_s3_alone_counts_before_other_endpoints(other: str) -> None:
    """Defect 1240: of two endpoints, deltalake uses `aws_endpoint_url_s3`, but the other clients used the last one in conf/."""
    both = {"aws_endpoint_url_s3": "http://minio:9000", other: "http://localstack:4566"}
    for options in (both, dict(reversed(both.items()))):
        assert known(options) == {"endpoint": "http://minio:9000"}


def test_s3_credentials_become_environment_and_nothing_else_does() -> None:
    options = {"ACCESS_KEY_ID": "a", "aws_secret_access_key": "b", "token": "c", "region": "eu", "endpoint": "http://x"}
    assert spark_environment("s3", options) == {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_SESSION_TOKEN": "c",
    }
    assert spark_environment("s3", {"region": "eu"}) == {}


def test_s3_an_error_shows_the_location_and_no_secret_also_for_an_unknown_option() -> None:
    options = {"endpoint": "http://minio:9000", "secret_access_key": "se/cret+key", "azure_anything": "as-secret"}
    text = "Generic S3 error\n   \x1b[31m↳\x1b[0m GET http://minio:9000/?sig=se%2Fcret%2Bkey of se/cret+key, as-secret"
    assert without_secrets(text, options) == "Generic S3 error GET http://minio:9000/?sig=*** of ***, ***"
