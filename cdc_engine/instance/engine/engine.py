"""Runs the engine of one destination: starts and stops its parts, hands out batches, and reports its status. `launcher` runs one per
destination.

Parts start in the order lease → ledger → schema history → store → sink → hand-out of batches → parser → servers of consumers. The servers
of consumers stop first, then the hand-out and the parser, and last the ledger and the lease. When the parser ends with an error, the engine
gets a state for the error, which `status` shows. Batches that were handed out before the error can still be settled. An engine without its
lease (LEASE_LOST) neither reads nor writes; `launcher` stops it, and starts another engine that waits for the lease.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.contracts import ClientIdentity, OutstandingBatch
from sluice.cdc_engine.destination_files import installation_id
from sluice.cdc_engine.destination_files.commit_conflicts import ConflictCount
from sluice.cdc_engine.errors import SluiceError, SourceConnectionError
from sluice.cdc_engine.handlers.calls import Calls
from sluice.cdc_engine.handlers.installed import handlers_of
from sluice.cdc_engine.instance.batches.hand_out import APPENDABLE_BYTES_MAX, BatchLimits, HandOut
from sluice.cdc_engine.instance.batches.stream_batches import StreamBatches
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.sending import sending_of
from sluice.cdc_engine.instance.consumers.served import serving_of
from sluice.cdc_engine.instance.discovery import claim_tables
from sluice.cdc_engine.instance.engine.lifecycle import Lifecycle
from sluice.cdc_engine.instance.engine.source_watch import SourceWatch, watch_of
from sluice.cdc_engine.instance.engine.staging_rules import keyed_tables, make_rules
from sluice.cdc_engine.instance.engine.wiring import make_parts
from sluice.cdc_engine.instance.failover.by_time import cannot_repeat, stops_of
from sluice.cdc_engine.instance.failover.failover import Failover, failover_of, reading_now
from sluice.cdc_engine.instance.health import Vitals, revive_seconds, troubles
from sluice.cdc_engine.instance.parts import EngineParts
from sluice.cdc_engine.instance.pulse import Pulse
from sluice.cdc_engine.instance.status import EngineStatus, RateMeter, figures_of
from sluice.cdc_engine.instance.tables.engine_acts import EngineActs, Steering
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX, SOURCE_WATCH_SECONDS
from sluice.cdc_engine.meta.manager import begins
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.parser.stream.event_parser import CONNECTING, STREAMING
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging.stager import make_stager
from sluice.cdc_engine.states import ENDED, EngineState, engine_follows, engine_state
from sluice.cdc_engine.telemetry.otlp import trace_sender
from sluice.cdc_engine.telemetry.traces import Traces

log = structlog.get_logger()

# State of the parser → the engine's state that operators see. Other states have the same name.
ENGINE_STATE_OF_PARSER = {STREAMING: EngineState.RUNNING, CONNECTING: EngineState.STARTING}


class Engine(Lifecycle[EngineParts, Consumers]):
    """The engine of one destination. All methods may be called from any thread. `on_status` receives the status once per second.
    `watch_seconds` is the interval at which a `SourceWatch` checks whether the stream still matches the source's binlog.
    """

    def __init__(
        self,
        config: SluiceConfig,
        name: str,
        *,
        watch_seconds: float = SOURCE_WATCH_SECONDS,
        on_status: Callable[[EngineStatus], None] = lambda _: None,
    ) -> None:
        super().__init__(name, config.destination_dir(name), on_status)
        self.config = config
        self._destination: DestinationConfig = reading_now(config.destinations[name], self.directory)
        self._stream: StreamBatches | None = None
        self._hand_out: HandOut | None = None
        self._steering = threading.RLock()  # Held by a thread while it starts or stops the parser.
        self._acts = EngineActs(self._destination, self.directory)
        self._rate = RateMeter()
        self._rows_per_second = 0.0
        self._waiting = ""
        self._lake: tuple[str, ...] = ()
        self._watch_seconds = watch_seconds
        self._watch: SourceWatch | None = None
        self._failover: Failover | None = None
        # Set when this engine must end, because conf/ or a failover chose another source.
        self._gave_way = threading.Event()
        self._unwatched = threading.Event()  # Set to end the threads of the source watch and the failover.
        self._pulse, self._traces = Pulse(), Traces(name, self.directory)
        self._conflicts = ConflictCount(self.directory)
        self._revived = 0  # The number of restarts of the parser since it was last RUNNING.
        self._changed_at = 0.0  # The monotonic time when the parser last changed its state.

    # ── start and stop ──

    def start(self) -> None:
        super().start()
        self._watch_source()

    def stop(self) -> None:
        """Stops reading and releases the lease. Batches in flight stay in flight."""
        self._unwatched.set()
        super().stop()
        self._stream = self._hand_out = None
        self._traces.flush()

    def _stop_reading(self, *, lost: bool = False) -> None:
        if lost and self._stream is not None:
            self._stream.stop()  # The batch that is being staged fails, so that the engine need not wait for it.
        elif self._hand_out is not None:
            self._hand_out.close()
        with self._steering:
            if self._parts is not None:
                self._parts.parser.stop()
        if self._stream is not None:
            self._stream.stop()

    def stage_first(self, seconds: float) -> None:
        with contextlib.suppress(SluiceError):
            self.hand_out(seconds)

    @property
    def ended(self) -> bool:
        """Whether the engine ended by itself: it lost the lease, or another source must be read. `launcher` then starts another engine."""
        return super().ended or self._gave_way.is_set()

    def _open(self) -> None:
        self._state, self._reason, self._changed_at = EngineState.STARTING, "", time.monotonic()
        self._destination = self._destination.of_installation(installation_id(self.directory))
        self._conflicts.look()
        handlers = handlers_of(self.name, self._destination.handlers)
        self._traces = Traces(self.name, self.directory, trace_sender())
        parts = make_parts(
            self._destination,
            self.directory,
            self._lease,
            on_state=self._set_state,
            on_start=self._began_elsewhere,
            groups=tuple(self.config.destination_dir(group) for group in self.config.groups_of(self.name)),
            claim=functools.partial(claim_tables, self.config, self.name),
        )
        self._parts = parts
        self._stream = StreamBatches(self.name, parts.store, parts.meta, self._rewind)
        parts.meta.update(lambda ledger: ledger.subscribe(ClientIdentity(destination=self.name)))
        limits = BatchLimits(
            bytes_max=self._destination.batch.bytes_max,
            events_max=BATCH_EVENTS_MAX,
            appendable_bytes_max=min(APPENDABLE_BYTES_MAX, self._destination.ring.bytes_max // 2),
        )
        rules_for = make_rules(self._destination, self.directory, parts.meta, parts.policies)
        stager = make_stager(self.name, self.directory, rules_for)
        self._hand_out = HandOut(
            *(self.name, self._stream, parts.meta),
            stage=stager,
            limits=limits,
            directory=self.directory,
            handlers=Calls(self.name, self.directory, handlers, fence=self._lease.check),
            traces=self._traces,
        )
        parts.parser.start(parts.store.put_position or parts.meta.ledger.resume_position)
        if parts.consumers is not None:
            self._serving = serving_of(self._destination, lambda: self.consumers)
            self._sending = sending_of(self._destination, lambda: self.consumers)
        self._pulse = Pulse()
        self._watch = watch_of(self._destination, parts, self._watch_seconds)
        stream = self._stream
        self._failover = failover_of(
            self._destination, self.directory, parts, position=lambda: stream.position, gives_way=self._gave_way.set
        )

    def _began_elsewhere(self, start: DumpStart) -> None:
        """Called with the start of the stream, before its first block arrives. If the start is in a new epoch, for example after a
        failover, saves the epoch in the ledger. If the stream then also reads some changes a second time, stops the tables to which
        changes cannot be applied twice.
        """
        parts, epoch = self._opened(), start.position.epoch
        if parts.meta.ledger.epoch < epoch:
            others = cannot_repeat(self._destination, parts.history.all_cascades())
            parts.meta.update(begins(epoch, stops_of(keyed_tables(self._destination, parts), start, others)))

    def _rewind(self, position: Position | None) -> None:
        """Restarts the parser and the store at a position. Called if the store does not have the changes after this position, for example
        after a rollback. If `position` is None, the store stays as it is, and the parser starts at the configured start.
        """
        parts = self._opened()
        with self._steering:
            parts.parser.stop()
            if position is not None:
                parts.store.start_at(position)
                if parts.window is not None:
                    parts.window.begin_at(position)
            parts.parser.start(position)

    def _watch_source(self) -> None:
        """Starts the source watch and the failover in threads. `stop` does not wait for them, because a request to a source may hang."""
        self._unwatched = threading.Event()
        for watch, prefix in ((self._watch, "watch"), (self._failover, "failover")):
            if watch is not None:
                name = f"{prefix}-{self.name}"
                threading.Thread(target=watch.run, args=(self._unwatched,), name=name, daemon=True).start()

    # ── batches ──

    def outstanding(self) -> OutstandingBatch | None:
        """Returns the first batch in flight, or None until one is staged. Repeated calls return the same batch."""
        return self._handing_out().outstanding()

    def hand_out(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        """Returns the batch in flight. If no batch is in flight, stages the next batch and returns it, or returns None if no batch is
        staged within the timeout. With `appendable`, changes may be appended to the next batch until its run takes it.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._carry_out()
            batch = self._handing_out().next(max(0.0, deadline - time.monotonic()), appendable=appendable)
            if batch is not None or time.monotonic() >= deadline:
                return batch

    def _carry_out(self) -> None:
        """Executes operators' requests about tables, and requests to start again after a lost position, before the next batch is handed
        out.
        """
        parts, hand_out = self._opened(), self._handing_out()
        steering = Steering(parts=parts, hand_out=hand_out, still=self._steering)
        self._acts.carry_out(self._state, steering)

    def take(self, batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        """Fixes the end of a batch, and returns the batch. With `append`, first appends the changes that arrived since the batch was
        staged. The run of the batch calls `take` before it merges, and may repeat the call. Raises CanalServiceError if the batch is no
        longer in flight.
        """
        return self._handing_out().take(batch, append=append)

    def ack(self, batch: OutstandingBatch) -> None:
        """Acks a batch. Raises CanalServiceError if the batch is not in flight any more."""
        self._handing_out().ack(batch)
        self._pulse.acked()
        self._conflicts.look()

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        """Rolls a batch back, so that the same changes are handed out again under a new delivery number. With `damaged`, the run could not
        read the staged files, so the changes are staged again. Raises CanalServiceError if the batch is not in flight any more.
        """
        self._handing_out().rollback(batch, damaged=damaged)
        self._conflicts.look()

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        """Stops the tables of a batch that cannot be merged. Each table stops at the batch's start, and the batch is handed out again
        without these tables. `reasons` maps "database.table" to (state, reason). Raises CanalServiceError if the batch is not in flight any
        more.
        """
        self._handing_out().stop_tables(batch, reasons)

    # ── status ──

    def report_waiting(self, reason: str) -> None:
        """Sets the reason that the status shows while the next batch is not handed out. `reason` is "" when a batch is handed out."""
        self._waiting = reason

    def report_lake(self, troubles: tuple[str, ...]) -> None:
        """Sets the sentences in the status about what other programs did to the Delta tables or to conf/, and about runs that fail.
        `troubles` is empty if there is nothing to report.
        """
        self._lake = troubles

    def report_tick(self, failed: str = "") -> None:
        """Records a tick of the sensor, so that the status can show how long ago the last tick was; nothing is merged without ticks.
        `failed` is the reason if the tick failed.
        """
        self._pulse.ticked(failed)

    def report_run(self, batch: OutstandingBatch, state: str) -> None:
        """Records the state that Dagster reports for the batch's run. `state` is empty if the batch has no run."""
        self._pulse.saw_run(batch.delivery, state)

    def report_failing(self, reason: str) -> None:
        """Sets the reason why several runs in a row failed to merge the batch. The status shows the reason until a batch is acked, or until
        the reason is set to an empty text.
        """
        self._pulse.failing = reason

    def status(self) -> EngineStatus:
        """Returns the current status of the engine, without a request to a source or a record store."""
        parts = self._opened()
        metrics, ledger = parts.store.metrics(), parts.meta.ledger
        state, reason = self._state_now()
        return EngineStatus(
            state=str(state),  # Converted to plain text, because Dagster refuses other types in its metadata.
            reason=reason,
            waiting=self._waiting,
            position=parts.parser.position,
            cursor=ledger.cursor,
            lag_seconds=self._lag_seconds(parts),
            retention_left_hours=self._watch.retention_left_hours() if self._watch is not None else None,
            oldest_binlog_hours=self._watch.oldest_binlog_hours() if self._watch is not None else None,
            rows_per_second=round(self._rows_per_second, 1),
            ring_bytes=metrics.fill_bytes,
            ring_bytes_max=metrics.bytes_max,
            ring_events=metrics.fill_events,
            waiting_bytes=metrics.fill_bytes + metrics.spilled_bytes,
            stopped_tables=ledger.stopped_tables,
            troubles=self._troubles(state),
            ticked_at_us=self._pulse.ticked_at_us(),
            acked_at_us=self._pulse.acked_at_us(),
            commit_conflicts=self._conflicts.count,
            consumers=parts.consumers.statuses(parts.parser.position) if parts.consumers is not None else (),
            stream=figures_of(parts.parser.counters, metrics, self._unread_seconds(), shared=parts.parser.shares),
            updated_at_us=time.time_ns() // 1000,
        )

    def _lag_seconds(self, parts: EngineParts) -> float:
        oldest_us = self._oldest_us(parts)
        return round(max(0.0, self._unread_seconds(), time.time() - oldest_us / 1e6 if oldest_us else 0.0), 3)

    def _unread_seconds(self) -> float:
        return self._watch.behind_seconds() if self._watch is not None else 0.0

    def _oldest_us(self, parts: EngineParts) -> int:
        """Returns when the oldest change without an ack was committed, in µs since 1970. Returns 0 if all changes are acked."""
        times = (parts.store.oldest_time_us, self._handing_out().first_commit_time_us)
        return min((each for each in times if each), default=0)

    def _troubles(self, state: str) -> tuple[str, ...]:
        batch, parts = self._handing_out().outstanding(), self._opened()
        tick_failed, tick_failed_seconds = self._pulse.tick_failed()
        waits, serving = bool(self._oldest_us(parts)), self._serving
        return troubles(
            Vitals(
                destination=self.name,
                starting_seconds=time.monotonic() - self._changed_at if state == EngineState.STARTING else 0.0,
                tick_seconds=self._pulse.tick_seconds(),
                ever_ticked=self._pulse.ever_ticked,
                tick_failed=tick_failed,
                tick_failed_seconds=tick_failed_seconds,
                batch=f"#{batch.batch_id}" if batch is not None else "",
                batch_seconds=self._pulse.out_seconds(batch),
                run=self._pulse.run_of(batch),
                waiting=bool(self._waiting),
                failing=self._pulse.failing,
                unmoved_seconds=self._pulse.unmoved_seconds(parts.meta.ledger.cursor, waits=waits),
                retention=self._watch.retention_trouble() if self._watch is not None else "",
                stream=self._watch.trouble() if self._watch is not None else "",
                serving=serving.trouble if serving is not None else "",
                heartbeat=self._failover.trouble() if self._failover is not None else "",
                lake=self._lake,
            )
        )

    def _state_now(self) -> tuple[str, str]:
        """Returns the engine's state and its reason. If the parser runs but staging fails, returns the code and the message of the error of
        staging.
        """
        trouble = self._handing_out().trouble
        if trouble is not None and self._state in {EngineState.RUNNING, EngineState.STARTING}:
            return trouble.code, str(trouble)
        return self._state, self._reason

    def _look(self) -> None:
        super()._look()
        self._revive()
        self._rows_per_second = self._rate.read(self._opened().parser.counters.row_events)

    def _lose(self, reason: str) -> None:
        self._unwatched.set()
        super()._lose(reason)

    def _revive(self) -> None:
        """Restarts the parser if the parser ended with an error that may pass by itself, such as a full disk. `revive_seconds` decides how
        long to wait. The caller has checked that the engine holds the lease.
        """
        parser = self._opened().parser
        if self._state == EngineState.RUNNING:
            self._revived = 0
        wait = revive_seconds(parser.last_error, self._revived)
        if wait is None or time.monotonic() - self._changed_at < wait:
            return
        self._revived += 1
        with self._steering:
            if not self._stopping.is_set():
                parser.stop()
                parser.start(parser.position)

    def _set_state(self, state: str, reason: str) -> None:
        reported = ENGINE_STATE_OF_PARSER.get(state) or engine_state(state)
        # If the engine is not stopping, only the parser has stopped, and the engine starts the parser again, for example to resume a table.
        starts_again = reported == EngineState.STOPPED and not self._stopping.is_set()
        if starts_again or not engine_follows(self._state, reported):
            return  # The engine keeps its present state, which says more than "stopped".
        self._state, self._reason, self._changed_at = reported, reason, time.monotonic()
        if reported in ENDED:
            log.error("engine_stopped", destination=self.name, state=reported, reason=reason)

    def _handing_out(self) -> HandOut:
        if self._hand_out is None:
            raise SourceConnectionError(f"the engine of {self.name} is not started; `sluice status` shows why")
        return self._hand_out
