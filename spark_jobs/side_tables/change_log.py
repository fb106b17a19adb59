"""Appends a table's part of a batch to its change log, exactly once: one row per change, with the row before and after the change. `write`
calls this module.

deltalake appends the rows without Spark, and writes them while they are read, so only a part of them is in memory. Each segment is one
commit with a transaction under the log's own app id. Changes that the log already has are left out.
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

from sluice.batch_manifest.values import ChangesSegment, LakeColumn, SchemaSegment, Segment, TruncateSegment
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.cascades.files import DERIVED
from sluice.spark_jobs.side_tables.columns import MappedColumns, map_columns, sources_of
from sluice.spark_jobs.side_tables.log_rows import IMAGES, LogRows, event_row, log_schema
from sluice.spark_jobs.side_tables.side_table import NO_HOOKS, SideTable, types_of
from sluice.spark_jobs.staged_batch import last_order_key
from sluice.spark_jobs.tables.exact_bounds import writer_properties

KIND = "log"
# Values of the column `operation` in rows of the log that are not changes: a snapshot read the table (READ), or the log lacks changes of a
# period (GAP). Commits with such rows have their own app id.
READ, GAP = "read", "gap"
PROPERTIES = {"delta.appendOnly": "true"}
BATCH_ROWS = 1 << 15
FOREIGN_KEY = "foreign key"


def append_segment(table: SideTable, segment: Segment, user_metadata: str) -> bool:
    """Appends a segment of a batch to the change log. Returns False and writes nothing if the log already has the segment. Raises
    TableError if deltalake cannot write.
    """
    order_key = last_order_key(segment)
    if table.applied >= order_key:
        return False
    match segment:
        case ChangesSegment():
            return _append_changes(table, segment, user_metadata)
        case TruncateSegment():
            rows = event_row(_without_images(), "truncate", order_key, segment.commit_time_us, "")
        case SchemaSegment():
            rows = event_row(_without_images(), "schema", order_key, segment.commit_time_us, _described(segment))
    return _append(table, rows.schema, rows.to_batches, order_key, user_metadata)


def append_event(
    table: SideTable, operation: str, position: tuple[int, int], record: Mapping[str, Any], user_metadata: str
) -> bool:
    """Appends a row about an event that is in no segment of a batch: a snapshot (READ), or a gap in the log (GAP). `position` is the
    event's order key and its commit time in µs. `table` has a separate app id for such events. Returns False if a commit with this app id
    already has this order key.
    """
    rows = event_row(_without_images(), operation, *position, json.dumps(record))
    return _append(table, rows.schema, rows.to_batches, position[0], user_metadata)


def append_read(
    table: SideTable,
    chunks: StoredFiles,
    columns: Sequence[LakeColumn],
    *,
    since: int,
    position: tuple[int, int],
    details: Mapping[str, Any],
    user_metadata: str,
) -> bool:
    """Appends the rows that a snapshot read, and one row about the snapshot, in one commit. Only for a table without a current-state table.
    Returns False and changes nothing if the app id of `table` already has a commit.

    The rows include all changes up to the order key `since`. `position` is the order key and the commit time (µs) of the row about the
    snapshot.
    """
    if table.applied >= 0:
        return False
    names = chunks.names()
    types = {field.name: field.type for field in chunks.schema(names[0])}
    own = _log_rows(table, columns, types)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from event_row(own.schema, READ, *position, json.dumps(details)).to_batches()
        yield from (
            own.read(batch, READ, since, position[1]) for name in names for batch in _batches(chunks.opened(name))
        )

    return _append(table, own.schema, batches, position[0], user_metadata)


def _append_changes(table: SideTable, segment: ChangesSegment, user_metadata: str) -> bool:
    types = {field.name: field.type for field in pq.read_schema(segment.file)}
    own = _log_rows(table, segment.columns, types)

    def batches() -> Iterator[pa.RecordBatch]:
        # `table.applied` is read before the batches, because it cannot be read while deltalake consumes them.
        fresh = dataclasses.replace(own, after=table.applied)
        logged = fresh.rows(_batches(segment.file.parent / segment.log)) if segment.log else ()
        carried = dataclasses.replace(fresh, origin=FOREIGN_KEY)
        derived = carried.rows(_derived(segment.file)) if segment.derived else ()
        return itertools.chain(logged, derived)

    return _append(table, own.schema, batches, segment.last_order_key, user_metadata)


def _append(table: SideTable, schema: pa.Schema, batches: Any, order_key: int, user_metadata: str) -> bool:
    """Appends the batches that `batches` returns, in one commit. First creates the table if it does not exist. Calls `batches` again if the
    commit must be repeated. Returns False if the table already has the order key.
    """
    if table.log is None:
        comment = (
            f"Every change of {table.name}: one row per change, with the row before and after the change. Sluice "
            "appends to this table."
        )
        table.make(schema, PROPERTIES, comment)

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
    """Yields the batches. If there are none, yields a batch without rows: the commit must be made, because it stores the log's position."""
    count = 0
    for batch in batches:
        count += 1
        yield batch
    if not count:
        yield pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _without_images() -> pa.Schema:
    """Returns the schema of rows about the whole table. The schema has no columns for row images, because these columns are added with the
    first change.
    """
    return pa.schema([field for field in log_schema([]) if field.name not in IMAGES])


def mapped_columns(table: SideTable, columns: Sequence[LakeColumn]) -> MappedColumns:
    """Maps columns of the source to fields of the log's row images. Raises TableError if a column has a name that Delta refuses."""
    fields = [] if table.log is None else table.log.schema().fields
    images = [image for field in fields if field.name == "after" for image in field.type.fields]
    return map_columns(table.name, columns, types_of(images), sources_of(images))


def _log_rows(table: SideTable, columns: Sequence[LakeColumn], types: Mapping[str, Any]) -> LogRows:
    mapped = mapped_columns(table, columns)
    return LogRows(names=mapped.names, types=types, sources=mapped.sources)


def _batches(path: Any) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS)


def _derived(path: Path) -> Iterator[pa.RecordBatch]:
    """Yields those images of a file that foreign keys caused."""
    for batch in _batches(path):
        yield batch.filter(batch[DERIVED])


def _described(segment: SchemaSegment) -> str:
    """Returns the table's columns after a schema change, and the alterations, as JSON."""
    record: dict[str, Any] = {
        "key": segment.key,
        "columns": [dataclasses.asdict(column) for column in segment.columns],
        "alterations": [dataclasses.asdict(each) for each in segment.alterations],
    }
    record |= {"fills": dict(segment.fills)} if segment.fills else {}
    record |= {"renamed_from": segment.renamed_from} if segment.renamed_from else {}
    return json.dumps(record, ensure_ascii=False)
