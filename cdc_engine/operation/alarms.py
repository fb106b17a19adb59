"""When somebody is to be told: what came up and what is over between two moments of an engine. Pure; `handlers` tells it.

A matter has a key that stays while the matter does, whatever its sentence says of seconds. It is told once when it comes up and once when
it is over; what comes and goes within `QUIET_SECONDS` is not told twice.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator

from cdc_engine.errors import SluiceError
from cdc_engine.instance.status import EngineStatus
from cdc_engine.states import ENDED

QUIET_SECONDS = 60.0  # a matter that was over for less goes on
FIGURE = re.compile(r"\d[\d.,:]*(?: (?:s|min|h)\b)?")  # an age with its unit, which grows too
ENGINE = "engine"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarm:
    """`state`: a word of docs/operations.md, or TROUBLE. `over`: it was told before, and is no more."""

    destination: str
    key: str
    state: str
    text: str
    over: bool = False


def matters(destination: str, status: EngineStatus) -> Iterator[Alarm]:
    """All that is wrong at this moment."""
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


def failed(destination: str, error: SluiceError) -> Alarm:
    """An engine that cannot be started."""
    return Alarm(destination=destination, key=ENGINE, state=error.code, text=str(error))


class Watcher:
    """Of one destination; by one thread at a time. `tell`: must not wait."""

    def __init__(self, tell: Callable[[Alarm], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._told: dict[str, Alarm] = {}
        self._gone_at: dict[str, float] = {}

    def see_failed(self, alarm: Alarm) -> None:
        """No engine came up. It speaks of the engine alone: what tables and consumers stopped for, no engine has looked at since."""
        self.see([alarm, *(told for key, told in self._told.items() if key != alarm.key)])

    def see(self, now: list[Alarm]) -> None:
        """What is wrong now; what was wrong and is not in it is over after a while."""
        there = {alarm.key: alarm for alarm in now}
        for key, alarm in there.items():
            self._gone_at.pop(key, None)
            before = self._told.get(key)
            if before is None or before.state != alarm.state:
                self._told[key] = alarm
                self._tell(alarm)
        for key in [key for key in self._told if key not in there]:
            if self._clock() - self._gone_at.setdefault(key, self._clock()) >= QUIET_SECONDS:
                del self._gone_at[key]
                self._tell(dataclasses.replace(self._told.pop(key), over=True))
