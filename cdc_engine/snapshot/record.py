"""Defines the record of one table's snapshot: its state and the transitions between states. Pure. `records` stores the record; `work` and
runs of the snapshot job change it.

While a snapshot is open, the changes of its table are *buffered*: a merge run links the staged files of these changes into the snapshot's
folder and does not merge them. At the same time, a snapshot run reads the existing rows chunk by chunk. In the end, one commit makes the
lake table from the rows and the buffered changes. A key with buffered changes gets the row after the key's last change. Every other key
gets its row as it was read. The result is correct at whatever moment a row changes: changes before the first buffered change were visible
when the first chunk was read, and all later changes are buffered. The deletion of a row during the reading is a buffered change too, so the
row cannot reappear.

    WANTED ─▶ READING ─▶ READ ─▶ PUBLISHED       WANTED again: all chunks must be read again, for example after an ALTER TABLE
       ▲          └────────┴─▶ FAILED ─▶ WANTED   FAILED can follow WANTED too, and CANCELED every state except PUBLISHED
"""

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
RESTARTS_MAX = 8  # If the rows must be read again more often than this for one RestartCause, the snapshot fails.


class RestartCause(enum.StrEnum):
    """Why the rows of a snapshot are read again, for the causes that may occur only RESTARTS_MAX times."""

    CASCADES = "cascades"  #: Foreign keys changed rows without row events, and Sluice cannot compute these changes.
    IMAGES = "images"  #: Keys changed during the snapshot, and the row images lack columns.
    COLUMNS = "columns"  #: The columns of the rows that were read and of the buffered changes differ.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceEnd:
    """The end of a server's binlog. `offset` is in bytes. `executed` is the executed set at this end, or empty if the server has no
    GTIDs.
    """

    file: str
    offset: int
    executed: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotRecord:
    """One snapshot of one table.

    - `since`: the position up to which changes of the table are merged. If the snapshot is canceled, the table stops at `since`. None if
      the ledger had no cursor when the snapshot was requested.
    - `generation`: rises by one each time all chunks are read again. Each generation has its own folder.
    - `buffered_after`: only buffered changes after this order key belong to the generation. With -1, all of them belong to it.
    - `began_at`: the position up to which the stream was staged when the reading began, or None if the reading has not begun.
    - `version`: the version of the table's schema. `columns`: (name, Spark type) of the columns that are read.
    - `rows`, `size_bytes`, `chunks`: the totals of the complete chunks. `rows_expected`: the server's estimate of all rows.
    - `high`: the end of the source's binlog when all rows were read. The stream must pass `high` before the table is published.
    - `label`: the order key that the published rows got, or -1.
    - `wanted_at`, `reading_at`, `read_at`, `published_at`: when the snapshot reached the state, in seconds since 1970, or 0 if it has not.
    - `restarts`: how often the chunks were read again since an operator last continued the snapshot. `causes`: how many of these restarts
      each `RestartCause` caused.
    - `reason`: why the snapshot failed, why it cannot continue now, or why the chunks were last read again. `tries`: how often in a row the
      same reason prevented progress.
    - `heals`: states of the table (`TableState`) whose cause only the publication removes. If the snapshot is canceled, the cause remains,
      and a resume of the table does not correct the rows in the lake.
    - `waits_for`: the tables whose snapshots must be published before this table is read, because changes of these tables change rows of
      this table through foreign keys.
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
    heals: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    causes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def read_at_us(self) -> int:
        """The time when the reading began, in µs since 1970. This time becomes the commit time of the rows that were read."""
        return round(self.reading_at * 1e6)

    @property
    def is_open(self) -> bool:
        """Whether the snapshot is open, so that the table's changes are buffered."""
        return self.state.is_open

    @property
    def lake_is_older(self) -> str:
        """Returns a sentence about how old the rows in the lake are while the snapshot is open. The sentence does not name the table."""
        since = f"as of {self.since}" if self.since is not None else "as of the time of the request"
        return (
            f"a snapshot of the table is in progress ({self.state}). Until its rows are published, the table in the "
            f"lake is {since}, older than the cursor. Later changes of the table are buffered"
        )

    @property
    def has_work(self) -> bool:
        """Whether a run can advance the snapshot, now or later."""
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
        """Returns the record in the state READING. The caller must make sure that everything up to `position` is staged and that no run
        merges.

        The rows that are read will contain all changes up to `position`, so buffered changes before `position` are no longer used.
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
        """Returns the record with new totals: the number, rows and bytes of the complete chunks."""
        return dataclasses.replace(self, chunks=chunks, rows=rows, size_bytes=size_bytes)

    def finished(self, high: SourceEnd, now: float) -> SnapshotRecord:
        """Returns the record in the state READ. Called when all chunks are complete. `high` is the end of the source's binlog now."""
        return self._to(SnapshotState.READ, high=high, read_at=now)

    def published(self, label: int, now: float) -> SnapshotRecord:
        """Returns the record in the state PUBLISHED: the lake table has the rows, and the table's changes are merged again."""
        return self._to(SnapshotState.PUBLISHED, label=label, published_at=now, reason="")

    def restarts_for(self, cause: RestartCause) -> int:
        """Returns how often the rows were read again for this cause since an operator last continued the snapshot."""
        return self.causes.get(cause, 0)

    def again(
        self, reason: str, *, buffered_after: int | None = None, cause: RestartCause | None = None
    ) -> SnapshotRecord:
        """Returns the record in the state WANTED, so that all chunks are read again. `buffered_after` is the order key of a statement that
        changed the table: changes that were buffered before it are no longer used. None keeps all buffered changes. `cause` is the cause of
        the restart if it may occur only RESTARTS_MAX times, otherwise None.

        Counts a restart only if the reading has begun. So a snapshot that has read nothing yet cannot fail because of changes of the table.
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
        """Returns the record in the state WANTED. Called if foreign keys changed rows without row events, and Sluice cannot compute these
        changes. Returns the record in the state FAILED instead if the rows were read again RESTARTS_MAX times for this cause, or if the
        snapshot has already failed. `why` is a clause that names the foreign keys. `through` are tables to add to `waits_for`.
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
                f"{why}. Stop such changes of the parent tables, run `sluice snapshot resume`, and allow the changes again when the "
                f"snapshot of {self.name} is published"
            )
        return again

    def healing(self, *states: str) -> SnapshotRecord:
        """Returns the record with `states` in addition to the states whose cause the publication removes (`heals`)."""
        return dataclasses.replace(self, heals=tuple(sorted({*self.heals, *states})))

    def failed(self, reason: str) -> SnapshotRecord:
        """Returns the record in the state FAILED. A failed snapshot waits for an operator, and changes of its table are still buffered."""
        return self._to(SnapshotState.FAILED, reason=reason)

    def with_pause(self, *, paused: bool) -> SnapshotRecord:
        """Returns the record with `paused` set: True when an operator pauses the snapshot, False when the operator continues it. No chunk
        is read while the snapshot is paused.
        """
        return dataclasses.replace(self, paused=paused)

    def noted(self, reason: str) -> SnapshotRecord:
        """Returns the record with the reason why the snapshot cannot continue now. Sluice tries again later."""
        return dataclasses.replace(self, reason=reason, tries=self.tries + 1 if reason == self.reason else 1)

    def retried(self) -> SnapshotRecord:
        """Returns the record after an operator continued the snapshot. If the snapshot had failed, all rows are read again. Otherwise
        complete chunks are kept.
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
        """Converts the result of `to_json` back to a record. Raises KeyError, TypeError or ValueError for any other value."""
        since, began, high = record["since"], record["began_at"], record["high"]
        changed = {
            "state": SnapshotState(record["state"]),
            "since": Position.from_json(since) if since else None,
            "began_at": Position.from_json(began) if began else None,
            "high": SourceEnd(**high) if high else None,
            "key": tuple(str(name) for name in record["key"]),
            "waits_for": tuple(str(name) for name in record.get("waits_for", ())),
            "heals": tuple(str(state) for state in record.get("heals", ())),
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
    """Returns the record of a requested snapshot of "database.table". `where` is an SQL condition for the rows to read, or empty for all
    rows. `now` is in seconds since 1970.
    """
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
    """Returns whether a snapshot in the state READ can be published: every change that the read rows may contain is merged or buffered.
    `cursor` is the position up to which the stream is merged or buffered.
    """
    return record.high is not None and same_stream(cursor, record) and has_come_past(cursor, record.high)


def has_come_past(cursor: Position, high: SourceEnd) -> bool:
    """Returns whether a cursor has reached `high`, which was the end of the source's binlog when it was queried. The cursor and `high` must
    be of the same stream.
    """
    if high.file and cursor.order_key >= order_key(cursor.epoch, number_of(high.file), high.offset):
        return True
    return bool(high.executed) and has_executed(cursor.gtid_set, high.executed)


def same_stream(cursor: Position, record: SnapshotRecord) -> bool:
    """Returns whether the snapshot's reading began in the cursor's epoch. After a failover or a reset of the binlog, the epochs differ, and
    positions cannot be compared.
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
    """Returns the progress of a snapshot's reading, in rows. The expected number of rows is the server's estimate."""
    seconds = max((record.read_at or now) - record.reading_at, 1e-3) if record.reading_at else 0.0
    complete = record.state in {SnapshotState.READ, SnapshotState.PUBLISHED}
    return measured(record.rows, record.rows_expected, seconds, complete=complete)
