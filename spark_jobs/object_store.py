"""Converts deltalake's storage options, for an object store of the lake or of staged files, to Spark's paths and settings. Pure functions.

`sql_text` uses the paths, and the code that starts Spark uses the settings. Credentials are passed in the environment, where the store's
client reads them. Settings would show them: a process's settings are visible in its command line, its log and its UI."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sluice.object_stores.options import CREDENTIALS, YES, known

S3 = re.compile(r"^s3://")


def spark_path(path: str) -> str:
    """Returns the path with the URL scheme of Hadoop's S3 client: `s3a`."""
    return S3.sub("s3a://", path, count=1)


def spark_settings(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the Spark settings of the store's region and endpoint, without credentials."""
    said, settings = known(storage_options), {}
    if region := said.get("region"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := said.get("endpoint"):
        virtual = said.get("virtual_hosted", "").lower() in YES
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        settings["spark.hadoop.fs.s3a.path.style.access"] = str(not virtual).lower()
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    return settings


def spark_environment(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the credentials as environment variables for Spark's process; empty if the machine's own role is used."""
    said = known(storage_options)
    return {variable: said[name] for name, variable in CREDENTIALS.items() if name in said}
