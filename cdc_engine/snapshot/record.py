"""Defines the state of the snapshot of one table, and its transitions. Pure; `records` stores it, `work` and runs advance it.

While a snapshot is open the changes of its table are *buffered*: a run links their staged files into the snapshot's folder and does not
merge them. Meanwhile the existing rows are read chunk by chunk. In the end one commit makes the lake table from both: for a key with
buffered changes the last one decides, for every other key its row as it was read. This is correct whenever a row changed during the
reading: what was changed before the first buffered change was visible before the first chunk was read, and what was changed after it is
buffered. A row that was deleted while it was read is among the buffered changes too, so it cannot reappear.

    WANTED ─▶ READING ─▶ READ ─▶ PUBLISHED       WANTED again: the table was truncated or altered, its chunks are read again
       ▲          └────────┴─▶ FAILED ─▶ WANTED   CANCELED: from any state that is open"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position, order_key
from sluice.cdc_engine.position import file_number as number_of
from sluice.cdc_engine.progress import ReadProgress, measured
from sluice.cdc_engine.states import SnapshotState, snapshot_follows

SNAPSHOT_ID_CHARS = 12
RESTARTS_MAX = 8  # The maximum of restarts for one cause.


class RestartCause(enum.StrEnum):
    """Why the rows are read again, for causes whose repetitions are limited."""

    CASCADES = "cascades"  #: Changes by foreign keys cannot be derived.
    IMAGES = "images"  #: Images lack columns of rows whose keys changed.
    COLUMNS = "columns"  #: Rows and buffered changes do not fit together.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceEnd:
    """The end of a server's binlog. `executed`: the GTID set up to there, empty if the server has none."""

    file: str
    offset: int
    executed: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotRecord:
    """One snapshot of one table.

    `since`: where the table continues without its rows when the snapshot is canceled: no change after it was merged since the request.
    `generation`: grows when all chunks are read again; each has its own folder. `buffered_after`: the generation's buffered changes are
    after this order key. `began_at`: the position up to which the stream was merged when reading began, None before that. `columns`: (name,
    Spark type) of the rows that are read; `version`: the version of the table's schema. `high`: the end of the source's binlog once
    everything was read; the stream must pass it before the table is published. `label`: the order key that the rows got. `rows`: read so
    far, in complete chunks. `rows_expected`: the server's estimate. Times are seconds since 1970, 0 if not reached. `restarts`: how often
    the chunks were read again since an operator last continued it, with the last `reason`; in FAILED the reason of the failure. `tries`:
    how often in a row the same reason prevented progress. `causes`: how many of the restarts each `RestartCause` had.

    `waits_for`: tables whose snapshots are published before this one reads, because foreign keys change its rows through theirs.
    """

    snapshot_id: str
    database: str
    table: str
    state: SnapshotState = SnapshotState.WANTED
    paused: bool = False
    where: str = ""
    since: Position | None = None
    generation: int = 1
    buffered_after: int = -1
    began_at: Position | None = None
    version: str = ""
    key: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    rows: int = 0
    rows_expected: int = 0
    size_bytes: int = 0
    chunks: int = 0
    high: SourceEnd | None = None
    label: int = -1
    wanted_at: float = 0.0
    reading_at: float = 0.0
    read_at: float = 0.0
    published_at: float = 0.0
    restarts: int = 0
    tries: int = 0
    reason: str = ""
    waits_for: tuple[str, ...] = ()
    causes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def read_at_us(self) -> int:
        """The commit time of rows that were read, in µs since 1970: the time when the reading began."""
        return round(self.reading_at * 1e6)

    @property
    def is_open(self) -> bool:
        """Whether the table's changes are buffered."""
        return self.state.is_open

    @property
    def lake_is_older(self) -> str:
        """Returns a sentence, without the table's name, about how old the lake's table is while its snapshot is open."""
        since = f"as of {self.since}" if self.since is not None else "as of the time of the request"
        return (
            f"a snapshot of the table is in progress ({self.state}). Until its rows are published, the lake has "
            f"the table {since}, older than the cursor, and later changes of the table are buffered"
        )

    @property
    def has_work(self) -> bool:
        """Whether a run can advance the snapshot."""
        return self.is_open and not self.paused and self.state != SnapshotState.FAILED

    def _to(self, state: SnapshotState, **changed: Any) -> SnapshotRecord:
        if not snapshot_follows(self.state, state):
            raise ActRefusedError(f"the snapshot of {self.name} is {self.state}, and cannot become {state}")
        return dataclasses.replace(self, state=state, **changed)

    def began(
        self,
        position: Position,
        *,
        version: str,
        key: tuple[str, ...],
        columns: tuple[tuple[str, str], ...],
        rows_expected: int,
        now: float,
    ) -> SnapshotRecord:
        """Returns the record in the state READING. Everything up to `position` is staged, no run merges, and a run reads the chunks next.

        The rows contain all changes up to `position`, so changes that were buffered earlier no longer count.
        """
        return self._to(
            SnapshotState.READING,
            began_at=position,
            buffered_after=max(self.buffered_after, position.order_key),
            reason="",
            tries=0,
            waits_for=(),
            version=version,
            key=key,
            columns=columns,
            rows_expected=rows_expected,
            reading_at=now,
        )

    def with_chunks(self, chunks: int, rows: int, size_bytes: int) -> SnapshotRecord:
        """Returns the record with new totals of the complete chunks."""
        return dataclasses.replace(self, chunks=chunks, rows=rows, size_bytes=size_bytes)

    def finished(self, high: SourceEnd, now: float) -> SnapshotRecord:
        """Returns the record in READ: all chunks are complete."""
        return self._to(SnapshotState.READ, high=high, read_at=now)

    def published(self, label: int, now: float) -> SnapshotRecord:
        """Returns the record in PUBLISHED: the lake table has the rows, and its changes are merged again."""
        return self._to(SnapshotState.PUBLISHED, label=label, published_at=now, reason="")

    def restarts_for(self, cause: RestartCause) -> int:
        """Returns how often the rows were read again for this cause since an operator last continued the snapshot."""
        return self.causes.get(cause, 0)

    def again(
        self, reason: str, *, buffered_after: int | None = None, cause: RestartCause | None = None
    ) -> SnapshotRecord:
        """Returns the record in WANTED: all chunks are read again. `buffered_after`: the order key of a statement that changed the table;
        None if all buffered changes count. `cause`: the limited cause, if it is one.

        Before anything was read this does not count as a restart, so the snapshot may wait through any number of changes.
        """
        counts = cause is not None and self.began_at is not None
        return self._to(
            SnapshotState.WANTED,
            generation=self.generation + 1,
            buffered_after=self.buffered_after if buffered_after is None else max(self.buffered_after, buffered_after),
            restarts=self.restarts + (self.began_at is not None),
            causes={**self.causes, cause: self.restarts_for(cause) + 1} if cause and counts else self.causes,
            reason=reason,
            **_UNREAD,
        )

    def cascades_unseen(
        self, why: str, *, buffered_after: int | None = None, through: Collection[str] = ()
    ) -> SnapshotRecord:
        """Returns the record in WANTED, because foreign keys changed rows without row events, and the changes cannot be derived. Returns it
        in FAILED if that happened too often, or if the record has failed before. `why`: a clause that names the foreign keys. `through`: as
        in `waits_for`.
        """
        again = dataclasses.replace(
            self.again(why, buffered_after=buffered_after, cause=RestartCause.CASCADES),
            waits_for=tuple(sorted({*self.waits_for, *through} - {self.name})),
        )
        if self.state == SnapshotState.FAILED:
            return again.failed(self.reason)
        if self.began_at is not None and self.restarts_for(RestartCause.CASCADES) >= RESTARTS_MAX:
            stopped = dataclasses.replace(again, restarts=self.restarts, causes=self.causes)
            return stopped.failed(
                f"CASCADE_UNSEEN: the rows were read again {RESTARTS_MAX} times because of foreign keys, and must be read again because "
                f"{why}. Stop such changes of the parent tables until {self.name} is published, then use `sluice snapshot resume`"
            )
        return again

    def failed(self, reason: str) -> SnapshotRecord:
        """Returns the record in FAILED. A failed snapshot does not continue by itself, and changes stay buffered."""
        return self._to(SnapshotState.FAILED, reason=reason)

    def with_pause(self, *, paused: bool) -> SnapshotRecord:
        """Returns the record paused or not. No chunk is read while it is paused."""
        return dataclasses.replace(self, paused=paused)

    def noted(self, reason: str) -> SnapshotRecord:
        """Returns the record with the reason why it cannot continue for now; Sluice tries again later."""
        return dataclasses.replace(self, reason=reason, tries=self.tries + 1 if reason == self.reason else 1)

    def retried(self) -> SnapshotRecord:
        """Returns the record after an operator continued the snapshot. If reading continues, complete chunks are kept. After a failure,
        everything is read again.
        """
        if self.state == SnapshotState.FAILED:
            return dataclasses.replace(self.again(self.reason), paused=False, restarts=0, causes={})
        return dataclasses.replace(self, paused=False, restarts=0, causes={})

    def canceled(self) -> SnapshotRecord:
        return self._to(SnapshotState.CANCELED, paused=False)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SnapshotRecord:
        """Parses the JSON of `to_json` into a record. Raises KeyError, TypeError or ValueError for another shape."""
        since, began, high = record["since"], record["began_at"], record["high"]
        changed = {
            "state": SnapshotState(record["state"]),
            "since": Position.from_json(since) if since else None,
            "began_at": Position.from_json(began) if began else None,
            "high": SourceEnd(**high) if high else None,
            "key": tuple(str(name) for name in record["key"]),
            "waits_for": tuple(str(name) for name in record.get("waits_for", ())),
            "columns": tuple((str(name), str(kind)) for name, kind in record["columns"]),
        }
        return cls(**{**record, **changed})


