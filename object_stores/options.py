"""Reads `storage_options` of conf/: knows deltalake's names for a store's options and which of them are secrets, and finds their values.

The process remembers the secrets that it resolved. An error may contain an earlier one, which its location no longer has."""

from __future__ import annotations

import re
import threading
import urllib.parse
from collections.abc import Mapping

from sluice.object_stores.azure import SECRETS, azure_name
from sluice.object_stores.errors import StoreError
from sluice.secret_values import SecretUnavailable, filled_text, is_reference

SECRET_CHARS_MIN = 6
DRAWN = re.compile(r"\x1b\[[0-9;]*m|↳")  # deltalake formats its causes as a tree, in colours.
# deltalake's name, in lower case and without aws_ → our name. deltalake accepts all of these.
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
CREDENTIALS = {  # The environment variables that AWS's own client reads.
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
PLAIN = frozenset(NAMES.values()) - frozenset(CREDENTIALS)
RESOLVED_MAX = 256  # The newest secrets. This is more than any run needs, even if tokens are new each time.
YES = frozenset({"1", "true", "on", "yes", "y"})  # deltalake reads these values as true.


class ResolvedSecrets:
    """The newest secrets that this process has read. A pickled copy is empty, because Spark's executors get this module with a job's
    code.
    """

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ResolvedSecrets], tuple[()]]:
        return ResolvedSecrets, ()

    def remember(self, secret: str) -> None:
        with self._lock:
            self._secrets.pop(secret, None)
            self._secrets[secret] = None
            while len(self._secrets) > RESOLVED_MAX:
                del self._secrets[next(iter(self._secrets))]

    def all(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._secrets)


_resolved = ResolvedSecrets()


def known(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Returns the values of the S3 options that we know, by our names."""
    return {found: value for name, value in storage_options.items() if (found := _name(name))}


def resolved(configured: Mapping[str, str]) -> dict[str, str]:
    """Replaces references such as `$NAME` by the secrets that they name, and remembers the secrets for `without_secrets`. Raises StoreError
    with all that cannot be read.
    """
    found, missing = dict(configured), list[str]()
    for name, value in configured.items():
        try:
            found[name] = filled_text(value, f"storage_options.{name}")
            if is_reference(value) and not _is_plain(name):
                _resolved.remember(found[name])
        except SecretUnavailable as error:
            missing.append(str(error))
    if missing:
        raise StoreError("; ".join(missing))
    return found


def without_secrets(text: str, storage_options: Mapping[str, str]) -> str:
    """Returns a store's error as one line without secrets: the error may contain what was sent, now or before a rotation. The value of an
    unknown option counts as a secret. `storage_options`: with their values, or as in conf/. It reads no secret.
    """
    text = " ".join(DRAWN.sub("", text).split())
    given = {value for name, value in storage_options.items() if not _is_plain(name) and not is_reference(value)}
    for value in sorted(given | _resolved.all(), key=len, reverse=True):
        for form in (value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)):
            if len(value) >= SECRET_CHARS_MIN:
                text = text.replace(form, "***")
    return text


def _is_plain(option: str) -> bool:
    """Returns whether the option is known not to contain a secret."""
    azure = azure_name(option)
    return _name(option) in PLAIN or bool(azure and azure not in SECRETS)


def _name(option: str) -> str:
    """Returns our name for deltalake's option; empty for an unknown one."""
    return NAMES.get(option.lower().removeprefix("aws_"), "")
