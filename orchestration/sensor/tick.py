"""Runs one tick of a destination's sensor: settles the batch in flight, publishes events, and hands out the next batch.

Dagster's daemon starts a tick every five seconds, or earlier if it has launched a run. A tick without work does not return at once, but
waits until shortly before the next tick. If a run ends or a change arrives during this time, the tick does its work without delay.

A tick may be lost at any point: it timed out, the daemon died, or the UI's "test sensor" discarded its result. The batch then stays in
flight in the ledger. The next tick requests the same run with the same run key, and Dagster starts only one run per key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import re
import sys
import threading
import time
from typing import TYPE_CHECKING

import dagster as dg

from sluice.cdc_engine.errors import CanalServiceError, EngineStartingError, LeaseLostError, SluiceError
from sluice.cdc_engine.limits import IDLE_TICK_SECONDS_MAX, SENSOR_WORKERS, SENSORS, TICK_SECONDS_MAX
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import DRAIN, RUNS_TAG, BatchReference
from sluice.orchestration.base.server_state import definitions_stay
from sluice.orchestration.base.table_catalog import checkable, delta_key
from sluice.orchestration.checks.observations import AssetEvent, PublishedObservations, due, failures
from sluice.orchestration.checks.stopped import older_tables
from sluice.orchestration.sensor.backoff import Failed, in_a_loop, waiting
from sluice.orchestration.sensor.failing_runs import FailingRuns, RunKind
from sluice.orchestration.sensor.giving_up import tables_to_stop
from sluice.orchestration.sensor.lake_watch import NO_LAKE_WATCHER, LakeWatcher
from sluice.orchestration.sensor.settle import (
    Ack,
    EndRun,
    LockWatch,
    Reissue,
    Rollback,
    SettleWait,
    decide,
    overdue,
    strongest,
)
from sluice.orchestration.sensor.silence import hear

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluice.cdc_engine.contracts import OutstandingBatch
    from sluice.orchestration.base.ports import EngineHandle, EngineHost, EngineSnapshot
    from sluice.orchestration.sensor.runs import RunStore

_log = logging.getLogger(__name__)
_URL = re.compile(r"[a-z][a-z0-9+.]*://\S+", re.IGNORECASE)

# A tick stops waiting for the hand-out this long before its deadline, because it has work to do after the hand-out.
HAND_OUT_RESERVE_SECONDS = 0.3
LOOK_SECONDS = 0.1  # A tick that waits for a run, or for an engine that is starting, looks again after this time.
# A tick that waits for a draining run looks again only after this time, because the run settles its batches itself.
DRAINING_LOOK_SECONDS = 0.5
# The pause after the second consecutive tick that raised an error, and the longest pause. The pause doubles with each further error.
BROKEN_SECONDS_MIN, BROKEN_SECONDS_MAX = 10.0, 300.0
ERROR_LENGTH_MAX = 200
NOTHING_WAITS = "nothing waits"


def broken_pause_seconds(in_a_row: int) -> float:
    """Returns the pause, in seconds, after `in_a_row` consecutive ticks that raised an error. The pause is 0 after the first error."""
    return min(BROKEN_SECONDS_MAX, BROKEN_SECONDS_MIN * 2.0 ** min(in_a_row - 2, 10)) if in_a_row > 1 else 0.0


def brief(error: Exception) -> str:
    """Returns the type and the first line of an error. URLs are removed, because they may contain a password."""
    line = _URL.sub("<url>", next(iter(str(error).splitlines()), ""))[:ERROR_LENGTH_MAX]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def tick_seconds(destinations: int) -> float:
    """Returns how many seconds a tick may take. This is almost the time between two ticks (TICK_SECONDS_MAX). If there are more
    destinations than ticks that Dagster runs at once (SENSOR_WORKERS), the time is proportionally shorter.
    """
    return TICK_SECONDS_MAX * min(1.0, SENSOR_WORKERS / max(1, destinations))


def idle_seconds(destinations: int, instance: dg.DagsterInstance) -> float:
    """Returns for how many seconds a tick repeats its work while nothing is due. Returns 0 if such long ticks would delay the ticks of
    other sensors: Dagster runs a limited number of ticks at once, and each destination has two sensors.
    """
    settings = instance.get_sensor_settings()
    workers = (settings.get("num_workers") or SENSOR_WORKERS) if settings.get("use_threads") else 1
    return IDLE_TICK_SECONDS_MAX if SENSORS * destinations <= workers else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DestinationSensor:
    """The settings and dependencies of the sensor of one destination.

    - `op_name` is the name of the step that merges. `tables` has the "database.table" of each table with an asset.
    - `selects_assets` tells whether a merge run selects the assets of its tables. While `grouped_now` returns True, a run selects no
      assets, because the definitions that the run builds may have no assets of tables.
    - `run_lock_held` returns whether a process holds the run lock or the drain lock of a destination's directory.
    - `tick_seconds` is how long a tick may take, unless it repeats its work while nothing is due (`idle_seconds`).
    - `destinations` is the number of destinations in conf/, from which `idle_seconds` computes how long a tick may repeat its work.
    - `lake` inspects the Delta tables between runs.
    - `drains` tells whether the destination's runs drain.
    - `open_run_endpoint` opens the RPC endpoint through which runs call the engine, for the destination's directory.
    - `lag_seconds_max` is the lag above which the check `caught_up` fails.
    - `conf_troubles` returns a sentence for each reason why the destination's file in conf/ is not used.
    - `kinds` are the kinds of runs, other than merges, whose failures the tick reports.
    - `only_one` tells whether conf/ has no other destination.
    - `ledger` returns the id of the destination's ledger.
    """

    destination: str
    op_name: str
    tables: tuple[str, ...]
    run_lock_held: Callable[[Path], bool]
    tick_seconds: float
    destinations: int = 1
    lake: LakeWatcher = NO_LAKE_WATCHER
    drains: bool = False
    lag_seconds_max: float = math.inf
    open_run_endpoint: Callable[[Path], None] = lambda _: None
    conf_troubles: Callable[[], tuple[str, ...]] = tuple
    selects_assets: bool = True
    grouped_now: Callable[[], bool] = lambda: False
    kinds: tuple[RunKind, ...] = ()
    only_one: bool = True
    ledger: Callable[[], str] = str


class Ticker:
    """Runs the ticks of one destination. The code server has one instance per destination. Between ticks, an instance remembers for how
    long the run lock has been free. An instance does not keep the engine, but gets it from `host` at each tick.
    """

    def __init__(self, line: DestinationSensor, host: Callable[[], EngineHost]) -> None:
        self._line = line
        self._host = host
        self._defined = frozenset(line.tables)
        self._checked = tuple(checkable(line.destination, line.tables))
        self._one_at_a_time = threading.Lock()
        # Set when another tick arrives. The running tick then returns, and does not look again.
        self._another_came = threading.Event()
        self._pause = threading.Event().wait
        self._lock_watch = LockWatch()
        self._failing_runs = FailingRuns(line.destination, line.kinds, only_one=line.only_one)
        # The number of consecutive ticks that raised an error, the newest error, and when the next tick may run.
        self._broken, self._broke, self._again_at = 0, "", 0.0

    def tick(self, runs: RunStore, cursor: str | None, idle_seconds: float = 0.0) -> dg.SensorResult:
        """Runs a tick and returns the sensor's result. While nothing is due, looks again, for at most `idle_seconds` in all.

        Dagster cannot end a slow tick, so an earlier tick may still be running. In this case, does nothing. Also does nothing during the
        pause after several ticks in a row that raised an error (`broken_pause_seconds`).
        """
        if not self._one_at_a_time.acquire(blocking=False):
            self._another_came.set()
            return _answer("an earlier tick is still running, so this tick does nothing", [], cursor)
        try:
            if (left := self._again_at - time.monotonic()) > 0:
                why = f"{self._broken} ticks in a row failed, the newest with {self._broke}; the next attempt begins in {left:.0f} s"
                return _answer(why, [], cursor)
            answer = self._look_until_something_is_due(runs, cursor, idle_seconds)
            # Records the tick, because `runless` reports an engine whose ticks have stopped. A tick that raises an error is not recorded,
            # because it has settled nothing.
            hear(self._line.destination)
            self._broken = 0
            return answer
        except Exception as error:
            self._broken, self._broke = self._broken + 1, type(error).__name__
            self._again_at = time.monotonic() + broken_pause_seconds(self._broken)
            self._report_failed(error)
            raise
        finally:
            self._one_at_a_time.release()

    def _look_until_something_is_due(self, runs: RunStore, cursor: str | None, seconds: float) -> dg.SensorResult:
        """Repeats the work of a tick while nothing is due, for at most `seconds`. Each tick costs Dagster 20 ms of processor time, but a
        repetition within a tick costs only 3 ms.

        If `seconds` is not 0, Dagster can run the ticks of all sensors at once (`idle_seconds` checks this). So each repetition may take as
        long as the tick of an installation with a single destination.
        """
        stay, now = definitions_stay(), time.monotonic()
        until, look_seconds = now + seconds, TICK_SECONDS_MAX if seconds else self._line.tick_seconds
        self._another_came.clear()
        while True:
            answer = self._tick(runs, cursor, now + look_seconds)
            now, cursor = time.monotonic(), answer.cursor
            last = now + look_seconds >= until
            if last or not _is_idle(answer) or self._another_came.is_set() or not stay():
                return answer
            hear(self._line.destination)

    def _report_failed(self, error: Exception) -> None:
        """Reports a failed tick to the engine. Without this, the engine's status would say that no tick arrives, as if the daemon had
        ended.
        """
        with contextlib.suppress(Exception):  # The caller raises the tick's error, whatever happens here.
            self._host().get_or_start(self._line.destination).report_tick(brief(error))

    def _tick(self, runs: RunStore, cursor: str | None, deadline: float) -> dg.SensorResult:
        status: EngineSnapshot | None = None
        trouble = ""
        answer: dg.RunRequest | str
        engine: EngineHandle | None = None
        try:
            engine = self._engine(deadline)
            self._line.open_run_endpoint(engine.directory)
            status = engine.status()
            self._line.lake.look([f"{each.database}.{each.table}" for each in status.stopped_tables])
            failing_runs = self._failing_runs.troubles(runs)
            engine.report_lake((*self._line.lake.troubles(), *self._line.conf_troubles(), *failing_runs))
            answer = self._settle_and_hand_out(engine, runs, deadline)
            # The status is read again, because many changes may have arrived while the tick waited.
            status = engine.status()
        except LeaseLostError as error:
            return _answer(f"STANDBY: {error}{_recycled()}", [], cursor)
        except EngineStartingError as error:
            return _answer(f"STARTING: {error}; the next tick tries again", [], cursor)
        except CanalServiceError as error:
            answer = (
                f"{error.code}: {error}; another process acked the batch or rolled it back at this moment, and "
                "the next tick tries again"
            )
        except SluiceError as error:
            answer = trouble = f"{error.code}: {error}"
        older: dict[str, str] = {}
        if engine is not None:
            # The tick's result is valid even if the records of snapshots cannot be read or an engine in another process does not answer.
            with contextlib.suppress(SluiceError):
                older = older_tables(engine.directory)
            with contextlib.suppress(SluiceError):
                # A tick that raised an error, for example because Dagster's storage did not answer, has settled nothing. Such a tick does
                # not reach this line, and so is not recorded.
                engine.report_tick()
        failing = {**older, **failures(self._line.destination, status, self._line.lag_seconds_max)}
        failing |= {"": trouble} if trouble else {}
        published = PublishedObservations.from_cursor(cursor)
        events, published = due(
            self._line.destination, self._checked, status, failing, published=published, now_seconds=time.time()
        )
        if isinstance(answer, str) and status is not None:
            answer = "; ".join([answer, describe(status), *self._line.conf_troubles()])
        return _answer(answer, events, published.to_cursor())

    def _engine(self, deadline: float) -> EngineHandle:
        """Returns the running engine. If it is starting, waits for it until the deadline."""
        while True:
            try:
                return self._host().get_or_start(self._line.destination)
            except EngineStartingError:
                if time.monotonic() >= deadline - HAND_OUT_RESERVE_SECONDS:
                    raise
            self._pause(LOOK_SECONDS)

    def _settle_and_hand_out(self, engine: EngineHandle, runs: RunStore, deadline: float) -> dg.RunRequest | str:
        """Settles the batches in flight, and hands out the next batch. Returns the request for this batch's run, or why there is none.
        Raises SluiceError if the engine cannot settle or hand out a batch.
        """
        self._end_lost_runs(engine, runs)
        if waiting_for := self._leave_to_draining(engine, runs, deadline):
            return waiting_for
        if waiting_for := self._settle(engine, runs, deadline):
            return waiting_for
        engine.report_waiting("")
        seconds = max(0.0, deadline - time.monotonic() - HAND_OUT_RESERVE_SECONDS)
        batch = engine.hand_out(seconds, appendable=True)
        if batch is None:
            return NOTHING_WAITS
        return self._taken_meanwhile(runs, batch) or self.request(batch)

    def _taken_meanwhile(self, runs: RunStore, batch: OutstandingBatch) -> str:
        """Returns why the batch that was just handed out needs no run of its own, or "" if it needs one.

        A draining run may have got the batch at this moment, or may have taken the batch and ended. Therefore this function looks first for
        open draining runs, and then for runs of the batch.
        """
        if draining := runs.draining():
            return draining[0].takes_it_next
        taken = runs.of_batch(BatchReference.of(self._line.destination, batch))
        if isinstance(decide(taken), Reissue):
            return ""
        return f"a run has just taken delivery {batch.delivery}; the next tick settles this delivery"

    def _leave_to_draining(self, engine: EngineHandle, runs: RunStore, deadline: float) -> str:
        """Waits while a draining run is open and no batch is in flight, because that run takes the next batch. If the run is still open at
        the deadline, returns why the tick has nothing to do. Returns "" if the tick must continue.
        """
        while self._line.drains and engine.outstanding() is None and (draining := runs.draining()):
            if time.monotonic() >= deadline - HAND_OUT_RESERVE_SECONDS:
                return f"run {draining[0].run_id[:8]} drains and takes the next batches"
            self._pause(DRAINING_LOOK_SECONDS)
        return ""

    def _settle(self, engine: EngineHandle, runs: RunStore, deadline: float) -> str:
        """Acks or rolls back the batches in flight whose runs have ended. Ends runs that are overdue, and waits for other runs until
        shortly before the deadline. Returns why the tick must wait, or "" if a run may be requested for the next batch. After a rollback,
        the next batch is the same batch.
        """
        last_look = deadline - HAND_OUT_RESERVE_SECONDS
        while (batch := engine.outstanding()) is not None:
            reference = BatchReference.of(self._line.destination, batch)
            records = runs.of_batch(reference)
            engine.report_run(batch, strongest(records))
            decision = decide(records)
            match decide(records, runs.draining()) if isinstance(decision, Reissue) else decision:
                case Ack(run_id):
                    _log.info("run %s merged %s: acked", run_id, reference)
                    failpoints.reach(failpoints.BEFORE_ACK)
                    engine.ack(batch)
                    failpoints.reach(failpoints.AFTER_ACK)
                    return ""
                case Rollback(run_id, reason):
                    failed = runs.failed(reference, next(run for run in records if run.run_id == run_id))
                    return self._hand_out_again(engine, batch, failed, f"{reason}: {reference}")
                case EndRun(run_id, reason):
                    _log.warning("run %s is ended: %s", run_id, reason)
                    runs.end(run_id, reason)
                    if time.monotonic() >= last_look:
                        return f"runs of {reference} were ended; the next tick continues"
                case SettleWait(_, reason):
                    if time.monotonic() >= last_look:
                        return f"{reason} with {reference}"
                    self._pause(DRAINING_LOOK_SECONDS if self._line.drains else LOOK_SECONDS)
                case Reissue():
                    if run_id := runs.moved_on(reference):
                        # The run settled the batch, but the ledger has the batch in flight: the ledger was restored from an older copy.
                        # Dagster would ignore a request with the same run key, so the batch gets another delivery number.
                        _log.warning(
                            "run %s has settled %s already, but the ledger has the batch in flight, as after a restore of the ledger "
                            "from an older copy: the batch is handed out again",
                            run_id,
                            reference,
                        )
                        engine.rollback(batch)
                    return ""
        return ""

    def _hand_out_again(self, engine: EngineHandle, batch: OutstandingBatch, failed: Failed, what: str) -> str:
        """Rolls a failed batch back and returns "". If the batch must still wait after its failures, returns the reason instead. If some
        tables of the batch must stop (`tables_to_stop`), stops these tables and returns "". The engine then hands the batch out again
        without them.
        """
        engine.report_failing(in_a_loop(failed))
        if stops := tables_to_stop(failed.tables):
            _log.error("%s is handed out again without the tables that stop now: %s", what, ", ".join(sorted(stops)))
            engine.stop_tables(batch, stops)
            return ""
        if why := waiting(failed):
            engine.report_waiting(why)
            return why
        _log.warning("%s is rolled back and handed out again", what)
        engine.rollback(batch, damaged=failed.damaged)
        return ""

    def _end_lost_runs(self, engine: EngineHandle, runs: RunStore) -> None:
        """Ends the open runs of the merge job that are overdue (`settle.overdue`), whatever their delivery. Without this, a run without a
        process would keep its slot in the run queue forever.
        """
        open_runs = runs.open_runs()
        held = self._line.run_lock_held(engine.directory)
        for run in self._lock_watch.observe(open_runs, lock_held=held, now_seconds=time.monotonic()):
            if reason := overdue(run):
                _log.warning("run %s is ended: %s", run.run_id, reason)
                runs.end(run.run_id, reason)

    def request(self, batch: OutstandingBatch) -> dg.RunRequest:
        """Returns the request for a batch's run. The run selects the assets of the batch's tables, if merge runs select assets
        (`selects_assets`). The run also merges and reports tables that have no asset.
        """
        reference = BatchReference.of(self._line.destination, batch)
        selects = self._line.selects_assets and not self._line.grouped_now()
        selected = [name for name in batch.tables if name in self._defined] if selects else []
        return dg.RunRequest(
            run_key=reference.run_key,
            run_config={"ops": {self._line.op_name: {"config": reference.to_config()}}},
            tags={
                **reference.to_tags(),
                **({RUNS_TAG: DRAIN} if self._line.drains else {}),
                "dagster/max_retries": "0",
            },
            asset_selection=[delta_key(self._line.destination, name) for name in selected] or None,
            asset_check_keys=[],  # With None, Dagster would execute all checks of these assets.
        )


def describe(status: EngineSnapshot) -> str:
    """Returns an engine's state as one line, for Dagster's list of ticks."""
    ring_percent = 100 * int(status.ring_bytes) / max(1, int(status.ring_bytes_max))
    reason = f" ({status.reason})" if status.reason else ""
    where = status.position or "the start"
    return (
        f"{status.state}{reason} at {where}, acked up to {status.cursor or 'nothing yet'}, "
        f"{status.lag_seconds:.1f} s behind, ring {ring_percent:.0f} % full"
    )


def _answer(answer: dg.RunRequest | str, events: list[AssetEvent], cursor: str | None) -> dg.SensorResult:
    if isinstance(answer, str):
        return dg.SensorResult(skip_reason=answer, asset_events=events, cursor=cursor)
    return dg.SensorResult(run_requests=[answer], asset_events=events, cursor=cursor)


def _is_idle(answer: dg.SensorResult) -> bool:
    """Returns whether a tick found no batch to hand out (NOTHING_WAITS) and has no events for Dagster, so that it can be repeated."""
    skipped = answer.skip_reason.skip_message if isinstance(answer.skip_reason, dg.SkipReason) else answer.skip_reason
    return not answer.run_requests and not answer.asset_events and (skipped or "").startswith(NOTHING_WAITS)


def _recycled() -> str:
    """Returns a note if the program that started this code server replaces it every minute. Returns "" otherwise."""
    if "--heartbeat" not in sys.argv:
        return ""
    return (
        "; the program that started this code server replaces it again and again, which ends the engine: "
        "start `dagster api grpc` yourself, and name that server as grpc_server in workspace.yaml"
    )
