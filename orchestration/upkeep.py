"""Runs the code server's background threads. The threads apply changes of conf/ to engines and definitions, limit the size of logs and the
memory of the process, and report to Dagster if no tick arrives.

`code_server` starts the threads. Each thread repeats its checks at intervals, so a step that failed is tried again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from sluice.cdc_engine.errors import MetaError, SluiceError
from sluice.cdc_engine.keeping.keeper import Keeper, follow
from sluice.cdc_engine.keeping.log_files import LogFiles
from sluice.cdc_engine.table_meta.table_list.reading import digest_of_list
from sluice.orchestration.base.table_catalog import current_tables
from sluice.orchestration.reload import reload_definitions
from sluice.orchestration.sensor.runless import CheckPublisher, publish_checks

if TYPE_CHECKING:
    from sluice.cdc_engine.keeping.conf_watch import ConfWatch
    from sluice.cdc_engine.keeping.in_use import InUse

log = structlog.get_logger()


AGAIN_SECONDS = 10.0  # After a failure, the definitions are built again from the same inputs only after this time.
# A list of tables is read at most once in this many seconds, so that a hundred new tables cause few reloads.
TABLES_SECONDS = 10.0


class ShownDefinitions:
    """Reloads the definitions when the conf/ in use or the tables of a destination change."""

    def __init__(
        self,
        in_use: InUse,
        reload: Callable[[], None] = reload_definitions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reload, self._clock = reload, clock
        # For each destination: the digest of its tables, and the time from which its list of tables is read again.
        self._tables = dict[str, tuple[str, float]]()
        self._shown = self._tried = self._seen(in_use)
        self._again_at, self._reported = 0.0, ""

    def look(self, in_use: InUse) -> None:
        """Reloads the definitions if their inputs have changed. After a failure, tries the same inputs again only after AGAIN_SECONDS."""
        now = self._seen(in_use)
        if now == self._shown or (now == self._tried and self._clock() < self._again_at):
            return
        self._tried, self._again_at = now, self._clock() + AGAIN_SECONDS
        try:
            self._reload()
        # Any error, from Dagster or from a destination's files, is reported, and the present definitions stay in use.
        except Exception as error:
            if (why := f"{type(error).__name__}: {error}") != self._reported:
                log.exception("definitions_not_reloaded", reason=why)
            self._reported = why
        else:
            self._shown, self._reported = now, ""
            log.info("definitions_reloaded", destinations=sorted(in_use.config.destinations))

    def _seen(self, in_use: InUse) -> tuple[tuple[str, str, str], ...]:
        names = sorted(in_use.config.destinations)
        return tuple((name, in_use.files.digest(name), self._digest(in_use, name)) for name in names)

    def _digest(self, in_use: InUse, name: str) -> str:
        """Returns the digest of a destination's tables. After the list was read, reads it again only after TABLES_SECONDS. If the list is
        missing or cannot be read, returns the digest of the last list that was read, or "" if none was read.
        """
        known, again_at = self._tables.get(name, ("", -math.inf))
        now = self._clock()
        if known and now < again_at:
            return known
        try:
            found = digest_of_list(in_use.config.destination_dir(name))
        except SluiceError:  # The code that needs the tables reports this error.
            found = ""
        self._tables[name] = (found or known, now + TABLES_SECONDS)
        return found or known


def first_definitions(
    in_use: InUse, reload: Callable[[], None] = reload_definitions, clock: Callable[[], float] = time.monotonic
) -> ShownDefinitions:
    """Copies the engines' lists of tables to the files from which the first definitions are built (`current_tables`). If the lists cannot
    be copied, logs an error. Returns the object that reloads the definitions when a list changes.
    """
    # The digests are read before the lists are copied. If a list changes between these two steps, its digest differs at the next look, and
    # the list is copied again.
    shown = ShownDefinitions(in_use, reload, clock)
    try:
        with current_tables():
            pass
    except (OSError, MetaError) as error:
        log.error("tables_not_copied", reason=str(error))
    return shown


class CheckPublishers:
    """A callable that returns one `CheckPublisher` for each destination of the conf/ in use. Each call returns the same object for a
    destination.
    """

    def __init__(self, watch: ConfWatch) -> None:
        self._watch, self._made = watch, dict[str, CheckPublisher]()

    def __call__(self) -> Iterable[CheckPublisher]:
        config = self._watch.in_use.config
        self._made = {
            name: self._made.get(name) or CheckPublisher(name, config.destination_dir(name))
            for name in config.destinations
        }
        return self._made.values()


def keep_up(watch: ConfWatch) -> None:
    """Copies the engines' lists of tables (`first_definitions`), and starts the background threads, which end with the process. With
    `engine.kind: embedded`, also starts the engines.

    Call this before the definitions are built. This process, and the process from which runs are forked, then build the definitions from
    the copied lists.
    """
    stopping = threading.Event()
    lookers: list[Callable[[InUse], None]] = [first_definitions(watch.in_use).look, LogFiles().look]
    if watch.in_use.config.engine.kind == "embedded":
        from sluice.cdc_engine.instance.freed_memory import FreedMemory  # noqa: PLC0415  needed by engine processes only
        from sluice.cdc_engine.keeping import launcher  # noqa: PLC0415  as above

        keeper = Keeper(launcher)
        keeper.look(watch.in_use)
        lookers = [keeper.look, *lookers, FreedMemory().look]
    threading.Thread(target=follow, args=(watch, lookers, stopping), name="follow-conf", daemon=True).start()
    threading.Thread(
        target=publish_checks, args=(CheckPublishers(watch), stopping), name="watch-ticks", daemon=True
    ).start()
