"""Syncs the files of a Delta table's new commits to disk, so that a local lake is durable before its batch is acked. Syncing is the last
step of a merge.

Spark and deltalake do not sync files: the operating system writes them up to half a minute later. If the batch were acked before that, a
power failure could lose rows that the cursor has already passed. Nothing is synced for an object store, which is durable as soon as it has
answered. Nothing is synced either for a path that this machine cannot access: the machine that stores it is responsible.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

LOG = "_delta_log"
# The suffix of the checksum file that Spark writes next to a version's commit. Spark trusts the content of this file, so it is synced with
# the commit.
SUMMARY = ".crc"
LAST_CHECKPOINT = "_last_checkpoint"
SIDECARS = "_sidecars"  # The folder, in the log, for files to which a checkpoint of version 2 refers.
# The first commit of a table may create this many folders above the table: the folders of the database and of the lake, and the lake's
# parent. So their names are synced after this commit.
NEW_FOLDERS_MAX = 3
# A process remembers at most this many folders whose names it has synced to disk. It syncs the name of any other folder again.
FOLDERS_KNOWN = 10_000
# The length of the Z85-encoded UUID at the end of a deletion vector's path. A folder name may precede it.
VECTOR_ID_CHARS = 20
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
AS_B85 = str.maketrans(Z85, B85)


def local_table(path: str) -> Path | None:
    """Returns the folder of a Delta table on this machine. Returns None if the table does not exist, or is not on this machine."""
    folder = local_folder(path)
    return folder if folder is not None and (folder / LOG).is_dir() else None


def local_folder(path: str) -> Path | None:
    """Returns the folder to which a path refers, even if the folder does not exist. Returns None if the path is not on this machine."""
    parts = urlparse(path)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else path)


def sync_commits(path: str, after: int, newest: int, *, since_seconds: float = 0.0) -> int:
    """Syncs all files that the commits with versions above `after`, up to `newest`, added. Returns the number of synced files and folders.
    Returns 0 if the table is not local.

    If `since_seconds` (seconds since 1970) is not 0, also syncs older commits that were made since this time, because an earlier attempt
    at the batch may have ended before it synced them. Raises OSError if a sync fails, or if a file that the table still needs is missing.
    """
    table = local_table(path)
    if table is None:
        return 0
    commits = [
        *_since(table, after, since_seconds),
        *(commit_file(table, version) for version in range(after + 1, newest + 1)),
    ]
    if not commits:
        return 0
    files = _files_there(table, commits)
    files |= dict.fromkeys(_checkpoint(table, commits[0]))
    log = [each for commit in commits for each in (commit, commit.with_suffix(SUMMARY))]
    present = [each for file in [*files, *log] for each in (file, _checksum(file)) if each.is_file()]
    folders = dict.fromkeys(folder for file in present for folder in _folders(file, table))
    if commits[0] == commit_file(table, 0):
        # The table is new, so the folders above it may be new too.
        folders |= dict.fromkeys([*table.parents][:NEW_FOLDERS_MAX])
    for each in (*present, *folders):
        _sync(each)
    return len(present) + len(folders)


def sync_names(path: str, version: int) -> None:
    """Syncs the name of a new table's folder, and the names of its parent folders, which the first commit may have created. A process syncs
    the name of each parent folder only once. The caller has already synced the files of the first commit, at `version`, and the names in
    the table's folder.

    Does nothing if the table is not local. Raises OSError if a sync fails, or if a file that the table still needs is missing.
    """
    table = local_table(path)
    if table is not None:
        _files_there(table, [commit_file(table, version)])
        sync(table.parent)  # Never skipped: a table that was removed and created again may have the same inode.
        for folder in [*table.parents][: NEW_FOLDERS_MAX - 1]:
            _sync_name(folder, folder.stat().st_ino)


@functools.lru_cache(maxsize=FOLDERS_KNOWN)
def _sync_name(folder: Path, inode: int) -> None:  # noqa: ARG001  a folder that was created again has another inode
    sync(folder.parent)


def _files_there(table: Path, commits: Sequence[Path]) -> dict[Path, None]:
    """Returns the files that commits added. Raises FileNotFoundError if a file that the table still needs is missing."""
    files = dict.fromkeys(file for commit in commits for file in _files_of(table, commit))
    if lost := [file for file in files if not file.is_file() and file in _in_use(table, commits[0])]:
        raise FileNotFoundError(
            f"the file {lost[0]} with rows of the table is missing: a VACUUM without retention removed the "
            "file during the merge; re-snapshot the table with `sluice snapshot start`"
        )
    return files


def before_checkpoint(path: str) -> None:
    """Deletes the checksum file that Hadoop wrote for `_last_checkpoint`. Call this before a program other than Spark writes a checkpoint:
    that program replaces `_last_checkpoint` but not the checksum, and Hadoop would report the new file as corrupt.
    """
    table = local_table(path)
    if table is not None:
        _checksum(table / LOG / LAST_CHECKPOINT).unlink(missing_ok=True)


def commit_file(table: Path, version: int) -> Path:
    """Returns the file of a commit of the table in the folder `table`."""
    return table / LOG / f"{version:020d}.json"


def _since(table: Path, newest: int, seconds: float) -> list[Path]:
    """Returns the commits up to version `newest` that were made since the time `seconds` (seconds since 1970). Returns [] if `seconds` is
    0. Checks the time version by version, from the newest back, because listing a long log is slow.
    """
    found: list[Path] = []
    for version in range(newest, -1, -1):
        if not _changed(commit_file(table, version)) >= seconds > 0:
            break
        found.insert(0, commit_file(table, version))
    return found


def _checkpoint(table: Path, first: Path) -> list[Path]:
    """Returns the files of the last checkpoint, with its sidecars if it is of version 2. Returns [] if the checkpoint is older than the
    commit `first`, the oldest commit to sync.
    """
    pointer = table / LOG / LAST_CHECKPOINT
    if _changed(pointer) < _changed(first):
        return []
    version = int(json.loads(pointer.read_bytes())["version"])
    # Leaves out sidecars that are older than the commit `first`. They also belong to earlier checkpoints, and were synced with these.
    sidecars = [each for each in (table / LOG / SIDECARS).glob("*.parquet") if _changed(each) >= _changed(first)]
    return [*(table / LOG).glob(f"{version:020d}.checkpoint*"), *sidecars, pointer]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _files_of(table: Path, commit: Path) -> Iterator[Path]:
    """Yields the data files, change data files and deletion vectors that a commit adds."""
    for action in _actions(commit):
        if "cdc" in action:
            yield table / unquote(action["cdc"]["path"])
        yield from _added(table, action)


def _added(table: Path, action: dict[str, Any]) -> list[Path]:
    """Returns the data file that an action adds, and the file of its deletion vector."""
    if "add" not in action:
        return []
    files, vector = [table / unquote(action["add"]["path"])], action["add"].get("deletionVector")
    return [*files, table / vector_file(vector["pathOrInlineDv"])] if vector and vector["storageType"] == "u" else files


def _actions(commit: Path) -> list[dict[str, Any]]:
    """Returns the actions of a commit. Returns [] if the clean-up of the log has deleted the commit."""
    try:
        # Bytes are split, not text: `splitlines` of a text would also break lines at U+2028, which JSON strings may contain unescaped.
        return [json.loads(line) for line in commit.read_bytes().splitlines()]
    except FileNotFoundError:
        return []


def _in_use(table: Path, first: Path) -> set[Path]:
    """Returns the files that the commit `first` and later commits added, and that are still part of the table. This function is slow, so it
    is called only if a file is missing.
    """
    there: dict[str, list[Path]] = {}
    commits = (commit_file(table, version) for version in itertools.count(int(first.stem)))
    for commit in itertools.takewhile(Path.exists, commits):
        actions = _actions(commit)
        for action in actions:
            there.pop(action.get("remove", {}).get("path", ""), None)
        there |= {action["add"]["path"]: _added(table, action) for action in actions if "add" in action}
    return {file for files in there.values() for file in files}


def vector_file(location: str) -> str:
    """Returns the path of a deletion vector's file in its table:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors.
    """
    prefix, encoded = location[:-VECTOR_ID_CHARS], location[-VECTOR_ID_CHARS:]
    name = f"deletion_vector_{uuid.UUID(bytes=base64.b85decode(encoded.translate(AS_B85)))}.bin"
    return f"{prefix}/{name}" if prefix else name


def _checksum(file: Path) -> Path:
    """Returns the path of the checksum file that Hadoop writes next to a file on a local disk. When Hadoop reads the file, it verifies the
    checksum.
    """
    return file.with_name(f".{file.name}.crc")


def _folders(file: Path, table: Path) -> Iterator[Path]:
    """Yields the folders from the file's folder up to the table's folder."""
    folder = file.parent
    while folder != table and table in folder.parents:
        yield folder
        folder = folder.parent
    yield table


def link(file: Path, target: Path) -> bool:
    """Creates a hard link `target` to a file that never changes, so that the content stays available when the file is deleted. Copies the
    file if a hard link is not possible. Returns whether `target` is a hard link. Does not sync. Raises OSError if the copy fails.
    """
    try:
        os.link(file, target)
    except OSError:
        target.unlink(missing_ok=True)
        shutil.copyfile(file, target)
        return False
    return True


def sync(path: Path) -> None:
    """Syncs a file or folder to disk. Raises OSError if this fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    # VACUUM or the clean-up of the log may have deleted the file after the caller found it.
    with contextlib.suppress(FileNotFoundError):
        sync(path)
