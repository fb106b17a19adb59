"""Defines a staged batch as a run uses it, and the columns of its files. docs/architecture.md describes the format. `staged_files` reads
batches from files.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sluice.batch_manifest.values import (
    AlterationKind,
    ChangesSegment,
    LakeColumn,
    Manifest,
    SchemaSegment,
    Segment,
    StagedTable,
    TruncateSegment,
)
from sluice.spark_jobs.table_owner import Owner

OPERATION = "_sluice_operation"
ORDER_KEY = "_sluice_order_key"
COMMIT_TIME = "_sluice_commit_time"
# The column with the number that orders the images of a table. This column is not written to Delta.
ROW = "_sluice_row"
DELETED = "_sluice_deleted"
STAGED_TYPES = {OPERATION: "tinyint", ORDER_KEY: "bigint", COMMIT_TIME: "timestamp", ROW: "bigint"}
PRESENT, MOVED, BIRTH, ORIGIN = "_sluice_present_", "_sluice_moved", "_sluice_birth", "_sluice_origin_"
BACKFILL_KIND, REPAIR_KIND = "backfill", "repair"
# The kind of a commit that writes values of the quarantine (`sluice quarantine replay`).
QUARANTINE_KIND = "quarantine"
EPOCH_BITS = 14  # The epoch is in this many of the highest bits of an order key.
GROUP_COLUMNS = 63  # One int64 has the presence bits of this many columns.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backfill:
    """A requested backfill of the changes from `from_us` up to, but not including, `to_us`, in microseconds since 1970. If `to_us` is 0,
    the backfill reads up to the end of the stream.

    `backfill_id` identifies the request. `kind` is "backfill", or "repair" for rows that were read from the source at `from_us`.
    """

    backfill_id: str
    from_us: int
    to_us: int
    kind: str = BACKFILL_KIND


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedBatch(Manifest):
    """A manifest with the full paths of its files, as a run uses it. Runs also create batches themselves, for example for a backfill.

    - `directory` is the directory of the batch's files.
    - `backfill` is set for a backfill or a repair, which does not change the tables' positions in the stream.
    - `stored` is the URL of the batch if the batch is in an object store. `directory` is then a local copy. `stored` is empty if the batch
      is only local.
    """

    directory: Path
    backfill: Backfill | None = None
    stored: str = ""

    def app_id(self, table: StagedTable) -> str:
        """Returns the app id of the Delta transaction that stores the last merged order key of this table. The app id stays the same when
        the epoch changes, because the order key contains the epoch. Each backfill and each repair has its own app ids, so that the order
        key that merges of the stream have stored stays unchanged.
        """
        if self.backfill is not None:
            aside = f"{self.backfill.kind}/{self.backfill.backfill_id}"
            return f"sluice/{self.destination}/{self.ledger_id}/{aside}/{table.name}"
        return app_id_of(self.owner(table))

    def owner(self, table: StagedTable) -> Owner:
        return self.owner_of(table.name)

    def owner_of(self, name: str) -> Owner:
        """Returns the owner of "database.table" in the lake. The table need not be in the batch."""
        return Owner(ledger_id=self.ledger_id, destination=self.destination, table=name)


def app_id_of(owner: Owner) -> str:
    return f"sluice/{owner.destination}/{owner.ledger_id}/{owner.table}"


def epoch_of(order_key: int) -> int:
    """Returns the epoch that an order key contains."""
    return order_key >> (63 - EPOCH_BITS)


def staged_types(segment: ChangesSegment) -> dict[str, str]:
    """Returns the name and Spark's type of each column of a segment's file, in the file's order."""
    types = {**STAGED_TYPES, **{column.name: column.type for column in segment.columns}}
    if not segment.partial:
        return types
    present = {f"{PRESENT}{group}": "bigint" for group in range(-(-len(segment.columns) // GROUP_COLUMNS))}
    origins = {f"{ORIGIN}{index}": types[name] for index, name in enumerate(segment.key)}
    return {**types, **present, MOVED: "boolean", BIRTH: "bigint", **origins}


def last_order_key(segment: Segment) -> int:
    """Returns the order key of a segment's last change."""
    return segment.last_order_key if isinstance(segment, ChangesSegment) else segment.order_key


def first_lacking(staged: StagedTable, applied: int, *, leaves_rows: bool) -> ChangesSegment | SchemaSegment | None:
    """Returns the first segment after the order key `applied`. Returns None if there is none, or if this segment empties the table or
    replaces it by a renamed one. With `leaves_rows`, a TRUNCATE leaves rows in the Delta table, so the segment after the TRUNCATE counts.
    """
    lacking = (segment for segment in staged.segments if last_order_key(segment) > applied)
    first = next((each for each in lacking if not (leaves_rows and isinstance(each, TruncateSegment))), None)
    replaces = isinstance(first, SchemaSegment) and bool(first.renamed_from)
    return None if first is None or isinstance(first, TruncateSegment) or replaces else first


def columns_before(segment: ChangesSegment | SchemaSegment) -> tuple[LakeColumn, ...]:
    """Returns the columns that the source's table had before a segment. A segment has only the columns after its DDL statement. So the
    result lacks columns that the statement drops, and columns whose type the statement changes have their new type.
    """
    altered = segment.alterations if isinstance(segment, SchemaSegment) else ()
    renamed = {each.new_name.lower(): each.column for each in altered if each.kind is AlterationKind.RENAME}
    added = {each.column.lower() for each in altered if each.kind is AlterationKind.ADD} - renamed.keys()
    columns = (column for column in segment.columns if column.name.lower() not in added)
    return tuple(dataclasses.replace(each, name=renamed.get(each.name.lower(), each.name)) for each in columns)
