"""Decides which alarms to report: one when a problem of an engine begins, and one when the problem ends. Pure.

A problem has a key that stays the same while the problem lasts, even if the numbers in its message change. If a problem begins again within
`QUIET_SECONDS` after its end, neither its end nor its new beginning is reported.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator

from sluice.cdc_engine.errors import code_and_text
from sluice.cdc_engine.instance.status import EngineStatus
from sluice.cdc_engine.states import ENDED, engine_state

QUIET_SECONDS = 60.0  # If a problem begins again within this time after its end, it counts as the same problem.
# Matches a number, or a duration with its unit. If a message becomes the key of an alarm, "#" replaces each match, because numbers in the
# message may change while the problem lasts.
FIGURE = re.compile(r"\d[\d.,:]*(?: (?:s|min|h)\b)?")
ENGINE = "engine"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarm:
    """A report about one problem. `key` identifies the problem within its destination: the engine, a table, a consumer, or, for any other
    problem, its message without numbers. `state` is a state of docs/reference/states.md, or TROUBLE for a problem without a state. `text`
    describes the problem. `over` is True if the report says that the problem has ended.
    """

    destination: str
    key: str
    state: str
    text: str
    over: bool = False


def matters(destination: str, status: EngineStatus) -> Iterator[Alarm]:
    """Yields an alarm for each problem that an engine has now."""
    if status.state in ENDED:
        yield Alarm(destination=destination, key=ENGINE, state=status.state, text=status.reason)
    for stopped in status.stopped_tables:
        name = f"{stopped.database}.{stopped.table}"
        yield Alarm(destination=destination, key=f"table {name}", state=stopped.state, text=f"{name}: {stopped.reason}")
    for consumer in status.consumers:
        if consumer.reason:
            key = f"consumer {consumer.client_id}"
            yield Alarm(destination=destination, key=key, state="STOPPED", text=f"{key}: {consumer.reason}")
    for trouble in status.troubles:
        yield Alarm(destination=destination, key=FIGURE.sub("#", trouble), state="TROUBLE", text=trouble)


def failed(destination: str, error: BaseException) -> Alarm:
    """Returns the alarm for an engine that could not be started. Its state and text are those that `sluice status` shows."""
    code, reason = code_and_text(error)
    return Alarm(destination=destination, key=ENGINE, state=engine_state(code), text=reason)


class AlarmWatcher:
    """Finds the problems of one destination that are new or have ended, and passes them to `send`, which must not wait. Not thread-safe."""

    def __init__(self, send: Callable[[Alarm], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._reported: dict[str, Alarm] = {}
        self._gone_at: dict[str, float] = {}

    def see_failed(self, alarm: Alarm) -> None:
        """Records the alarm of an engine that could not be started. Earlier alarms about other problems do not end, because no engine runs
        that could find that these problems have ended.
        """
        self.see([alarm, *(sent for key, sent in self._reported.items() if key != alarm.key)])

    def see(self, now: list[Alarm]) -> None:
        """Compares the current problems `now` with the reported problems. Reports each problem that is new or has another state. If a
        reported problem has not been in `now` for `QUIET_SECONDS`, reports that it has ended.
        """
        there = {alarm.key: alarm for alarm in now}
        for key, alarm in there.items():
            self._gone_at.pop(key, None)
            before = self._reported.get(key)
            if before is None or before.state != alarm.state:
                self._reported[key] = alarm
                self._send(alarm)
        for key in [key for key in self._reported if key not in there]:
            if self._clock() - self._gone_at.setdefault(key, self._clock()) >= QUIET_SECONDS:
                del self._gone_at[key]
                self._send(dataclasses.replace(self._reported.pop(key), over=True))
