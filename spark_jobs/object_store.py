"""A lake or staged files in an object store: what conf/ says in deltalake's words, said in Spark's. Pure.

`sql_text` asks for paths; who starts Spark asks for settings. Credentials are no settings: those of a process stand in its command line, in
its log and in its UI. They go by the environment, where the store's client looks for them anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from object_stores.options import CREDENTIALS, YES, known

S3 = re.compile(r"^s3://")


def spark_path(path: str) -> str:
    """The path as Spark's file systems are called: Hadoop's client of S3 is `s3a`."""
    return S3.sub("s3a://", path, count=1)


def spark_settings(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Where the store is, for the Spark that is started; without credentials."""
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
    """The credentials, for the environment of Spark's process; empty where the machine has a role of its own."""
    said = known(storage_options)
    return {variable: said[name] for name, variable in CREDENTIALS.items() if name in said}
