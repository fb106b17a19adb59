"""Defines the values in a manifest: tables, their segments and columns, and the foreign keys that the run follows.

The engine makes them, `file` writes and reads them, and runs merge them. Files are relative to the batch's directory in the engine; a run
reads the manifest with the directory, and has the whole paths."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any, Literal

Bound = int | str | None
TableName = tuple[str, str]  # (database, table)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LakeColumn:
    """A column of a staged file and of a lake table. `type`: its name in Spark SQL. `nullable`: whether the file may have NULLs (zero dates
    become NULL). `mysql_type`: as the source declares it.
    """

    name: str
    type: str
    nullable: bool = True
    mysql_type: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangesSegment:
    """Row images of one table and one schema version in one Parquet file, in stream order. A transaction is never split between segments,
    so the order keys of adjacent segments differ.

    - `version`: digest of the schema; empty if a run made the segment.
    - `rows`: number of images; `key_changes`: number of before images among them if there is a key.
    - `key_min`, `key_max`: one entry per key column, over all images: an integer or a string (ordered by its UTF-8 bytes), None if the
      type has no bound or all values are NULL.
    - `unique_keys`: every image has a different key (exact for one integer column, otherwise false).
    - `first_commit_time_us`, `last_commit_time_us`: minimum and maximum of the images.
    - `partial`: images lack columns, and the file has the columns of `binlog.rows.partial.partial_schema` and `staging.moves`.
    - `moves`: number of updates that changed the key and lack columns.
    - `log`: for a table with a change log, the name of the file with all before images, and `log_rows` its number of images.
    - `derived`: it has images that foreign keys caused; only a run makes such a segment.
    - `again`: the images are not changes but the rows of their keys at `last_order_key`: they also replace rows with exactly that
      order key. Only a run makes such a segment.
    - `stored`: URL of the file if Spark reads it in an object store; only a run sets it.
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
    """The removal of every row of the table at `order_key`."""

    kind: Literal["truncate"] = "truncate"
    order_key: int
    commit_time_us: int


class AlterationKind(enum.StrEnum):
    """What a DDL statement did to one column or to the key of a table. A policy is configured for each (`schema_changes`)."""

    ADD = "add"
    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"  #: Another type, in which every value of the old one stays the same value.
    CONVERT = "convert"  #: Any other type: a narrower one, or one of another kind.
    KEY = "key"  #: The columns of the primary key.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alteration:
    """One item of what a statement altered. `new_name`: for RENAME. Types: MySQL's text for WIDEN and CONVERT; the columns for KEY.

    `plan`: how the lake follows (docs/architecture.md): a value of the policy for its kind, which `table_meta.policy` sets.
    """

    kind: AlterationKind
    column: str = ""
    new_name: str = ""
    old_type: str = ""
    new_type: str = ""
    plan: str = "apply"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaSegment:
    """A change of the table's columns: from `order_key` on it has these columns. `fills`: (column, value as text) of new columns, for
    existing rows.

    `alterations`: what the lake's table follows, in order. `renamed_from`: the "database.table" that got this name; its rows in the lake
    immediately before `order_key` become this table's. Empty if the table was not renamed.
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
    """One table of a batch. Its segments are applied in order; each becomes one Delta commit.

    `positions`: the file with the sequence number of each row among the rows of all tables (int64, little-endian); None if foreign keys
    do not need it.
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

    `columns` of the child reference the `referenced` columns of the parent. `on_delete`, `on_update`: CASCADE, SET NULL, or empty.
    `doubt`: why it is uncertain that the key acts like this, or empty. `captured`: whether the child is captured. `key`: the child's
    primary key. `generated`: the child has generated columns. `dated`: one of `columns` is a date, which conf/ may represent otherwise in
    the lake. `unlike`: the values of both sides cannot be compared, for the reason in `doubt`.
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
    """The deleted rows and changed keys (the `referenced` columns) of `parent`, in `file`.

    `cascades`: all foreign keys that may follow, over all levels, the parent's own first. `live`: the child tables whose rows the lake
    follows.
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
    """The file with values that could not be decoded. `last_order_key`: the highest order key in it."""

    file: Path
    size_bytes: int
    rows: int
    last_order_key: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a whole batch. `ledger_id`: the id of the ledger that handed it out.

    `bytes`: size of its row events in the binlog. `start` and `end`: Position.to_json, which runs copy to Delta's commit history. Times:
    microseconds since 1970 UTC; commit times are 0 if the batch has no rows. `quarantine`: the file of values that could not be decoded,
    if there are any. `again_up_to`: order key up to which the changes were staged before, in files that are gone now together with the
    images derived from them, and that may have been merged in part; 0 if they were not.
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
