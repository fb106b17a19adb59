"""Publishes results of the asset check of an engine while the engine's sensor does not tick, for example because Dagster's daemon is dead.
No sensor can then report that the engine has failed.

Instead, a thread of the code server writes the check's result directly to Dagster's storage (`upkeep` starts the thread). The thread writes
a result only if the newest result in the storage says something else. So it does not repeat the results of a sensor, and after a start it
replaces an outdated result of an earlier process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import dagster as dg
import structlog

from sluice.cdc_engine.limits import TICK_SILENCE_SECONDS_MAX
from sluice.orchestration.base.table_catalog import engine_key
from sluice.orchestration.checks.observations import ENGINE_CHECK, result_of
from sluice.orchestration.checks.stopped import read_failures
from sluice.orchestration.sensor.silence import heard, last_tick

LOOK_SECONDS = 15.0
# If the engine's sensor has not ticked for this many seconds, `CheckPublisher` publishes the engine's failure. While Dagster's daemon runs,
# the snapshot sensor publishes the failure earlier: TICK_SILENCE_SECONDS_MAX after the last tick.
SILENT_SECONDS = TICK_SILENCE_SECONDS_MAX + 20.0

log = structlog.get_logger()


class CheckPublisher:
    """Publishes results of the asset check of one destination's engine. Opens Dagster's storage only if there may be something to publish.
    `clock` returns seconds since 1970.
    """

    def __init__(
        self,
        destination: str,
        directory: Path,
        instance: Callable[[], contextlib.AbstractContextManager[dg.DagsterInstance]] = dg.DagsterInstance.get,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._destination, self._directory, self._instance, self._clock = destination, directory, instance, clock
        self._started = clock()
        # Whether the newest published result may be a failure. True at the start, because an earlier process may have published one.
        self._may_clear = True

    def look(self) -> bool:
        """Publishes the check as failed if ticks have stopped and the engine has a failure. Publishes the check as passed when ticks run
        again and the engine has no failure. Publishes nothing if the newest result in Dagster's storage says the same. Returns whether a
        result was published. Raises the errors of Dagster's storage.
        """
        ticked, now = max(last_tick(self._directory), heard(self._destination)), self._clock()
        if abs(now - max(ticked, self._started)) > SILENT_SECONDS:
            self._may_clear = True
            why = read_failures(self._directory, now).get("", "")
            return bool(why) and self._publish(why)
        if not self._may_clear or abs(now - ticked) > TICK_SILENCE_SECONDS_MAX:
            return False
        if read_failures(self._directory, now).get("", ""):
            return False  # Ticks arrive again, so the sensor itself publishes the engine's present failure.
        published = self._publish("")
        # If the storage does not answer, `_publish` raises an error. `_may_clear` then stays True, so the next call of `look` tries again.
        self._may_clear = False
        return published

    def _publish(self, why: str) -> bool:
        wanted = result_of(engine_key(self._destination), ENGINE_CHECK, why)
        with self._instance() as instance:
            newest = _newest(instance, dg.AssetCheckKey(wanted.asset_key, ENGINE_CHECK))
            if (newest is None and wanted.passed) or (newest is not None and _content(newest) == _content(wanted)):
                return False
            instance.report_runless_asset_event(wanted)
        return True


def _newest(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    found = record.evaluation if record is not None else None
    # A record without an evaluation means that the check is being executed.
    return found if isinstance(found, dg.AssetCheckEvaluation) else None


def _content(result: dg.AssetCheckEvaluation) -> tuple[bool, str]:
    """Returns the parts of a result that decide whether two results say the same. Other parts may contain a time, which changes."""
    return result.passed, (result.description or "").partition(":")[0]


def publish_checks(publishers: Callable[[], Iterable[CheckPublisher]], stopping: threading.Event) -> None:
    """Calls `look` of every publisher every LOOK_SECONDS until `stopping` is set. `publishers` returns the current publishers. If a call
    fails, logs a warning and continues. If consecutive calls of one publisher fail with the same error, logs only the first one.
    """
    reported: dict[CheckPublisher, str] = {}
    while not stopping.wait(LOOK_SECONDS):
        reported = {each: _published(each, reported.get(each, "")) for each in publishers()}


def _published(publisher: CheckPublisher, reported: str) -> str:
    """Calls `look`. Returns its error, or "" after a success. Logs the error if it differs from `reported`."""
    try:
        publisher.look()
    # Dagster's storage may be of any kind, so `look` may raise any error. No error may affect the engines.
    except Exception as error:
        if (why := f"{type(error).__name__}: {error}") != reported:
            log.warning("check_not_published", reason=why)
        return why
    return ""
