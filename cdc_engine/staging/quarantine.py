"""Stages values that could not be decoded, in `quarantine.parquet` next to the other files of a batch.

`staging` writes the file if a batch has such values. The run appends the file's rows to the destination's quarantine
(spark_jobs/quarantine/append.py), which `sluice quarantine` lists. A row has the value's bytes and the engine's description of the column,
so that the value can be decoded later.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.values import StagedQuarantine
from sluice.cdc_engine.binlog.rows.refused_values import RefusedValue
from sluice.cdc_engine.contracts import Column, Operation

QUARANTINE_FILE = "quarantine.parquet"
FIELDS: list[pa.Field[Any]] = [
    pa.field("database", pa.string(), False),
    pa.field("table", pa.string(), False),
    pa.field("column", pa.string(), False),
    pa.field("mysql_type", pa.string(), False),
    pa.field("charset", pa.string(), False),
    # The values of the row's key columns as a JSON object, or of all its columns if the table has no key.
    pa.field("key", pa.string(), False),
    pa.field("raw", pa.binary(), False),
    pa.field("reason", pa.string(), False),
    pa.field("file", pa.string(), False),
    pa.field("offset", pa.int64(), False),
    pa.field("order_key", pa.int64(), False),
    # A number that rises from row image to row image. It distinguishes row images with the same `order_key`.
    pa.field("image", pa.int64(), False),
    pa.field("operation", pa.string(), False),
    pa.field("commit_time", pa.timestamp("us", "UTC"), False),
    pa.field("layout", pa.string(), False),  # The column (`contracts.Column`) as a JSON object.
]
SCHEMA = pa.schema(FIELDS)


def write_quarantine(directory: Path, refused: Sequence[tuple[str, str, RefusedValue]]) -> StagedQuarantine | None:
    """Writes values that could not be decoded, as (database, table, value), to a file in the directory. Returns the manifest's entry for
    the file. Returns None and writes no file if there are no values.
    """
    if not refused:
        return None
    path = directory / QUARANTINE_FILE
    rows = [_row(database, table, value) for database, table, value in refused]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    last = max(value.order_key for _, _, value in refused)
    return StagedQuarantine(file=Path(path.name), size_bytes=path.stat().st_size, rows=len(rows), last_order_key=last)


def _row(database: str, table: str, value: RefusedValue) -> dict[str, Any]:
    return {
        "database": database,
        "table": table,
        "column": value.column.name,
        "mysql_type": value.column.mysql_type,
        "charset": value.column.charset,
        "key": json.dumps(value.key, ensure_ascii=False, default=_text),
        "raw": value.raw,
        "reason": value.reason,
        "file": value.file,
        "offset": value.offset,
        "order_key": value.order_key,
        "image": value.image,
        "operation": Operation(value.operation).name.lower(),
        "commit_time": value.commit_time,
        "layout": json.dumps(dataclasses.asdict(value.column), ensure_ascii=False),
    }


def _text(value: Any) -> str:
    """Converts a value of a key to text, if JSON does not have its type. Bytes become hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else str(value)


def column_of(layout: str) -> Column:
    """Returns the Column that `write_quarantine` stored as the JSON text `layout`. Raises KeyError, TypeError or ValueError for any other
    text.
    """
    record: dict[str, Any] = json.loads(layout)
    fields: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in record.items()}
    return Column(**fields)
