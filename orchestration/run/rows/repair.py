"""Repairs the rows of a destination that differ from the source. Called by the job of `repair_jobs`, and by `sluice repair`.

The comparison finds the keys. Their rows are read again over a separate connection, and merged when the lake has all changes that they
may show. This is like a snapshot of these keys only, except that the stream's changes are read again from the binlog instead of buffered.
Then both sides are compared again."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ActRefusedError, SluiceError, TableStoppedError
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.lake_settings import storage_options, target, told
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.cuts import amend_cut
from sluice.orchestration.run.merge_run import only_writer_of_rows_read
from sluice.orchestration.run.rows.merge import RowsOperation, merge_read, not_merged
from sluice.orchestration.run.rows.request import RepairRequest, RowsListener, counts_of

if TYPE_CHECKING:
    from sluice.batch_manifest.table_report import TableReport
    from sluice.cdc_engine.instance.rows.source_rows import RowsRead
    from sluice.cdc_engine.instance.rows.work import BackfillReading
    from sluice.equality.scope import Scope
    from sluice.spark_jobs.rows.fold import Read

log = logging.getLogger(__name__)

KEYLESS = "it has no key, so its rows cannot be distinguished; re-snapshot it with `sluice snapshot start`"
NO_CURRENT_STATE_TABLE = (
    "it has no current-state table whose rows could be corrected; re-snapshot it with `sluice snapshot start`"
)
SHARD = "it is a shard, and other shards may have the same keys; re-snapshot it with `sluice snapshot start`"
NO_TABLE = "it has no Delta table; read its rows with `sluice snapshot start`"
NOT_IN_SNAPSHOT = (
    "its rows are repaired, but its version could not be added to the newest consistent snapshot; the snapshot of the next "
    "batch includes it"
)
TWICE_MARKED = (
    "the lake has keys twice, and deleted rows are only marked there; re-snapshot it with `sluice snapshot start`"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRepair:
    """The plan for one table. `keys`: how many keys differ, by kind. `refused`: why the table is left out, or empty."""

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
    """The result of the repair. `refused`: "database.table" → why it was left out. `after`: the comparisons of the repaired tables after
    the repair.
    """

    plan: tuple[TableRepair, ...]
    outcomes: tuple[TableReport, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    after: tuple[TableResult, ...] = ()

    @property
    def all_right(self) -> bool:
        """Returns whether no table is known to differ any more and none was left out."""
        return not self.refused and all(each.equal for each in self.after)

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": [each.to_json() for each in self.plan],
            "tables": [counts_of(each) for each in self.outcomes],
            "refused": dict(self.refused),
            "after": [each.to_json() for each in self.after],
        }


def plan_repair(config: SluiceConfig, request: RepairRequest) -> tuple[TableRepair, ...]:
    """Compares, and returns the plan for each table that differs or cannot be compared. Changes nothing. Raises SluiceError."""
    from sluice.equality.destination import differing  # noqa: PLC0415  imports DuckDB

    extent = Extent(settle_seconds=request.settle_seconds, every_key=True)
    found = [
        TableRepair(
            result=each.result,
            scope=each.scope,
            refused=_refusal_of(config, request.destination, each.result, each.scope),
        )
        for each in differing(_asked(config, request.destination), request.tables, extent)
    ]
    return tuple(each for each in found if each.scope is not None or each.refused)


def _refusal_of(config: SluiceConfig, destination: str, result: TableResult, scope: Scope | None) -> str:
    """Calls `_refusal`. A table for which it raises an unexpected error is left out, with that error as the reason."""
    try:
        return _refusal(config, destination, result, scope)
    except SluiceError:
        raise
    except Exception as error:  # The error may be of any kind; the other tables are repaired.
        return _unexpected(error)


def _unexpected(error: Exception) -> str:
    return f"it could not be repaired: {type(error).__name__}: {error}; re-snapshot it with `sluice snapshot start`"


def _refusal(config: SluiceConfig, destination: str, result: TableResult, scope: Scope | None) -> str:
    """Returns why the differences cannot be repaired key by key, and what to do; empty if they can be, or if nothing differs."""
    if result.verdict in {Verdict.REFUSED, Verdict.UNDECIDED} and scope is None:
        return result.reason
    if result.verdict is Verdict.DIFFERENT and scope is None:
        return NO_TABLE if result.version < 0 else KEYLESS
    if scope is None:
        return ""
    if not target(config, destination, result.table).mirror:
        return NO_CURRENT_STATE_TABLE
    if target(config, destination, result.table).shard is not None:
        return SHARD
    if scope.counts["doubled"] and target(config, destination, result.table).deletes == "soft":
        return TWICE_MARKED
    return scope.refusal and f"{scope.refusal}: re-snapshot it with `sluice snapshot start`"


def run_repair(
    ports: Ports,
    config: SluiceConfig,
    request: RepairRequest,
    plan: tuple[TableRepair, ...],
    listener: RowsListener,
    *,
    run: str = "",
    wait_seconds: float = 0.0,
) -> Repaired:
    """Reads and merges the rows that `plan_repair` found, and compares these tables again. Raises SluiceError or MergeFailedError, with a
    sentence.

    Always safe to repeat. `wait_seconds`: how long to wait for a backfill or another repair of the destination.
    """
    from sluice.cdc_engine.instance.rows.work import folder_of  # noqa: PLC0415  imports the engine's packages

    refused = {each.name: each.refused for each in plan if each.refused}
    for name, why in refused.items():
        listener.say(f"{name} is left out: {why}")
    scopes = {each.name: each.scope for each in plan if each.scope is not None and not each.refused}
    if not scopes:
        return Repaired(plan=plan, refused=refused)
    with folder_of(config.destination_dir(request.destination), wait_seconds) as folder:
        work = _RepairWork(ports, config, request, listener, folder, run)
        outcomes = work.do(scopes)
        refused |= work.refused
    after = _compared_again(config, request, tuple(name for name in scopes if name not in refused), listener)
    return Repaired(plan=plan, outcomes=tuple(outcomes), refused=refused, after=after)


def _compared_again(
    config: SluiceConfig, request: RepairRequest, names: tuple[str, ...], listener: RowsListener
) -> tuple[TableResult, ...]:
    from sluice.equality.destination import compare_destination  # noqa: PLC0415

    if not names:
        return ()
    found = []
    extent = Extent(mode="since-last", settle_seconds=request.settle_seconds)
    for each in compare_destination(_asked(config, request.destination), names, extent):
        listener.checked(each)
        found.append(each)
    return tuple(found)


def _asked(config: SluiceConfig, destination: str) -> Any:
    from sluice.cdc_engine.instance.sources import source_of  # noqa: PLC0415
    from sluice.equality.destination import ComparedDestination  # noqa: PLC0415

    source = source_of(config.destinations[destination])
    return ComparedDestination(config, destination, source, storage_options(config.storage_options))


class _RepairWork:
    """Does one repair, with a folder of its own. `refused`: the tables left out so far, with reasons."""

    def __init__(  # noqa: PLR0917  one caller
        self,
        ports: Ports,
        config: SluiceConfig,
        request: RepairRequest,
        listener: RowsListener,
        folder: Path,
        run: str,
    ) -> None:
        self._ports, self._config, self._wish = ports, config, request
        self._listener, self._folder, self._run = listener, folder, run
        self.refused: dict[str, str] = {}

    def do(self, scopes: Mapping[str, Scope]) -> list[TableReport]:
        """Reads and merges. Raises SluiceError or MergeFailedError."""
        reading = self._reading(tuple(scopes))
        rows = self._rows(scopes, reading)
        if not rows:
            return []
        reading.read()
        failpoints.reach(failpoints.BEFORE_REPAIR)
        lock = only_writer_of_rows_read(self._ports, self._config, self._wish.destination, self._listener.say)
        with lock as refusal:
            outcomes = self._merge(reading, scopes, rows, refusal)
        failpoints.reach(failpoints.AFTER_REPAIR)
        return outcomes

    def _reading(self, names: tuple[str, ...]) -> BackfillReading:
        from sluice.cdc_engine.instance.rows.plan import from_the_lake  # noqa: PLC0415
        from sluice.cdc_engine.instance.rows.rules import REPAIR_ADVICE, RequestedInterval  # noqa: PLC0415
        from sluice.cdc_engine.instance.rows.work import BackfillReading  # noqa: PLC0415

        destination = self._wish.destination
        reading = BackfillReading(
            self._config.destinations[destination],
            self._config.destination_dir(destination),
            RequestedInterval(from_us=0, tables=names, all_or_none=False),
            self._folder,
            now_us=time.time_ns() // 1000,
            find=from_the_lake,
            advice=REPAIR_ADVICE,
        )
        reading.judge()
        return reading

    def _rows(self, scopes: Mapping[str, Scope], reading: BackfillReading) -> dict[str, RowsRead]:
        """Reads the rows of the tables that are not refused. Returns them when the lake has all changes that they may contain."""
        from sluice.cdc_engine.instance.rows.source_rows import SourceRows  # noqa: PLC0415

        source, low = SourceRows(self._config, self._wish.destination), reading.place.begin
        found: dict[str, RowsRead] = {}
        for number, (name, scope) in enumerate(scopes.items()):
            if name in reading.refused:
                continue
            folder = self._folder / f"rows-{number}"
            try:
                found[name] = source.read(name, scope.conditions(), low, folder)
            except (ActRefusedError, TableStoppedError) as error:
                self.refused[name] = str(error)
                continue
            except (SluiceError, OSError):
                raise
            except Exception as error:  # The error may be of any kind; the other tables are repaired.
                log.exception("rows of %s could not be read", name)
                self.refused[name] = _unexpected(error)
                continue
            self._listener.say(
                f"{name}: {len(scope.keys)} keys differ; {found[name].rows} rows are read again from the source"
            )
        for each in found.values():
            source.wait_until_past(each.high, low, self._wish.settle_seconds)
        return found

    def _merge(
        self,
        reading: BackfillReading,
        scopes: Mapping[str, Scope],
        rows: Mapping[str, RowsRead],
        refusal: Callable[[], str],
    ) -> list[TableReport]:
        """Merges the rows. The caller holds the run lock, whose fence is `refusal`. Raises MergeFailedError."""
        from sluice.spark_jobs.errors import SparkJobError  # noqa: PLC0415
        from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
        from sluice.spark_jobs.session import table_error  # noqa: PLC0415
        from sluice.spark_jobs.staged_batch import REPAIR_KIND, Backfill  # noqa: PLC0415

        lake, destination, fence = reading.catch_up(), self._wish.destination, Fence(refusal)
        self.refused |= reading.refused
        names = [name for name in rows if name not in self.refused]
        began = min(each.read_at_us for each in rows.values())
        operation = RowsOperation(
            config=self._config,
            destination=destination,
            backfill=Backfill(backfill_id=self._folder.name, from_us=began, to_us=0, kind=REPAIR_KIND),
            fence=fence,
            run=self._run,
        )

        def done(report: TableReport, label: int) -> None:
            failpoints.reach(failpoints.BETWEEN_REPAIRED)
            try:
                amend_cut(self._config, destination, report.name, label, fence)
            except (SluiceError, SparkJobError):
                raise
            except Exception as error:
                raise table_error(report.name, error, NOT_IN_SNAPSHOT) from error
            self._listener.merged(report)

        def left(name: str, keys: int) -> None:
            self._listener.say(
                f"{name}: {keys} keys that differed are not changed: the source no longer has rows of them; the next "
                "comparison shows whether they still differ"
            )

        merged, failed = merge_read(
            operation, reading, lake, self._all_chosen(names, scopes, rows), done=done, on_left=left
        )
        if any(not each.own for each in failed.values()):
            raise MergeFailedError(told(self._config, not_merged("repair", merged, failed)))
        self.refused |= {each.table: told(self._config, each.reason) for each in failed.values()}
        return merged

    def _all_chosen(
        self, names: Sequence[str], scopes: Mapping[str, Scope], rows: Mapping[str, RowsRead]
    ) -> dict[str, Read | None]:
        """Returns what is merged into each table. A table for which an unexpected error is raised is left out, with that error as the
        reason.
        """
        found = dict[str, "Read | None"]()
        for name in names:
            try:
                found[name] = self._chosen(scopes[name], rows[name])
            except SluiceError:
                raise
            except Exception as error:  # The error may be of any kind; the other tables are repaired.
                log.exception("keys of %s could not be chosen", name)
                self.refused[name] = _unexpected(error)
        return found

    def _chosen(self, scope: Scope, rows: RowsRead) -> Read:
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
