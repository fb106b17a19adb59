"""Opens Google Cloud Storage as a pyarrow file system with the credentials of `storage_options`. pyarrow's own client for Google Cloud
Storage takes credentials only from the environment. `files` and `store_requests` use this module.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.fs as pafs
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import GCSStore

from sluice.object_stores.errors import NO_BUCKET
from sluice.object_stores.google import bucket_and_path, google_options

# obstore's options for requests. The time limits are those that the module `files` sets for pyarrow. http is allowed, too.
CLIENT: Any = {"connect_timeout": "5s", "timeout": "60s", "allow_http": True}


def google_store(url: str, storage_options: Mapping[str, str]) -> tuple[Any, str]:
    """Returns obstore's client for the bucket of a URL, and the path in the bucket. If `storage_options` have no credentials, the client
    uses credentials that the environment names, or those of the machine.
    """
    bucket, path = bucket_and_path(url)
    config: Any = google_options(storage_options)
    return GCSStore(bucket, config=config, client_options=CLIENT), path


def google_file_system(url: str, storage_options: Mapping[str, str]) -> tuple[Any, str]:
    """Returns a pyarrow file system for a URL, and the path in that file system. Raises OSError, for example if the file of the service
    account is missing.
    """
    with _translated(url):
        store, path = google_store(url, storage_options)
    return pafs.PyFileSystem(GoogleHandler(store)), path


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Converts obstore's errors to OSError, which pyarrow's file systems raise."""
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(f"{path}: {error}") from None
    except BaseError as error:
        text = without_debug_output(error)
        raise OSError(f"{NO_BUCKET}: {text}" if "NoSuchBucket" in text else text) from None


@contextlib.contextmanager
def _written(path: str) -> Iterator[None]:
    """Converts errors of writing the file `path` to OSError. If the store answers a write with "not found", the bucket does not exist, and
    the error says so.
    """
    try:
        with _translated(path):
            yield
    except FileNotFoundError as error:
        raise OSError(f"{NO_BUCKET}: {error}") from None


def without_debug_output(error: Exception) -> str:
    """Returns the message of an error of obstore without the debug output, which has many lines."""
    return str(error).partition("Debug source:")[0]


class GoogleHandler(pafs.FileSystemHandler):
    """Implements the methods of a pyarrow file system that `StoreFolder` and readers of files need. Paths are relative to the bucket, which
    has no directories of its own.
    """

    def __init__(self, store: Any) -> None:
        self.store = store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GoogleHandler) and bool(self.store == other.store)

    def __hash__(self) -> int:
        return hash(type(self))

    def get_type_name(self) -> str:
        return "gs"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: str | list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in ([paths] if isinstance(paths, str) else paths)]

    def _info(self, path: str) -> pafs.FileInfo:
        try:
            with _translated(path):
                found = obstore.head(self.store, path)
        except FileNotFoundError:
            return pafs.FileInfo(path, pafs.FileType.NotFound)
        return pafs.FileInfo(path, pafs.FileType.File, size=found["size"])

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Returns the files in the selector's directory and in all its subdirectories, even if the selector is not recursive."""
        base = selector.base_dir.rstrip("/")
        with _translated(base):
            found = [each for part in obstore.list(self.store, prefix=f"{base}/" if base else None) for each in part]
        return [pafs.FileInfo(each["path"], pafs.FileType.File, size=each["size"]) for each in found]

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.PythonFile:
        with _translated(path):
            size = obstore.head(self.store, path)["size"]
        return pa.PythonFile(StoredInput(self.store, path, size), mode="r")

    def open_output_stream(self, path: str, metadata: Mapping[str, str] | None = None) -> pa.PythonFile:  # noqa: ARG002
        return pa.PythonFile(StoredOutput(obstore.open_writer(self.store, path), path), mode="w")

    def copy_file(self, src: str, dest: str) -> None:
        with _translated(src):
            obstore.copy(self.store, src, dest)

    def delete_file(self, path: str) -> None:
        with _translated(path):
            obstore.delete(self.store, path)

    def delete_dir(self, path: str) -> None:
        self.delete_dir_contents(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: ARG002  pyarrow's signature
        for each in self.get_file_info_selector(pafs.FileSelector(path, recursive=True)):
            with contextlib.suppress(FileNotFoundError):  # Another host may remove the directory at the same time.
                self.delete_file(each.path)

    def create_dir(self, path: str, recursive: bool) -> None:
        """Does nothing: a bucket has no directories."""

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.PythonFile:
        raise NotImplementedError


class StoredInput(io.RawIOBase):
    """A file in the store that can be read at any offset. Each read requests only the bytes that it returns."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = self._size - self._at
        length = left if size is None or size < 0 else min(size, left)
        if length <= 0:
            return b""
        with _translated(self._path):
            found = bytes(obstore.get_range(self._store, self._path, start=self._at, length=length))
        self._at += len(found)
        return found


class StoredOutput(io.RawIOBase):
    """A file that is written to the store. The file exists in the store only after it was closed."""

    def __init__(self, writer: Any, path: str) -> None:
        self._writer, self._path = writer, path

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _written(self._path):
            return int(self._writer.write(bytes(data)))

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _written(self._path):
                self._writer.close()
