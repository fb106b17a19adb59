"""Provides folders in the object stores of the tests, with the `storage_options` that conf/ has for them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

import pytest

SECRETS = {
    "aws_access_key_id",
    "aws_secret_access_key",
    "azure_storage_account_key",
    "google_service_account_key",
}


class Store(Protocol):
    """A running store. `root` is the URL of its bucket or container."""

    @property
    def root(self) -> str: ...

    @property
    def options(self) -> dict[str, str]: ...


@dataclasses.dataclass(frozen=True)
class StoreConf:
    """A new folder in a store. `options` contain secrets. `named` are the same options, with the names of variables instead of secrets."""

    url: str
    options: Mapping[str, str]
    named: Mapping[str, str]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of sluice.yaml for a lake and staged batches in the folder."""
        return {"lake": f"{self.url}/lake", "staging": f"{self.url}/staged", "storage_options": dict(self.named)}


def store_conf(store: Store, patch: pytest.MonkeyPatch) -> StoreConf:
    """Returns a new folder in the store. Sets the variables of its secrets."""
    patch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # The S3 server refuses checksums of parts.
    named = dict(store.options)
    for name in named.keys() & SECRETS:
        patch.setenv(f"TEST_{name.upper()}", named[name])
        named[name] = f"$TEST_{name.upper()}"
    return StoreConf(f"{store.root}/{uuid.uuid4().hex[:12]}", store.options, named)
