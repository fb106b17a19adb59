"""`sluice catch-up`: brings the lake to the source's current end and returns. `cdc_engine.acts.catch_up` decides when that is done."""

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
    read_progress,
    wait_until_caught_up,
)
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.conf_files import ONLY
from sluice.cdc_engine.instance.sources import source_facts
from sluice.console.source.query import require_destination
from sluice.console.stack.stack import Stack, StackOptions
from sluice.console.toolchain.errors import SetupError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaughtUp:
    """One destination that has everything up to `end`. `stopped`: tables that lack changes, because they are not followed."""

    destination: str
    end: CatchUpEnd
    seconds: float
    stopped: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        done = f"{self.destination}: everything up to {self.end} is in the lake ({self.seconds:.0f} s)"
        if not self.stopped:
            return done
        return (
            f"{done}, but not for stopped tables: {', '.join(self.stopped)}; `sluice status` says how each is resumed"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "destination": self.destination,
            "end": dataclasses.asdict(self.end.end),
            "seconds": round(self.seconds, 1),
            "stopped_tables": list(self.stopped),
        }


def catch_up(
    config: SluiceConfig, conf: Path, names: Sequence[str], *, seconds_max: float, say: Callable[[str], None]
) -> list[CaughtUp]:
    """Waits until each destination has what its source had when this was called. Starts what is needed if nothing runs, and then stops
    it again.

    `names`: destinations, all if empty. `seconds_max`: for all of them, 0 for no limit. Raises SluiceError, SetupError.
    """
    chosen = [require_destination(config, name).name for name in dict.fromkeys(names)] or sorted(config.destinations)
    ends = {name: end_of(source_facts(config.destinations[name])) for name in chosen}
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


@contextlib.contextmanager
def running(
    config: SluiceConfig, conf: Path, names: Sequence[str], say: Callable[[str], None]
) -> Iterator[Callable[[], object]]:
    """Yields a function that starts again what has died. Starts the stack for these destinations unless one runs already, and stops at
    the end what it started.
    """
    only = {name: config.destinations[name] for name in names}
    stack = Stack(
        config.model_copy(update={"destinations": only, "groups": {}}),
        conf,
        say,
        StackOptions(die_with_parent=True, environment={ONLY: ",".join(names)}, webserver=False, warms_spark=False),
    )
    if stack.file.running():
        say("Sluice runs already, and continues to run afterwards")
        yield lambda: None
        return
    stack.require_startable()
    try:
        stack.up()
        yield stack.revive
    finally:
        if left := stack.down():
            raise SetupError(f"These processes outlived SIGKILL: {', '.join(map(str, left))}; see `ps -fp` for each.")


def _say_of(name: str, say: Callable[[str], None], sentence: str) -> None:
    say(f"{name}: {sentence}")
