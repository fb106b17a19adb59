"""What a staged batch says of itself: the values behind manifest.json. Written by `staging`, read by `reader`; the format is that of
docs/architecture.md, and spark_jobs has its own reader of it.
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
    """A column of a staged file: `type` is Spark SQL's name of it, `nullable` says whether the file may hold NULLs (zero dates do)."""

    name: str
    type: str
    nullable: bool
    mysql_type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangesSegment:
    """Row images of one schema version in one file. `rows` counts images, `key_changes` the preimages among them where there is a key.

    `key_min` and `key_max` have one entry a key column, over every image: an integer or a text (ordered by its UTF-8 bytes), None where the
    type has no bound or all is NULL. `unique_keys`: every image has another key (told exactly for one integer column, else false).
    `first_commit_time_us` and `last_commit_time_us` are the least and the greatest of the images.
    Every transaction is whole in one segment, so the order keys of neighbours differ. `partial`: images lack columns, and the file has the
    columns of `binlog.rows.partial.partial_schema` and `staging.moves`. `moves`: updates among them that changed the key and lack columns.
    `log`: the file of a table with a change log, with all preimages, and `log_rows` its images; empty for any other.
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
    """Every row of the table is gone at `order_key`."""

    kind: str = "truncate"
    order_key: int
    commit_time_us: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaSegment:
    """From `order_key` on the table has these columns. `fills`: (column, value as text) that rows already there hold in a new column.

    `alterations`: what the lake's table follows, in order; `kind` is an AlterationKind's text, `plan` how (docs/architecture.md).
    `renamed_from`: "database.table" that got this name; the rows are those that the lake has under it right before `order_key`.
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
    """An alteration as it stands in a schema segment: what says nothing is left out."""
    record = {name: str(value) for name, value in dataclasses.asdict(alteration).items() if value}
    return {**record, "kind": alteration.kind.value}


Segment = ChangesSegment | TruncateSegment | SchemaSegment


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedTable:
    """One table's segments, in the order in which they are to be applied. `places`: the file of the rows' places, see `cascades`."""

    database: str
    table: str
    segments: tuple[Segment, ...]
    places: str = ""

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CascadeEvents:
    """Rows of `parent` that went, and keys of it (the `referenced` columns) that changed, in `file`.

    `cascades`: all that this may set off, over all levels, the parent's own first. `live`: the tables among them whose rows are followed.
    """

    parent: tuple[str, str]
    referenced: tuple[str, ...]
    file: str
    rows: int
    cascades: tuple[Cascade, ...]
    live: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedQuarantine:
    """The file of values that could not be decoded. `last_order_key`: the greatest in it."""

    file: str
    size_bytes: int
    rows: int
    last_order_key: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole batch. `ledger_id`: of the ledger that handed it out.

    `bytes`: of its row events in the binlog. `start` and `end`: Position.to_json. Times: microseconds since 1970 UTC,
    commit times 0 where the batch has no rows. `quarantine`: the file of values that could not be decoded, where there are any.
    `again_up_to`: order key up to which changes were staged before and may be merged in part, though those files are gone; 0: none were.
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
        """Inverse of `to_json`; raises KeyError, TypeError or ValueError on a record of another shape."""
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
