"""The contents of manifest.json, which describes a staged batch. Written by `staging`, read by `reader`. Format: docs/architecture.md.
spark_jobs has its own reader.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cdc_engine.contracts import Alteration, Cascade

FORMAT = 2
MANIFEST_FILE = "manifest.json"
Bound = int | str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedColumn:
    """A column of a staged file. `type`: Spark SQL's name of it; `nullable`: whether the file may have NULLs (zero dates become NULL)."""

    name: str
    type: str
    nullable: bool
    mysql_type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangesSegment:
    """Row images of one schema version in one file. A transaction is never split between segments, so the order keys of adjacent segments
    differ.

    - `rows`: number of images; `key_changes`: number of before images among them if there is a key.
    - `key_min`, `key_max`: one entry per key column, over all images: an integer or a string (ordered by its UTF-8 bytes), None if the
      type has no bound or all values are NULL.
    - `unique_keys`: every image has a different key (exact for one integer column, otherwise false).
    - `first_commit_time_us`, `last_commit_time_us`: minimum and maximum of the images.
    - `partial`: images lack columns, and the file has the columns of `binlog.rows.partial.partial_schema` and `staging.moves`.
    - `moves`: number of updates that changed the key and lack columns.
    - `log`: for a table with a change log, the file with all before images, and `log_rows` its number of images; otherwise empty.
    """

    kind: str = "changes"
    file: str
    size_bytes: int
    version: str
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
    columns: tuple[StagedColumn, ...]
    partial: bool = False
    moves: int = 0
    log: str = ""
    log_rows: int = 0

    @property
    def changes(self) -> int:
        return self.inserts + self.updates + self.deletes


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncateSegment:
    """The removal of every row of the table at `order_key`."""

    kind: str = "truncate"
    order_key: int
    commit_time_us: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaSegment:
    """From `order_key` on the table has these columns. `fills`: (column, value as text) of new columns, for existing rows.

    `alterations`: what the lake's table follows, in order; `kind` is the value of an AlterationKind, `plan` how it follows
    (docs/architecture.md). `renamed_from`: the "database.table" that got this name; its rows in the lake immediately before `order_key`
    become this table's.
    """

    kind: str = "schema"
    order_key: int
    commit_time_us: int
    version: str
    key: tuple[str, ...]
    columns: tuple[StagedColumn, ...]
    fills: tuple[tuple[str, str], ...] = ()
    alterations: tuple[dict[str, str], ...] = ()
    renamed_from: str = ""


def manifest_alteration(alteration: Alteration) -> dict[str, str]:
    """Returns an alteration as in a schema segment, without empty fields."""
    record = {name: str(value) for name, value in dataclasses.asdict(alteration).items() if value}
    return {**record, "kind": alteration.kind.value}


Segment = ChangesSegment | TruncateSegment | SchemaSegment


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedTable:
    """One table's segments, in the order in which they are applied. `places`: the file with the sequence numbers of its rows, see
    `cascades`.
    """

    database: str
    table: str
    segments: tuple[Segment, ...]
    places: str = ""

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CascadeEvents:
    """Deleted rows and changed keys (the `referenced` columns) of `parent`, in `file`.

    `cascades`: all foreign keys that may follow, over all levels, the parent's own first. `live`: the child tables whose rows the lake
    follows.
    """

    parent: tuple[str, str]
    referenced: tuple[str, ...]
    file: str
    rows: int
    cascades: tuple[Cascade, ...]
    live: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedQuarantine:
    """The file of values that could not be decoded. `last_order_key`: the highest in it."""

    file: str
    size_bytes: int
    rows: int
    last_order_key: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole batch. `ledger_id`: of the ledger that handed it out.

    `bytes`: size of its row events in the binlog. `start` and `end`: Position.to_json. Times: microseconds since 1970 UTC; commit times
    are 0 if the batch has no rows. `quarantine`: the file of values that could not be decoded, if there are any. `again_up_to`: order key
    up to which the changes were staged before, in files that are gone now and that may have been merged in part; 0 if they were not.
    """

    format: int = FORMAT
    destination: str
    ledger_id: str
    epoch: int
    delivery: int
    start: dict[str, Any]
    end: dict[str, Any]
    end_order_key: int
    rows: int
    changes: int
    bytes: int
    staged_at_us: int
    first_commit_time_us: int
    last_commit_time_us: int
    tables: tuple[StagedTable, ...]
    quarantine: StagedQuarantine | None = None
    cascades: tuple[CascadeEvents, ...] = ()
    again_up_to: int = 0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Manifest:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError on a record of another structure."""
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r} is not {FORMAT}")
        quarantine = record.get("quarantine")
        return cls(
            **{
                **record,
                "tables": tuple(_table(item) for item in record["tables"]),
                "quarantine": StagedQuarantine(**quarantine) if quarantine else None,
                "cascades": tuple(_cascade_events(item) for item in record["cascades"]),
            }
        )


def _cascade_events(record: dict[str, Any]) -> CascadeEvents:
    lists = ("parent", "child", "columns", "referenced", "key")
    cascades = tuple(Cascade(**{**item, **{name: tuple(item[name]) for name in lists}}) for item in record["cascades"])
    names = {name: tuple(record[name]) for name in ("parent", "referenced")}
    return CascadeEvents(**{**record, **names, "cascades": cascades, "live": tuple(map(tuple, record["live"]))})


def _table(record: dict[str, Any]) -> StagedTable:
    return StagedTable(**{**record, "segments": tuple(_segment(item) for item in record["segments"])})


def _segment(record: dict[str, Any]) -> Segment:
    kinds: dict[str, type[Segment]] = {"changes": ChangesSegment, "truncate": TruncateSegment, "schema": SchemaSegment}
    values = dict(record)
    for name in ("key", "key_min", "key_max"):
        if name in values:
            values[name] = tuple(values[name])
    if "fills" in values:
        values["fills"] = tuple(tuple(fill) for fill in values["fills"])
    if "alterations" in values:
        values["alterations"] = tuple(dict(alteration) for alteration in values["alterations"])
    if "columns" in values:
        values["columns"] = tuple(StagedColumn(**column) for column in values["columns"])
    return kinds[record["kind"]](**values)
