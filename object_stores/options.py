"""Reads `storage_options` of conf/: maps deltalake's names of S3 options to Sluice's, resolves secrets, and removes secrets from errors.

The process remembers the secrets that it has resolved. After a rotation of a secret, an error may still contain the earlier secret, which
must be removed too.
"""

from __future__ import annotations

import re
import threading
import urllib.parse
from collections.abc import Mapping

from sluice.object_stores.azure import SECRETS, azure_name
from sluice.object_stores.errors import StoreError
from sluice.object_stores.google import SECRETS as GOOGLE_SECRETS
from sluice.object_stores.google import google_name
from sluice.secret_values import SecretUnavailable, filled_text, is_reference

SECRET_CHARS_MIN = 6
# deltalake prints the causes of an error as a tree. This pattern matches the tree's colours and arrows.
DRAWN = re.compile(r"\x1b\[[0-9;]*m|↳")
# Matches the signature of a SAS token in a URL, which errors must not show. Azure's client writes the token's parameters in another order,
# so a search for the whole token finds nothing in the client's errors.
SIGNATURE = re.compile(r"(?<=[?&]sig=)[^&\s'\"]+")
# deltalake's name of an S3 option, in lower case and without aws_ → Sluice's name. deltalake accepts all of these names, with and without
# aws_.
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
# AWS's own name of the variable for S3 alone. deltalake accepts this name only with aws_.
S3_ENDPOINT = "aws_endpoint_url_s3"
CREDENTIALS = {  # Sluice's name of a credential → the environment variable from which AWS's own clients read it.
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
PLAIN = frozenset(NAMES.values()) - frozenset(CREDENTIALS)
# A process remembers this many secrets, the newest ones, to remove them from errors. An older secret is forgotten. A run uses fewer, even
# if each of its connections uses a new token.
RESOLVED_MAX = 256
YES = frozenset({"1", "true", "on", "yes", "y"})  # The values that deltalake reads as true.


class ResolvedSecrets:
    """The newest RESOLVED_MAX secrets that this process has resolved. A pickled copy is empty, because Spark pickles this module with the
    code of a job and sends it to executors, which must not get the secrets.
    """

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}  # in the order in which they were resolved, the oldest first
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
    """Returns the S3 options that Sluice knows, by Sluice's names. Other options are omitted. If there are several endpoints, the one for
    S3 alone counts, as in deltalake.
    """
    in_order = sorted(storage_options.items(), key=lambda option: option[0].lower() == S3_ENDPOINT)
    return {found: value for name, value in in_order if (found := _name(name))}


def resolved(configured: Mapping[str, str]) -> dict[str, str]:
    """Replaces references such as `$NAME` by the secrets that they name, and remembers the secrets for `without_secrets`. Raises StoreError
    if a secret cannot be read. The error names all references whose secrets cannot be read.
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
    """Returns the text of a store's error as one line, with `***` in place of each secret. The error may repeat a request with the current
    secret, or with an earlier one if the secret was rotated. A secret of less than SECRET_CHARS_MIN characters stays in the text, because
    it would match unrelated text.

    The secrets in `storage_options` may be resolved, or references as in conf/. This function does not resolve references. The value of
    an unknown option is treated as a secret.
    """
    text = " ".join(DRAWN.sub("", text).split())
    given = {value for name, value in storage_options.items() if not _is_plain(name) and not is_reference(value)}
    for value in sorted(given | _resolved.all(), key=len, reverse=True):
        for form in (value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)):
            if len(value) >= SECRET_CHARS_MIN:
                text = text.replace(form, "***")
    return SIGNATURE.sub("***", text)


def _is_plain(option: str) -> bool:
    """Returns whether the option is known and its value is never a secret. False for an unknown option, which may have a secret."""
    azure, google = azure_name(option), google_name(option)
    return (
        _name(option) in PLAIN or bool(azure and azure not in SECRETS) or bool(google and google not in GOOGLE_SECRETS)
    )


def _name(option: str) -> str:
    """Returns Sluice's name for an S3 option of deltalake, or "" if the option is unknown."""
    name = option.lower()
    return "endpoint" if name == S3_ENDPOINT else NAMES.get(name.removeprefix("aws_"), "")
