"""Appends a table's share of a batch to its change log, once whatever happens: a row a change, with before and after. `write` calls it.

An append needs no Spark: deltalake writes the rows as they are read, so memory holds a part of them. Each segment is one commit with an
application id of the log's own; what it has already is left out, as everywhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from object_stores.placed import PlacedFiles
from spark_jobs.beside.columns import placed
from spark_jobs.beside.log_rows import LogRows, event_row, log_schema
from spark_jobs.beside.side_table import NO_HOOKS, SideTable, types_of
from spark_jobs.cascades.files import DERIVED
from spark_jobs.staged_batch import (
    ChangesSegment,
    Column,
    SchemaSegment,
    Segment,
    TruncateSegment,
    last_order_key,
)
from spark_jobs.tables.exact_bounds import writer_properties

KIND = "log"
READ, GAP = "read", "gap"  # rows for what the log did not see, each counted by itself
PROPERTIES = {"delta.appendOnly": "true"}
BATCH_ROWS = 1 << 15
FOREIGN_KEY = "foreign key"


def append_segment(table: SideTable, segment: Segment, user_metadata: str) -> bool:
    """Whether the log lacked something of it. Raises TableError."""
    order_key = last_order_key(segment)
    if table.applied >= order_key:
        return False
    match segment:
        case ChangesSegment():
            return _append_changes(table, segment, user_metadata)
        case TruncateSegment():
            rows = event_row(_without_images(), "truncate", order_key, segment.commit_time_us, "")
        case SchemaSegment():
            rows = event_row(_without_images(), "schema", order_key, segment.commit_time_us, _told(segment))
    return _append(table, rows.schema, rows.to_batches, order_key, user_metadata)


def append_event(
    table: SideTable, operation: str, place: tuple[int, int], told: Mapping[str, Any], user_metadata: str
) -> bool:
    """A row for what no segment tells, once at a place (order key, commit time in µs). `table`: under an id of its own."""
    rows = event_row(_without_images(), operation, *place, json.dumps(told))
    return _append(table, rows.schema, rows.to_batches, place[0], user_metadata)


def append_read(
    table: SideTable,
    chunks: PlacedFiles,
    columns: Sequence[Column],
    *,
    since: int,
    place: tuple[int, int],
    told: Mapping[str, Any],
    user_metadata: str,
) -> bool:
    """Where there is no mirror: the rows that were read, and the row that says so, in one commit; once for an id (`table`) of its own.

    `since`: the order key whose changes each of the rows has; `place`: as of `append_event`.
    """
    if table.applied >= 0:
        return False
    names = chunks.names()
    types = {field.name: field.type for field in chunks.schema(names[0])}
    own = LogRows(names=placed(table.name, columns, _images_of(table)).names, types=types)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from event_row(own.schema, READ, *place, json.dumps(told)).to_batches()
        yield from (own.read(batch, READ, since, place[1]) for name in names for batch in _batches(chunks.opened(name)))

    return _append(table, own.schema, batches, place[0], user_metadata)


def _append_changes(table: SideTable, segment: ChangesSegment, user_metadata: str) -> bool:
    types = {field.name: field.type for field in pq.read_schema(segment.path)}
    place = placed(table.name, segment.columns, _images_of(table))
    own = LogRows(names=place.names, types=types)

    def batches() -> Iterator[pa.RecordBatch]:
        fresh = dataclasses.replace(own, after=table.applied)  # while deltalake reads them it cannot be asked
        logged = fresh.rows(_batches(segment.path.parent / segment.log)) if segment.log else ()
        carried = dataclasses.replace(fresh, origin=FOREIGN_KEY)
        derived = carried.rows(_derived(segment.path)) if segment.derived else ()
        return itertools.chain(logged, derived)

    return _append(table, own.schema, batches, segment.last_order_key, user_metadata)


def _append(table: SideTable, schema: pa.Schema, batches: Any, order_key: int, user_metadata: str) -> bool:
    """Appends what `batches` gives; it is called again where a commit has to be tried again."""
    if table.log is None:
        told = f"Every change of {table.name}: a row a change, with the row before and after. Sluice appends to it."
        table.make(schema, PROPERTIES, told)

    def write() -> None:
        write_deltalake(
            table.log,
            pa.RecordBatchReader.from_batches(schema, _some(batches(), schema)),
            mode="append",
            schema_mode="merge",
            writer_properties=writer_properties(schema),
            commit_properties=table.properties(order_key, user_metadata),
            post_commithook_properties=NO_HOOKS,
        )

    return table.commit(order_key, write)


def _some(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, and one without rows where there are none: the commit also says how far the log is."""
    count = 0
    for batch in batches:
        count += 1
        yield batch
    if not count:
        yield pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _without_images() -> pa.Schema:
    """Of rows that tell of the table as a whole; images come with the first change."""
    return pa.schema([field for field in log_schema([]) if field.name not in {"before", "after"}])


def _images_of(table: SideTable) -> Mapping[str, str]:
    """Fields of the log's images → Spark's names of their types."""
    fields = [] if table.log is None else table.log.schema().fields
    return {
        name: kind for field in fields if field.name == "after" for name, kind in types_of(field.type.fields).items()
    }


def _batches(path: Any) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS)


def _derived(path: Path) -> Iterator[pa.RecordBatch]:
    """The images of a file that foreign keys brought."""
    for batch in _batches(path):
        yield batch.filter(batch[DERIVED])


def _told(segment: SchemaSegment) -> str:
    """What a statement made of the table."""
    record: dict[str, Any] = {
        "key": segment.key,
        "columns": [dataclasses.asdict(column) for column in segment.columns],
        "alterations": [dataclasses.asdict(each) for each in segment.alterations],
    }
    record |= {"fills": dict(segment.fills)} if segment.fills else {}
    record |= {"renamed_from": segment.renamed_from} if segment.renamed_from else {}
    return json.dumps(record, ensure_ascii=False)
