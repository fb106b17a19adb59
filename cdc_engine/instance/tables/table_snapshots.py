"""Gives the snapshots of one destination access to its configuration, its ledger, its list of captured tables, and connections that read
rows.

Runs of the snapshot job use this module in a process without an engine. The snapshot sensor and the console query it for the next step of
each snapshot, and repairs read rows with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from sluice.cdc_engine.binlog.row_rules.rules import NO_RULES
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder, ValueLocations
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError, SluiceError
from sluice.cdc_engine.instance.sources import read_by_engine, reader_of, source_of
from sluice.cdc_engine.instance.tables.transforms_in_use import refuse_other_functions
from sluice.cdc_engine.instance.tables.value_policies import policy_of
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.managers import ledger_text, read_ledger
from sluice.cdc_engine.parser.positions.logged import logged_after
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.snapshot.pace import PaceLimits, ReadPace
from sluice.cdc_engine.snapshot.read import ReadRules
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotSituation, SnapshotStep, StepDecision, next_step
from sluice.cdc_engine.snapshot.table_reader import KeptReaders, SourceTable, estimates
from sluice.cdc_engine.snapshot.work import SizeEstimate, SnapshotDependencies
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.staging.staged_columns import refuse_reserved
from sluice.cdc_engine.table_meta.table_list.reading import read_list

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotCallbacks:
    """The callbacks of a snapshot run. `run_lock` returns the lock that merge runs hold. `publish` publishes a snapshot with Spark, and
    returns the order key that the rows got. `say` reports a sentence, and `progress` the record of a snapshot after it has changed. `say`
    and `progress` may collect their reports until `flush` is called, which happens after each group of tables. `together` returns a context
    in which only `progress` is called, for several tables, so that all these reports can be stored in one transaction. `must_end`
    returns why the run must end: conf/ has changed since the run started, or another run now reads the rows. If the run may continue, it
    returns an empty text.
    """

    run_lock: Callable[[], AbstractContextManager[object]]
    publish: Callable[[SnapshotRecord, TableVersion], int]
    say: Callable[[str], None]
    progress: Callable[[SnapshotRecord], None]
    flush: Callable[[], None] = lambda: None
    together: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    must_end: Callable[[], str] = str


def snapshot_dependencies(config: SluiceConfig, destination: str, callbacks: SnapshotCallbacks) -> SnapshotDependencies:
    """Returns the dependencies with which `work.run_all` reads and publishes the snapshots of a destination. Opens no connection."""
    tables = SourceTables(config, destination)
    return SnapshotDependencies(
        records=SnapshotRecords(config.destination_dir(destination)),
        look=tables.look,
        table=tables.table,
        spark_columns=tables.spark_columns,
        sizes=tables.sizes,
        reader=tables.reader,
        run_lock=callbacks.run_lock,
        publish=callbacks.publish,
        say=callbacks.say,
        progress=callbacks.progress,
        flush=callbacks.flush,
        together=callbacks.together,
        close=tables.close,
        must_end=callbacks.must_end,
        readers=config.destinations[destination].snapshots.readers,
    )


class SnapshotDecisions:
    """Decides the next step of each open snapshot of a destination. May be called often, because it opens no connection to the source."""

    def __init__(self, config: SluiceConfig, destination: str) -> None:
        self._records = SnapshotRecords(config.destination_dir(destination))
        self._tables = SourceTables(config, destination)

    def open(self) -> list[SnapshotRecord]:
        """Returns the open snapshots that a run can read or publish, now or later. Leaves out paused and failed snapshots. Raises MetaError
        if the record store does not answer.
        """
        return [each for each in self._records.all() if each.has_work]

    def now(self) -> Iterator[tuple[SnapshotRecord, StepDecision]]:
        """Yields the record of each snapshot that `open` returns, with the decision about its next step. Raises MetaError if the record
        store does not answer.

        If a setting of the table is invalid, yields the step WAIT with the error. If an unexpected error prevents the decision, yields the
        step READ. A run then reads the table and reports the error.
        """
        records, look = self._records.all(), self._tables.look_at_once()
        for each in records:
            if each.has_work:
                yield each, _decision(each, look, records)


def decisions(config: SluiceConfig, destination: str) -> list[tuple[SnapshotRecord, StepDecision]]:
    """Returns the record of each open snapshot of a destination that is neither paused nor failed, with the decision about its next step.
    Raises MetaError if the record store does not answer.
    """
    return list(SnapshotDecisions(config, destination).now())


def _decision(
    record: SnapshotRecord, look: Callable[[str], SnapshotSituation], others: Collection[SnapshotRecord]
) -> StepDecision:
    try:
        return next_step(record, look(record.name), others)
    except ConfigurationError as error:  # Reports the error in the decision: a setting of the table is invalid now.
        return StepDecision(SnapshotStep.WAIT, str(error))
    except SluiceError:
        raise
    except Exception:
        # Catches all errors, because an error about one table must not prevent the snapshots of others. The run that reads the table
        # reports it.
        logger.exception(
            "the next step of the snapshot of table %s cannot be decided; a run reads the table and reports the error",
            record.name,
        )
        return StepDecision(SnapshotStep.READ)


class SourceTables:
    """Returns the captured tables of a destination with the settings of conf/ applied, and makes readers of their rows. The constructor
    opens no connection.
    """

    def __init__(self, config: SluiceConfig, destination: str) -> None:
        self._config: DestinationConfig = config.destinations[destination]
        self._directory = config.destination_dir(destination)
        self._columns = ColumnFilter(self._config.column_include, self._config.column_exclude)
        self._ledger = _Cached(lambda: ledger_text(self._directory), lambda: read_ledger(self._directory))
        self._with_settings: dict[str, tuple[TableVersion, TableVersion]] = {}
        given = self._config.snapshots
        limits = PaceLimits(rows_per_second=given.rows_per_second_max, threads_running_max=given.threads_running_max)
        self._pace = ReadPace(limits, threads_running=self._threads_running)
        self._kept: dict[tuple[str, str], KeptReaders] = {}
        self._lock = threading.Lock()

    def _versions(self) -> Mapping[str, TableVersion]:
        return read_list(self._directory).versions

    def look(self, name: str) -> SnapshotSituation:
        return self._situation(name, self._ledger.get(), self.table(name))

    def look_at_once(self) -> Callable[[str], SnapshotSituation]:
        """Returns a function that returns the situation of a table, by name. The ledger and the list of tables are read once for all
        tables.
        """
        ledger, versions = self._ledger.get(), self._versions()
        return lambda name: self._situation(name, ledger, self._captured(name, versions))

    def _situation(self, name: str, ledger: Ledger, table: TableVersion | None) -> SnapshotSituation:
        database, _, short = name.partition(".")
        return SnapshotSituation(
            begin=ledger.resume_position,
            cursor=ledger.cursor,
            version=table.version if table else "",
            stop=ledger.stopped(database, short),
            epoch=ledger.epoch,
        )

    def table(self, name: str) -> TableVersion | None:
        return self._captured(name, self._versions())

    def _captured(self, name: str, versions: Mapping[str, TableVersion]) -> TableVersion | None:
        """Returns the version of a table with the settings of conf/ applied, or None if the table is not in `versions`, the list of
        captured tables. Repeated calls return the same object until the list changes.
        """
        found = versions.get(name)
        if found is None:
            return None
        known = self._with_settings.get(name)
        if known is None or known[0] is not found:
            known = self._with_settings[name] = (found, self._as_configured(found))
        return known[1]

    def _as_configured(self, found: TableVersion) -> TableVersion:
        configured = self._config.table(found.database, found.table).key
        keyed = dataclasses.replace(found, key=tuple(configured) or found.key)
        return dataclasses.replace(keyed, version=f"{found.version}-{self._as_captured(keyed)}")

    def _as_captured(self, table: TableVersion) -> str:
        """Returns a digest of conf/'s settings for a table. Chunks with different digests cannot be published together."""
        policy = self._policy(table)
        text = json.dumps(
            [
                table.key,
                self._columns.kept(table).tolist(),
                {
                    **dataclasses.asdict(dataclasses.replace(policy, rules=NO_RULES)),
                    "rules": policy.rules.as_settings(),
                },
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def spark_columns(self, table: TableVersion) -> tuple[tuple[str, str], ...]:
        kept = self._columns.kept(table)
        refuse_reserved(table, kept)
        decoder = RowDecoder(table, kept, ValueLocations(), self._policy(table))
        return tuple((column.name, each.spark) for column, each in zip(decoder.columns, decoder.types, strict=True))

    def written(self, table: TableVersion) -> frozenset[str]:
        """Returns the columns that a table's transform writes. Their values may be NULL, even in columns that are NOT NULL."""
        rules = self._policy(table).rules
        return frozenset(
            each.name for each in table.columns if rules.transform and rules.transform.writes_to(each.name)
        )

    def sizes(self, tables: Sequence[TableVersion]) -> dict[str, SizeEstimate]:
        """Returns the server's estimates of the sizes of tables, by name."""
        now = self._reading_now()
        kept = self._kept_to(reader_of(now) or source_of(now))
        reader = kept.take()
        try:
            return estimates(reader, tables)
        finally:
            kept.give_back(reader)

    def reader(self, table: TableVersion, where: str) -> SourceTable:
        policy = self._policy(table)
        refuse_other_functions({table.name: policy}, self._directory)
        now = self._reading_now()
        # Reads a table with a key from the replica that conf/ names (`reader`), if any. Reads a table without a key from the source: its
        # rows need an exact position, and positions in the replica's own binlog cannot be compared with the stream's position.
        replica = reader_of(now) if table.key else None
        server = replica or source_of(now)
        return SourceTable(
            functools.partial(open_reader, server),
            table,
            chunk_rows=self._config.snapshots.chunk_rows,
            rules=ReadRules(where=where, pace=self._pace, kept=self._columns.kept(table), policy=policy),
            source=functools.partial(open_reader, source_of(now)) if replica else None,
            logged=functools.partial(logged_after, source_of(now)),
            kept=self._kept_to(server),
        )

    def close(self) -> None:
        """Closes the connections that were kept open to read further tables."""
        for kept in self._kept.values():
            kept.close()

    def _reading_now(self) -> DestinationConfig:
        """Returns the configuration with the source that is in use now. A failover may have changed the source since the run started."""
        return read_by_engine(self._config, self._directory)

    def _kept_to(self, server: Source) -> KeptReaders:
        with self._lock:
            key = server.address, server.user
            if key not in self._kept:
                self._kept[key] = KeptReaders(functools.partial(open_reader, server))
            return self._kept[key]

    def _threads_running(self) -> int:
        now = self._reading_now()
        with contextlib.closing(open_reader(reader_of(now) or source_of(now))) as reader:
            return reader.threads_running()

    def _policy(self, table: TableVersion) -> ValuePolicy:
        return policy_of(self._config, table.database, table.table)


class _Cached(Generic[T]):
    """Caches the result of `read` until `stamp` returns another value, so that the content is not read again for each table."""

    def __init__(self, stamp: Callable[[], object], read: Callable[[], T]) -> None:
        """Creates an empty cache. `read` returns the content. `stamp` returns another value after the content has changed."""
        self._stamp_now, self._read = stamp, read
        self._stamp: object = None
        self._said: T | None = None

    def get(self) -> T:
        """Returns the content. Raises the errors of `read`."""
        stamp = self._stamp_now()
        if self._said is None or stamp != self._stamp:
            self._said, self._stamp = self._read(), stamp
        return self._said
