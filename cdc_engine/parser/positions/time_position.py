"""Decides which binlog file contains the commits of a given time, and which transaction in the file is the first that committed at that
time or later. Pure functions: `time_search` reads the facts from the server.

The rules select the newest file that was created before the requested time. All transactions that committed at that time or later are in
this file or in newer files. The position is directly before the first of these transactions. So no transaction of that time or later is
before the position, even if the server's clock changed while the server wrote the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from sluice.cdc_engine.contracts import Int64s
from sluice.cdc_engine.time_text import SECOND_US, time_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class CreationTimeRequest:
    """The result of `file_of_time` if the creation time of `file` is needed to decide."""

    file: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Within:
    """The result of `file_of_time` if the requested position is in `file` or in a later file."""

    file: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gone:
    """The result of `file_of_time` if the binlog of the requested time is purged, or if no file can be read. `requested_us` is the
    requested time and `earliest_us` the earliest available time, both in µs since 1970. `file` is the file that begins at the earliest
    time, or empty if no file can be read.
    """

    requested_us: int
    file: str
    earliest_us: int = 0

    def __str__(self) -> str:
        purged = f"the binlog of {time_text(self.requested_us)} was purged"
        if not self.file:
            return (
                f"the binlog of {time_text(self.requested_us)} cannot be read: the source lists no binlog file that Sluice can read; "
                "check log_bin and the grant REPLICATION SLAVE"
            )
        return (
            f"{purged}: the earliest time that can be read is {time_text(self.earliest_us)}, where {self.file} begins. Safe options: "
            "that time or a later one; or re-snapshot the tables (`sluice snapshot start`)"
        )


def file_of_time(
    time_us: int, files: Sequence[str], created: Mapping[str, int], *, nothing_purged: bool = False
) -> CreationTimeRequest | Within | Gone:
    """Returns the file to search for a time, or a request for a creation time that is needed first. `files` are oldest first. `created` has
    the known creation times in whole seconds since 1970, or 0 for a file that no longer exists.

    A creation time has no fraction, so a commit in the second in which a file was created may be in the previous file. For a time in this
    second, the previous file is selected. The oldest file has no previous file. So the second in which the oldest file was created is
    available only if the server never purged a file (`nothing_purged`).
    """
    oldest = ""
    for file in reversed(files):
        if file not in created:
            return CreationTimeRequest(file=file)
        if not created[file]:
            break
        oldest = file
        if (created[file] + 1) * SECOND_US <= time_us:
            return Within(file=file)
    if not oldest:
        return Gone(requested_us=time_us, file="")
    whole = nothing_purged and oldest == files[0]
    earliest_us = (created[oldest] + (0 if whole else 1)) * SECOND_US
    return (
        Within(file=oldest)
        if earliest_us <= time_us
        else Gone(requested_us=time_us, file=oldest, earliest_us=earliest_us)
    )


def first_at_or_after(commit_times_us: Int64s, time_us: int) -> int:
    """Returns the index of the first transaction that committed at `time_us` or later, or -1 if there is none.

    A commit time in whole seconds counts as the last moment of that second, because some servers log no fractions. An entry with the time 0
    is ignored, because the entry is the beginning of a file, not a transaction.
    """
    whole = np.where(commit_times_us % SECOND_US == 0, SECOND_US - 1, 0)
    hits = (commit_times_us > 0) & (commit_times_us + whole >= time_us)
    return int(np.argmax(hits)) if hits.any() else -1
