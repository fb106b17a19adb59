"""Reads the changes for a backfill or a repair, at least up to the lake's position. The run of the backfill or repair calls this module.

First, this module reads the interval and the rest of the binlog, while merges continue. Then the run takes the run lock, and the module
reads the changes that the engine has received since the first reading. Under the run lock no lake table changes, so the run knows up to
which position each table is complete.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.destination_files.own_folder import FILE as FOLDER_FILE
from sluice.cdc_engine.errors import ActRefusedError, PositionLostError, XaUnreadError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.instance.rows import rules
from sluice.cdc_engine.instance.rows.interval import (
    BinlogInterval,
    begun_earlier,
    facts_of,
    locate_interval,
    records_of,
    schemas_of,
    tables_of,
    tables_unlike,
)
from sluice.cdc_engine.instance.rows.reading import IntervalReader, files_for
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.instance.tables.transforms_in_use import refuse_other_functions
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.progress import ReadProgress, measured
from sluice.cdc_engine.records.location import as_location
from sluice.cdc_engine.staging.staging import StagingResult
from sluice.cdc_engine.time_text import SECOND_US

POLL_SECONDS = 0.2
# If an XA transaction was prepared before an interval and committed in it, the reading begins 60 s earlier. If this is not enough, the
# reading begins 3600 s earlier.
XA_BACK_SECONDS = (60, 3600)
Find = Callable[[DestinationConfig, Ledger, RequestedInterval], BinlogInterval]
FOLDER, LOCK_FILE = "backfills", "backfill.lock"


@contextlib.contextmanager
def folder_of(directory: Path, wait_seconds: float = 0.0) -> Iterator[Path]:
    """Yields a temporary folder for one backfill or repair, and removes the folder afterwards. First removes the folders of operations that
    were killed.

    Each destination runs only one backfill or repair at a time, because two would read the same binlog and then wait for each other. Waits
    up to `wait_seconds` for a running operation to end, and raises ActRefusedError if the operation is still running then. Also raises
    ActRefusedError if this host does not have the engine's folder.
    """
    if as_location(directory).is_apart and not (directory / FOLDER_FILE).is_file():
        raise ActRefusedError(
            f"{directory} does not have {FOLDER_FILE}: this host cannot see the engine's folder, which has "
            "the schema history; run the command on the engine's host, or mount <data_dir>/engine on this "
            "host"
        )
    root = directory / FOLDER
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / LOCK_FILE)
    deadline = time.monotonic() + wait_seconds
    while not lock.try_acquire():
        if time.monotonic() >= deadline:
            raise ActRefusedError(
                f"another backfill or repair of {directory.name} is running; start this operation after the "
                "other one has ended"
            )
        threading.Event().wait(POLL_SECONDS)
    try:
        for left in root.iterdir():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        folder = root / uuid.uuid4().hex[:12]
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.release()


class BackfillReading:
    """Reads the binlog for one backfill or repair, and stages the changes in `folder`. `refused` maps "database.table" to the reason why a
    table is left out. Tables are added to `refused` while the binlog is read.

    `find` finds the interval. `advice` says what to do about refused tables.
    """

    def __init__(
        self,
        config: DestinationConfig,
        directory: Path,
        request: RequestedInterval,
        folder: Path,
        *,
        now_us: int,
        progress: Callable[[ReadProgress], None] = lambda _: None,
        find: Find = locate_interval,
        advice: rules.RefusalAdvice = rules.BACKFILL_ADVICE,
    ) -> None:
        """Finds the interval to read. Raises PositionLostError if the binlog of the requested time or GTID is purged, and
        ConfigurationError or ActRefusedError if the request is refused.
        """
        rules.check_request(request, now_us)
        self._config, self._directory, self._request, self.folder = config, directory, request, folder
        self._progress, self._advice, self._began = progress, advice, time.monotonic()
        self._ledger = read_ledger(directory)
        self._begin(find(config, self._ledger, request))
        self.names = tables_of(self._ledger, self._schemas, request)
        # Makes the value policies once, so that the module of a transform is not imported again if somebody edits it during the operation.
        self._policies = policies_of(config)
        refuse_other_functions({name: self._policies[name] for name in self.names if name in self._policies}, directory)
        self.staged: list[StagingResult] = []
        self.refused: dict[str, str] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that have changes in the binlog that was read, and that are not refused."""
        there = {table.name for batch in self.staged for table in batch.manifest.tables}
        return tuple(name for name in self.names if name not in self.refused and name in there)

    @property
    def end(self) -> Position:
        """The end of the interval. If no end was requested, this is the position up to which changes were read."""
        open_end = self._request.to_us is None and not self._request.gtids
        return self.read_to if open_end else self.interval.end

    @property
    def changed_in(self) -> tuple[tuple[int, int], ...]:
        """The intervals of the operation, as order keys (after, up to). -1 means the beginning of the changes that were read. The operation
        corrects the rows that changed in one of these intervals.
        """
        found = self.interval.transactions
        return ((-1, self.end.order_key),) if found is None else found.order_keys

    @property
    def times(self) -> tuple[int, int]:
        """The requested interval as (from, before) in µs since 1970. The second time is 0 if no end was requested."""
        found = self.interval.transactions
        return (self._request.from_us, self._request.to_us or 0) if found is None else (found.from_us, found.to_us)

    def read(self) -> None:
        """Reads up to the end of the binlog. Raises ActRefusedError if all tables are refused, or if a table that the request names is
        refused and `all_or_none` is set. If the refusal is known before reading, reads nothing.
        """
        self.judge()
        self._read_all()
        self.judge()

    def _begin(self, interval: BinlogInterval) -> None:
        """Sets the interval to read, of which nothing is read yet."""
        config, directory, request = self._config, self._directory, self._request
        self.interval, self.read_to, self._prepared = interval, interval.begin, MemoryPrepared()
        records = records_of(config, directory, interval, request.schemas)
        self._schemas = schemas_of(config, records, interval)
        self._unlike = tables_unlike(config, directory, interval, self._schemas, request)

    def _read_all(self) -> None:
        """Reads the interval. If an XA transaction was prepared before the interval and committed in it, begins earlier, because the
        transaction's rows are before its XA PREPARE. The earlier begin makes no row wrong: a row that changed only before the interval also
        gets the state that it has at the lake's position.
        """
        first = self.interval
        # If the request builds a past state (`--into`), the interval begins at the end of a version of the Delta table. This position may
        # be long before the requested time, so the earlier of the two times counts.
        from_us = min(filter(None, (self.times[0], first.begin.time_us)), default=0)
        for seconds in (*XA_BACK_SECONDS, 0):
            try:
                self._go_on()
                break
            except XaUnreadError as error:
                if not seconds or not from_us:
                    raise _xa_unread(first.begin) from error
                try:
                    self._begin(begun_earlier(first, from_us - seconds * SECOND_US))
                except PositionLostError:
                    raise _xa_unread(first.begin) from error

    def catch_up(self) -> tuple[str, Position]:
        """Reads more of the binlog if the lake may be at a later position than `read` has reached, and checks the tables again. Call it
        under the run lock. Returns the id and the cursor of the ledger. Raises ActRefusedError if the binlog ends before the lake's
        position, or if the destination got another ledger or server. Also raises the errors of `judge`.
        """
        ledger = read_ledger(self._directory)
        cursor = self._refuse_another(ledger)
        need = ledger.resume_position or cursor
        if need.order_key > self.read_to.order_key:
            try:
                self._go_on()
            except XaUnreadError as error:
                raise _xa_unread(self.interval.begin) from error
        if need.order_key > self.read_to.order_key:
            raise ActRefusedError(
                f"the lake may have changes up to {need}, but the source's binlog ends earlier, at {self.read_to}: start the backfill or "
                "repair again. If this error repeats, the server that is read lacks changes that the lake has"
            )
        self.judge()
        return ledger.ledger_id, cursor

    def _go_on(self) -> None:
        names = frozenset(self.names) - self.refused.keys()
        interval = IntervalReader(
            self._config,
            self.read_to,
            self._schemas,
            names,
            files=functools.partial(files_for, self._config, self._request.archive, self._ledger.cursor),
            progress=self._report,
        )
        self.staged.append(interval.staged(self.folder / str(len(self.staged)), self._policies, self._prepared))
        self.read_to = interval.end

    def _report(self, read_bytes: int) -> None:
        _, size_bytes = rules.files_between(self.interval.files.logs, self.interval.begin, self.interval.read_to)
        self._progress(measured(min(read_bytes, size_bytes), size_bytes, time.monotonic() - self._began))

    def _refuse_another(self, ledger: Ledger) -> Position:
        """Returns the cursor of the current ledger. Raises ActRefusedError if the destination got another ledger or another server since
        the operation began.
        """
        cursor, before = ledger.cursor, self._ledger.cursor
        if ledger.ledger_id != self._ledger.ledger_id or cursor is None or before is None:
            raise ActRefusedError(
                f"{self._config.name} got another ledger during the operation; start the backfill or repair again"
            )
        if (cursor.epoch, cursor.server_uuid) != (before.epoch, before.server_uuid):
            raise ActRefusedError(
                f"the stream of {self._config.name} switched to another server during the operation; start "
                "the backfill or repair again"
            )
        return cursor

    def judge(self) -> None:
        """Adds to `refused` the tables that `rules.refusal` refuses by the facts that are known so far. Raises ActRefusedError if all
        tables are refused, or if a table that the request names is refused and `all_or_none` is set.
        """
        facts = facts_of(
            *(self.names, self._config, self._directory, self._schemas, self.staged),
            unlike=self._unlike,
            given=self._request.schemas,
        )
        found = {each.name: rules.refusal(each, self._advice) for each in facts}
        # A table that was refused earlier stays refused, because its changes have not been read since.
        self.refused = {**{name: why for name, why in found.items() if why}, **self.refused}
        named = [name for name in self._request.tables if name in self.refused and self._request.all_or_none]
        if named or len(self.refused) == len(self.names):
            refusals = "; ".join(f"{name}: {self.refused[name]}" for name in (named or self.names))
            raise ActRefusedError(refusals or f"{self._config.name} captures no table yet")


def _xa_unread(begin: Position) -> ActRefusedError:
    return ActRefusedError(
        f"an XA transaction was prepared long before {begin} and committed after it, so its rows were not read: start the operation again "
        f"later, a backfill with an earlier --from, or {rules.SNAPSHOT_WAY}"
    )
