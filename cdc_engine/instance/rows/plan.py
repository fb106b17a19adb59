"""Plans a backfill: what it would read and change, and which tables are refused. Changes nothing; `sluice backfill --plan` shows it.

A part of the interval is read and staged as the backfill would do it, into a temporary folder. The counts of this part are scaled to the
rest, and the rate is that of this machine and this source.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sluice.batch_manifest.values import ChangesSegment, StagedTable
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.engine.kept_state import history_kept
from sluice.cdc_engine.instance.rows import rules
from sluice.cdc_engine.instance.rows.reading import IntervalReader, binlog_files
from sluice.cdc_engine.instance.rows.rules import RequestedInterval, TableFacts
from sluice.cdc_engine.instance.rows.schemas import IntervalSchemas, known_at
from sluice.cdc_engine.instance.tables.value_policies import keys_of
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.time_search import choice_at, earliest_on_offer
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.staging.staging import StagingResult
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord
from sluice.cdc_engine.time_text import time_text

logger = logging.getLogger(__name__)

SAMPLE_BYTES_MAX = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillTablePlan:
    """The plan for one table. `refused`: why it cannot be backfilled, and what to do instead; empty if it can. `changes`: the expected
    number in the interval.

    `reaches_back`: whether the schema history still knows the table at the interval's begin. `statements`: those that concern the table.
    """

    name: str
    refused: str
    changes: int
    reaches_back: bool
    statements: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a backfill. Times are in ISO form. `begin`, `end`: positions between which changes are included; `read_to`: where
    reading of the binlog ends.

    `counted`: the whole interval was read for the plan, so the number of changes is exact. `bytes`: bytes of the binlog to read.
    """

    destination: str
    from_time: str
    to_time: str
    earliest_time: str
    earliest_file: str
    begin: str
    end: str
    read_to: str
    cursor: str
    files: tuple[str, ...]
    bytes: int
    sample_bytes: int
    counted: bool
    changes: int
    seconds: float
    tables: tuple[BackfillTablePlan, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{each.name}: {each.refused}" for each in self.tables if each.refused)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "problems": list(self.problems)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinlogInterval:
    """The interval in the source's binlog: after `begin`, up to and including `end`. `read_to`: the binlog's end. `files`: the source's
    binlog files.
    """

    begin: Position
    end: Position
    read_to: Position
    cursor: Position
    files: BinlogFiles


def make_plan(config: DestinationConfig, directory: Path, request: RequestedInterval, now_us: int) -> Plan:
    """Returns the plan of a backfill. Raises PositionLostError if the time is purged, ConfigurationError, ActRefusedError, or the errors
    of a scan.
    """
    rules.check_request(request, now_us)
    ledger = read_ledger(directory)
    interval = locate_interval(config, ledger, request)
    records = history_kept(directory).look()
    schemas = schemas_of(config, records, interval)
    names = tables_of(ledger, schemas, request)
    sample = IntervalReader(
        config, interval.begin, schemas, frozenset(names), until=interval.end, bytes_max=SAMPLE_BYTES_MAX
    )
    with tempfile.TemporaryDirectory(prefix="backfill-plan-", dir=directory) as folder:
        staged = sample.staged(Path(folder))
        facts = facts_of(names, config, directory, schemas, [staged])
    known = known_at(records, interval.begin)
    return _plan(config, request, interval, sample, [_table(each, staged, sample, interval, known) for each in facts])


def locate_interval(config: DestinationConfig, ledger: Ledger, request: RequestedInterval) -> BinlogInterval:
    """Finds the interval in the source's binlog. Raises what `make_plan` raises."""
    files = binlog_files(config)
    facts = files.facts
    cursor = rules.check_source(config.name, ledger.cursor, facts.server_uuid)
    begin = choice_at(files, request.from_us)
    read_to = StartChoice(file=facts.file, offset=facts.offset, executed=facts.executed)
    end = read_to if request.to_us is None else choice_at(files, request.to_us)
    positions = [_position(each, cursor.epoch, facts.server_uuid) for each in (begin, end, read_to)]
    return BinlogInterval(begin=positions[0], end=positions[1], read_to=positions[2], cursor=cursor, files=files)


def from_the_lake(config: DestinationConfig, ledger: Ledger, request: RequestedInterval) -> BinlogInterval:  # noqa: ARG001  as `work.Find`
    """Returns the interval that starts at the ledger's cursor: the lake has everything before it, and the server shows it. Raises
    ActRefusedError, SourceConnectionError.
    """
    files = binlog_files(config)
    facts = files.facts
    cursor = rules.check_source(config.name, ledger.cursor, facts.server_uuid)
    end = StartChoice(file=facts.file, offset=facts.offset, executed=facts.executed)
    position = _position(end, cursor.epoch, facts.server_uuid)
    return BinlogInterval(begin=cursor, end=position, read_to=position, cursor=cursor, files=files)


def _position(choice: StartChoice, epoch: int, server_uuid: str) -> Position:
    return Position(
        epoch=epoch, file=choice.file, offset=choice.offset, gtid_set=choice.executed, server_uuid=server_uuid
    )


def is_followed(ledger: Ledger, directory: Path, name: str) -> bool:
    """Returns whether the lake has all changes of "database.table" up to the cursor: it is not stopped, and no snapshot of it is open."""
    record = SnapshotRecords(directory).get(name)
    return name not in {each.name for each in ledger.stopped_tables} and not (record is not None and record.is_open)


def schemas_of(
    config: DestinationConfig, records: Sequence[HistoryRecord], interval: BinlogInterval
) -> IntervalSchemas:
    """Returns the schemas that decode the interval's rows."""
    captured = TableFilter(config.include, config.exclude).keeps
    return IntervalSchemas(records, interval.cursor, interval.begin, captured)


def tables_of(ledger: Ledger, schemas: IntervalSchemas, request: RequestedInterval) -> tuple[str, ...]:
    """Returns the requested tables, including stopped ones. Raises ConfigurationError for one that is not captured."""
    stopped = {each.name for each in ledger.stopped_tables}
    return rules.chosen(request, sorted(stopped | schemas.versions().keys()))


def facts_of(
    names: Sequence[str],
    config: DestinationConfig,
    directory: Path,
    schemas: IntervalSchemas,
    staged: Sequence[StagingResult],
) -> tuple[TableFacts, ...]:
    """Returns the facts for `rules.refusal`. Intervals must have been staged before. Raises MetaError."""
    ledger, versions, keys = read_ledger(directory), schemas.versions(), keys_of(config)
    snapshots = {each.name: str(each.state) for each in SnapshotRecords(directory).all() if each.is_open}
    stops = {each.name: str(each.state) for each in ledger.stopped_tables}
    unread = {each.name: each.reason for batch in staged for each in batch.stopped}
    partial = {
        each.name for batch in staged for each in batch.manifest.tables if any(s.partial for s in _changes(each))
    }
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
        )

    return tuple(_facts_or_error(facts, name) for name in names)


