"""Reads and writes the record of a pulled conf/: the files of the revision in use, and why a newer revision was refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path

from sluice.cdc_engine.durable_files import replace_file

SHOWN_MAX = 12  # A message shows at most this many characters of a revision.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteRecord:
    """The record of a conf/ that is pulled from a git repository or an archive.

    - `identity`: a text that changes if conf/remote.yaml names another repository, archive, branch or folder. `shown`: the name of the
      repository or archive in messages.
    - `revision`: the commit (git) or digest (archive) in use, or empty before the first pull.
    - `etag`: the ETag of the archive in use. `main`, `destinations`: the texts of the files in use. `applied_at`: when they were pulled, in
      seconds since 1970.
    - `newer`: a newer revision that was refused. `refused`: why it was refused.
    - `away`: why the repository or archive cannot be read now. `since`: when it could not be read for the first time, in seconds since
      1970.
    """

    identity: str
    shown: str
    revision: str = ""
    etag: str = ""
    main: str = ""
    destinations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    applied_at: float = 0.0
    newer: str = ""
    refused: str = ""
    away: str = ""
    since: float = 0.0


def read_record(file: Path) -> RemoteRecord | None:
    """Returns the record that `write_record` stored, or None if nothing was pulled or the file cannot be read."""
    try:
        return RemoteRecord(**json.loads(file.read_text(encoding="utf-8", errors="surrogateescape")))
    except (OSError, ValueError, TypeError):
        return None


def write_record(file: Path, record: RemoteRecord) -> None:
    """Replaces the record in `file` as a whole: after a crash, the file has either the old or the new record. Raises OSError if the file
    cannot be written.
    """
    replace_file(file, json.dumps(dataclasses.asdict(record)))


def short(revision: str) -> str:
    return revision[:SHOWN_MAX]


def sentence(record: RemoteRecord) -> str:
    """Returns a message that says which revision of conf/ is in use."""
    if not record.revision:
        return f"nothing was pulled from {record.shown} yet"
    when = time_text(record.applied_at)
    return f"conf/ is revision {short(record.revision)} of {record.shown}, since {when}"


def problems(record: RemoteRecord) -> list[str]:
    """Returns a message for each problem: a newer revision was refused, or the repository or archive cannot be read."""
    stays = f"revision {short(record.revision)} stays in use" if record.revision else "no revision is in use"
    found = []
    if record.refused:
        found.append(
            f"revision {short(record.newer)} is refused, {stays}: {record.refused}; correct "
            "that revision in the repository or archive"
        )
    if record.away:
        found.append(f"conf/ could not be pulled since {time_text(record.since)}, {stays}: {record.away}")
    return found


def time_text(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
