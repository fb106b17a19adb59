"""Writes staged batches from lists of changes, in the format that docs/architecture.md describes. Tests use this module instead of
`cdc_engine/staging`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.file import FORMAT
from sluice.spark_jobs.table_owner import TableRecord

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 1, 2, 3, 4
ARROW_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(20,0)": pa.decimal128(20, 0),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(12,2)": pa.decimal128(12, 2),
    "decimal(17,2)": pa.decimal128(17, 2),
}
LEDGER_ID = "0123456789ab"
TIME_US = 1_700_000_000_000_000


@dataclasses.dataclass(frozen=True)
class Image:
    """One staged row image."""

    operation: int
    order_key: int
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Schema:
    """Columns as name → Spark type, and the key."""

    columns: dict[str, str]
    key: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "type": type_name, "nullable": name not in self.key, "mysql_type": type_name}
            for name, type_name in self.columns.items()
        ]


@dataclasses.dataclass(frozen=True)
class Changes:
    """A segment of row images. With `partial`, an image lacks the columns that have no value in it. `moves` is the number of images that
    changed their key.

    `log` has the same images and every before image, for a table with a change log.
    """

    schema: Schema
    images: Sequence[Image]
    partial: bool = False
    moves: int = 0
    log: Sequence[Image] = ()


@dataclasses.dataclass(frozen=True)
class Truncate:
    order_key: int


@dataclasses.dataclass(frozen=True)
class SchemaChange:
    order_key: int
    schema: Schema
    alterations: tuple[dict[str, str], ...] = ()
    fills: tuple[tuple[str, str], ...] = ()
    renamed_from: str = ""


Segment = Changes | Truncate | SchemaChange


def stage(
    root: Path,
    tables: Mapping[str, Sequence[Segment]],
    *,
    epoch: int = 1,
    delivery: int = 1,
    destination: str = "shop",
    ledger_id: str = LEDGER_ID,
) -> Path:
    """Writes one batch; `tables` is "database.table" → segments."""
    directory = root / f"{epoch}-{delivery}"
    directory.mkdir(parents=True)
    records = [_table(directory, name, segments) for name, segments in tables.items()]
    keys = [key for segments in tables.values() for segment in segments for key in order_keys(segment)]
    position = {"epoch": epoch, "file": "mysql-bin.000001", "offset": 4}
    manifest = {
        "format": FORMAT,
        "destination": destination,
        "ledger_id": ledger_id,
        "epoch": epoch,
        "delivery": delivery,
        "start": position,
        "end": {**position, "offset": max(keys, default=4)},
        "end_order_key": max(keys, default=0),
        "rows": sum(segment.get("rows", 0) for record in records for segment in record["segments"]),
        "changes": 0,
        "bytes": 0,
        "staged_at_us": TIME_US,
        "first_commit_time_us": TIME_US,
        "last_commit_time_us": TIME_US,
        "tables": records,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def order_keys(segment: Segment) -> list[int]:
    return [image.order_key for image in segment.images] if isinstance(segment, Changes) else [segment.order_key]


def _table(directory: Path, name: str, segments: Sequence[Segment]) -> dict[str, Any]:
    database, table = name.split(".", 1)
    records = [_segment(directory, f"{name}.{number}.parquet", segment) for number, segment in enumerate(segments)]
    return {"database": database, "table": table, "segments": records}


def _segment(directory: Path, file: str, segment: Segment) -> dict[str, Any]:
    if isinstance(segment, Truncate):
        return {"kind": "truncate", "order_key": segment.order_key, "commit_time_us": TIME_US}
    if isinstance(segment, SchemaChange):
        record = {"kind": "schema", "order_key": segment.order_key, "commit_time_us": TIME_US, "version": "v"}
        record |= {"alterations": list(segment.alterations), "fills": [list(fill) for fill in segment.fills]}
        record |= {"renamed_from": segment.renamed_from} if segment.renamed_from else {}
        return {**record, "key": list(segment.schema.key), "columns": segment.schema.records()}
    return _changes(directory, file, segment)


def _changes(directory: Path, file: str, segment: Changes) -> dict[str, Any]:
    _write_images(directory / file, segment)
    if segment.log:
        _write_images(directory / f"{file}.log", dataclasses.replace(segment, images=segment.log))
    return _changes_record(directory, file, segment)


def _write_images(path: Path, segment: Changes) -> None:
    images, schema = segment.images, segment.schema
    columns: dict[str, Any] = {
        "_sluice_operation": pa.array([image.operation for image in images], pa.int8()),
        "_sluice_order_key": pa.array([image.order_key for image in images], pa.int64()),
        "_sluice_commit_time": pa.array([TIME_US + image.order_key for image in images], pa.timestamp("us", "UTC")),
    }
    columns["_sluice_row"] = pa.array(range(1, len(images) + 1), pa.int64())
    for name, type_name in schema.columns.items():
        columns[name] = pa.array([image.values.get(name) for image in images], ARROW_TYPES[type_name])
    if segment.partial:
        columns |= _gaps(segment)
    pq.write_table(pa.table(columns), path)


def _changes_record(directory: Path, file: str, segment: Changes) -> dict[str, Any]:
    images, schema = segment.images, segment.schema
    keys = [tuple(image.values.get(name) for name in schema.key) for image in images]
    present: list[list[Any]] = [
        [key[index] for key in keys if key[index] is not None] for index in range(len(schema.key))
    ]
    operations = [image.operation for image in images]
    befores = operations.count(UPDATE_BEFORE)
    return {
        "kind": "changes",
        "file": file,
        "size_bytes": (directory / file).stat().st_size,
        "version": "v",
        "rows": len(images),
        "inserts": operations.count(INSERT),
        "updates": operations.count(UPDATE_AFTER),
        "deletes": operations.count(DELETE),
        "key_changes": befores if schema.key else 0,
        "unique_keys": bool(schema.key) and len(set(keys)) == len(keys),
        "first_order_key": images[0].order_key,
        "last_order_key": images[-1].order_key,
        "first_commit_time_us": TIME_US,
        "last_commit_time_us": TIME_US + images[-1].order_key,
        "key": list(schema.key),
        "key_min": [_json(min(values)) if values else None for values in present],
        "key_max": [_json(max(values)) if values else None for values in present],
        "columns": schema.records(),
        "partial": segment.partial,
        "moves": segment.moves,
        "log": f"{file}.log" if segment.log else "",
        "log_rows": len(segment.log),
    }


def _gaps(segment: Changes) -> dict[str, Any]:
    """Returns the values of the columns that only a partial segment has. No row of the segment changes its key."""
    images, schema = segment.images, segment.schema
    bits = [sum(1 << index for index, name in enumerate(schema.columns) if name in image.values) for image in images]
    nothing = [None] * len(images)
    origins = {
        f"_sluice_origin_{index}": pa.array(nothing, ARROW_TYPES[schema.columns[name]])
        for index, name in enumerate(schema.key)
    }
    return {
        "_sluice_present_0": pa.array(bits, pa.int64()),
        "_sluice_moved": pa.array(nothing, pa.bool_()),
        "_sluice_birth": pa.array(nothing, pa.int64()),
        **origins,
    }


def _json(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)


class Records:
    """Implements `TableRecords` in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, TableRecord] = {}
        self.side_records: dict[tuple[str, str], TableRecord] = {}

    def get(self, name: str) -> TableRecord | None:
        return self.kept.get(name)

    def keep(self, name: str, record: TableRecord) -> None:
        self.kept[name] = record

    def keep_all(self, records: Mapping[str, TableRecord]) -> None:
        self.kept.update(records)

    def side_table(self, name: str, kind: str) -> TableRecord | None:
        return self.side_records.get((name, kind))

    def keep_side_table(self, name: str, kind: str, record: TableRecord) -> None:
        self.side_records[name, kind] = record

    def forget_current_state_table(self, name: str) -> None:
        self.kept.pop(name, None)
