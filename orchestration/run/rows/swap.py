"""Replaces the rows of a live table by the rows of a table that `backfill --into` has built. `sluice lake swap` calls this module.

`run_swap` plans the swap again under the run lock, and holds the lock until the commit. So no merge can add a change that the plan does not
consider.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.orchestration.base.lake_settings import lake_errors, storage_options, target
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.merge_run import only_writer
from sluice.orchestration.run.spark_merge import KeptRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluice.spark_jobs.backfill.swap import PastTable
    from sluice.spark_jobs.table_owner import Owner
    from sluice.spark_jobs.tables.delta_table import DeltaTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwapRequest:
    """A requested swap. `table` is the live table, and `rebuilt` the table that `--into` built. Both names have the form
    "database.table".
    """

    destination: str
    table: str
    rebuilt: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwapPlan:
    """The plan of a swap: the rows of the table `rebuilt` replace the rows of the live table `table`.

    - `path` and `version` are the path and the current version of the live table.
    - `up_to` is the position up to which `rebuilt` has the changes, or empty if `rebuilt` does not record a position.
    - `rows_before` is the number of rows of the live table, or None if its Delta log does not have the number.
    - `rows_after` is the number of rows of `rebuilt`.
    - `refused` says why the swap is impossible, or is empty.
    """

    table: str
    rebuilt: str
    path: str
    version: int
    up_to: str
    rows_before: int | None
    rows_after: int
    refused: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def plan_swap(config: SluiceConfig, request: SwapRequest) -> SwapPlan:
    """Returns the plan of a swap, and changes nothing. Reads only Delta logs and Sluice's files. Raises SluiceError if a record cannot be
    read, and MergeFailedError if a Delta log cannot be read.
    """
    return _plan(config, request, *_both(config, request))


def run_swap(
    ports: Ports, config: SluiceConfig, request: SwapRequest, say: Callable[[str], None], run: str = ""
) -> int:
    """Replaces the rows of the live table, and returns the table's new version. Raises SluiceError or MergeFailedError, with a message for
    users, if this is impossible. The caller may repeat the swap after an error.
    """
    from sluice.spark_jobs.backfill.swap import swap  # noqa: PLC0415
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415

    with only_writer(ports, config, request.destination, say) as refusal:
        table, owner, rebuilt = _both(config, request)
        plan = _plan(config, request, table, owner, rebuilt)
        if plan.refused:
            raise MergeFailedError(f"{request.table}: {plan.refused}")
        records = KeptRecords(LakeTables(config.destination_dir(request.destination)))
        with lake_errors(config):
            return swap(table, owner, rebuilt, records, Fence(refusal), run=run)


def _both(config: SluiceConfig, request: SwapRequest) -> tuple[DeltaTable, Owner, PastTable]:
    from sluice.spark_jobs.backfill.swap import read_rebuilt  # noqa: PLC0415
    from sluice.spark_jobs.staged_batch import app_id_of  # noqa: PLC0415
    from sluice.spark_jobs.table_owner import Owner  # noqa: PLC0415
    from sluice.spark_jobs.tables.delta_table import DeltaTable  # noqa: PLC0415

    options = storage_options(config.storage_options)
    ledger = read_ledger(config.destination_dir(request.destination))
    owner = Owner(ledger_id=ledger.ledger_id, destination=request.destination, table=request.table)
    table = DeltaTable(
        request.table, target(config, request.destination, request.table).path, app_id_of(owner), options
    )
    database, _, name = request.rebuilt.partition(".")
    with lake_errors(config):
        table.refresh()
        return table, owner, read_rebuilt(config.table_path(request.destination, database, name), options)


def _plan(config: SluiceConfig, request: SwapRequest, table: DeltaTable, owner: Owner, rebuilt: PastTable) -> SwapPlan:
    from sluice.spark_jobs.backfill.swap import recorded_commits, refusal  # noqa: PLC0415

    position = Position.from_json(dict(rebuilt.up_to)) if rebuilt.up_to else None
    up_to, size = position.order_key if position else -1, table.size
    why = _why_not(config, request, table) or refusal(
        owner, table.snapshot.schema, rebuilt, up_to, recorded_commits(table)
    )
    return SwapPlan(
        table=request.table,
        rebuilt=request.rebuilt,
        path=table.path,
        version=table.snapshot.version,
        up_to=str(position or ""),
        rows_before=size.rows if size else None,
        rows_after=rebuilt.rows,
        refused=why,
    )


def _why_not(config: SluiceConfig, request: SwapRequest, table: DeltaTable) -> str:
    """Returns why the settings or the state of the live table forbid any swap, and what to do. Returns "" if they allow a swap. Does not
    look at the table whose rows would replace the live table's rows.
    """
    directory, given = config.destination_dir(request.destination), target(config, request.destination, request.table)
    database, _, name = request.table.partition(".")
    stop = read_ledger(directory).stopped(database, name)
    snapshot = SnapshotRecords(directory).get(request.table)
    if given.shard is not None:
        return (
            "the table is a shard, and its Delta table has rows of other shards: re-snapshot it with `sluice "
            "snapshot start`"
        )
    if not given.current_state or given.has_side_tables:
        return (
            "the change log or history of the table does not record a swap, but it records a snapshot: re-snapshot "
            "the table with `sluice snapshot start`"
        )
    if not table.snapshot.exists:
        return f"no Delta table exists at {table.path} yet, so there are no rows to replace"
    if stop is not None:
        return f"the table has stopped ({stop.state}): resume the table first; `sluice status` shows how"
    if snapshot is not None and snapshot.is_open:
        return (
            f"a snapshot of the table is {snapshot.state}: wait until the snapshot has published all rows, or cancel it"
        )
    return ""
