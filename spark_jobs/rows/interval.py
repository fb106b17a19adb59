"""Describes an interval of the stream that was read again for an operation on rows, and the parts of it that concern one table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sluice.batch_manifest.values import ChangesSegment, StagedTable
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.side_tables.history_fix import HistoryFix
from sluice.spark_jobs.staged_batch import Backfill, StagedBatch, app_id_of
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables.commit_record import commit_record
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.targets.report import TableTarget


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedInterval:
    """The interval that was read. `folders`: consecutive staged batches. `backfill`: its id and times, which the commits store.

    `changed_up_to`: order key of the interval's end. `lake_at`: order key up to which the lake has every table, at least; `read_to`:
    order key up to which the stream was read. `ledger_id`: the destination's present ledger. `start`, `end`: positions, as in a manifest.
    """

    backfill: Backfill
    destination: str
    ledger_id: str
    epoch: int
    folders: Sequence[Path]
    changed_up_to: int
    lake_at: int
    read_to: int
    start: Mapping[str, object]
    end: Mapping[str, object]

    def batch(self, table: StagedTable, which: str = "") -> StagedBatch:
        """Returns one table's part as a batch. `which`: distinguishes several batches of one table."""
        return StagedBatch(
            directory=self.folders[0],
            destination=self.destination,
            ledger_id=self.ledger_id,
            epoch=self.epoch,
            delivery=0,
            start=dict(self.start),
            end=dict(self.end),
            tables=(table,),
            backfill=dataclasses.replace(self.backfill, backfill_id=f"{self.backfill.backfill_id}{which}"),
        )

    def mending(
        self, session: LakeSession, table: StagedTable, target: TableTarget, up_to: int, context: MergeContext
    ) -> HistoryFix:
        """Returns the update of the table's history that follows the merge. `table`: has one segment. `up_to`: the order key up to which
        the lake has the table.
        """
        (segment,) = table.changes
        batch = self.batch(table)
        return HistoryFix(
            session=session,
            folder=self.folders[0].parent / "history",
            owner=batch.owner(table),
            target=target,
            key=segment.key,
            place=(up_to, int(str(self.end.get("time_us") or 0))),
            record=commit_record(batch, table, segment, context.run),
            storage_options=context.storage_options,
            records=context.records,
            fence=session.fence,
        )

    def changes(self, staged: Iterable[StagedBatch], name: str, up_to: int) -> list[ChangesSegment]:
        """Returns a table's segments of changes in order. `up_to`: the order key up to which the lake has the table.

        Raises TableError if the lake has more than was read, or if the table itself was changed.
        """
        act = self.backfill.kind
        if up_to > self.read_to:
            why = f"the lake is at a later position than the {act} has read; start the {act} again"
            raise TableError(name, why, own=False)
        found = [table for batch in staged for table in batch.tables if table.name == name]
        if any(len(table.changes) != len(table.segments) for table in found):
            raise TableError(name, f"the table itself changed meanwhile; start the {act} again", own=False)
        return [segment for table in found for segment in table.changes]


def staged_table(name: str, segment: ChangesSegment) -> StagedTable:
    """Makes a table with one segment. `name`: "database.table"."""
    database, _, short = name.partition(".")
    return StagedTable(database=database, table=short, segments=(segment,))


def place_of(interval: StagedInterval, name: str, target: TableTarget, storage_options: Mapping[str, str]) -> int:
    """Returns the order key up to which the lake has "database.table". Raises TableError if the Delta log cannot be read."""
    owner = Owner(ledger_id=interval.ledger_id, destination=interval.destination, table=name)
    table = DeltaTable(name, target.path, app_id_of(owner), storage_options)
    return max(interval.lake_at, table.refresh().applied_order_key)
