"""Defines the status of an engine, which the engine writes to status.json once per second. The sensor and `./sluice status` read the
file.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from sluice.cdc_engine.contracts import StoppedTable, StoreMetrics
from sluice.cdc_engine.instance.consumers.subscriptions import ConsumerStatus
from sluice.cdc_engine.parser.stream.event_parser import StreamCounters
from sluice.cdc_engine.position import Position

# If the clocks of a group's sources differ by more than this, the status reports it. NTP keeps clocks within milliseconds of each other.
CLOCKS_DIFFER_SECONDS_MAX = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamFigures:
    """Figures of an engine's stream. `bytes`, `transactions`, `row_events` and `connections` are counted since the start of the engine.
    `put_wait_seconds` is for how long the store had no space. `put_sequence` counts the row events that were put into the store, and
    `ack_sequence` those that were acked or discarded.

    `received_at` is when the source last sent something (seconds since 1970, 0: never). `events_max` is the maximum number of row events in
    the ring. `behind_seconds` is for how long the source has had changes that the stream has not read. `shared` says whether several
    destinations share this connection to the server.
    """

    bytes: int = 0
    transactions: int = 0
    row_events: int = 0
    connections: int = 0
    received_at: float = 0.0
    put_wait_seconds: float = 0.0
    put_sequence: int = 0
    ack_sequence: int = 0
    events_max: int = 0
    behind_seconds: float = 0.0
    shared: bool = False


def figures_of(
    counters: StreamCounters, metrics: StoreMetrics, behind_seconds: float, *, shared: bool = False
) -> StreamFigures:
    return StreamFigures(
        bytes=counters.bytes,
        transactions=counters.transactions,
        row_events=counters.row_events,
        connections=counters.connections,
        received_at=counters.received_at,
        put_wait_seconds=metrics.put_wait_seconds,
        # `metrics.put_sequence` decreases when the store drops events without an ack, for example those of an incomplete transaction. So
        # the dropped events are added to both sequences. Their difference stays the number of events that wait.
        put_sequence=metrics.put_sequence + metrics.forgotten_events,
        ack_sequence=metrics.ack_sequence + metrics.forgotten_events,
        events_max=metrics.events_max,
        behind_seconds=behind_seconds,
        shared=shared,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberFigures:
    """The status of one member of a group. `missing` says why the member's engine does not run in this process, and `trouble` says why its
    source sends nothing; an empty text means no problem. `ahead_seconds` is how many seconds the source's clock is ahead of this host's
    clock, or None if that is unknown.
    """

    name: str
    missing: str = ""
    trouble: str = ""
    ahead_seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupFigures:
    """The figures of a group. `waits_for` names the members for which consumers wait, with the reason if it is known. `late` counts, over
    all consumers, the transactions that arrived after transactions with a later commit time were handed out. `barrier_us` is the commit
    time up to which the slowest consumer has acked, in µs since 1970, or 0.
    """

    members: tuple[MemberFigures, ...]
    waits_for: tuple[str, ...] = ()
    late: int = 0
    barrier_us: int = 0

    @property
    def clocks_differ_seconds(self) -> float:
        """The largest difference between the clocks of two sources at the last check. Two transactions of different sources whose commit
        times are closer than this difference may be handed out in the wrong order.
        """
        clocks = [each.ahead_seconds for each in self.members if each.ahead_seconds is not None]
        return max(clocks) - min(clocks) if clocks else 0.0

    def troubles(self, wait_seconds: float | None) -> tuple[str, ...]:
        """Returns what is wrong, as sentences for an operator."""
        then = (
            "the group waits"
            if wait_seconds is None
            else f"the group waits {wait_seconds:g} s and continues without it"
        )
        away = [
            f"the member {each.name} does not run in this process: {each.missing}; {then}"
            for each in self.members
            if each.missing
        ]
        silent = [
            f"the member {each.name} sends nothing: {each.trouble}; {then}"
            for each in self.members
            if each.trouble and not each.missing
        ]
        apart = self.clocks_differ_seconds
        clocks = (
            f"the clocks of the group's sources differ by {apart:.1f} s, so transactions of different members may be up to "
            f"{apart:.1f} s out of order: synchronize the clocks by NTP"
        )
        return (*away, *silent, *((clocks,) if apart > CLOCKS_DIFFER_SECONDS_MAX else ()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineStatus:
    """The status of an engine. `state` is an `EngineState` (RUNNING, STARTING, POSITION_LOST, …) or an error code. `waiting` says why the
    next batch is delayed after failed runs, or is empty.

    `position` is the end of the last transaction that was read, and `cursor` the end of the last transaction that was acked. `lag_seconds`
    is the age of the oldest transaction without an ack, or the time for which the source is known to have unread changes, whichever is
    larger. `lag_seconds` is 0 if everything is read and acked. `ring_bytes` and `ring_events` count the row events in memory.
    `waiting_bytes` counts the row events that wait for the lake, in memory and on disk. `updated_at_us` is when the status was written.

    `retention_left_hours` is for how many more hours the source will keep the binlog that a restart would read; None means unlimited, or
    unknown. `oldest_binlog_hours` is the age of the source's oldest binlog file; None means unknown. `ticked_at_us` and `acked_at_us` are
    when the sensor last ticked without an error and when a run's batch was last acked; 0 means not since the engine started.
    `commit_conflicts` counts how often another writer of a Delta table committed before a run, or replaced a run's commit.

    `consumers` has the statuses of the consumers. `group` has a group's figures if this is the engine of a group. `troubles` has a sentence
    for each problem that `state` does not show. Each sentence says what to do (`health`).
    """

    state: str
    reason: str = ""
    waiting: str = ""
    position: Position | None = None
    cursor: Position | None = None
    lag_seconds: float = 0.0
    retention_left_hours: float | None = None
    oldest_binlog_hours: float | None = None
    rows_per_second: float = 0.0
    ring_bytes: int = 0
    ring_bytes_max: int = 0
    ring_events: int = 0
    waiting_bytes: int = 0
    stopped_tables: tuple[StoppedTable, ...] = ()
    troubles: tuple[str, ...] = ()
    ticked_at_us: int = 0
    acked_at_us: int = 0
    commit_conflicts: int = 0
    consumers: tuple[ConsumerStatus, ...] = ()
    stream: StreamFigures = StreamFigures()
    group: GroupFigures | None = None
    updated_at_us: int = 0

    def to_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        if self.group is not None:
            record["group"]["clocks_differ_seconds"] = round(self.group.clocks_differ_seconds, 3)
        return record


class RateMeter:
    """Computes rows per second from the growth of a counter between two calls."""

    def __init__(self) -> None:
        self._count, self._at = 0, time.monotonic()

    def read(self, count: int) -> float:
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._at, 1e-3)
        self._count, self._at = count, now
        return max(rate, 0.0)


def write_status(path: Path, status: EngineStatus) -> None:
    """Replaces status.json atomically. Does not call fsync, because no decision depends on the file after a crash."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(status.to_json(), indent=1))
    temporary.replace(path)