def _facts_or_error(facts: Callable[[str], TableFacts], name: str) -> TableFacts:
    """Returns the facts of a table. If an error prevents that, returns facts with the error, so that only this table is refused."""
    try:
        return facts(name)
    except SluiceError:
        raise
    except Exception as error:  # The error may be of any kind; the other tables continue.
        logger.exception("the schema and settings of %s could not be read, so the backfill leaves it out", name)
        return TableFacts(name=name, raised=f"{type(error).__name__}: {error}")


def _with_bad_values(staged: StagingResult) -> frozenset[str]:
    quarantine = staged.manifest.quarantine
    if quarantine is None:
        return frozenset()
    rows = pq.read_table(staged.path / quarantine.file, columns=["database", "table"]).to_pylist()
    return frozenset(f"{row['database']}.{row['table']}" for row in rows)


def _changes(table: StagedTable) -> tuple[ChangesSegment, ...]:
    return tuple(each for each in table.segments if isinstance(each, ChangesSegment))


def _table(
    facts: TableFacts, staged: StagingResult, sample: IntervalReader, interval: BinlogInterval, known: frozenset[str]
) -> BackfillTablePlan:
    table = next((each for each in staged.manifest.tables if each.name == facts.name), None)
    counted = sum(each.inserts + each.updates + each.deletes for each in _changes(table)) if table else 0
    _, interval_bytes = rules.files_between(interval.files.logs, interval.begin, interval.end)
    return BackfillTablePlan(
        name=facts.name,
        refused=rules.refusal(facts),
        changes=counted if sample.whole else rules.scaled(counted, sample.bytes, interval_bytes),
        reaches_back=facts.name in known,
        statements=facts.statements,
    )


def _plan(
    config: DestinationConfig,
    request: RequestedInterval,
    interval: BinlogInterval,
    sample: IntervalReader,
    tables: list[BackfillTablePlan],
) -> Plan:
    earliest_us, earliest_file = earliest_on_offer(interval.files)
    files, size_bytes = rules.files_between(interval.files.logs, interval.begin, interval.read_to)
    done = [each for each in tables if not each.refused]
    changes = sum(each.changes for each in done)
    return Plan(
        destination=config.name,
        from_time=time_text(request.from_us),
        to_time="" if request.to_us is None else time_text(request.to_us),
        earliest_time=time_text(earliest_us) if earliest_file else "",
        earliest_file=earliest_file,
        begin=str(interval.begin),
        end=str(interval.end),
        read_to=str(interval.read_to),
        cursor=str(interval.cursor),
        files=tuple(files),
        bytes=size_bytes,
        sample_bytes=sample.bytes,
        counted=sample.whole,
        changes=changes,
        seconds=round(
            rules.seconds_expected(
                sample.bytes, sample.seconds, size_bytes, len([t for t in done if t.changes]), changes
            ),
            1,
        ),
        tables=tuple(tables),
    )
