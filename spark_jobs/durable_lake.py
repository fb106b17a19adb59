"""Syncs the files of a table's new commits to disk, so that a local lake is durable before its batch is acked. `merge` calls it last.

Spark and deltalake leave writing to the operating system, which takes up to half a minute. An ack before that would move the cursor past
rows that a power failure can lose. An object store is durable once it has answered, and paths that this machine does not see are the
concern of the machine that stores them: nothing is synced for either."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

LOG = "_delta_log"
SUMMARY = ".crc"  # The checksum of a table at a version. Spark writes it next to the commit and trusts it.
LAST_CHECKPOINT = "_last_checkpoint"
# The folders above a table that its first commit may create: the database's, the lake's and the lake's parent.
NEW_FOLDERS_MAX = 3
# The length of the UUID in Z85 that ends a deletion vector's path. A folder may precede it.
VECTOR_ID_CHARS = 20
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
AS_B85 = str.maketrans(Z85, B85)


def local_table(path: str) -> Path | None:
    """Returns the folder of a table that is on this machine; None for any other table."""
    folder = local_folder(path)
    return folder if folder is not None and (folder / LOG).is_dir() else None


def local_folder(path: str) -> Path | None:
    """Returns the folder that a path names, whether it exists or not; None if the path is not on this machine."""
    parts = urlparse(path)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else path)


def sync_commits(path: str, after: int, newest: int, *, since_seconds: float = 0.0) -> int:
    """Syncs all files that the commits in (after, newest] added. Returns the number of synced files and folders; 0 if the table is not
    local.

    `since_seconds`: modification time. Commits up to `after` that are not older are synced too, because commits of an earlier try of the
    batch may not be on disk either. Raises OSError, also if a file is missing that the table still needs.
    """
    table = local_table(path)
    if table is None:
        return 0
    commits = [
        *_since(table, after, since_seconds),
        *(_commit(table, version) for version in range(after + 1, newest + 1)),
    ]
    if not commits:
        return 0
    files = dict.fromkeys(file for commit in commits for file in _files_of(table, commit))
    if lost := [file for file in files if not file.is_file() and file in _in_use(table, commits[0])]:
        raise FileNotFoundError(
            f"{lost[0]} is missing, and with it rows of the table: a VACUUM without retention removed it while it was being "
            "written; re-snapshot the table with `sluice snapshot start`"
        )
    files |= dict.fromkeys(_checkpoint(table, commits[0]))
    log = [each for commit in commits for each in (commit, commit.with_suffix(SUMMARY))]
    present = [each for file in [*files, *log] for each in (file, _checksum(file)) if each.is_file()]
    folders = dict.fromkeys(folder for file in present for folder in _folders(file, table))
    if commits[0] == _commit(table, 0):
        folders |= dict.fromkeys([*table.parents][:NEW_FOLDERS_MAX])  # The table itself is new.
    for each in (*present, *folders):
        _sync(each)
    return len(present) + len(folders)


def before_checkpoint(path: str) -> None:
    """Deletes Hadoop's checksum of `_last_checkpoint`. Call it before anything except Spark writes a new checkpoint."""
    table = local_table(path)
    if table is not None:
        _checksum(table / LOG / LAST_CHECKPOINT).unlink(missing_ok=True)


def _commit(table: Path, version: int) -> Path:
    return table / LOG / f"{version:020d}.json"


def _since(table: Path, newest: int, seconds: float) -> list[Path]:
    """Returns the commits up to `newest` that are not older than `seconds`; none if `seconds` is 0. It goes backwards by version and does
    not list the log, which may be long.
    """
    found: list[Path] = []
    for version in range(newest, -1, -1):
        if not _changed(_commit(table, version)) >= seconds > 0:
            break
        found.insert(0, _commit(table, version))
    return found


def _checkpoint(table: Path, first: Path) -> list[Path]:
    """Returns the files of the last checkpoint if it was made after the commit `first`, or by it."""
    pointer = table / LOG / LAST_CHECKPOINT
    if _changed(pointer) < _changed(first):
        return []
    version = int(json.loads(pointer.read_bytes())["version"])
    return [*(table / LOG).glob(f"{version:020d}.checkpoint*"), pointer]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _files_of(table: Path, commit: Path) -> Iterator[Path]:
    """Yields the data files, change data files and deletion vectors that a commit added."""
    for action in _actions(commit):
        if "cdc" in action:
            yield table / unquote(action["cdc"]["path"])
        yield from _added(table, action)


def _added(table: Path, action: dict[str, Any]) -> list[Path]:
    """Returns the data file that an action adds, and its deletion vector."""
    if "add" not in action:
        return []
    files, vector = [table / unquote(action["add"]["path"])], action["add"].get("deletionVector")
    return [*files, table / vector_file(vector["pathOrInlineDv"])] if vector and vector["storageType"] == "u" else files


def _actions(commit: Path) -> list[dict[str, Any]]:
    """Returns the actions of a commit; none if the commit was cleaned up meanwhile."""
    try:
        # The file is read as bytes: splitting a text would also break lines at U+2028, which JSON does not escape in
        # strings of the statistics.
        return [json.loads(line) for line in commit.read_bytes().splitlines()]
    except FileNotFoundError:
        return []


def _in_use(table: Path, first: Path) -> set[Path]:
    """Returns the files that were added since the commit `first` and not removed since. Called only if a file is missing."""
    there: dict[str, list[Path]] = {}
    commits = (_commit(table, version) for version in itertools.count(int(first.stem)))
    for commit in itertools.takewhile(Path.exists, commits):
        actions = _actions(commit)
        for action in actions:
            there.pop(action.get("remove", {}).get("path", ""), None)
        there |= {action["add"]["path"]: _added(table, action) for action in actions if "add" in action}
    return {file for files in there.values() for file in files}


def vector_file(location: str) -> str:
    """Returns the path of a deletion vector's file, relative to its table:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors.
    """
    prefix, encoded = location[:-VECTOR_ID_CHARS], location[-VECTOR_ID_CHARS:]
    name = f"deletion_vector_{uuid.UUID(bytes=base64.b85decode(encoded.translate(AS_B85)))}.bin"
    return f"{prefix}/{name}" if prefix else name


def _checksum(file: Path) -> Path:
    """Returns the checksum file that Hadoop writes next to a file on a local disk and verifies when it reads."""
    return file.with_name(f".{file.name}.crc")


def _folders(file: Path, table: Path) -> Iterator[Path]:
    """Yields the folders from the file's folder up to the table's."""
    folder = file.parent
    while folder != table and table in folder.parents:
        yield folder
        folder = folder.parent
    yield table


def link(file: Path, target: Path) -> None:
    """Creates a hard link to a file that never changes, so that its content stays when the first name is deleted. Copies the file if the
    disk has no hard links or `target` is in another file system. Does not sync. Raises OSError.
    """
    try:
        os.link(file, target)
    except OSError:
        target.unlink(missing_ok=True)
        shutil.copyfile(file, target)


def sync(path: Path) -> None:
    """Syncs a file or folder to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    # VACUUM or the clean-up of the log deleted a file to which nothing refers any more.
    with contextlib.suppress(FileNotFoundError):
        sync(path)
