"""Computes how long the source will still retain the binlog file that a position needs. Pure functions. `instance.engine.source_watch`
calls this module for the engine's status.

A server purges a file if the next file was created longer ago than the retention, or if all files together exceed a size limit. The server
purges only when it begins another file, so the computed time is the earliest possible time of the purge.
"""

from __future__ import annotations

import math

from sluice.cdc_engine.parser.renumbering import comes_before
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.source_check import advice_of, retention_seconds
from sluice.cdc_engine.parser.start_position import Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position

# Settings of MariaDB 11.4 and of Percona Server that limit the size of all binlog files, in bytes. 0 means no limit.
SIZE_LIMITS = ("max_binlog_total_size", "binlog_space_limit")


def next_file(file: str, facts: ServerFacts) -> str:
    """Returns the file after `file`. The creation time of the returned file is the time at which `file` ended. Returns "" for the last
    file, or if the source does not have `file`.
    """
    files = [log.file for log in facts.logs]
    return files[files.index(file) + 1] if file in files[:-1] else ""


def is_gone(saved: Position, facts: ServerFacts, *, archived: bool = False) -> bool:
    """Returns whether the source has purged binlog that a restart from `saved` must read. With GTIDs, the stream may be able to continue
    although the file of `saved` is purged. The result is then False.

    If an archive may have the purged files (`archived`), returns False. A file that is newer than the files in `facts.logs` is not purged:
    the server created it after the facts were read.
    """
    if not facts.logs or not comes_before(saved.file, facts.logs[0].file):
        return False
    start = decide_start(saved, StartChoice(), facts)
    return isinstance(start, Lost) and not (start.purged and archived)


def kept_until(file: str, facts: ServerFacts, now: float, observed_seconds: float = math.inf) -> float | None:
    """Returns the earliest time at which the source may purge a file, in seconds since 1970. Returns None if `facts` do not list the file,
    or if neither a retention nor a size limit gives a time. For example, the source never purges, or the source promises no retention and
    no purge was observed. `facts.created` must have the creation time of the next file.

    `observed_seconds` is the time for which the source was observed to retain its binlog, or infinity if nothing contradicts the promised
    retention.
    """
    if file not in {log.file for log in facts.logs}:
        return None  # The file is newer than the facts, or it is purged, which `is_gone` reports.
    after = next_file(file, facts)
    created = facts.created.get(after, 0) if after else now
    # A server that promises no retention may purge at any time, so only the observed retention limits the result.
    kept_seconds = min(retention_seconds(facts) or math.inf, observed_seconds)
    by_age = created + kept_seconds if created and math.isfinite(kept_seconds) else None
    by_size = _by_size(file, after, created, facts, now)
    return min((each for each in (by_age, by_size) if each is not None), default=None)


def _by_size(file: str, after: str, created: float, facts: ServerFacts, now: float) -> float | None:
    """Returns when the server may purge `file` because of its size limit: the time, in seconds since 1970, at which `file` and the files
    after it will reach the limit. The estimate assumes that the server continues to write at its average rate since `created`, the time at
    which it closed `file`. `after` is the next file. Returns None if there is no size limit, or if the rate is unknown.
    """
    limit = max(int(facts.variables.get(name) or 0) for name in SIZE_LIMITS)
    if not (limit and after and created):
        return None
    files = [log.file for log in facts.logs]
    needed = sum(log.size_bytes for log in facts.logs[files.index(file) :])
    written = sum(log.size_bytes for log in facts.logs[files.index(after) :])
    rate = written / max(now - created, 1.0)
    return now + max(0, limit - needed) / max(rate, 1e-9)


def purged_sentence(facts: ServerFacts) -> str:
    """Returns a sentence for an operator: the source has purged the binlog that a restart would read."""
    return (
        "the source has purged the binlog that a restart would read, so after a restart the engine would "
        "stop as POSITION_LOST, and the tables would need a re-snapshot (`sluice snapshot start`): find out "
        f"what delays the merges before you restart anything, and {advice_of(facts).keep_more}"
    )


def short_retention(hours: float, facts: ServerFacts, hours_min: float, observed_seconds: float = math.inf) -> str:
    """Returns a warning for an operator if the source may soon purge the binlog that a restart would read. Otherwise returns "". `hours` is
    the time until this purge. There is a warning if `hours` is less than `hours_min` and less than half of the retention. The retention is
    the shorter of the promised time and `observed_seconds`.
    """
    kept_hours = min(retention_seconds(facts) or math.inf, observed_seconds) / 3600
    if hours >= min(hours_min, kept_hours / 2):
        return ""
    when = f"in {hours:.1f} h" if hours > 0 else "at any moment"
    return (
        f"{when} the source may purge the binlog that a restart would read. If the engine restarts after the purge, the tables need a "
        f"re-snapshot (POSITION_LOST): find out what delays the merges, and {advice_of(facts).keep_more}"
    )
