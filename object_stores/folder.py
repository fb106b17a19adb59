"""Transfers a directory of files between the local disk and an object store: uploads, downloads or removes it. Every call can be repeated.

An object store has no directories and cannot rename, so a directory cannot appear as a whole. Readers treat a directory as complete if the
file that lists the other files exists. This file is uploaded last and removed first.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs

from sluice.object_stores.azure import is_azure
from sluice.object_stores.files import as_store_error, file_system
from sluice.object_stores.google import is_google

PARALLEL = 8  # At most this many files are transferred at the same time.
# The largest object that S3 copies in one request. This process reads and writes a larger object itself.
COPIED_BYTES_MAX = 5 << 30
# An object that this process reads and writes is transferred in parts of this size, so that only one part is in memory.
PART_BYTES = 16 << 20


class StoreFolder:
    """A directory in an object store. `url` is the directory's URL. `options` are `storage_options` with secrets resolved. Every method
    raises StoreError if the store fails.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url, self._options = url.rstrip("/"), dict(options)
        self._store, self._path = file_system(self.url, self._options)

    def __repr__(self) -> str:
        return f"StoreFolder({self.url!r})"

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each file in the directory and below, by the file's path in the directory. Returns {} if the
        directory does not exist.
        """
        with as_store_error(self.url, self._options):
            found = self._store.get_file_info(pafs.FileSelector(self._path, allow_not_found=True, recursive=True))
        return {each.path.removeprefix(f"{self._path}/"): int(each.size) for each in found if each.is_file}

    def children(self) -> set[str]:
        """Returns the names of the direct subdirectories that contain files."""
        return {name.partition("/")[0] for name in self.sizes() if "/" in name}

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file, or None if it does not exist."""
        with as_store_error(self.url, self._options):
            try:
                with self._store.open_input_stream(f"{self._path}/{name}") as stream:
                    content: bytes = stream.read()
            except FileNotFoundError:
                return None
        return content

    def put(self, folder: Path, last: str = "", below: str = "") -> None:
        """Uploads all files in the local directory `folder` and below. If `last` is not empty, the file of this name is uploaded after all
        other files. In the store, each name gets the prefix `below`.
        """
        names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="put") as pool:
            list(
                pool.map(lambda name: self._put(folder / name, below + name), (each for each in names if each != last))
            )
        if last:
            self._put(folder / last, below + last)

    def get(self, names: Collection[str], folder: Path) -> None:
        """Downloads the files `names` of this directory into a local directory."""
        for parent in {(folder / name).parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="get") as pool:
            list(pool.map(lambda name: self._copy(f"{self._path}/{name}", folder / name), names))

    def remove(self, first: str = "") -> None:
        """Removes the directory and everything below it. If the directory has the file `first`, this file is removed before all other
        files, so that readers no longer treat the directory as complete. It is no error if another host removes the directory at the same
        time.
        """
        names = self.sizes()
        self.remove_files([first] if first in names else [])
        if is_azure(self.url):
            from sluice.object_stores.store_requests import remove_folder  # noqa: PLC0415  its library is large

            remove_folder(self.url, names, self._options)
            return
        with as_store_error(self.url, self._options), contextlib.suppress(FileNotFoundError):
            if names:
                self._store.delete_dir(self._path)

    def write(self, name: str, content: bytes) -> None:
        """Writes the file `name` with this content, or replaces it. For small files, because the content is in memory."""
        with as_store_error(self.url, self._options):
            self._make_parent(name)
            with self._store.open_output_stream(f"{self._path}/{name}") as stream:
                stream.write(content)

    def put_new(self, name: str, content: bytes) -> bool:
        """Writes a file, unless it exists. Returns True if this call wrote it, and False if it exists. False is also returned if this call
        wrote the file, the store's answer was lost, and the repeated request finds the file. After a StoreError, it is unknown whether the
        file was written.
        """
        from sluice.object_stores.store_requests import put_new  # noqa: PLC0415  its library is large, and only publications need it

        return put_new(f"{self.url}/{name}", content, self._options)

    def why_no_put_new(self, name: str) -> str:
        """Returns why `put_new` could not write this file, or "" if no reason is known. Only reads from the store."""
        from sluice.object_stores.store_requests import why_refused  # noqa: PLC0415  its library is large

        return why_refused(f"{self.url}/{name}", self._options)

    def put_file(self, file: Path, name: str = "") -> None:
        """Uploads one file. In the store the file gets the name `name`, or keeps its own name if `name` is empty."""
        self._put(file, name or file.name)

    def copy_file(self, source: StoreFolder, name: str, to: str, size: int) -> None:
        """Copies the file `name` of the directory `source` to `to` in this directory. `size` is the file's size in bytes. If both
        directories are in the same store, the store copies the file. If the stores differ, or the file has more than COPIED_BYTES_MAX
        bytes, this process reads and writes the file.
        """
        with as_store_error(self.url, self._options):
            self._make_parent(to)
            target = f"{self._path}/{to}"
            copied = size <= COPIED_BYTES_MAX  # A store refuses to copy a larger file in one request.
            if copied and source._store.equals(self._store):
                self._store.copy_file(f"{source._path}/{name}", target)
            # pyarrow's `copy_files` is not used for Google Cloud Storage: if Google's client cannot close a file, `copy_files` reports no
            # error.
            elif not copied or is_google(self.url):
                with (
                    source._store.open_input_stream(f"{source._path}/{name}") as read,
                    self._store.open_output_stream(target) as written,
                ):
                    shutil.copyfileobj(read, written, PART_BYTES)
            else:
                pafs.copy_files(
                    f"{source._path}/{name}",
                    target,
                    source_filesystem=source._store,
                    destination_filesystem=self._store,
                )

    def remove_files(self, names: Iterable[str]) -> None:
        """Removes these files. Ignores files that do not exist."""
        if is_azure(self.url):
            from sluice.object_stores.store_requests import remove_files  # noqa: PLC0415  its library is large

            remove_files(self.url, names, self._options)
            return
        with as_store_error(self.url, self._options):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._store.delete_file(f"{self._path}/{name}")

    def _put(self, file: Path, name: str) -> None:
        # pyarrow's `copy_files` is not used for Google Cloud Storage: if Google's client cannot close a file, `copy_files` reports no
        # error.
        if is_google(self.url):
            from sluice.object_stores.store_requests import put  # noqa: PLC0415  its library is large

            with file.open("rb") as read:
                put(f"{self.url}/{name}", read, self._options)
            return
        with as_store_error(self.url, self._options):
            self._make_parent(name)
            local = pafs.LocalFileSystem()
            pafs.copy_files(
                str(file), f"{self._path}/{name}", source_filesystem=local, destination_filesystem=self._store
            )

    def _make_parent(self, name: str) -> None:
        """Creates the parent directory of a file if the store is a local directory. Object stores need none."""
        if self._store.type_name == "local":
            self._store.create_dir(f"{self._path}/{name}".rpartition("/")[0])

    def _copy(self, path: str, file: Path) -> None:
        with as_store_error(self.url, self._options):
            local = pafs.LocalFileSystem()
            pafs.copy_files(path, str(file), source_filesystem=self._store, destination_filesystem=local)
