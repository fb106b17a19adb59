"""Defines the input and the result of a snapshot's publication, and checks that rows and buffered changes have the same columns. `publish`
uses this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from sluice.batch_manifest.values import LakeColumn
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.snapshot.buffered_cascades import complete_up_to
from sluice.spark_jobs.snapshot.buffering import buffered_up_to
from sluice.spark_jobs.staged_batch import PRESENT
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables.commit_record import PublicationRecord
from sluice.spark_jobs.targets.report import TableTarget

OURS = "_sluice_"  # The prefix of Sluice's own columns.


class ColumnsDifferError(Exception):
    """Raised if buffered changes have other columns than the rows that were read. The rows must be read again."""


class CascadesUnseenError(ColumnsDifferError):
    """Raised if foreign keys changed rows during the snapshot and these changes cannot be derived. The rows must be read again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Publication:
    """A snapshot to publish.

    - `columns` are the columns of the rows, as staged. `chunks` are the files of the rows that were read, and `rows` is the number of these
      rows.
    - `changes` are the buffered changes. `cascades` are the files with changes of parent rows, from which the changes by foreign keys are
      derived.
    - `order_key` is the order key of the ledger's cursor, up to which all batches are merged. For a table without a key, `order_key` is the
      order key at which the table was read.
    - `since` is the order key up to which the rows that were read certainly include all changes. `read_at_us` is the commit time that is
      stored with these rows.
    - `run`, `epoch`, `start` and `end` are for the commit's metadata.
    """

    snapshot_id: str
    owner: Owner
    target: TableTarget
    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    chunks: StoredFiles
    rows: int
    changes: StoredFiles
    cascades: StoredFiles
    order_key: int
    read_at_us: int
    run: str
    epoch: int
    start: Mapping[str, Any]
    end: Mapping[str, Any]
    since: int = -1

    @property
    def rows_key(self) -> int:
        """The order key that is stored with the rows that were read. For a table with a key it is `since`, because all later changes are
        buffered. For a table without a key it is `order_key`, the position at which the table was read.
        """
        return self.since if self.key else self.order_key

    @property
    def soft_deletes(self) -> bool:
        return self.target.deletes == "soft" and bool(self.key)

    def label(self) -> int:
        """Returns the order key up to which the published table includes all changes."""
        return max(self.order_key, buffered_up_to(self.changes), complete_up_to(self.cascades))

    def record(self, label: int) -> str:
        """Returns the metadata of the commit that publishes the snapshot, as JSON text."""
        return PublicationRecord(
            destination=self.owner.destination,
            ledger=self.owner.ledger_id,
            table=self.owner.table,
            snapshot=self.snapshot_id,
            read=self.chunks.folder.name,
            epoch=self.epoch,
            run=self.run,
            start=self.start,
            end=self.end,
            label=label,
            read_at_us=self.read_at_us,
        ).to_text()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedSnapshot:
    """The result of a publication. `label` is the order key up to which the table includes all changes. `table_rows` and `table_bytes` are
    the size of the table after the commit, or None if the Delta log does not have the size.

    `way` is "spark" if Spark wrote the rows, and "files" if the snapshot's Parquet files became the table's files. `reason` says why it was
    this way.
    """

    rows: int
    label: int
    delta_version: int
    files: int
    seconds: float
    columns: tuple[tuple[str, str], ...]
    table_rows: int | None = None
    table_bytes: int | None = None
    way: Literal["spark", "files"] = "spark"
    reason: str = ""


def check_columns(given: Publication) -> None:
    """Raises ColumnsDifferError if a buffered file has other columns or types than the rows that were read. This is rare: a DDL statement
    that changes columns usually restarts the snapshot. Also raises ColumnsDifferError if there is no chunk, or if the table became a shard
    after rows were read.
    """
    chunk = next(iter(given.chunks.names()), None)
    if chunk is None:
        raise ColumnsDifferError("no chunk was read")
    wanted, shard = _theirs(given.chunks, chunk), given.target.shard
    if shard is not None and shard.column not in given.chunks.schema(chunk).names:
        raise ColumnsDifferError(f"the snapshot read rows before conf/ declared the table a shard ({shard.name!r})")
    for name in given.changes.names():
        if _theirs(given.changes, name) != wanted:
            raise ColumnsDifferError(f"the buffered changes have other columns than the rows that were read ({name})")


def is_partial(given: Publication) -> bool:
    """Returns whether any buffered image may lack columns."""
    return any(f"{PRESENT}0" in given.changes.schema(name).names for name in given.changes.names())


def _theirs(files: StoredFiles, name: str) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in files.schema(name) if not field.name.startswith(OURS)}
