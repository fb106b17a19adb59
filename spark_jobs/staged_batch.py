"""Reads a staged batch and checks it against its manifest, before any table is changed. Format: docs/architecture.md.

Only the manifest and the footers of the Parquet files are read here; Spark reads the rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.errors import StagedBatchError
from spark_jobs.tables.table_owner import Owner

FORMAT = 2
MANIFEST = "manifest.json"
OPERATION = "_sluice_operation"
ORDER_KEY = "_sluice_order_key"
COMMIT_TIME = "_sluice_commit_time"
ROW = "_sluice_row"  # the order of a table's images; never written to Delta
DELETED = "_sluice_deleted"
STAGED_TYPES = {OPERATION: "tinyint", ORDER_KEY: "bigint", COMMIT_TIME: "timestamp", ROW: "bigint"}
PRESENT, MOVED, BIRTH, ORIGIN = "_sluice_present_", "_sluice_moved", "_sluice_birth", "_sluice_origin_"
BACKFILL_KIND, REPAIR_KIND = "backfill", "repair"
EPOCH_BITS = 14  # the highest bits of an order key
GROUP_COLUMNS = 63  # columns of the table per int64 of presence bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the source table. `type` is Spark SQL's name, such as "decimal(20,0)"."""

    name: str
    type: str
    nullable: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangesSegment:
    """Row images of one table and one schema version, in one Parquet file, in stream order.

    - `partial`: images lack columns, and the file marks which. `moves`: number of updates that changed the key and lack columns.
    - `again`: the images are not changes but the rows of their keys at `last_order_key`: they also replace rows with exactly that
      order key.
    - `log`: a file of the batch's folder with all before images too, `log_rows` images, for the table's change log; empty if there
      is none.
    - `derived`: it has images that foreign keys caused.
    - `stored`: the file's URL if Spark reads it in an object store; empty: it is only at `path`.
    """

    path: Path
    size_bytes: int
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
    key_min: tuple[Any, ...]
    key_max: tuple[Any, ...]
    columns: tuple[Column, ...]
    partial: bool = False
    moves: int = 0
    again: bool = False
    log: str = ""
    log_rows: int = 0
    derived: bool = False
    stored: str = ""

    @property
    def staged_types(self) -> dict[str, str]:
        """Returns every column of the file with Spark's name of its type, in the file's order."""
        types = {**STAGED_TYPES, **{column.name: column.type for column in self.columns}}
        if not self.partial:
            return types
        present = {f"{PRESENT}{group}": "bigint" for group in range(-(-len(self.columns) // GROUP_COLUMNS))}
        origins = {f"{ORIGIN}{index}": types[name] for index, name in enumerate(self.key)}
        return {**types, **present, MOVED: "boolean", BIRTH: "bigint", **origins}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncateSegment:
    """The removal of all rows of the table at `order_key`."""

    order_key: int
    commit_time_us: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alteration:
    """One alteration that the lake table follows. `kind`: add, drop, rename, widen, convert or key; `plan`: how, see
    docs/architecture.md.
    """

    kind: str
    column: str
    new_name: str = ""
    plan: str = "apply"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaSegment:
    """The creation or alteration of the table at `order_key`. `fills`: (column, value as text) of new columns, for existing rows.

    `renamed_from`: the "database.table" that got this name; its rows immediately before `order_key` become this table's. Empty if the
    table was not renamed.
    """

    order_key: int
    commit_time_us: int
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    fills: tuple[tuple[str, str], ...] = ()
    alterations: tuple[Alteration, ...] = ()
    renamed_from: str = ""


Segment = ChangesSegment | TruncateSegment | SchemaSegment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cascade:
    """A foreign key: rows of `child` follow those of `parent` (both "database.table"). Column names are in lower case.

    `on_delete`, `on_update`: CASCADE, SET NULL, or empty. `doubt`: why it is unsure whether the foreign key exists, or empty. `key`: the
    child's key. `generated`: the child has generated columns. `unlike`: values of parent and child cannot be compared, for the reason in
    `doubt`.
    """

    name: str
    parent: str
    child: str
    columns: tuple[str, ...]
    referenced: tuple[str, ...]
    on_delete: str
    on_update: str
    doubt: str
    key: tuple[str, ...]
    generated: bool
    unlike: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class CascadeEvents:
    """Deleted rows and changed keys of a parent table, in a Parquet file. `cascades`: the foreign keys that follow from them, over all
    levels.

    `live`: the child tables whose lake tables are changed.
    """

    parent: str
    referenced: tuple[str, ...]
    path: Path
    cascades: tuple[Cascade, ...]
    live: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedTable:
    """One table of a batch. Its segments are applied in order, each as one Delta commit.

    `places`: the file with the sequence number of each row among the rows of all tables (int64, little-endian); None if it is not needed.
    """

    database: str
    table: str
    segments: tuple[Segment, ...]
    places: Path | None = None

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
class Backfill:
    """A requested backfill: the changes of [from_us, to_us), microseconds since 1970; `to_us` 0: up to the end. `backfill_id` is unique
    to it.

    `kind`: "backfill", or "repair": rows that were read at `from_us`.
    """

    backfill_id: str
    from_us: int
    to_us: int
    kind: str = BACKFILL_KIND


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedBatch:
    """A whole batch. `start` and `end` are positions as JSON objects, which are copied to Delta's commit history.

    - `backfill`: set if this is a backfill or a repair and not a batch of the stream; it does not change the tables' positions in
      the stream.
    - `again_up_to`: order key up to which the changes were staged before, in files that are gone now, together with the images derived
      from them, and that may have been merged in part.
    - `stored`: URL of the directory in an object store, of which `directory` is then a copy; empty: there is none.
    """

    directory: Path
    destination: str
    ledger_id: str
    epoch: int
    delivery: int
    start: Mapping[str, Any]
    end: Mapping[str, Any]
    tables: tuple[StagedTable, ...]
    cascades: tuple[CascadeEvents, ...] = ()
    end_order_key: int = -1
    backfill: Backfill | None = None
    again_up_to: int = 0
    stored: str = ""

    def app_id(self, table: StagedTable) -> str:
        """Returns the transaction app ID under which Delta stores the last order key of this table. All epochs share it, because an order
        key contains its epoch.
        """
        if self.backfill is not None:
            aside = f"{self.backfill.kind}/{self.backfill.backfill_id}"
            return f"sluice/{self.destination}/{self.ledger_id}/{aside}/{table.name}"
        return app_id_of(self.owner(table))

    def owner(self, table: StagedTable) -> Owner:
        return self.owner_of(table.name)

    def owner_of(self, name: str) -> Owner:
        """Returns the owner of "database.table", which need not be in the batch."""
        return Owner(ledger_id=self.ledger_id, destination=self.destination, table=name)


def app_id_of(owner: Owner) -> str:
    return f"sluice/{owner.destination}/{owner.ledger_id}/{owner.table}"


def epoch_of(order_key: int) -> int:
    """Returns the epoch of an order key."""
    return order_key >> (63 - EPOCH_BITS)


def read_staged_batch(directory: Path, stored: str = "") -> StagedBatch:
    """Reads the manifest and checks every file that it names. `stored`: URL where Spark reads the same files; empty: in `directory`.

    Raises StagedBatchError, one sentence, at the first error.
    """
    manifest = directory / MANIFEST
    record = _read_json(manifest)
    if record.get("format") != FORMAT:
        raise StagedBatchError(
            f"{manifest} has format {record.get('format')!r}, this Sluice reads {FORMAT}; merge it with the Sluice that staged it"
        )
    try:
        batch = _batch(directory, record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StagedBatchError(
            f"{manifest} is not a manifest: {type(error).__name__} {error}; roll the batch back to have it staged again"
        ) from error
    for table in batch.tables:
        for segment in table.changes:
            _check_file(segment)
            _check_log(segment)
    places = [table.places for table in batch.tables if table.places is not None]
    for path in (*places, *(events.path for events in batch.cascades)):
        if not path.is_file():
            raise StagedBatchError(
                f"{path} is named by the manifest and does not exist; roll the batch back to have it staged again"
            )
    return _in_store(batch, stored) if stored else batch


def _in_store(batch: StagedBatch, stored: str) -> StagedBatch:
    def table(each: StagedTable) -> StagedTable:
        segments = (
            dataclasses.replace(segment, stored=f"{stored}/{segment.path.name}")
            if isinstance(segment, ChangesSegment)
            else segment
            for segment in each.segments
        )
        return dataclasses.replace(each, segments=tuple(segments))

    return dataclasses.replace(batch, stored=stored, tables=tuple(table(each) for each in batch.tables))


def _read_json(manifest: Path) -> dict[str, Any]:
    try:
        record = json.loads(manifest.read_bytes())
    except FileNotFoundError as error:
        raise StagedBatchError(
            f"{manifest} does not exist: the batch was never staged whole, or was removed"
        ) from error
    except (OSError, ValueError) as error:
        raise StagedBatchError(
            f"{manifest} cannot be read: {error}; roll the batch back to have it staged again"
        ) from error
    if not isinstance(record, dict):
        raise StagedBatchError(f"{manifest} is not a manifest but a JSON {type(record).__name__}")
    return record


def _batch(directory: Path, record: dict[str, Any]) -> StagedBatch:
    tables = tuple(_table(directory, item) for item in record["tables"])
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise ValueError("a table is listed twice")
    _refuse_rows_with_renames(tables)
    return StagedBatch(
        directory=directory,
        destination=str(record["destination"]),
        ledger_id=str(record["ledger_id"]),
        epoch=int(record["epoch"]),
        delivery=int(record["delivery"]),
        start=dict(record["start"]),
        end=dict(record["end"]),
        tables=tables,
        cascades=tuple(_cascade_events(directory, item) for item in record.get("cascades", ())),
        end_order_key=int(record.get("end_order_key", -1)),
        again_up_to=int(record.get("again_up_to", 0)),
    )


def _refuse_rows_with_renames(tables: tuple[StagedTable, ...]) -> None:
    """Raises ValueError if a batch has a renamed table and also row changes. Tables are merged in any order, but rows from before a
    rename must be in the lake when it is applied, and rows from after it must not.
    """
    renamed = [table.name for table in tables for each in table.segments if getattr(each, "renamed_from", "")]
    if renamed and any(table.changes for table in tables):
        raise ValueError(f"{renamed[0]} was renamed, and the batch has rows of before or after it")


def _cascade_events(directory: Path, record: dict[str, Any]) -> CascadeEvents:
    return CascadeEvents(
        parent=".".join(record["parent"]),
        referenced=_lowered(record["referenced"]),
        path=directory / Path(record["file"]).name,
        cascades=tuple(
            Cascade(
                name=str(item["name"]),
                parent=".".join(item["parent"]),
                child=".".join(item["child"]),
                columns=_lowered(item["columns"]),
                referenced=_lowered(item["referenced"]),
                on_delete=str(item["on_delete"]),
                on_update=str(item["on_update"]),
                doubt=str(item["doubt"]),
                key=_lowered(item["key"]),
                generated=bool(item["generated"]),
                unlike=bool(item["unlike"]),
            )
            for item in record["cascades"]
        ),
        live=frozenset(".".join(name) for name in record["live"]),
    )


def _lowered(names: list[str]) -> tuple[str, ...]:
    return tuple(str(name).lower() for name in names)


def _table(directory: Path, record: dict[str, Any]) -> StagedTable:
    segments = tuple(_segment(directory, item) for item in record["segments"])
    for earlier, later in itertools.pairwise(segments):
        if not _follows(later, last_order_key(earlier)):
            raise ValueError(f"the segments of {record['database']}.{record['table']} are not in stream order")
    places = directory / Path(record["places"]).name if record.get("places") else None
    return StagedTable(database=str(record["database"]), table=str(record["table"]), segments=segments, places=places)


def last_order_key(segment: Segment) -> int:
    """Returns the order key of the last change of a segment."""
    return segment.last_order_key if isinstance(segment, ChangesSegment) else segment.order_key


def _follows(segment: Segment, order_key: int) -> bool:
    """Returns whether a segment may follow that order key: rows of a transaction are never in two segments."""
    if isinstance(segment, ChangesSegment):
        return order_key < segment.first_order_key <= segment.last_order_key
    return order_key <= segment.order_key


def _segment(directory: Path, record: dict[str, Any]) -> Segment:
    kind = record["kind"]
    if kind == "changes":
        return _changes(directory, record)
    if kind == "truncate":
        return TruncateSegment(order_key=int(record["order_key"]), commit_time_us=int(record["commit_time_us"]))
    if kind == "schema":
        return SchemaSegment(
            order_key=int(record["order_key"]),
            commit_time_us=int(record["commit_time_us"]),
            key=tuple(record["key"]),
            columns=_columns(record["columns"]),
            fills=tuple((str(name), str(value)) for name, value in record.get("fills", ())),
            alterations=tuple(_alteration(item) for item in record.get("alterations", ())),
            renamed_from=str(record.get("renamed_from", "")),
        )
    raise ValueError(f"unknown kind of segment {kind!r}")


def _alteration(record: dict[str, Any]) -> Alteration:
    return Alteration(
        kind=str(record["kind"]),
        column=str(record.get("column", "")),
        new_name=str(record.get("new_name", "")),
        plan=str(record.get("plan") or "apply"),
    )


def _changes(directory: Path, record: dict[str, Any]) -> ChangesSegment:
    columns = _columns(record["columns"])
    key = tuple(record["key"])
    missing = set(key) - {column.name for column in columns}
    if missing:
        raise ValueError(f"key columns {sorted(missing)} are not among the columns of {record['file']}")
    numbers: dict[str, Any] = {
        name: int(record[name])
        for name in (
            *("size_bytes", "rows", "inserts", "updates", "deletes", "key_changes"),
            *("first_order_key", "last_order_key", "first_commit_time_us", "last_commit_time_us"),
        )
    }
    return ChangesSegment(
        path=directory / Path(record["file"]).name,
        unique_keys=bool(record["unique_keys"]),
        key=key,
        key_min=tuple(record.get("key_min") or ()),
        key_max=tuple(record.get("key_max") or ()),
        columns=columns,
        partial=bool(record.get("partial", False)),
        moves=int(record.get("moves", 0)),
        again=False,
        log=Path(str(record.get("log") or "")).name,
        log_rows=int(record.get("log_rows") or 0),
        **numbers,
    )


def _columns(records: list[dict[str, Any]]) -> tuple[Column, ...]:
    return tuple(
        Column(name=str(item["name"]), type=str(item["type"]).lower(), nullable=bool(item.get("nullable", True)))
        for item in records
    )


def _check_log(segment: ChangesSegment) -> None:
    if not segment.log:
        return
    path, again = segment.path.parent / segment.log, "; roll the batch back to have it staged again"
    try:
        rows = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise StagedBatchError(f"{path} is named by the manifest and cannot be read: {error}{again}") from error
    if rows != segment.log_rows:
        raise StagedBatchError(f"{path} has {rows} rows, its manifest says {segment.log_rows}{again}")


def _check_file(segment: ChangesSegment) -> None:
    path, again = segment.path, "; roll the batch back to have it staged again"
    if not path.is_file():
        raise StagedBatchError(f"{path} is named by the manifest and does not exist{again}")
    size_bytes = path.stat().st_size
    if size_bytes != segment.size_bytes:
        raise StagedBatchError(f"{path} has {size_bytes} bytes, its manifest says {segment.size_bytes}{again}")
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise StagedBatchError(f"{path} is not a Parquet file: {error}{again}") from error
    if footer.num_rows != segment.rows:
        raise StagedBatchError(f"{path} has {footer.num_rows} rows, its manifest says {segment.rows}{again}")
    missing = segment.staged_types.keys() - set(footer.schema.to_arrow_schema().names)
    if missing:
        raise StagedBatchError(f"{path} lacks the columns {', '.join(sorted(missing))} of its manifest{again}")