_UNREAD: Mapping[str, Any] = {
    "began_at": None,
    "version": "",
    "key": (),
    "columns": (),
    "rows": 0,
    "size_bytes": 0,
    "chunks": 0,
    "high": None,
    "reading_at": 0.0,
    "read_at": 0.0,
}


def wanted(name: str, since: Position | None, now: float, where: str = "") -> SnapshotRecord:
    """Returns the record of a requested snapshot of "database.table". `where`: an SQL condition for its rows; empty for all rows."""
    database, _, table = name.partition(".")
    return SnapshotRecord(
        snapshot_id=uuid.uuid4().hex[:SNAPSHOT_ID_CHARS],
        database=database,
        table=table,
        since=since,
        where=where,
        wanted_at=now,
    )


def is_past(cursor: Position, record: SnapshotRecord) -> bool:
    """Returns whether everything that the rows of a READ snapshot may contain is merged or buffered. `cursor`: the position that the stream
    has reached.
    """
    return record.high is not None and same_stream(cursor, record) and has_come_past(cursor, record.high)


def has_come_past(cursor: Position, high: SourceEnd) -> bool:
    """Returns whether a cursor of the same stream has everything up to `high`, an end of its source's binlog."""
    if high.file and cursor.order_key >= order_key(cursor.epoch, number_of(high.file), high.offset):
        return True
    return bool(high.executed) and has_executed(cursor.gtid_set, high.executed)


def same_stream(cursor: Position, record: SnapshotRecord) -> bool:
    """Returns whether the stream is still the one in which reading began. Positions of another server, or from after a reset, cannot be
    compared.
    """
    return record.began_at is not None and cursor.epoch == record.began_at.epoch


def progress_record(made: ReadProgress) -> dict[str, Any]:
    """Returns the progress of a snapshot as a JSON record, for other programs."""
    return {
        "rows": made.done,
        "rows_expected": made.expected,
        "rows_per_second": round(made.per_second, 1),
        "percent": None if made.percent is None else round(made.percent, 1),
        "seconds_left": None if made.seconds_left is None else round(made.seconds_left, 1),
    }


def progress(record: SnapshotRecord, now: float) -> ReadProgress:
    """Returns the progress of the reading, in rows. The expected number is the server's estimate."""
    seconds = max((record.read_at or now) - record.reading_at, 1e-3) if record.reading_at else 0.0
    complete = record.state in {SnapshotState.READ, SnapshotState.PUBLISHED}
    return measured(record.rows, record.rows_expected, seconds, complete=complete)
