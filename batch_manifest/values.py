"""Defines the values in a manifest: tables with their segments and columns, and foreign keys that change rows without row events.

The engine makes the values. The module `file` writes them to a manifest and reads them. Runs merge the files that the values describe. The
JSON file of a manifest names files without a directory. `read_manifest_json` adds the directory.
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
    so the order keys of adjacent segments differ. The engine stages most segments. A run makes a segment for changes by foreign keys, for a
    repair, or for a backfill.

    - `version` is a digest of the schema. It is empty in a segment that a run made.
    - `rows` is the number of images. `key_changes` is the number of before images among these images: an update has a before image only if
      it changes the key. It is 0 if the table has no key.
    - `key_min` and `key_max` are the lowest and the highest value of each key column. Integers and strings have bounds; strings are ordered
      by their UTF-8 bytes. A bound is None for any other type, or if all values are NULL.
    - `unique_keys` says that each image has a different key. It is always False unless the key is one integer column.
    - `first_commit_time_us` and `last_commit_time_us` are the earliest and the latest commit time of the images.
    - `partial` says that some images lack columns. The file then has additional columns, which say what each image lacks
      (`binlog.rows.partial.partial_schema`) and which row it belongs to (`staging.moves`).
    - `moves` is the number of updates that changed the key and whose images lack columns.
    - `log` is the name of the file with all before images, if the table has a change log. `log_rows` is the number of images in it.
    - `derived` says that some images are changes that foreign keys made without row events.
    - `again` says that the images are not changes: a repair has read the rows from the source, at the position with the order key
      `last_order_key`. An image of a change replaces only a row with a lower order key. These images also replace a row with the same order
      key.
    - `stored` is the URL of the file if Spark reads the file from an object store. Only runs set `stored`.
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
    """A TRUNCATE at `order_key`, which removes all rows of the table."""

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
    """One change of a table by a DDL statement. `new_name` is the column's new name after a RENAME. For WIDEN and CONVERT, `old_type` and
    `new_type` are MySQL's types. For KEY, they are the old and the new columns of the key.

    `plan` is what the lake does about the change (docs/architecture.md). `table_meta.change.policy` sets `plan` to what the operator's
    policy says for this kind of change.
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
    """One table of a batch. A merge applies the table's segments in order. It applies each segment in one Delta commit.

    `positions` is a file with one sequence number (int64, little-endian) for each staged row image of the table. The numbers order the row
    images of all tables of the batch. `positions` is None if no foreign key changes rows of the table.
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
    - `doubt` says why it is uncertain that the foreign key has this effect. It is empty if the effect is certain.
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
    """The rows of `parent` that were deleted, or whose columns `referenced` changed. `file` has the old values of these columns, and for an
    update also the new values.

    `cascades` are all foreign keys through which the changes may spread, over all levels. Foreign keys that reference `parent` come first.
    `live` are the child tables to which runs apply the changes: captured tables that are not stopped, if conf/ sets `cascades: apply` for
    them.
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
    """The file with those values of a batch that could not be decoded. `last_order_key` is the highest order key of these values."""

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
    - `start` and `end` are the positions at which the batch begins and ends, as Position.to_json returns them. Runs copy both to Delta's
      commit history.
    - Times are µs since 1970 UTC. Commit times are 0 if the batch has no rows.
    - `quarantine` is None if all values could be decoded.
    - `again_up_to` is set if the changes were staged before and the files are missing; otherwise it is 0. It is the order key up to which
      the earlier attempt had staged changes. A run may have merged some of these changes, and the images that this run derived for changes
      by foreign keys no longer exist.
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
