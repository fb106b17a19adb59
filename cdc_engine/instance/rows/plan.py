"""Plans a backfill: what the backfill would read and change, and which tables it would refuse. Changes nothing. `sluice backfill --plan`
shows the plan.

Stages a part of the interval into a temporary folder, as the backfill would. From this part, it extrapolates the number of changes and the
time for the whole interval.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import tempfile
from pathlib import Path
from typing import Any

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.instance.rows import rules
from sluice.cdc_engine.instance.rows.interval import (
    BinlogInterval,
    facts_of,
    locate_interval,
    records_of,
    schemas_of,
    tables_of,
    tables_unlike,
)
from sluice.cdc_engine.instance.rows.reading import IntervalReader, PreparedBefore, files_for
from sluice.cdc_engine.instance.rows.rules import RequestedInterval, TableFacts
from sluice.cdc_engine.instance.rows.schemas import known_at
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.parser.positions.time_search import earliest_on_offer
from sluice.cdc_engine.staging.staging import StagingResult
from sluice.cdc_engine.time_text import time_text

logger = logging.getLogger(__name__)

SAMPLE_BYTES_MAX = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillTablePlan:
    """What a backfill would do with one table. `refused` says why the table cannot be backfilled and what to do instead, or is empty.
    `changes` is the expected number of changes.

    `reaches_back` is True if the schema history still knows the table at the beginning of the interval. `statements` are the statements in
    the interval that concern the table.
    """

    name: str
    refused: str
    changes: int
    reaches_back: bool
    statements: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a backfill. Times are in ISO form. `to_time` is empty if no end was requested. `earliest_time` is the earliest time whose
    binlog can be read, and `earliest_file` the file that begins at this time; both are empty if no file can be read. The backfill applies
    the changes between the positions `begin` and `end`, and reads the binlog files `files` up to `read_to`. `cursor` is the destination's
    cursor.

    If `gtids` is set, the backfill applies only these transactions, and `changes` is an upper limit. If `counted` is True, the whole
    interval was read for the plan, so `changes` is exact. `bytes` is how much of the binlog the backfill must read, and `sample_bytes` how
    much was read for the plan. `seconds` is the estimated duration of the backfill.
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
    gtids: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{each.name}: {each.refused}" for each in self.tables if each.refused)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "problems": list(self.problems)}


def make_plan(config: DestinationConfig, directory: Path, request: RequestedInterval, now_us: int) -> Plan:
    """Returns the plan of a backfill. Raises PositionLostError if the requested time or a GTID is purged, ConfigurationError or
    ActRefusedError if the request is refused, and another SluiceError if the binlog cannot be read or staged.
    """
    rules.check_request(request, now_us)
    ledger = read_ledger(directory)
    interval = locate_interval(config, ledger, request)
    records = records_of(config, directory, interval, request.schemas)
    schemas = schemas_of(config, records, interval)
    names = tables_of(ledger, schemas, request)
    sample = IntervalReader(
        config,
        interval.begin,
        schemas,
        frozenset(names),
        files=functools.partial(files_for, config, request.archive, ledger.cursor),
        until=interval.end,
        bytes_max=SAMPLE_BYTES_MAX,
    )
    with tempfile.TemporaryDirectory(prefix="backfill-plan-", dir=directory) as folder:
        staged = sample.staged(Path(folder), policies_of(config), PreparedBefore())
        unlike = tables_unlike(config, directory, interval, schemas, request)
        facts = facts_of(names, config, directory, schemas, [staged], unlike=unlike, given=request.schemas)
    known = known_at(records, interval.begin)
    return _plan(config, request, interval, sample, [_table(each, staged, sample, interval, known) for each in facts])


def _table(
    facts: TableFacts, staged: StagingResult, sample: IntervalReader, interval: BinlogInterval, known: frozenset[str]
) -> BackfillTablePlan:
    table = next((each for each in staged.manifest.tables if each.name == facts.name), None)
    counted = sum(each.inserts + each.updates + each.deletes for each in table.changes) if table else 0
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
    found = interval.transactions
    to_us = found.to_us if found else request.to_us
    return Plan(
        destination=config.name,
        from_time=time_text(found.from_us if found else request.from_us),
        to_time="" if to_us is None else time_text(to_us),
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
        gtids=request.gtids,
    )
