"""Provides a table with its current-state table, change log and history, in a folder of the test. Writes batches to these three tables
without Spark.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from sluice.batch_manifest.table_report import TableReport
from sluice.spark_jobs.conflicts import CommitConflicts
from sluice.spark_jobs.merging.context import BY_HAND_CONTEXT
from sluice.spark_jobs.side_tables.write import Share, write_side_tables
from sluice.spark_jobs.small.merge import SmallJob, merge_small
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.staged import (
    DELETE,
    INSERT,
    LEDGER_ID,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Changes,
    Image,
    Records,
    Schema,
    Segment,
    stage,
)

NAME = "shop.orders"
ORDERS = Schema({"id": "bigint", "note": "string"}, ("id",))


@dataclasses.dataclass
class LoggedTable:
    """Provides a current-state table with its change log and history. `deliveries` numbers the batches. `records` stores the records that a
    merge keeps about the change log and the history.
    """

    folder: Path
    deliveries: itertools.count[int] = dataclasses.field(default_factory=lambda: itertools.count(1))
    records: Records = dataclasses.field(default_factory=Records)
    name: str = NAME

    @property
    def target(self) -> TableTarget:
        path = f"{self.folder}/lake/{self.name.replace('.', '/')}"
        return TableTarget(
            path=path, merge="small", deletion_vectors=False, change_log=f"{path}__log", history=f"{path}__history"
        )

    @property
    def paths(self) -> dict[str, str]:
        """Returns kind → path of change log and history."""
        return {"log": self.target.change_log, "history": self.target.history}

    def stage(self, *segments: Segment, ledger_id: str = LEDGER_ID) -> Path:
        return stage(
            self.folder / "staging", {self.name: segments}, delivery=next(self.deliveries), ledger_id=ledger_id
        )

    def merge(self, directory: Path) -> TableReport:
        """Merges into the current-state table only."""
        batch = read_staged_batch(directory)
        (table,) = batch.tables
        given = dataclasses.replace(batch, tables=())
        result = merge_small(
            SmallJob(
                batch=given,
                staged=table,
                target=self.target,
                known=None,
                staged_at=0.0,
                storage_options={},
                makes_tables=True,
            ),
            CommitConflicts(),
        )
        assert isinstance(result, tuple), result
        return result[0]

    def write(self, directory: Path, **wanted: Any) -> None:
        """Writes change log and history only."""
        write_side_tables(None, self.share(directory, **wanted))

    def share(self, directory: Path, **wanted: Any) -> Share:
        batch = read_staged_batch(directory)
        (table,) = batch.tables
        target = dataclasses.replace(self.target, **wanted)
        context = dataclasses.replace(BY_HAND_CONTEXT, records=self.records)
        return Share(batch=batch, staged=table, target=target, context=context)

    def rows(self, path: str, columns: str, order: str) -> list[tuple[Any, ...]]:
        log = deltalake.DeltaTable(path)
        found = deltalake.QueryBuilder().register("t", log).execute(f"SELECT {columns} FROM t ORDER BY {order}")
        return [tuple(row.values()) for row in pa.table(found.read_all()).to_pylist()]

    def history(self) -> list[tuple[Any, ...]]:
        """Returns the rows of the history: (id, note, from order key, to order key, is current)."""
        columns = "id, note, _sluice_from_order_key, _sluice_to_order_key, is_current"
        return self.rows(self.target.history, columns, "id, _sluice_from_order_key")


def insert(key: int, index: int, note: str = "") -> Image:
    return Image(INSERT, index, {"id": key, "note": note or f"n{index}"})


def update(key: int, index: int, note: str = "") -> Image:
    return Image(UPDATE_AFTER, index, {"id": key, "note": note or f"n{index}"})


def before(key: int, index: int, note: str) -> Image:
    return Image(UPDATE_BEFORE, index, {"id": key, "note": note})


def delete(key: int, index: int, note: str = "") -> Image:
    return Image(DELETE, index, {"id": key, "note": note})


def changes(images: Sequence[Image], log: Sequence[Image] = ()) -> Changes:
    return Changes(ORDERS, images, log=log or images)
