"""Opens an object store as a pyarrow file system. `folder` uses this module for directories, and Spark tasks use it for a single file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from sluice.object_stores.azure import azure_location, is_azure
from sluice.object_stores.errors import StoreError, explained
from sluice.object_stores.google import is_google
from sluice.object_stores.options import YES, known, without_secrets

S3 = ("s3://", "s3a://")
CONNECT_SECONDS, REQUEST_SECONDS = 5.0, 60.0


def file_system(url: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Returns the pyarrow file system for a URL, and the path in that file system. `options` are `storage_options` with secrets resolved.

    If `options` has no credentials, the clients of S3, Azure and Google Cloud Storage use credentials of the environment or the machine.
    Stores of other kinds ignore `options`. Raises StoreError if the store cannot be opened.
    """
    with as_store_error(url, options):
        if url.startswith(S3):
            return _s3(known(options)), url.partition("://")[2].rstrip("/")
        if is_azure(url):
            location = azure_location(url, options)
            arguments: dict[str, Any] = dict(location.arguments)
            return pafs.AzureFileSystem(location.account, **arguments), location.path
        if is_google(url):
            from sluice.object_stores.google_files import google_file_system  # noqa: PLC0415  its library is large

            return google_file_system(url, options)
        store, path = pafs.FileSystem.from_uri(url)
        return store, path.rstrip("/")


def is_in_store(url: str) -> bool:
    """Returns whether a URL is in a store with conditional writes: S3, Azure or Google Cloud Storage."""
    return url.startswith(S3) or is_azure(url) or is_google(url)


def opened(url: str, options: Mapping[str, str]) -> Any:
    """Opens a file of the store, so that it can be read at any offset. Raises StoreError if the store fails."""
    store, path = file_system(url, options)
    with as_store_error(url, options):
        return store.open_input_file(path)


@contextlib.contextmanager
def as_store_error(url: str, options: Mapping[str, str]) -> Iterator[None]:
    """Converts errors that pyarrow raises about a store to StoreError, with the URL and without secrets. Does not convert
    FileNotFoundError, because callers treat a missing file separately.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise StoreError(f"{url}: {explained(without_secrets(str(error), options))}") from None


def _s3(said: Mapping[str, str]) -> Any:
    endpoint = said.get("endpoint", "")
    given: dict[str, Any] = {
        "access_key": said.get("access_key_id"),
        "secret_key": said.get("secret_access_key"),
        "session_token": said.get("session_token"),
        "region": said.get("region"),
        "endpoint_override": endpoint or None,
        "scheme": endpoint.partition("://")[0] if "://" in endpoint else None,
        "connect_timeout": CONNECT_SECONDS,
        "request_timeout": REQUEST_SECONDS,
        "force_virtual_addressing": said.get("virtual_hosted", "").lower() in YES or None,
    }
    return pafs.S3FileSystem(**{name: value for name, value in given.items() if value is not None})
