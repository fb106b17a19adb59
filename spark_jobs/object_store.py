"""A lake in an object store: what conf/ says in deltalake's words, said in Spark's; and what of it may be shown. Pure.

`sql_text` asks for paths; who starts Spark asks for settings. Credentials are no settings: those of a process stand in its command line, in
its log and in its UI. They go by the environment, where the store's client looks for them anyway.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping

S3 = re.compile(r"^s3://")
SECRET_CHARS_MIN = 6
DRAWN = re.compile(r"\x1b\[[0-9;]*m|↳")  # deltalake draws its causes as a tree, in colours
# deltalake's name, in lower case and without aws_ → ours; it takes all of these
NAMES = {
    "region": "region",
    "default_region": "region",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "allow_http": "allow_http",
    "virtual_hosted_style_request": "virtual_hosted",
    "conditional_put": "conditional_put",
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "session_token": "session_token",
    "token": "session_token",
}
CREDENTIALS = {  # of the environment, where AWS's own client looks
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
PLAIN = frozenset(NAMES.values()) - frozenset(CREDENTIALS)
YES = frozenset({"1", "true", "on", "yes", "y"})  # as deltalake reads them


def spark_path(path: str) -> str:
    """The path as Spark's file systems are called: Hadoop's client of S3 is `s3a`."""
    return S3.sub("s3a://", path, count=1)


def spark_settings(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Where the store is, for the Spark that is started; without credentials."""
    known, settings = _known(storage_options), {}
    if region := known.get("region"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := known.get("endpoint"):
        virtual = known.get("virtual_hosted", "").lower() in YES
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        settings["spark.hadoop.fs.s3a.path.style.access"] = str(not virtual).lower()
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    return settings


def spark_environment(storage_options: Mapping[str, str]) -> dict[str, str]:
    """The credentials, for the environment of Spark's process; empty where the machine has a role of its own."""
    known = _known(storage_options)
    return {variable: known[name] for name, variable in CREDENTIALS.items() if name in known}


def without_secrets(text: str, storage_options: Mapping[str, str]) -> str:
    """An error of a store, in one line: it may show what it was asked with. An option that we do not know is taken for a secret."""
    text = " ".join(DRAWN.sub("", text).split())
    hidden = [value for name, value in storage_options.items() if _name(name) not in PLAIN]
    for value in sorted(hidden, key=len, reverse=True):
        for form in (value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)):
            if len(value) >= SECRET_CHARS_MIN:
                text = text.replace(form, "***")
    return text


def _known(storage_options: Mapping[str, str]) -> dict[str, str]:
    return {known: value for name, value in storage_options.items() if (known := _name(name))}


def _name(option: str) -> str:
    """What deltalake's option is to us; empty for one that we do not know."""
    return NAMES.get(option.lower().removeprefix("aws_"), "")
