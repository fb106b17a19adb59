"""What the code server does beside serving: keeps its engines and its definitions as conf/ says, and tells Dagster where no tick comes.

`code_server` begins it. All is decided by level, from what is in use and what runs, so a look that failed is made good by the next.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from cdc_engine.errors import SluiceError
from cdc_engine.keeping.keeper import Keeper, follow
from orchestration.reload import reload_definitions
from orchestration.sensor.runless import Voice, speak
from orchestration.table_catalog import digest_of_tables, tables_of_now

if TYPE_CHECKING:
    from cdc_engine.keeping.conf_watch import ConfWatch
    from cdc_engine.keeping.in_use import InUse

log = structlog.get_logger()


AGAIN_SECONDS = 10.0  # between two tries to build the same definitions
TABLES_SECONDS = 10.0  # between two looks at a list of tables that is known: a hundred new tables are few reloads


class Shown:
    """What the definitions are built from: the conf/ in use, and the tables of each destination."""

    def __init__(
        self,
        in_use: InUse,
        reload: Callable[[], None] = reload_definitions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reload, self._clock = reload, clock
        self._tables = dict[str, tuple[str, float]]()  # destination → digest of its tables, when to look again
        self._shown = self._tried = self._seen(in_use)
        self._again_at, self._told = 0.0, ""

    def look(self, in_use: InUse) -> None:
        """Has them built anew where they show something else than is so; again after a while where that failed."""
        now = self._seen(in_use)
        if now == self._shown or (now == self._tried and self._clock() < self._again_at):
            return
        self._tried, self._again_at = now, self._clock() + AGAIN_SECONDS
        try:
            self._reload()
        except Exception as error:  # whatever of Dagster or of a destination's files it is: the old definitions stay
            if (why := f"{type(error).__name__}: {error}") != self._told:
                log.exception("definitions_not_reloaded", reason=why)
            self._told = why
        else:
            self._shown, self._told = now, ""
            log.info("definitions_reloaded", destinations=sorted(in_use.config.destinations))

    def _seen(self, in_use: InUse) -> tuple[tuple[str, str, str], ...]:
        names = sorted(in_use.config.destinations)
        return tuple((name, in_use.texts.digest(name), self._digest(in_use, name)) for name in names)

    def _digest(self, in_use: InUse, name: str) -> str:
        """The digest of a destination's tables. What cannot be read, or is gone, leaves the tables that were known."""
        known, again_at = self._tables.get(name, ("", -math.inf))
        now = self._clock()
        if known and now < again_at:
            return known
        try:
            found = digest_of_tables(in_use.config.destination_dir(name))
        except SluiceError:  # whoever needs them says what is wrong
            found = ""
        self._tables[name] = (found or known, now + TABLES_SECONDS)
        return found or known


class Voices:
    """One a destination of the conf/ in use."""

    def __init__(self, watch: ConfWatch) -> None:
        self._watch, self._made = watch, dict[str, Voice]()

    def __call__(self) -> Iterable[Voice]:
        config = self._watch.in_use.config
        self._made = {
            name: self._made.get(name) or Voice(name, config.destination_dir(name)) for name in config.destinations
        }
        return self._made.values()


def keep_up(watch: ConfWatch) -> None:
    """Begins the threads, which end with the process. Where the engines are in a process of their own it is that which keeps them.

    Definitions are read after this, here and in the process that runs are forks of.
    """
    try:
        with tables_of_now():
            pass
    except OSError as error:
        log.error("tables_not_copied", reason=error.strerror)
    stopping, lookers = threading.Event(), [Shown(watch.in_use).look]
    if watch.in_use.config.engine.kind == "embedded":
        from cdc_engine import launcher  # noqa: PLC0415  where engines live

        keeper = Keeper(launcher)
        keeper.look(watch.in_use)
        lookers.insert(0, keeper.look)
    threading.Thread(target=follow, args=(watch, lookers, stopping), name="follow-conf", daemon=True).start()
    threading.Thread(target=speak, args=(Voices(watch), stopping), name="watch-ticks", daemon=True).start()
