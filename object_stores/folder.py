"""A folder of files in a store: put there whole, its manifest last, brought back, removed. Each call is one that may be repeated.

A store has no folders and renames nothing: what makes a folder whole is that the file which names the others is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs

from object_stores.files import file_system, told

PARALLEL = 8  # files on their way at a time


class StoreFolder:
    """`url`: of the folder. `options`: `storage_options` with their values. Every method raises StoreError where the store fails."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url, self._options = url.rstrip("/"), dict(options)
        self._store, self._path = file_system(self.url, self._options)

    def __repr__(self) -> str:
        return f"StoreFolder({self.url!r})"

    def sizes(self) -> dict[str, int]:
        """Each file below, by its name relative to the folder → its bytes; empty where nothing is there."""
        with told(self.url, self._options):
            found = self._store.get_file_info(pafs.FileSelector(self._path, allow_not_found=True, recursive=True))
        return {each.path.removeprefix(f"{self._path}/"): int(each.size) for each in found if each.is_file}

    def children(self) -> set[str]:
        """Names of the folders right below that hold a file."""
        return {name.partition("/")[0] for name in self.sizes() if "/" in name}

    def read(self, name: str) -> bytes | None:
        """A file's content; None where there is none."""
        with told(self.url, self._options):
            try:
                with self._store.open_input_stream(f"{self._path}/{name}") as stream:
                    content: bytes = stream.read()
            except FileNotFoundError:
                return None
        return content

    def put(self, folder: Path, last: str = "", below: str = "") -> None:
        """All files of a local folder, under `below` of this one; the one that is named `last` when all others are there."""
        names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="put") as pool:
            list(
                pool.map(lambda name: self._put(folder / name, below + name), (each for each in names if each != last))
            )
        if last:
            self._put(folder / last, below + last)

    def get(self, names: Collection[str], folder: Path) -> None:
        """Files of this folder into a local one."""
        for parent in {(folder / name).parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="get") as pool:
            list(pool.map(lambda name: self._copy(f"{self._path}/{name}", folder / name), names))

    def remove(self, first: str = "") -> None:
        """The folder with all below; the file `first` before all others, so that what is left of it counts as nothing.

        Another host may remove it in the same moment.
        """
        names = self.sizes()
        self.remove_files([first] if first in names else [])
        with told(self.url, self._options), contextlib.suppress(FileNotFoundError):
            if names:
                self._store.delete_dir(self._path)

    def write(self, name: str, content: bytes) -> None:
        """A small file."""
        with told(self.url, self._options):
            self._make_parent(name)
            with self._store.open_output_stream(f"{self._path}/{name}") as stream:
                stream.write(content)

    def put_file(self, file: Path, name: str = "") -> None:
        """One file, under its name or another one."""
        self._put(file, name or file.name)

    def remove_files(self, names: Iterable[str]) -> None:
        """Those of them that are there."""
        with told(self.url, self._options):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._store.delete_file(f"{self._path}/{name}")

    def _put(self, file: Path, name: str) -> None:
        with told(self.url, self._options):
            self._make_parent(name)
            local = pafs.LocalFileSystem()
            pafs.copy_files(
                str(file), f"{self._path}/{name}", source_filesystem=local, destination_filesystem=self._store
            )

    def _make_parent(self, name: str) -> None:
        """Where a folder stands for a store, a file's own folder must be there first."""
        if self._store.type_name == "local":
            self._store.create_dir(f"{self._path}/{name}".rpartition("/")[0])

    def _copy(self, path: str, file: Path) -> None:
        with told(self.url, self._options):
            local = pafs.LocalFileSystem()
            pafs.copy_files(path, str(file), source_filesystem=self._store, destination_filesystem=local)
