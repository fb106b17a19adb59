"""Repairs the rows of a destination that differ from the source. The jobs in `job` and `decisions`, and `sluice repair`, call this module.

A repair compares tables and chooses the keys that differ. The repair reads the rows of these keys again over a separate connection, and
waits until the lake has all changes that the rows may include. Afterwards, `operation` merges the rows. Finally the repair compares the
tables again.

A repair is like a snapshot of these keys. Changes may arrive while the rows are read: a snapshot buffers these changes, and a repair reads
them again from the binlog.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ActRefusedError, SluiceError, TableStoppedError
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.orchestration.base.lake_settings import storage_options, target
from sluice.orchestration.run.rows.operation import RowsRun, operate
from sluice.orchestration.run.rows.request import RepairRequest, counts_of

if TYPE_CHECKING:
    from sluice.batch_manifest.table_report import TableReport
    from sluice.cdc_engine.instance.rows.source_rows import RowsRead
    from sluice.cdc_engine.instance.rows.work import BackfillReading
    from sluice.equality.scope import Scope
    from sluice.spark_jobs.rows.fold import Read
    from sluice.spark_jobs.staged_batch import Backfill

log = logging.getLogger(__name__)

KEYLESS = "the table has no key, so its rows cannot be identified; re-snapshot it with `sluice snapshot start`"
NO_CURRENT_STATE_TABLE = (
    "the table has no current-state table whose rows could be corrected; re-snapshot it with `sluice snapshot start`"
)
SHARD = "the table is a shard, and other shards may have the same keys; re-snapshot it with `sluice snapshot start`"
NO_TABLE = "the table has no Delta table; read the rows with `sluice snapshot start`"
TWICE_MARKED = (
    "the lake has several rows of one key, and a repair cannot remove such rows from a table with soft deletes; "
    "re-snapshot the table with `sluice snapshot start`"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRepair:
    """The plan of the repair of one table. `result` is the result of the comparison. `scope` has the keys that differ, if the comparison
    found them. `keys` has the number of differing keys by kind. `refused` says why the table is left out, or is empty.
    """

    result: TableResult
    scope: Scope | None = None
    refused: str = ""

    @property
    def name(self) -> str:
        return self.result.table

    @property
    def keys(self) -> Mapping[str, int]:
        return self.scope.counts if self.scope else {}

    def to_json(self) -> dict[str, Any]:
        return {"refused": self.refused, "keys": dict(self.keys), **self.result.to_json()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repaired:
    """The result of a repair. `outcomes` has the reports of the tables into which rows were merged. `refused` has the reason for each
    "database.table" that was left out. `after` has the results of the comparison of the repaired tables after the repair.
    """

    plan: tuple[TableRepair, ...]
    outcomes: tuple[TableReport, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    after: tuple[TableResult, ...] = ()

    @property
    def all_right(self) -> bool:
        """Whether every comparison after the repair found its table equal, and no table was left out."""
        return not self.refused and all(each.equal for each in self.after)

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": [each.to_json() for each in self.plan],
            "tables": [counts_of(each) for each in self.outcomes],
            "refused": dict(self.refused),
            "after": [each.to_json() for each in self.after],
        }


def plan_repair(config: SluiceConfig, request: RepairRequest) -> tuple[TableRepair, ...]:
    """Compares tables, and returns the plan for each table that differs or cannot be compared. Changes nothing. Raises SluiceError if the
    source or the lake does not answer.
    """
    from sluice.equality.destination import differing  # noqa: PLC0415  imports DuckDB

    extent = Extent(settle_seconds=request.settle_seconds, every_key=True)
    found = [
        TableRepair(
            result=each.result,
            scope=each.scope,
            refused=_refusal_of(config, request.destination, each.result, each.scope),
        )
        for each in differing(_compared_destination(config, request.destination), request.tables, extent)
    ]
    return tuple(each for each in found if each.scope is not None or each.refused)


def _refusal_of(config: SluiceConfig, destination: str, result: TableResult, scope: Scope | None) -> str:
    """Returns why the differences of a table cannot be repaired key by key, or "". An unexpected error also becomes such a reason, so that
    only this table is left out.
    """
    try:
        return _refusal(config, destination, result, scope)
    except SluiceError:
        raise
    except Exception as error:  # Whatever the error is, the other tables are repaired.
        return _unexpected(error)


def _unexpected(error: Exception) -> str:
    return (
        f"the table could not be repaired: {type(error).__name__}: {error}; re-snapshot it with `sluice snapshot start`"
    )


def _refusal(config: SluiceConfig, destination: str, result: TableResult, scope: Scope | None) -> str:
    """Returns why the differences cannot be repaired key by key, and what to do. Returns "" if they can be repaired, or if nothing
    differs.
    """
    if result.verdict in {Verdict.REFUSED, Verdict.UNDECIDED} and scope is None:
        return result.reason
    if result.verdict is Verdict.DIFFERENT and scope is None:
        return NO_TABLE if result.version < 0 else KEYLESS
    if scope is None:
        return ""
    if not target(config, destination, result.table).current_state:
        return NO_CURRENT_STATE_TABLE
    if target(config, destination, result.table).shard is not None:
        return SHARD
    if scope.counts["doubled"] and target(config, destination, result.table).deletes == "soft":
        return TWICE_MARKED
    return scope.refusal and f"{scope.refusal}: re-snapshot it with `sluice snapshot start`"


def run_repair(run: RowsRun, request: RepairRequest, plan: tuple[TableRepair, ...]) -> Repaired:
    """Reads the rows of the keys in `plan` from the source, merges these rows into the lake, and compares the tables again. Raises
    SluiceError or MergeFailedError, with a message for users.
    """
    refused = {each.name: each.refused for each in plan if each.refused}
    for name, why in refused.items():
        run.listener.say(f"{name} is left out: {why}")
    scopes = {each.name: each.scope for each in plan if each.scope is not None and not each.refused}
    if not scopes:
        return Repaired(plan=plan, refused=refused)
    repair = _Repair(run, request, scopes)
    outcomes = operate(run, repair)
    refused |= repair.refused
    after = _compared_again(run, request, tuple(name for name in scopes if name not in refused))
    return Repaired(plan=plan, outcomes=tuple(outcomes), refused=refused, after=after)


def _compared_again(run: RowsRun, request: RepairRequest, names: tuple[str, ...]) -> tuple[TableResult, ...]:
    from sluice.equality.destination import compare_destination  # noqa: PLC0415

    if not names:
        return ()
    found = []
    extent = Extent(mode="since-last", settle_seconds=request.settle_seconds)
    for each in compare_destination(_compared_destination(run.config, run.destination), names, extent):
        run.listener.checked(each)
        found.append(each)
    return tuple(found)


def _compared_destination(config: SluiceConfig, destination: str) -> Any:
    from sluice.cdc_engine.instance.sources import reader_of, source_of  # noqa: PLC0415
    from sluice.equality.destination import ComparedDestination  # noqa: PLC0415

    settings = config.destinations[destination]
    options = storage_options(config.storage_options)
    return ComparedDestination(config, destination, source_of(settings), options, reader=reader_of(settings))


class _Repair:
    """Implements `operation.RowsOperation` for the repair of the keys in `scopes`. `refused` has the reason for each "database.table" that
    is left out.
    """

    leaves_out = True

    def __init__(self, run: RowsRun, request: RepairRequest, scopes: Mapping[str, Scope]) -> None:
        self._run, self._request, self._scopes = run, request, scopes
        self._rows: dict[str, RowsRead] = {}
        self._id = ""
        self.refused: dict[str, str] = {}

    @property
    def marks(self) -> Backfill:
        from sluice.spark_jobs.staged_batch import REPAIR_KIND, Backfill  # noqa: PLC0415

        began = min(each.read_at_us for each in self._rows.values())
        return Backfill(backfill_id=self._id, from_us=began, to_us=0, kind=REPAIR_KIND)

    def read(self, folder: Path) -> BackfillReading | None:
        """Reads the rows of the differing keys from the source, and waits until the lake has all changes that these rows may include.
        Afterwards reads the changes since the position that the lake had before the rows were read, because rows may have changed
        meanwhile. Returns None if no rows were read, because all tables are left out.
        """
        from sluice.cdc_engine.instance.rows.interval import from_the_lake  # noqa: PLC0415
        from sluice.cdc_engine.instance.rows.rules import REPAIR_ADVICE, RequestedInterval  # noqa: PLC0415
        from sluice.cdc_engine.instance.rows.work import BackfillReading  # noqa: PLC0415

        run, self._id = self._run, folder.name
        reading = BackfillReading(
            run.config.destinations[run.destination],
            run.directory,
            RequestedInterval(from_us=0, tables=tuple(self._scopes), all_or_none=False),
            folder,
            now_us=time.time_ns() // 1000,
            progress=run.listener.progress,
            find=from_the_lake,
            advice=REPAIR_ADVICE,
        )
        reading.judge()
        self._read_rows(reading)
        if not self._rows:
            return None
        reading.read()
        return reading

    def _read_rows(self, reading: BackfillReading) -> None:
        """Reads the rows of all tables that are not refused. Returns when the lake has all changes that the rows may include."""
        from sluice.cdc_engine.instance.rows.source_rows import SourceRows  # noqa: PLC0415

        source, low = SourceRows(self._run.config, self._run.destination), reading.interval.begin
        for number, (name, scope) in enumerate(self._scopes.items()):
            if name in reading.refused:
                continue
            try:
                found = source.read(name, scope.conditions(), low, reading.folder / f"rows-{number}")
            except (ActRefusedError, TableStoppedError) as error:
                self.refused[name] = str(error)
                continue
            except (SluiceError, OSError):
                raise
            except Exception as error:  # Whatever the error is, the other tables are repaired.
                log.exception(
                    "the rows of %s could not be read because of an unexpected error; the repair leaves the table out",
                    name,
                )
                self.refused[name] = _unexpected(error)
                continue
            self._rows[name] = found
            self._run.listener.say(
                f"{name}: {len(scope.keys)} keys differ; {found.rows} rows are read again from the source"
            )
        for each in self._rows.values():
            source.wait_until_past(each.high, low, self._request.settle_seconds)

    def rows(self, reading: BackfillReading) -> dict[str, Read | None]:
        """Returns, for each table, the rows that were read from the source. If an unexpected error occurs for a table, leaves out the table
        and stores the error in `refused` as the reason.
        """
        self.refused |= reading.refused
        found = dict[str, "Read | None"]()
        for name, rows in self._rows.items():
            if name in self.refused:
                continue
            try:
                found[name] = _chosen(self._scopes[name], rows)
            except SluiceError:
                raise
            except Exception as error:  # Whatever the error is, the other tables are repaired.
                log.exception(
                    "the keys of %s could not be chosen because of an unexpected error; the repair leaves the table out",
                    name,
                )
                self.refused[name] = _unexpected(error)
        return found


def _chosen(scope: Scope, rows: RowsRead) -> Read:
    from sluice.batch_manifest.values import LakeColumn  # noqa: PLC0415
    from sluice.spark_jobs.rows.fold import Read  # noqa: PLC0415

    keys = list(scope.keys)
    return Read(
        key=rows.key,
        columns=tuple(LakeColumn(name=name, type=kind, nullable=nullable) for name, kind, nullable in rows.columns),
        files=rows.files,
        keys=dict(zip(rows.key, scope.values(keys).values(), strict=True)),
        had=[scope.keys[key].in_source for key in keys],
        doubled=[scope.keys[key].lake_rows > 1 for key in keys],
        read_at_us=rows.read_at_us,
    )
