"""Implements `sluice catch-up`: waits until the lake has all changes up to a position, by default the current end of the source's binlog.
`cdc_engine.acts.catch_up` decides whether the lake has these changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sluice.cdc_engine.acts.catch_up import (
    LOOK_SECONDS,
    CatchUpEnd,
    Waiting,
    end_of,
    gtid_end,
    reached_sentence,
    read_progress,
    wait_until_caught_up,
)
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.instance.rows.reading import binlog_files
from sluice.cdc_engine.instance.sources import source_facts
from sluice.cdc_engine.keeping import orders
from sluice.cdc_engine.keeping.served import ONLY
from sluice.cdc_engine.parser.positions.time_search import choice_at
from sluice.cdc_engine.snapshot.record import SourceEnd
from sluice.cdc_engine.time_text import time_us
from sluice.console.source.query import require_destination
from sluice.console.stack.stack import Stack, StackOptions
from sluice.console.toolchain.errors import SetupError

# `sluice catch-up` locks this file in data_dir while it runs processes of its own. Then `sluice up` refuses to start, because it would use
# these processes, which `sluice catch-up` ends after the wait.
LOCK_FILE = "catch-up.lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaughtUp:
    """The result of `sluice catch-up` for one destination: after `seconds`, the destination's lake has all changes up to `end`, except
    changes of the tables in `stopped`.
    """

    destination: str
    end: CatchUpEnd
    seconds: float
    stopped: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"{self.destination}: after {self.seconds:.0f} s, {reached_sentence(self.end, self.stopped)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "destination": self.destination,
            "end": dataclasses.asdict(self.end.end),
            "seconds": round(self.seconds, 1),
            "stopped_tables": list(self.stopped),
        }


def catch_up(
    config: SluiceConfig,
    conf: Path,
    names: Sequence[str],
    *,
    seconds_max: float,
    say: Callable[[str], None],
    until: str = "",
) -> list[CaughtUp]:
    """Waits until the lake of each destination has all changes up to a position. If no process of Sluice runs, starts the processes that
    are needed, and stops them at the end.

    `names` are the destinations. An empty list means all destinations. `until` is a GTID set or a time that the lake must reach. If it is
    empty, the position is the end of each source's binlog at the time of the call. `seconds_max` limits the total time of the wait, and 0
    means no limit.

    Raises SetupError if an operator stopped a destination, and SluiceError if a lake does not reach its position, for example because
    `seconds_max` is over.
    """
    chosen = [require_destination(config, name).name for name in dict.fromkeys(names)] or sorted(config.destinations)
    ends = {name: wanted_end(config.destinations[name], until, time.time_ns() // 1000) for name in chosen}
    for name in chosen:
        if (order := orders.stopped(config.destination_dir(name))) is not None:
            raise SetupError(
                f"{name} is stopped, by {order.by} at {order.when()}: start {name} with `sluice instance start {name}`, "
                "then catch up."
            )
    begun, since = time.monotonic(), time.time()
    with running(config, conf, chosen, say) as revive:

        def pause() -> None:
            revive()
            time.sleep(LOOK_SECONDS)

        found = []
        for name, end in ends.items():
            directory = config.destination_dir(name)
            left = max(1.0, seconds_max - (time.monotonic() - begun)) if seconds_max else 0.0
            progress = wait_until_caught_up(
                Waiting(
                    destination=name,
                    look=functools.partial(read_progress, directory, since),
                    say=functools.partial(_say_of, name, say),
                    pause=pause,
                    seconds_max=left,
                ),
                end,
            )
            found.append(
                CaughtUp(destination=name, end=end, seconds=time.monotonic() - begun, stopped=progress.stopped)
            )
            say(found[-1].sentence)
        return found


def wanted_end(destination: DestinationConfig, until: str, now_us: int) -> CatchUpEnd:
    """Returns the position that the lake must reach. `until` is a GTID set or a time, or empty for the current end of the source's binlog.
    For a time, the position is that of the first change at or after this time. `now_us` is the current time in µs since 1970, from which a
    relative time such as -10m is counted.

    Raises ConfigurationError if `until` is malformed, SetupError if the time is in the future, and PositionLostError if the source no
    longer has the binlog of that time. Raises ActRefusedError for a GTID set if the source has no GTIDs, and SourceConnectionError if the
    source does not answer.
    """
    facts = source_facts(destination)
    if not until:
        return end_of(facts)
    if (by_gtids := gtid_end(facts, until)) is not None:
        return by_gtids
    wanted_us = time_us(until, now_us)
    if wanted_us > now_us:
        raise SetupError(f"--until {until} has not come yet: start `sluice catch-up` at that time, without --until.")
    found = choice_at(binlog_files(destination), wanted_us)
    end = SourceEnd(file=found.file, offset=found.offset, executed=found.executed)
    return CatchUpEnd(end=end, server_uuid=facts.server_uuid)


@contextlib.contextmanager
def running(
    config: SluiceConfig, conf: Path, names: Sequence[str], say: Callable[[str], None]
) -> Iterator[Callable[[], object]]:
    """Makes sure that Sluice runs during a `with` block. If Sluice does not run, starts Sluice for the given destinations, and stops Sluice
    at the end of the `with` block. Raises SetupError if another `sluice catch-up` uses this data_dir.

    Yields a function that the caller must call from time to time. If `running` has started Sluice, the function restarts processes that
    died. The function raises SetupError if somebody has stopped Sluice.
    """
    lock = FileLock(config.data_dir / LOCK_FILE)
    if not lock.try_acquire():
        raise SetupError(
            f"Another `sluice catch-up` uses {config.data_dir}; wait until that command has ended, then start `sluice catch-up` again."
        )
    try:
        options = StackOptions(
            die_with_parent=True, environment={ONLY: ",".join(names)}, webserver=False, warms_spark=False
        )
        stack = Stack(config, conf, say, options)
        if stack.file.running():
            lock.release()
            say("Sluice runs already, and will continue to run after this command")
            yield functools.partial(_require_running, stack)
            return
        stack.require_startable()
        stack.up()  # If `up` fails, it ends the processes that it started.
        try:
            yield functools.partial(_kept_alive, stack)
        finally:
            left = stack.down()
        if left:
            raise SetupError(
                f"These processes still run after SIGKILL: {', '.join(map(str, left))}; examine each process with `ps -fp PID`."
            )
    finally:
        lock.release()


def _require_running(stack: Stack) -> None:
    if not stack.file.load():
        raise SetupError("Sluice was stopped during the wait (`sluice down`); start `sluice catch-up` again.")


def _kept_alive(stack: Stack) -> None:
    _require_running(stack)
    stack.revive()


def _say_of(name: str, say: Callable[[str], None], sentence: str) -> None:
    say(f"{name}: {sentence}")
