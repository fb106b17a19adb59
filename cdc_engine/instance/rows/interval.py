"""Finds what a backfill or a repair reads: an interval of the binlog, the tables with their schemas, and the facts from which `rules`
decides whether a table is refused. Used by `plan`, `work` and the runs of repairs.

A backfill reads from the requested time or transaction, and a repair from the lake's position. Both read up to the end of the binlog, even
if the interval of a backfill ends earlier, so that no row in the lake gets an outdated state.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import MetaError, SluiceError
from sluice.cdc_engine.instance.engine.kept_state import history_kept
from sluice.cdc_engine.instance.rows import rules
from sluice.cdc_engine.instance.rows.reading import binlog_files, files_for
from sluice.cdc_engine.instance.rows.rules import RequestedInterval, TableFacts
from sluice.cdc_engine.instance.rows.schemas import IntervalSchemas
from sluice.cdc_engine.instance.tables.value_policies import keys_of
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.parser.positions.binlog_files import ReadableFiles
from sluice.cdc_engine.parser.positions.gtid_search import FoundTransactions, find_transactions
from sluice.cdc_engine.parser.positions.time_search import choice_at, reach_back
from sluice.cdc_engine.parser.renumbering import comes_before
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.staging.staging import StagingResult
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL
from sluice.cdc_engine.table_meta.dump.schemas import records_in
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinlogInterval:
    """An interval of the binlog: the changes after the position `begin` up to and including `end`. `read_to` is the end of the source's
    binlog, or of the archive that is read instead. `cursor` is the destination's cursor, and `files` are the binlog files. `transactions`
    are the transactions that an operator requested by GTID, or None for the whole interval.
    """

    begin: Position
    end: Position
    read_to: Position
    cursor: Position
    files: ReadableFiles
    transactions: FoundTransactions | None = None

    def reach(self, file: str) -> None:
        """Makes `files` reach back to the binlog file `file`: fetches the older files into the archive, if conf/ has a command that does
        this. Does nothing if `files` already has `file`. Raises SourceConnectionError if the command fails.
        """
        self.files.reach(lambda oldest: not comes_before(file, oldest))


def locate_interval(config: DestinationConfig, ledger: Ledger, request: RequestedInterval) -> BinlogInterval:
    """Finds the requested interval in the source's binlog, or in the archive that the request names.

    Raises PositionLostError if the requested time or a GTID is purged. Raises ActRefusedError or ConfigurationError if the request is
    refused. Raises SourceConnectionError if the binlog files cannot be read.
    """
    files = files_for(config, request.archive, ledger.cursor)
    facts = files.facts
    cursor = rules.check_source(config.name, ledger.cursor, facts.server_uuid)
    read_to = StartChoice(file=facts.file, offset=facts.offset, executed=facts.executed)
    found = None
    if request.gtids:
        found = find_transactions(files, rules.transactions_of(request, facts), cursor.epoch)
        begin, end = found.begin, found.end
    elif (exact := _of_run(request, files, cursor)) is not None:
        begin, end = exact
    else:
        reach_back(files, request.from_us)
        begin = choice_at(files, request.from_us)
        end = read_to if request.to_us is None else choice_at(files, request.to_us)
    positions = [_position(each, cursor.epoch, facts.server_uuid) for each in (begin, end, read_to)]
    rules.check_reaches(request, positions[2], ledger.resume_position or cursor)
    return BinlogInterval(
        begin=positions[0], end=positions[1], read_to=positions[2], cursor=cursor, files=files, transactions=found
    )


def _of_run(
    request: RequestedInterval, files: ReadableFiles, cursor: Position
) -> tuple[StartChoice, StartChoice] | None:
    """Returns the positions between which a run merged the requested changes. Returns None if the request names no run, or if the binlog
    files no longer have these positions.

    Commit times are not used to find this interval, because they are not in the order of the binlog: some servers log the time at which a
    statement began.
    """
    if request.between is None or not all(each.file and each.counts_as(cursor) for each in request.between):
        return None
    begin, end = (StartChoice(file=each.file, offset=each.offset, executed=each.gtid_set) for each in request.between)
    files.reach(lambda oldest: not comes_before(begin.file, oldest))
    if begin.file not in {log.file for log in files.logs}:
        return None
    # A requested archive may end within the interval.
    last = StartChoice(file=files.facts.file, offset=files.facts.offset, executed=files.facts.executed)
    return begin, min(end, last, key=lambda each: (file_number(each.file), each.offset))


def from_the_lake(config: DestinationConfig, ledger: Ledger, request: RequestedInterval) -> BinlogInterval:  # noqa: ARG001  as `work.Find`
    """Returns the interval that a repair reads: from the ledger's cursor to the end of the binlog. Earlier changes are not needed, because
    the lake and the rows that the repair reads from the source both include them. Raises ActRefusedError or SourceConnectionError.
    """
    files = binlog_files(config)
    facts = files.facts
    cursor = rules.check_source(config.name, ledger.cursor, facts.server_uuid)
    end = StartChoice(file=facts.file, offset=facts.offset, executed=facts.executed)
    position = _position(end, cursor.epoch, facts.server_uuid)
    return BinlogInterval(begin=cursor, end=position, read_to=position, cursor=cursor, files=files)


def begun_earlier(interval: BinlogInterval, time_us: int) -> BinlogInterval:
    """Returns the interval with an earlier begin: at the first transaction that committed at `time_us` or later. If the interval begins
    before this transaction already, its begin stays. Raises PositionLostError if the time is purged.
    """
    reach_back(interval.files, time_us)
    there = interval.begin
    begin = _position(choice_at(interval.files, time_us), there.epoch, there.server_uuid)
    return dataclasses.replace(interval, begin=min(begin, there, key=lambda each: each.order_key))


def _position(choice: StartChoice, epoch: int, server_uuid: str) -> Position:
    return Position(
        epoch=epoch, file=choice.file, offset=choice.offset, gtid_set=choice.executed, server_uuid=server_uuid
    )


def is_followed(ledger: Ledger, directory: Path, name: str) -> bool:
    """Returns whether the lake has all changes of the table `name` ("database.table") up to the cursor: the table is not stopped and has no
    open snapshot.
    """
    record = SnapshotRecords(directory).get(name)
    return name not in {each.name for each in ledger.stopped_tables} and not (record is not None and record.is_open)


def schemas_of(
    config: DestinationConfig, records: Sequence[HistoryRecord], interval: BinlogInterval
) -> IntervalSchemas:
    """Returns the schemas that decode the rows of the interval: the schemas at the lake's position. If an archive ends before the lake's
    position, returns the schemas at the end of the archive.
    """
    captured = TableFilter(config.include, config.exclude).keeps
    known_at = min(interval.cursor, interval.read_to, key=lambda each: each.order_key)
    return IntervalSchemas(records, known_at, interval.begin, captured)


def records_of(
    config: DestinationConfig, directory: Path, interval: BinlogInterval, given: Path | None
) -> list[HistoryRecord]:
    """Returns the records of the destination's schema history. If `given` names a file, returns the schemas in the file instead: a saved
    schema history, or the dump of a database. Raises MetaError or ConfigurationError.
    """
    if given is None:
        return history_kept(directory).look()
    captured = TableFilter(config.include, config.exclude).keeps
    return records_in(given, interval.begin, captured, MARIADB if interval.files.facts.mariadb else MYSQL)


def tables_unlike(
    config: DestinationConfig,
    directory: Path,
    interval: BinlogInterval,
    schemas: IntervalSchemas,
    request: RequestedInterval,
) -> frozenset[str]:
    """Returns the tables whose columns in the requested schema file differ from their columns at the lake's position.

    Returns no tables if the request builds a past state as a separate table (`RequestedInterval.past`), because later statements may have
    changed the columns. Also returns no tables if the destination's schema history cannot be read.
    """
    if request.schemas is None or request.past:
        return frozenset()
    try:
        own = history_kept(directory).look()
    except MetaError:
        return frozenset()
    return rules.with_other_columns(schemas.versions(), schemas_of(config, own, interval).versions())


def tables_of(ledger: Ledger, schemas: IntervalSchemas, request: RequestedInterval) -> tuple[str, ...]:
    """Returns the names of the requested tables, or of all captured tables if the request names none. Stopped tables count as captured.
    Raises ConfigurationError if a requested table is not captured.
    """
    stopped = {each.name for each in ledger.stopped_tables}
    return rules.chosen(request, sorted(stopped | schemas.versions().keys()))


def facts_of(
    names: Sequence[str],
    config: DestinationConfig,
    directory: Path,
    schemas: IntervalSchemas,
    staged: Sequence[StagingResult],
    *,
    unlike: Collection[str] = (),
    given: Path | None = None,
) -> tuple[TableFacts, ...]:
    """Returns, for each table, the facts from which `rules.refusal` decides whether the table is refused. `staged` has the results of
    staging parts of the interval. `given` is the requested schema file. `unlike` has the tables whose columns in this file differ from
    their columns at the lake's position (`tables_unlike`). Raises MetaError if the ledger or another record cannot be read.
    """
    ledger, versions, keys = read_ledger(directory), schemas.versions(), keys_of(config)
    snapshots = {each.name: str(each.state) for each in SnapshotRecords(directory).all() if each.is_open}
    stops = {each.name: str(each.state) for each in ledger.stopped_tables}
    unread = {each.name: each.reason for batch in staged for each in batch.stopped}
    partial = {each.name for batch in staged for each in batch.manifest.tables if any(s.partial for s in each.changes)}
    bad = frozenset[str]().union(*(_with_bad_values(batch) for batch in staged))

    def facts(name: str) -> TableFacts:
        return TableFacts(
            name=name,
            key=keys.get(name) or (versions[name].key if name in versions else ()),
            known=name in versions,
            stop=stops.get(name, ""),
            snapshot=snapshots.get(name, ""),
            follows=schemas.rows_follow(*name.split(".", 1)),
            statements=tuple(schemas.statements.get(name, ())),
            unread=unread.get(name, ""),
            partial=name in partial,
            quarantined=name in bad,
            current_state=config.table(*name.split(".", 1)).current_state,
            unlike=str(given) if name in unlike else "",
        )

    return tuple(_facts_or_error(facts, name) for name in names)


def _facts_or_error(facts: Callable[[str], TableFacts], name: str) -> TableFacts:
    """Returns the facts about a table. If an unexpected error occurs, returns facts that contain the error. The backfill or repair then
    leaves out only this table.
    """
    try:
        return facts(name)
    except SluiceError:
        raise
    except Exception as error:  # Catches all errors, so that the other tables continue.
        logger.exception(
            "the schema and settings of %s could not be read, so the backfill or repair leaves this table out", name
        )
        return TableFacts(name=name, raised=f"{type(error).__name__}: {error}")


def _with_bad_values(staged: StagingResult) -> frozenset[str]:
    quarantine = staged.manifest.quarantine
    if quarantine is None:
        return frozenset()
    rows = pq.read_table(staged.path / quarantine.file, columns=["database", "table"]).to_pylist()
    return frozenset(f"{row['database']}.{row['table']}" for row in rows)
