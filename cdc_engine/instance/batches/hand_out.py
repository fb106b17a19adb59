"""Hands out batches: reads changes from the store, stages them, and records each batch in the ledger, where it waits for its ack.

The sensor's ticks call this module through `engine`. Staging has a separate thread, so that a tick never takes longer than its timeout. If
a batch is not staged in time, the next tick hands it out. If a batch has no changes for the lake, this module acks the batch at once, which
moves the cursor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from sluice.cdc_engine.contracts import NOTHING, Batch, OutstandingBatch, Staged, StoppedTable
from sluice.cdc_engine.errors import (
    BatchNotFoundError,
    CanalServiceError,
    LeaseLostError,
    MetaError,
    NotStartedError,
    Remedy,
    SluiceError,
)
from sluice.cdc_engine.handlers.calls import Calls, LedgerExtract
from sluice.cdc_engine.instance.batches.stream_batches import StreamBatches
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager, stops
from sluice.cdc_engine.ports import Stager
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging.batches import StagedBatches
from sluice.cdc_engine.states import TableState, way_out
from sluice.cdc_engine.telemetry.spans import ACK, ROLLBACK
from sluice.cdc_engine.telemetry.traces import Traces

logger = logging.getLogger(__name__)

# If fewer bytes of row events than this arrive within GET_SECONDS (see below), the stream counts as near the end of the binlog, and the
# batch ends (`_Rest`).
MORE_BYTES_MIN = 1 << 20
# Changes may be appended only to batches of up to this size. Appending stages the whole batch again, which takes up to a tenth of a second
# for this many bytes.
APPENDABLE_BYTES_MAX = 8 << 20
# If the last change that was read was committed more than this many seconds ago, the engine is behind the source. More changes probably
# follow, so the batch waits for them.
LIVE_SECONDS_MAX = 2.0
GET_SECONDS = 0.2  # How long the staging thread waits for the first change of a batch.
# The shortest time for which a batch waits for further changes. In a shorter time, the parser might get no CPU time to read them.
MORE_SECONDS_MIN = 0.05
NOT_MERGED, READ_BADLY = "the run did not merge the batch", "the run could not read the staged files of the batch"
ENDS = "the engine of {} was stopped during this call"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """The limits of a batch. A batch has about `bytes_max` bytes and `events_max` row events at most. Only a batch with at most
    `appendable_bytes_max` bytes of row events can be appendable. The row events of an appendable batch stay in memory until a run takes the
    batch, because appending stages the whole batch again.
    """

    bytes_max: int
    events_max: int
    appendable_bytes_max: int = APPENDABLE_BYTES_MAX


class HandOut:
    """Hands out one batch at a time: stages a batch, and keeps it in flight until it is acked or rolled back."""

    def __init__(
        self,
        destination: str,
        stream: StreamBatches,
        meta: MetaManager,
        *,
        stage: Stager,
        limits: BatchLimits,
        directory: Path,
        handlers: Calls | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._destination, self._stream, self._meta = destination, stream, meta
        self._stage, self._limits = stage, limits
        self._directory, self._batches = directory, StagedBatches(directory)
        self._handlers = handlers or Calls(destination, directory)
        self._traces = traces or Traces(destination, directory)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"stage-{destination}")
        self._lock = threading.Lock()
        self._running: Future[OutstandingBatch | None] | None = None
        # The delivery number of the appendable batch, and the consecutive parts of the stream from which the batch was staged.
        self._appendable: tuple[int, list[Batch]] | None = None
        self._taking: tuple[int, Future[OutstandingBatch]] | None = None  # The delivery that a run is taking now.
        # Whether runs can reach this engine's process to take their batches. True after a run has taken a batch, and False again after a
        # run has ended without taking its appendable batch. While it is False, the next batches are not appendable.
        self._runs_take = False
        # A batch with files that the stored ledger may have or not have, because the write of the ledger failed.
        self._doubtful: OutstandingBatch | None = None
        # The commit time of the first change of the batch in flight, in µs since 1970; 0 if no batch is in flight.
        self.first_commit_time_us = 0
        # The error of the last attempt to stage a batch. None if that attempt succeeded, or if the caller made a mistake (Remedy.CALLER).
        self.trouble: SluiceError | None = None

    def outstanding(self) -> OutstandingBatch | None:
        """Returns the first batch in flight, or None."""
        return self._meta.ledger.head

    def next(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        """Returns the batch in flight. If there is none, stages the next batch and returns it. If calls of handlers are still due, makes
        these calls first. Returns None after the timeout, or if no changes for the lake have arrived. With `appendable`, changes may be
        appended to the next batch until its run takes it.

        Raises the errors of staging. Raises NotStartedError if another thread has called `close`.
        """
        with self._lock:
            head = self.outstanding()
            if head is not None and not self._handlers.owed(self._ledger_extract()):
                return head
            if self._running is None or self._succeeded(self._running):
                self._running = self._begin(appendable=appendable)
            running = self._running
        try:
            batch = running.result(timeout_seconds)
        except FutureTimeoutError:
            return None
        except CancelledError:
            raise NotStartedError(ENDS.format(self._destination)) from None
        finally:
            with self._lock:
                if running.done() and self._running is running:
                    self._running = None
        return batch

    def _begin(self, *, appendable: bool) -> Future[OutstandingBatch | None]:
        try:
            return self._pool.submit(functools.partial(self._try_next, appendable=appendable))
        except RuntimeError:  # The pool was shut down.
            raise NotStartedError(ENDS.format(self._destination)) from None

    def take(self, batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        """Fixes the end of a batch and returns the batch. The run of the batch calls `take` before it merges. A repeated call returns the
        same batch.

        With `append`, first appends the changes that arrived since this process staged the batch. Raises CanalServiceError if the delivery
        is no longer in flight. After any other SluiceError, it is unknown whether the end is fixed, and the call may be repeated.
        """
        with self._lock:
            self._runs_take, head, appendable = True, self.outstanding(), self._appendable
            if head is None or (head.batch_id, head.delivery) != (batch.batch_id, batch.delivery):
                raise BatchNotFoundError(f"delivery {batch.delivery} is no longer in flight")
            if not head.appendable:
                return head
            taking = self._taking[1] if self._taking is not None and self._taking[0] == head.delivery else None
            if taking is None or taking.done():
                parts = appendable[1] if append and appendable is not None and appendable[0] == head.delivery else []
                self._appendable = None
                try:
                    taking = self._pool.submit(self._take, head, parts)
                except RuntimeError:  # The pool was shut down.
                    raise NotStartedError(ENDS.format(self._destination)) from None
                self._taking = head.delivery, taking
        try:
            return taking.result()
        except CancelledError:
            raise NotStartedError(ENDS.format(self._destination)) from None

    def _take(self, head: OutstandingBatch, parts: list[Batch]) -> OutstandingBatch:
        try:
            if longer := self._append_to(head, parts) if parts else None:
                return longer
        except (CanalServiceError, MetaError, LeaseLostError):
            # Passes the error on: the batch was settled during this call, the lease is lost, or it is unknown whether the ledger has
            # recorded the longer batch.
            raise
        except SluiceError as error:
            logger.warning(
                "nothing was appended to delivery %d of %s; the waiting changes will be in the next batch: %s",
                head.delivery,
                self._destination,
                error,
            )
        return _of(self._meta.update(lambda ledger: ledger.taken(head)), head)

    def _append_to(self, head: OutstandingBatch, parts: list[Batch]) -> OutstandingBatch | None:
        """Stages a batch again together with the changes that follow it, replaces the batch's record in one write of the ledger, and
        returns the new record. Returns None if nothing can be appended. After a crash, the ledger has either the old batch, or the longer
        batch with a fixed end.
        """
        begun_ns, found = time.time_ns(), None

        def keep(part: Batch) -> bool:
            nonlocal found
            if part.end is None or not part.slices:
                return False
            longer = dataclasses.replace(head, end=part.end)
            rest = iter([*parts[1:], part])
            staged = self._stage(parts[0], longer, lambda _: next(rest, NOTHING))
            with contextlib.ExitStack() as undo:
                undo.callback(self._batches.remove, staged.path, head.ledger_id)
                if staged.stopped or not set(head.tables) <= set(staged.tables):
                    # If a table stops within these changes, appends nothing, because a table must stop at the start of a batch. Also
                    # appends nothing if a table of the batch was not staged again.
                    return False
                longer = self._described(longer, staged)
                self._batches.publish(staged.path, head.ledger_id)
                try:
                    found = _of(self._meta.update(lambda ledger: ledger.taken(head, longer, part.start)), head)
                except (MetaError, LeaseLostError):
                    # Keeps the staged files, because the ledger may name them. If the ledger does not name them, the next start of the
                    # engine removes the files.
                    undo.pop_all()
                    raise
                undo.pop_all()
            return True

        bytes_left = self._limits.bytes_max - sum(part.byte_count for part in parts)
        events_left = self._limits.events_max - sum(part.event_count for part in parts)
        if min(bytes_left, events_left) > 0:
            bytes_max = min(bytes_left, self._limits.appendable_bytes_max)
            self._stream.append_to(parts[-1], bytes_max, events_left, keep)
        if found is not None:
            self._traces.appended(found, begun_ns)
            self._remove(head)  # The files of the shorter batch are not needed, because no run has taken it.
        return found

    def ack(self, batch: OutstandingBatch) -> None:
        begun_ns, self._appendable, batch = time.time_ns(), None, self._now(batch)
        self._handlers.will_be("after", batch, self._ledger_extract())
        self._stream.ack(batch.batch_id, batch.delivery)
        self.first_commit_time_us = 0
        self._traces.settled(batch, ACK, begun_ns)
        self._remove(batch)

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        """Rolls a batch back, so that the same changes are handed out again from the same staged files. If these files are `damaged` or
        missing, stages the changes again.

        Raises CanalServiceError if the batch is no longer in flight.
        """
        why, begun_ns, self._appendable = READ_BADLY if damaged else NOT_MERGED, time.time_ns(), None
        self._handlers.will_be("retry", batch, self._ledger_extract(), why)
        batch = self._now(batch)
        whole = self._batches.is_whole(batch)
        if batch.appendable:
            # The run ended without taking its batch, perhaps because its host cannot reach the engine. So the next batches are not
            # appendable.
            self._runs_take = False
        # During this call, a run may take the batch, and changes may be appended to the batch. In this case, rolls the longer batch back.
        while (now := self._now(batch)).path != batch.path:
            batch, whole = now, self._batches.is_whole(now)
        if not damaged and whole:
            self._meta.update(lambda ledger: ledger.redeliver(batch.batch_id, batch.delivery))
            self._traces.settled(batch, ROLLBACK, begun_ns, why)
            return
        self._stream.rollback(batch.batch_id, batch.delivery)
        self.first_commit_time_us = 0
        self._traces.settled(batch, ROLLBACK, begun_ns, why)
        self._remove(batch)

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        """Stops tables at the start of the batch, and rolls the batch back, so that the batch is handed out again without these tables. One
        write of the ledger stops the tables and rolls back, so a crash leaves either no change or the whole change. `reasons` maps
        "database.table" to (state, reason). Raises CanalServiceError if the batch is no longer in flight.
        """
        why, begun_ns, self._appendable = (
            f"the batch continues without the tables {', '.join(sorted(reasons))}",
            time.time_ns(),
            None,
        )
        self._handlers.will_be("retry", batch, self._ledger_extract(), why)
        stops = [_stop_at(batch.start, name, *why) for name, why in reasons.items()]

        def stopped(ledger: Ledger) -> Ledger:
            again = ledger.redeliver(batch.batch_id, batch.delivery, without=reasons.keys())
            return functools.reduce(Ledger.stop_table, stops, again)

        self._meta.update(stopped)
        self._traces.settled(batch, ROLLBACK, begun_ns, why)

    def while_idle(self, act: Callable[[], None]) -> bool:
        """Calls `act` if no batch is in flight or being staged, and hands out no batch during that call. Returns whether it called
        `act`.
        """
        with self._lock:
            staging = self._running is not None and not self._running.done()
            if staging or self._meta.ledger.outstanding:
                return False
            act()
            return True

    def read_again(self) -> None:
        """Restarts the reading of the stream at the ledger's position. No batch may be in flight or being staged (`while_idle`)."""
        self._stream.read_again()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @staticmethod
    def _succeeded(staging: Future[OutstandingBatch | None]) -> bool:
        """Returns whether staging ended without an error. `next` must not return the result of such a staging again: the result is already
        in the ledger, and another tick may have handed it out and settled it.
        """
        return staging.done() and staging.exception() is None

    def _try_next(self, *, appendable: bool) -> OutstandingBatch | None:
        try:
            batch = self._stage_next(appendable=appendable)
        except SluiceError as error:
            self.trouble = None if error.remedy is Remedy.CALLER else error
            raise
        self.trouble = None
        return batch

    def _stage_next(self, *, appendable: bool) -> OutstandingBatch | None:
        self._handlers.call_due(self._ledger_extract())
        head = self.outstanding()
        if head is not None:
            return head
        if self._doubtful is not None:
            # The write that should add the batch `_doubtful` to the ledger failed, but the stored ledger may have the batch nevertheless.
            # `update` stores a ledger without the batch, and uses up the batch's numbers. Only then can the batch's files be removed.
            self._meta.update(Ledger.reserve)
            self._remove(self._doubtful)
            self._doubtful = None
        batch = self._stream.get(self._limits.bytes_max, self._limits.events_max, timeout_seconds=GET_SECONDS)
        if batch.end is None:
            return None
        taken_ns, record = time.time_ns(), self._meta.ledger.next_batch(batch.end, batch.start)
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as files:
            undo.callback(self._stream.put_back)
            rest = _Rest(self._stream, self._limits)
            staged = self._stage(batch, record, rest)
            files.callback(self._batches.remove, staged.path, record.ledger_id)
            fixed = not appendable or not self._runs_take or staged.stopped or self._handlers.any
            parts = [] if fixed else rest.parts or []
            record = dataclasses.replace(record, end=rest.end or batch.end, appendable=bool(parts))
            record = self._described(record, staged)
            try:
                handed_out = self._record(record, staged, parts)
            except (MetaError, LeaseLostError):
                # Keeps the files, because the stored ledger may have the batch.
                files.pop_all()
                self._doubtful = record
                raise
            if handed_out is not None:
                files.pop_all()
                self._traces.staged(handed_out, taken_ns)
            undo.pop_all()
        return handed_out

    def _record(self, batch: OutstandingBatch, staged: Staged, parts: list[Batch]) -> OutstandingBatch | None:
        """Records in the ledger the tables that staging stopped. Then calls `before` of the handlers, publishes the batch, adds it to the
        ledger, and returns its record. If the batch has no changes for the lake, moves the cursor to its end and returns None. `parts` are
        the parts of the stream from which the batch was staged, or empty if no changes may be appended to it.
        """
        for stopped in staged.stopped:
            name = f"{stopped.database}.{stopped.table}"
            how = way_out(stopped.state, self._destination, name)
            logger.error(
                "the table %s of %s stopped in the state %s: %s%s",
                name,
                self._destination,
                stopped.state,
                stopped.reason,
                f" ({how})" if how else "",
            )
            self._meta.update(stops(stopped))
        if not staged.tables:
            self._stream.skip(batch)
            return None
        if self._handlers.any:
            self._meta.update(Ledger.reserve)
            self._handlers.before(batch)
        self._batches.publish(staged.path, batch.ledger_id)
        self._appendable = (batch.delivery, parts) if parts else None
        handed_out = _of(self._meta.update(lambda ledger: ledger.hand_out(batch)), batch)
        self.first_commit_time_us = staged.first_commit_time_us
        return handed_out

    def _described(self, record: OutstandingBatch, staged: Staged) -> OutstandingBatch:
        """Returns the record of a batch with the result of its staging."""
        path = str(staged.path.relative_to(self._directory))
        return dataclasses.replace(record, path=path, rows=staged.rows, bytes=staged.size_bytes, tables=staged.tables)

    def _ledger_extract(self) -> LedgerExtract:
        ledger = self._meta.ledger
        return LedgerExtract(ledger_id=ledger.ledger_id, cursor=ledger.cursor, outstanding=ledger.outstanding)

    def _now(self, batch: OutstandingBatch) -> OutstandingBatch:
        """Returns the ledger's current record of a batch. The caller's record may be from before a run took the batch."""
        head = self._meta.ledger.head
        same = head is not None and (head.batch_id, head.delivery) == (batch.batch_id, batch.delivery)
        return head if head is not None and same else batch

    def _remove(self, batch: OutstandingBatch) -> None:
        """Removes the files of a batch that is settled, or that a longer batch replaces."""
        self._batches.remove(self._directory / batch.path, batch.ledger_id)


