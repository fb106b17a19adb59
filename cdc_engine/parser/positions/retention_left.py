"""Computes for how long the source still retains the binlog file that a position needs, or that it is purged. Pure;
`instance.engine.source_watch` calls it once per minute.

A server purges a file if the next file began longer ago than its retention, or if all files together exceed its size limit. It purges only
when it begins another file, so the result is the earliest possible time.
"""

from __future__ import annotations

import math

from sluice.cdc_engine.parser.renumbering import comes_before
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.source_check import advice_of, retention_seconds
from sluice.cdc_engine.parser.start_position import Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position

# Settings of MariaDB 11.4 and of Percona Server, in bytes; 0 means no limit.
SIZE_LIMITS = ("max_binlog_total_size", "binlog_space_limit")


def next_file(file: str, facts: ServerFacts) -> str:
    """Returns the file after this one, whose creation time is the time of this one's end. Empty for the last file, or if the source does
    not have the file.
    """
    files = [log.file for log in facts.logs]
    return files[files.index(file) + 1] if file in files[:-1] else ""


def is_gone(saved: Position, facts: ServerFacts, *, archived: bool = False) -> bool:
    """Returns whether the source has purged the binlog that a restart from this position would read. With GTIDs the stream may still
    continue after it.

    `archived`: an archive may have the purged files. A file above the listed ones is not purged: it began after the facts were read.
    """
    if not facts.logs or not comes_before(saved.file, facts.logs[0].file):
        return False
    start = decide_start(saved, StartChoice(), facts)
    return isinstance(start, Lost) and not (start.purged and archived)


def kept_until(file: str, facts: ServerFacts, now: float, observed_seconds: float = math.inf) -> float | None:
    """Returns the earliest time at which the file may be purged, in seconds since 1970. None if it is never purged, or if the server
    promises nothing and nothing was observed. `facts.created` has the creation time of the next file.

    `observed_seconds`: for how long the source was observed to retain its binlog, if that is less than it promises.
    """
    if file not in {log.file for log in facts.logs}:
        return None  # The file is newer than the facts, or purged, which `is_gone` reports.
    after = next_file(file, facts)
    created = facts.created.get(after, 0) if after else now
    # A server that promises no retention may purge at any time, so only the observation limits the result.
    kept_seconds = min(retention_seconds(facts) or math.inf, observed_seconds)
    by_age = created + kept_seconds if created and math.isfinite(kept_seconds) else None
    by_size = _by_size(file, after, created, facts, now)
    return min((each for each in (by_age, by_size) if each is not None), default=None)


def _by_size(file: str, after: str, created: float, facts: ServerFacts, now: float) -> float | None:
    """Returns when the size limit is reached, at the rate at which the server wrote the files after this one."""
    limit = max(int(facts.variables.get(name) or 0) for name in SIZE_LIMITS)
    if not (limit and after and created):
        return None
    files = [log.file for log in facts.logs]
    needed = sum(log.size_bytes for log in facts.logs[files.index(file) :])
    written = sum(log.size_bytes for log in facts.logs[files.index(after) :])
    rate = written / max(now - created, 1.0)
    return now + max(0, limit - needed) / max(rate, 1e-9)


def purged_sentence(facts: ServerFacts) -> str:
    """Returns a sentence for an operator: the binlog that a restart would read is purged."""
    return (
        "the source has purged the binlog that a restart would read, so after a restart the engine would "
        "stop as POSITION_LOST, and the tables would need a re-snapshot (`sluice snapshot start`): find out "
        f"what delays the merges before you restart anything, and {advice_of(facts).keep_more}"
    )


def short_retention(hours: float, facts: ServerFacts, hours_min: float, observed_seconds: float = math.inf) -> str:
    """Returns a sentence for an operator if the retention left is short; otherwise an empty text. If the server retains less than
    `hours_min` in total, the limit is half of its retention.
    """
    kept_hours = min(retention_seconds(facts) or math.inf, observed_seconds) / 3600
    if hours >= min(hours_min, kept_hours / 2):
        return ""
    when = f"in {hours:.1f} h" if hours > 0 else "at any moment"
    return (
        f"{when} the source may purge the binlog that a restart would read, and after a restart the tables "
        "would need a re-snapshot (POSITION_LOST): find out what delays the merges, and "
        f"{advice_of(facts).keep_more}"
    )
