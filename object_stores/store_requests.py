"""Makes the requests to an object store for which pyarrow cannot be used. `StoreFolder` calls this module.

- `put_new` writes a file unless it exists; the store itself decides this. pyarrow has no such request. Sluice writes the first commit of a
  Delta table with `put_new`, because `deltalake` refuses table properties that `deltalake` does not know.
- `why_refused` tests whether obstore, the client that this module uses, can read from the store. A publication calls `why_refused` before
  it uploads the large files of a table whose first commit `put_new` will write.
- `put` writes a file in Google Cloud Storage. pyarrow's `copy_files` ignores an error when a file of this store is closed.
- `remove_files` removes files in Azure, where pyarrow may abort the process if a file no longer exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import AzureStore, S3Store

from sluice.object_stores.azure import azure_location, is_azure
from sluice.object_stores.errors import NO_BUCKET, StoreError
from sluice.object_stores.google import is_google
from sluice.object_stores.google_files import CLIENT, google_store, without_debug_output
from sluice.object_stores.options import YES, known, without_secrets

# Sluice's name of an S3 option → the store client's name.
OF_S3 = {
    "region": "aws_region",
    "endpoint": "aws_endpoint",
    "virtual_hosted": "aws_virtual_hosted_style_request",
    "conditional_put": "aws_conditional_put",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}
# pyarrow's name of an argument → the store client's name.
OF_AZURE = {
    "account_key": "account_key",
    "sas_token": "sas_key",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "tenant_id": "tenant_id",
}


def put_new(url: str, content: bytes, options: Mapping[str, str]) -> bool:
    """Writes a file, unless a file with this URL exists. Returns False if one exists. That file may come from an earlier request of
    this same call, whose answer was lost. `options` are `storage_options` with secrets resolved. If this raises StoreError, it is
    unknown whether the file was written.
    """
    with _as_store_error(url, options):
        store, path = _bucket(url, options)
        try:
            with _bucket_exists():
                obstore.put(store, path, content, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
    return True


def put(url: str, content: BinaryIO, options: Mapping[str, str]) -> None:
    """Writes a file with the content of an open local file, or replaces it. Readers see the whole file or nothing. `options` are
    `storage_options` with secrets resolved. Raises StoreError if the store fails.
    """
    with _as_store_error(url, options):
        store, path = _bucket(url, options)
        with _bucket_exists():
            obstore.put(store, path, content)


def why_refused(url: str, options: Mapping[str, str]) -> str:
    """Returns why obstore cannot read a file's size, for example because obstore does not know AWS's profiles or a value of
    `conditional_put`. Returns "" if obstore can read the size, or if the file does not exist. `options` are `storage_options` with secrets
    resolved.
    """
    try:
        with _as_store_error(url, options):
            store, path = _bucket(url, options)
            with contextlib.suppress(FileNotFoundError, NotFoundError):
                obstore.head(store, path)
    except StoreError as error:
        return str(error)
    return ""


def remove_folder(url: str, names: Iterable[str], options: Mapping[str, str]) -> None:
    """Removes the directory `url`, which has the files `names`. `options` are `storage_options` with secrets resolved. Raises StoreError if
    the store fails.

    An Azure account with a hierarchical namespace has real directories. They are removed after their files, the deepest first.
    """
    names = list(names)
    remove_files(url, names, options)
    with _as_store_error(url, options):
        store, path = _bucket(url, options)
        parents = {
            parent for name in names for parent in PurePosixPath(path, name).parents if parent.is_relative_to(path)
        }
        for parent in sorted(parents, key=lambda each: len(each.parts), reverse=True):
            # Removing a directory fails in an account without a hierarchical namespace, which has no directories. It also fails if another
            # host has put a file into the directory. Both errors are harmless.
            with contextlib.suppress(BaseError, FileNotFoundError):
                obstore.delete(store, str(parent))


def remove_files(url: str, names: Iterable[str], options: Mapping[str, str]) -> None:
    """Removes files of the directory `url`. Ignores files that do not exist. `options` are `storage_options` with secrets resolved. Raises
    StoreError if the store fails.
    """
    with _as_store_error(url, options):
        store, path = _bucket(url, options)
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotFoundError):
                obstore.delete(store, f"{path}/{name}")


class NoBucketError(Exception):
    """Raised if a file cannot be written because its bucket or container does not exist."""


@contextlib.contextmanager
def _bucket_exists() -> Iterator[None]:
    """Raises NoBucketError if the store answers "not found" while a file is written, because only the bucket or container can be missing
    then.
    """
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise NoBucketError(str(error)) from None


@contextlib.contextmanager
def _as_store_error(url: str, options: Mapping[str, str]) -> Iterator[None]:
    """Converts obstore's errors to StoreError, without secrets."""
    try:
        yield
    except NoBucketError as error:
        raise StoreError(f"{url}: {NO_BUCKET}: {without_secrets(without_debug_output(error), options)}") from None
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(f"{url}: {without_secrets(without_debug_output(error), options)}") from None


def _bucket(url: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Returns obstore's client for the bucket or container of a URL, and the path in it."""
    if is_google(url):
        return google_store(url, options)
    if is_azure(url):
        location = azure_location(url, options)
        container, _, path = location.path.partition("/")
        given = {name: location.arguments[name] for name in OF_AZURE if name in location.arguments}
        config = {"account_name": location.account, **{OF_AZURE[name]: value for name, value in given.items()}}
        if location.endpoint:
            config["endpoint"] = location.endpoint
        azure: Any = config
        return AzureStore(container, config=azure, client_options=_client(location.endpoint)), path
    said = known(options)
    bucket, _, path = url.partition("://")[2].partition("/")
    s3: Any = {OF_S3[name]: value for name, value in said.items() if name in OF_S3}
    s3["aws_virtual_hosted_style_request"] = str(said.get("virtual_hosted", "").lower() in YES).lower()
    return S3Store(bucket, config=s3, client_options=_client(said.get("endpoint", ""))), path


def _client(endpoint: str) -> Any:
    return {**CLIENT, "allow_http": endpoint.startswith("http://")}
