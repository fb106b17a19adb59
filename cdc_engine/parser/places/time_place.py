"""Where in the binlog a time is: rules only. `time_search` asks the server what they want to know.

The files are looked at backwards, by the time of their first event, down to the one that began before the time asked for: whatever
committed at that time or later lies in it or after it. In it the place is before the first transaction that committed then or later.
Nothing of that time or later lies before the place, whatever clocks did within the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from cdc_engine.contracts import Int64s
from cdc_engine.time_words import SECOND_US, time_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """When this file was created is to be asked next."""

    file: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Within:
    """The place is in this file or after it."""

    file: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gone:
    """The binlog of the time is not there. `file`: the oldest that is, empty where none can be read; `earliest_us`: a time on offer."""

    asked_us: int
    file: str
    earliest_us: int = 0

    def __str__(self) -> str:
        asked = f"the binlog of {time_text(self.asked_us)} is gone"
        if not self.file:
            return f"{asked}: the source offers no binlog file that can be read; check log_bin and the grant REPLICATION SLAVE"
        return (
            f"{asked}: the earliest time on offer is {time_text(self.earliest_us)}, where {self.file} begins. Safe options: that time or a "
            "later one; or take the tables' rows anew (`sluice snapshot start`)"
        )


def file_of_time(
    time_us: int, files: Sequence[str], created: Mapping[str, int], *, nothing_purged: bool = False
) -> Ask | Within | Gone:
    """`files`: oldest first. `created`: whole seconds since 1970 of those that were asked about, 0: the file is not there any more.

    A creation is of some moment within its second, so what committed in that second may lie before the file: then the one before it is
    looked at, too, and of the oldest one the second is not on offer, unless nothing was there before it (`nothing_purged`).
    """
    oldest = ""
    for file in reversed(files):
        if file not in created:
            return Ask(file=file)
        if not created[file]:
            break
        oldest = file
        if (created[file] + 1) * SECOND_US <= time_us:
            return Within(file=file)
    if not oldest:
        return Gone(asked_us=time_us, file="")
    whole = nothing_purged and oldest == files[0]
    earliest_us = (created[oldest] + (0 if whole else 1)) * SECOND_US
    return (
        Within(file=oldest) if earliest_us <= time_us else Gone(asked_us=time_us, file=oldest, earliest_us=earliest_us)
    )


def first_at_or_after(commit_times_us: Int64s, time_us: int) -> int:
    """Index of the first of some transactions that committed at a time or later, -1 where none did.

    A commit time in whole seconds stands for all of its second: servers that tell no more than that committed at some moment in it. A time
    of 0 is none: a file begins there, before any transaction that was read.
    """
    whole = np.where(commit_times_us % SECOND_US == 0, SECOND_US - 1, 0)
    hits = (commit_times_us > 0) & (commit_times_us + whole >= time_us)
    return int(np.argmax(hits)) if hits.any() else -1
