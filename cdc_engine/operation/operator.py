"""Watches all engines of a process, and reports their problems as alarms. `launcher` creates one `Operator` when it starts the first
engine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.cdc_engine.instance.status import EngineStatus
from sluice.cdc_engine.operation.alarms import AlarmWatcher, failed, matters
from sluice.cdc_engine.operation.handlers import AlarmSender, handler_of


class Operator:
    """Reports problems of engines as alarms, without waiting until the alarms are sent. Raises ConfigurationError if a handler cannot be
    created.
    """

    def __init__(self, alarms: Sequence[AlarmConfig]) -> None:
        self._sender = AlarmSender([handler_of(each) for each in alarms]) if alarms else None
        self._watchers: dict[str, AlarmWatcher] = {}
        self._lock = threading.Lock()

    def see(self, destination: str, status: EngineStatus) -> None:
        """Compares the status of a running engine with the problems that were reported for the destination. Sends an alarm for each problem
        that has begun or ended.
        """
        if self._sender is not None:
            with self._lock:
                self._watcher(destination).see([*matters(destination, status)])

    def report_failed(self, destination: str, error: BaseException) -> None:
        """Sends an alarm which says that the destination's engine could not be started. Sends only one alarm for repeated failures with the
        same state. Earlier alarms about other problems do not end, because no running engine has found that these problems have ended.
        """
        if self._sender is not None:
            with self._lock:
                self._watcher(destination).see_failed(failed(destination, error))

    def _watcher(self, destination: str) -> AlarmWatcher:
        if self._sender is None:
            raise ValueError("there is no alarm")
        return self._watchers.setdefault(destination, AlarmWatcher(self._sender.send))
