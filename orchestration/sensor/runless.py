"""Publishes the engine's own check where no sensor ticks: the process that hosts the engines writes to Dagster's storage by itself.

`code_server` runs it on a thread. With the daemon dead no tick comes, so neither the engine's sensor nor that of the snapshots can say so.
By level: the check's newest result in the storage is held against what is so, and only a difference is written. So it repeats nothing that
a sensor has said, and clears after a start what an earlier process wrote.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import dagster as dg
import structlog

from cdc_engine.limits import TICK_SILENCE_SECONDS_MAX
from orchestration.checks import read_failures
from orchestration.sensor.observations import ENGINE_CHECK, result_of
from orchestration.sensor.silence import heard, last_tick
from orchestration.table_catalog import engine_key

LOOK_SECONDS = 15.0
SILENT_SECONDS = TICK_SILENCE_SECONDS_MAX + 20.0  # where the daemon lives, the sensor of the snapshots speaks first

log = structlog.get_logger()


class Voice:
    """One destination's; it opens Dagster's storage only where there may be something to say. `clock`: seconds since 1970."""

    def __init__(
        self,
        destination: str,
        directory: Path,
        instance: Callable[[], contextlib.AbstractContextManager[dg.DagsterInstance]] = dg.DagsterInstance.get,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._destination, self._directory, self._instance, self._clock = destination, directory, instance, clock
        self._started = clock()
        self._may_clear = True  # an earlier process may have spoken

    def look(self) -> bool:
        """Publishes the check's result where ticks are silent or back; whether it did. Raises whatever Dagster's storage raises."""
        ticked, now = max(last_tick(self._directory), heard(self._destination)), self._clock()
        if abs(now - max(ticked, self._started)) > SILENT_SECONDS:
            self._may_clear = True
            why = read_failures(self._directory, now).get("", "")
            return bool(why) and self._publish(why)
        if not self._may_clear or abs(now - ticked) > TICK_SILENCE_SECONDS_MAX:
            return False
        if read_failures(self._directory, now).get("", ""):
            return False  # what still fails, the sensor says
        published = self._publish("")
        self._may_clear = False  # not before: a storage that did not answer is asked again
        return published

    def _publish(self, why: str) -> bool:
        wanted = result_of(engine_key(self._destination), ENGINE_CHECK, why)
        with self._instance() as instance:
            newest = _newest(instance, dg.AssetCheckKey(wanted.asset_key, ENGINE_CHECK))
            if (newest is None and wanted.passed) or (newest is not None and _says(newest) == _says(wanted)):
                return False
            instance.report_runless_asset_event(wanted)
        return True


def _newest(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    found = record.evaluation if record is not None else None
    return found if isinstance(found, dg.AssetCheckEvaluation) else None  # a run may be about to give one


def _says(result: dg.AssetCheckEvaluation) -> tuple[bool, str]:
    """What of a result is not an age."""
    return result.passed, (result.description or "").partition(":")[0]


def speak(voices: Callable[[], Iterable[Voice]], stopping: threading.Event) -> None:
    """Looks every few seconds until it is told to stop. A storage that cannot be written is tried again. `voices`: those of now."""
    told = ""
    while not stopping.wait(LOOK_SECONDS):
        for voice in voices():
            try:
                voice.look()
                told = ""
            except Exception as error:  # whatever storage it is, its troubles are none of the engines'
                if (why := f"{type(error).__name__}: {error}") != told:
                    log.warning("check_not_published", reason=why)
                told = why
