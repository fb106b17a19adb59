"""Creates a Delta table in an object store: its files are uploaded or copied into the table's folder, then one conditional commit names
them. `snapshot.whole_files` calls this module. `merging.merge` calls `clear_path` before it creates a table, and `make_empty` if Spark did
not create it.

A folder without a commit is not a table, so readers see no table or the whole table. If a run is killed before the commit, its files stay,
and whoever creates the table next removes them, because Spark would take a folder with files for an existing table.

Spark also takes an empty directory for an existing table. Spark's clients of stores make objects with the names of the log's directories
before the first commit. If an attempt is killed before this commit, the objects stay, and pyarrow and obstore cannot remove them. Spark
then creates no table, and `make_empty` writes the first commit.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from sluice.object_stores.errors import StoreError
from sluice.object_stores.files import is_in_store
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.durable_lake import LOG
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.tables.new_table import FIRST_COMMIT

UPLOADED = re.compile(r"snapshot-[0-9a-f]{12}-[0-9a-f]{32}-\d{5,}\.zstd\.parquet")
# Matches what a killed attempt of Spark leaves before its commit: objects of the log's directories, and a commit with a temporary name.
BEFORE_COMMIT = re.compile(rf"{LOG}(/_staged_commits|/\.[^/]+\.tmp)?")


class FilesOfAttempt(Protocol):
    """The files that one attempt uploaded or copied."""

    def sizes(self) -> Mapping[str, int]:
        """Returns the size in bytes of each complete file, by name."""

    def remove(self) -> None:
        """Removes the files. Call this only if no commit names them."""


def uploaded_name(snapshot_id: str, attempt: str, number: int) -> str:
    """Returns the name of an uploaded file. `attempt` has the hex digits of a UUID, so no attempt replaces a file of another one."""
    return f"snapshot-{snapshot_id}-{attempt}-{number:05d}.zstd.parquet"


def left_files(names: Iterable[str]) -> frozenset[str]:
    """Returns the files that killed attempts left in a folder, or an empty set if the folder is a table. `names` are all files of the
    folder.
    """
    names = tuple(name for name in names if not BEFORE_COMMIT.fullmatch(name))
    if any(name.startswith(f"{LOG}/") for name in names):
        return frozenset()
    return frozenset(name for name in names if UPLOADED.fullmatch(name))


def clear_path(name: str, path: str, storage_options: Mapping[str, str], fence: Fence) -> bool:
    """Removes what killed attempts left at the path of a table that does not exist. Returns whether the path is then empty. Returns True
    for a path that is not in an object store. Raises TableError if the store fails, or if the run may no longer write.
    """
    if not is_in_store(path):
        return True
    try:
        return TableInStore(name, StoreFolder(path, storage_options), fence).clear()
    except StoreError as error:
        why = f"the path {path} of the new Delta table cannot be listed or cleared: {error}; Sluice tries again"
        raise TableError(name, why, own=False) from error


def make_empty(name: str, path: str, commit: str, storage_options: Mapping[str, str], fence: Fence) -> None:
    """Writes the first commit of an empty table, unless there is one. `commit` is its text. Raises TableError if the folder has files of
    another program, if the store fails, or if the run may no longer write.
    """
    folder = StoreFolder(path, storage_options)
    try:
        if not TableInStore(name, folder, fence).clear():
            if folder.read(f"{LOG}/{FIRST_COMMIT}") is not None:
                return  # Another run has created the table meanwhile.
            why = (
                f"Spark does not create the Delta table {path}, because this folder has files of another program; "
                "move them away, then Sluice creates the table"
            )
            raise TableError(name, why)
        fence.check(name)
        folder.put_new(f"{LOG}/{FIRST_COMMIT}", commit.encode())
    except StoreError as error:
        why = f"the first commit of the Delta table {path} cannot be written: {error}; Sluice tries again"
        raise TableError(name, why, own=False) from error


@dataclasses.dataclass(frozen=True)
class TableInStore:
    """The path of a new table "database.table" (`name`) in an object store. `folder` is the table's folder."""

    name: str
    folder: StoreFolder
    fence: Fence

    def clear(self) -> bool:
        """Removes the files that killed attempts left in the folder. Returns whether no other files remain. Raises StoreError if the store
        fails, and TableError if the run may no longer write.

        Lists the files before it checks the fence. If this run is paused after the check, another run may take the lock and create the
        table. The files of that table are newer than the list, so this run does not remove them.
        """
        names = {name for name in self.folder.sizes() if not BEFORE_COMMIT.fullmatch(name)}
        if left := left_files(names):
            self.fence.check(self.name)
            self.folder.remove_files(left)
        return names == left

    def make(self, files: FilesOfAttempt, commit: Callable[[], str]) -> None:
        """Makes the first commit. `commit` uploads the files and returns the commit's text. If it is unknown whether the commit was made,
        the files stay.

        Raises StoreError, and the exceptions of `commit`. Raises TableError if the run may no longer write, or if another program created
        the table or removed files meanwhile.
        """
        try:
            text = commit().encode()
            self._refuse_lost(files.sizes())
            self.fence.check(self.name)
        except BaseException:
            files.remove()
            raise
        first = f"{LOG}/{FIRST_COMMIT}"
        made = self.folder.put_new(first, text)
        there = None if made else self.folder.read(first)
        # `put_new` may have repeated its request after the answer to the first request was lost. The file then exists with this run's text.
        if made or there == text:
            # The store's client may have repeated the request for minutes. Meanwhile another run may have taken the lock and removed the
            # files with `clear`. So the table is published only if the fence still allows it. A run that takes the lock later sees the
            # commit and removes nothing.
            self.fence.check(self.name)
            return
        if there is not None:
            files.remove()
        why = f"another program created the Delta table {self.folder.url} while it was published; Sluice tries again"
        raise TableError(self.name, why, own=False)

    def _refuse_lost(self, uploaded: Mapping[str, int]) -> None:
        """Raises TableError if a file in the store is missing or differs from what was uploaded. Uploading a large table takes long, so
        another program may have changed files meanwhile.
        """
        there = self.folder.sizes()
        if lost := sorted(name for name, size in uploaded.items() if there.get(name) != size):
            why = (
                f"another program removed or replaced {lost[0]}, which this run had put into {self.folder.url} for the new table; "
                "Sluice tries again. Check whether two destinations write this path"
            )
            raise TableError(self.name, why, own=False)
