"""A local lake is on disk before its batch is acked: what the new commits of a table are made of, synced. `merge` calls it last.

Spark and deltalake leave files to the operating system, which writes them out within half a minute. An ack before that would move the
cursor over rows that a power cut takes away. An object store keeps what it has answered for, and a path that this machine does not see is
its keeper's business: both are left alone.
"""

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
SUMMARY = ".crc"  # of the table at a version, which Spark keeps beside its commit and believes
LAST_CHECKPOINT = "_last_checkpoint"
# That a first commit may have made above its table: the database's, the lake's; and the one that has that.
NEW_FOLDERS_MAX = 3
# Of a deletion vector's place: the last characters, an UUID in Z85; what is before them is a folder.
VECTOR_ID_CHARS = 20
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
AS_B85 = str.maketrans(Z85, B85)


def local_table(path: str) -> Path | None:
    """The folder of a table that lies on this machine; None for any other."""
    folder = local_folder(path)
    return folder if folder is not None and (folder / LOG).is_dir() else None


def local_folder(path: str) -> Path | None:
    """The folder that a path names, there or not; None where it names none of this machine."""
    parts = urlparse(path)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else path)


def sync_commits(path: str, after: int, newest: int, *, since_seconds: float = 0.0) -> int:
    """Syncs all that the commits in (after, newest] brought; how many files and folders that were. 0 where the table is elsewhere.

    `since_seconds`: of the clock of files; commits up to `after` that are not older belong to it too: those that an earlier try of the
    batch made may not be on disk either. Raises OSError, also where a file is gone that the table still needs.
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
            f"{lost[0]} is gone, and with it rows of the table: a VACUUM without retention took it while it was being written; "
            "`sluice snapshot start` takes the table's rows anew"
        )
    files |= dict.fromkeys(_checkpoint(table, commits[0]))
    log = [each for commit in commits for each in (commit, commit.with_suffix(SUMMARY))]
    present = [each for file in [*files, *log] for each in (file, _checksum(file)) if each.is_file()]
    folders = dict.fromkeys(folder for file in present for folder in _folders(file, table))
    if commits[0] == _commit(table, 0):
        folders |= dict.fromkeys([*table.parents][:NEW_FOLDERS_MAX])  # the table itself is new there
    for each in (*present, *folders):
        _sync(each)
    return len(present) + len(folders)


def before_checkpoint(path: str) -> None:
    """Takes Hadoop's checksum of the pointer to the last checkpoint away, where another than Spark is about to write a new one."""
    table = local_table(path)
    if table is not None:
        _checksum(table / LOG / LAST_CHECKPOINT).unlink(missing_ok=True)


def _commit(table: Path, version: int) -> Path:
    return table / LOG / f"{version:020d}.json"


def _since(table: Path, newest: int, seconds: float) -> list[Path]:
    """Commits up to `newest` that are not older than a moment; none where there is no moment. A log is never listed: it may be long."""
    found: list[Path] = []
    for version in range(newest, -1, -1):
        if not _changed(_commit(table, version)) >= seconds > 0:
            break
        found.insert(0, _commit(table, version))
    return found


def _checkpoint(table: Path, first: Path) -> list[Path]:
    """The files of a checkpoint that was made since a commit."""
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
    """Data, change data and deletion vectors that a commit added."""
    for action in _actions(commit):
        if "cdc" in action:
            yield table / unquote(action["cdc"]["path"])
        yield from _added(table, action)


def _added(table: Path, action: dict[str, Any]) -> list[Path]:
    """The data that an action adds, and its deletion vector."""
    if "add" not in action:
        return []
    files, vector = [table / unquote(action["add"]["path"])], action["add"].get("deletionVector")
    return [*files, table / vector_file(vector["pathOrInlineDv"])] if vector and vector["storageType"] == "u" else files


def _actions(commit: Path) -> list[dict[str, Any]]:
    """None of a commit that was cleaned away meanwhile."""
    try:
        # not as text: that has ends of lines, U+2028 among them, which JSON leaves as they are within a text of the statistics
        return [json.loads(line) for line in commit.read_bytes().splitlines()]
    except FileNotFoundError:
        return []


def _in_use(table: Path, first: Path) -> set[Path]:
    """What was added since a commit, and has not been removed by one of those up to now. Asked only where a file is missing."""
    there: dict[str, list[Path]] = {}
    commits = (_commit(table, version) for version in itertools.count(int(first.stem)))
    for commit in itertools.takewhile(Path.exists, commits):
        actions = _actions(commit)
        for action in actions:
            there.pop(action.get("remove", {}).get("path", ""), None)
        there |= {action["add"]["path"]: _added(table, action) for action in actions if "add" in action}
    return {file for files in there.values() for file in files}


def vector_file(place: str) -> str:
    """The file of a deletion vector, relative to its table: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors."""
    prefix, encoded = place[:-VECTOR_ID_CHARS], place[-VECTOR_ID_CHARS:]
    name = f"deletion_vector_{uuid.UUID(bytes=base64.b85decode(encoded.translate(AS_B85)))}.bin"
    return f"{prefix}/{name}" if prefix else name


def _checksum(file: Path) -> Path:
    """What Hadoop keeps beside a file on a local disk, and holds it against when it reads."""
    return file.with_name(f".{file.name}.crc")


def _folders(file: Path, table: Path) -> Iterator[Path]:
    """The folders that hold its name, up to the table's."""
    folder = file.parent
    while folder != table and table in folder.parents:
        yield folder
        folder = folder.parent
    yield table


def link(file: Path, beside: Path) -> None:
    """Gives a file that is never changed a second name, under which it stays when the first one goes. A copy where the disk knows no links,
    and from one file system to another; it is for the caller to sync. Raises OSError.
    """
    try:
        os.link(file, beside)
    except OSError:
        beside.unlink(missing_ok=True)
        shutil.copyfile(file, beside)


def sync(path: Path) -> None:
    """A file or folder is on disk when it returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    # A VACUUM, or the log's own cleaning, took what nothing refers to any more.
    with contextlib.suppress(FileNotFoundError):
        sync(path)
