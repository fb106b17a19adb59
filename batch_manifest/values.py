"""Defines the values in a manifest: tables with their segments and columns, and foreign keys that change rows without row events.

The engine makes the values, `file` writes and reads them, and runs merge them. The JSON file of a manifest names files without a directory.
Reading it adds the directory.
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any, Literal

Bound = int | str | None
TableName = tuple[str, str]  # (database, table)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LakeColumn:
    """A column of a staged file and of a lake table. `type` is its type in Spark SQL. `mysql_type` is its type as declared in the source.
    `nullable` says whether the column may be NULL in the staged file, for example because a zero date becomes NULL.
    """

    name: str
    type: str
    nullable: bool = True
    mysql_type: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangesSegment:
    """Row images of one table and one schema version in one Parquet file, in stream order. All images of a transaction are in one segment,
    so the order keys of adjacent segments differ.

    - `version` is a digest of the schema, or is empty if a run made the segment.
    - `rows` is the number of images. `key_changes` is the number of before images among them if the table has a key, otherwise 0.
    - `key_min` and `key_max` are the lowest and the highest value of each key column: an integer, or a string, ordered by its UTF-8 bytes.
    A bound is None if the type has no bounds or all values are NULL.
    - `unique_keys` says whether each image has a different key. For a key other than one integer column, it is always False.
    - `first_commit_time_us` and `last_commit_time_us` are the earliest and the latest commit time of the images.
    - `partial` says that some images lack columns. The file then has the additional columns of `binlog.rows.partial.partial_schema` and
    `staging.moves`.
    - `moves` is the number of updates that changed the key and lack columns.
    - `log` is the name of the file with all before images, if the table has a change log. `log_rows` is the number of images in it.
    - `derived` says that some images are effects of foreign keys. Only runs make such a segment.
    - `again` says that the images are not changes, but the rows of their keys at `last_order_key`. They replace even rows with exactly this
      order key. Only runs make such a segment.
    - `stored` is the URL of the file if Spark reads it from an object store. Only runs set it.
    """

    kind: Literal["changes"] = "changes"
    file: Path
    size_bytes: int
    version: str = ""
    rows: int
    inserts: int
    updates: int
    deletes: int
    key_changes: int
    unique_keys: bool
    first_order_key: int
    last_order_key: int
    first_commit_time_us: int
    last_commit_time_us: int
    key: tuple[str, ...]
    key_min: tuple[Bound, ...]
    key_max: tuple[Bound, ...]
    columns: tuple[LakeColumn, ...]
    partial: bool = False
    moves: int = 0
    log: str = ""
    log_rows: int = 0
    derived: bool = False
    again: bool = False
    stored: str = ""

    @property
    def changes(self) -> int:
        return self.inserts + self.updates + self.deletes


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncateSegment:
    """A TRUNCATE, which removes all rows of the table at `order_key`."""

    kind: Literal["truncate"] = "truncate"
    order_key: int
    commit_time_us: int


class AlterationKind(enum.StrEnum):
    """What a DDL statement does to a column or to the key of a table. `schema_changes` in conf/ has a policy for each kind."""

    ADD = "add"
    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"  #: The new type has every value of the old type, unchanged.
    CONVERT = "convert"  #: Any other new type, for example a narrower one.
    KEY = "key"  #: The primary key gets other columns.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alteration:
    """One change of a table by a DDL statement. `new_name` is the column's new name after a RENAME. `old_type` and `new_type` are MySQL's
    types for WIDEN and CONVERT, and the old and new columns of the key for KEY.

    `plan` is what the lake does about the change (docs/architecture.md). `table_meta.policy` sets it according to the policy for this kind
    of change.
    """

    kind: AlterationKind
    column: str = ""
    new_name: str = ""
    old_type: str = ""
    new_type: str = ""
    plan: str = "apply"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaSegment:
    """A change of a table's columns: from `order_key` on, the table has `columns`. The merge applies the `alterations` to the lake's
    table, in order. `fills` are the values of new columns in existing rows: pairs of (column, value as text).

    If the table was renamed, `renamed_from` is the old "database.table", otherwise it is empty. The rows that the lake has under the old
    name immediately before `order_key` become rows of this table.
    """

    kind: Literal["schema"] = "schema"
    order_key: int
    commit_time_us: int
    version: str = ""
    key: tuple[str, ...]
    columns: tuple[LakeColumn, ...]
    fills: tuple[tuple[str, str], ...] = ()
    alterations: tuple[Alteration, ...] = ()
    renamed_from: str = ""


Segment = ChangesSegment | TruncateSegment | SchemaSegment


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedTable:
    """One table of a batch. A merge applies its segments in order, each in one Delta commit.

    `positions` is a file with one sequence number per row (int64, little-endian). The numbers order the rows of all tables of the batch.
    `positions` is None if no foreign key needs this order.
    """

    database: str
    table: str
    segments: tuple[Segment, ...]
    positions: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def changes(self) -> tuple[ChangesSegment, ...]:
        return tuple(segment for segment in self.segments if isinstance(segment, ChangesSegment))

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.changes)

    @property
    def bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cascade:
    """A foreign key that changes rows of `child` without row events when rows of `parent` are changed or deleted.

    - `columns` are columns of the child, which reference the columns `referenced` of the parent.
    - `on_delete` and `on_update` are CASCADE, SET NULL, or empty.
    - `doubt` says why it is uncertain that the foreign key has this effect, or is empty.
    - `captured` says whether the child is captured. `key` is the child's primary key. `generated` says that the child has generated
    columns.
    - `dated` says that one of `columns` is a date, whose form in the lake depends on conf/.
    - `unlike` says that values of parent and child cannot be compared. `doubt` then says why.
    """

    name: str
    parent: TableName
    child: TableName
    columns: tuple[str, ...]
    referenced: tuple[str, ...]
    on_delete: str = ""
    on_update: str = ""
    doubt: str = ""
    captured: bool = True
    key: tuple[str, ...] = ()
    generated: bool = False
    dated: bool = False
    unlike: bool = False

    @property
    def parent_name(self) -> str:
        return ".".join(self.parent)

    @property
    def child_name(self) -> str:
        return ".".join(self.child)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CascadeEvents:
    """The rows of `parent` that were deleted or whose referenced values changed. `file` has the values of their columns `referenced`.

    `cascades` are all foreign keys through which the changes may spread, over all levels. Foreign keys that reference `parent` come first.
    `live` are the child tables that the lake keeps up to date.
    """

    parent: TableName
    referenced: tuple[str, ...]
    file: Path
    rows: int
    cascades: tuple[Cascade, ...]
    live: tuple[TableName, ...] = ()

    @property
    def parent_name(self) -> str:
        return ".".join(self.parent)

    @property
    def live_names(self) -> frozenset[str]:
        return frozenset(map(".".join, self.live))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedQuarantine:
    """The file with the values of a batch that could not be decoded. `last_order_key` is the highest order key of these values."""

    file: Path
    size_bytes: int
    rows: int
    last_order_key: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a batch.

    - `ledger_id` is the id of the destination's ledger from which the batch was handed out.
    - `bytes` is the size of the batch's row events in the binlog. `rows` counts row images, and `changes` counts changes: an update is one
      change.
    - `start` and `end` are values of Position.to_json. Runs copy them to Delta's commit history.
    - Times are µs since 1970 UTC. Commit times are 0 if the batch has no rows.
    - `quarantine` is None if all values could be decoded.
    - `again_up_to` is the order key up to which changes of the batch were staged earlier, and may be merged in part. The earlier files and
      the images derived from them no longer exist. It is 0 if nothing was staged earlier.
    """

    destination: str
    ledger_id: str
    epoch: int
    delivery: int
    start: dict[str, Any]
    end: dict[str, Any]
    end_order_key: int = -1
    rows: int = 0
    changes: int = 0
    bytes: int = 0
    staged_at_us: int = 0
    first_commit_time_us: int = 0
    last_commit_time_us: int = 0
    tables: tuple[StagedTable, ...]
    quarantine: StagedQuarantine | None = None
    cascades: tuple[CascadeEvents, ...] = ()
    again_up_to: int = 0