class _Rest:
    """Reads the parts of a batch after the first one, up to the batch's limits. Staging calls this object after each part.

    The batch also ends when the stream seems to be near the end of the source's binlog. There are three signs of this:

    - The first part has recent changes (LIVE_SECONDS_MAX) and fewer than MORE_BYTES_MIN bytes.
    - Fewer than MORE_BYTES_MIN bytes arrived within GET_SECONDS.
    - Nothing arrived within `more_seconds`.

    So a backlog becomes a few large batches, because starting a run costs more than merging its rows. A batch of recent changes hardly
    waits for further changes.
    """

    def __init__(self, stream: StreamBatches, limits: BatchLimits) -> None:
        self._stream, self._limits = stream, limits
        self._bytes_left, self._events_left = limits.bytes_max, limits.events_max
        self._begun, self._window_begun, self._window_bytes = time.monotonic(), 0.0, 0
        # The parts that were read, if they are small enough to stay in memory; otherwise None.
        self.parts: list[Batch] | None = []
        self.end: Position | None = None  # The end of the last part.

    def __call__(self, taken: Batch) -> Batch:
        self.end = taken.end
        if self.parts is not None:
            self.parts = self._if_little([*self.parts, taken])
        self._bytes_left -= taken.byte_count
        self._events_left -= taken.event_count
        self._window_bytes += taken.byte_count
        if not self._window_begun and _old(taken):
            self._window_begun = time.monotonic()
        if self._nearly_at_the_end() or min(self._bytes_left, self._events_left) <= 0:
            return NOTHING
        wait_seconds = more_seconds(time.monotonic() - self._begun)
        return self._stream.get_more(
            taken,
            self._bytes_left,
            self._events_left,
            timeout_seconds=wait_seconds,
            kept=self.parts is not None,
        )

    def _if_little(self, parts: list[Batch]) -> list[Batch] | None:
        little = sum(each.byte_count for each in parts) <= self._limits.appendable_bytes_max
        return parts if little and not parts[-1].stands_alone else None

    def _nearly_at_the_end(self) -> bool:
        now = time.monotonic()
        if now - self._window_begun < GET_SECONDS:
            return False
        little = self._window_bytes < MORE_BYTES_MIN
        self._window_begun, self._window_bytes = now, 0
        return little


def more_seconds(staging_seconds: float) -> float:
    """Returns how many seconds a batch waits for further changes: a tenth of the time that its staging has taken, within limits, so that
    the wait hardly delays the batch.
    """
    return min(GET_SECONDS, max(MORE_SECONDS_MIN, staging_seconds / 10))


def _old(taken: Batch) -> bool:
    """Returns whether the part's last change is so old (LIVE_SECONDS_MAX) that the engine is behind the source."""
    return taken.end is not None and time.time() - taken.end.time_us / 1e6 > LIVE_SECONDS_MAX


def _of(ledger: Ledger, record: OutstandingBatch) -> OutstandingBatch:
    """Returns the record that a ledger has of a batch."""
    return next(each for each in ledger.outstanding if each.batch_id == record.batch_id)


def _stop_at(position: Position, name: str, state: str, reason: str) -> StoppedTable:
    database, _, table = name.partition(".")
    return StoppedTable(database=database, table=table, state=TableState(state), reason=reason, position=position)
