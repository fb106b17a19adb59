"""Parses URLs and `storage_options` of Google Cloud Storage. `google_files`, `options` and the code that starts Spark use this module.
deltalake accepts several names for one option, and all of these names also with the prefix `google_`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

URL = re.compile(r"gs://(?P<bucket>[^/]+)/?(?P<path>.*)")
# deltalake's name of an option, in lower case and without google_ → the name for the store's client.
NAMES = {
    **dict.fromkeys(("service_account", "service_account_path"), "service_account"),
    "service_account_key": "service_account_key",
    "application_credentials": "application_credentials",
    "skip_signature": "skip_signature",
    "base_url": "base_url",
}
SECRETS = frozenset({"service_account_key"})


def google_name(option: str) -> str:
    """Returns the name that the store's client, obstore, has for an option of deltalake, or "" if the option is not one of Google's."""
    return NAMES.get(option.lower().removeprefix("google_"), "")


def is_google(url: str) -> bool:
    """Returns whether a URL is one of Google Cloud Storage."""
    return URL.fullmatch(url) is not None


def google_options(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options that the store's client, obstore, knows, by its names. The caller has resolved the secrets in the options."""
    return {name: value for option, value in storage_options.items() if (name := google_name(option))}


def bucket_and_path(url: str) -> tuple[str, str]:
    """Returns the bucket of a URL, and the path in it."""
    bucket, _, path = url.partition("://")[2].partition("/")
    return bucket, path.rstrip("/")
