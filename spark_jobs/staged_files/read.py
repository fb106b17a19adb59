"""Reads a staged batch and checks its files against its manifest, before any table is changed.

Reads only the manifest and the footers of the Parquet files. The merges read the rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.file import MANIFEST_FILE, ManifestError, read_manifest_json
from sluice.batch_manifest.values import CascadeEvents, ChangesSegment, Manifest, Segment, StagedTable
from sluice.spark_jobs.errors import StagedBatchError
from sluice.spark_jobs.staged_batch import StagedBatch, last_order_key, staged_types

AGAIN = "; Sluice stages the batch again"


def read_staged_batch(directory: Path, stored: str = "") -> StagedBatch:
    """Reads the manifest and checks every file that it lists. `stored` is the URL where Spark reads the same files. `stored` is empty if
    Spark reads the files in `directory`. Raises StagedBatchError at the first error.
    """
    path = directory / MANIFEST_FILE
    try:
        manifest = read_manifest_json(path.read_bytes(), directory)
        _check(manifest)
    except FileNotFoundError as error:
        raise StagedBatchError(
            f"{path} does not exist: the batch was not staged to its end, or the batch was removed{AGAIN}"
        ) from error
    except OSError as error:
        raise StagedBatchError(f"{path} cannot be read: {error}{AGAIN}") from error
    except ManifestError as error:
        raise StagedBatchError(f"{path} is not a valid manifest of a batch: {error}{AGAIN}") from error
    for table in manifest.tables:
        for segment in table.changes:
            _check_file(segment)
            _check_log(segment)
    positions = [table.positions for table in manifest.tables if table.positions is not None]
    for each in (*positions, *(events.file for events in manifest.cascades)):
        if not each.is_file():
            raise StagedBatchError(f"the manifest names the file {each}, which does not exist{AGAIN}")
    cascades = tuple(_lowered(events) for events in manifest.cascades)
    batch = StagedBatch(**{**vars(manifest), "cascades": cascades}, directory=directory)
    return _in_store(batch, stored) if stored else batch


def _in_store(batch: StagedBatch, stored: str) -> StagedBatch:
    def table(each: StagedTable) -> StagedTable:
        segments = (
            dataclasses.replace(segment, stored=f"{stored}/{segment.file.name}")
            if isinstance(segment, ChangesSegment)
            else segment
            for segment in each.segments
        )
        return dataclasses.replace(each, segments=tuple(segments))

    return dataclasses.replace(batch, stored=stored, tables=tuple(table(each) for each in batch.tables))


def _check(manifest: Manifest) -> None:
    """Raises ManifestError if the manifest contradicts itself."""
    names = [table.name for table in manifest.tables]
    if len(set(names)) != len(names):
        raise ManifestError("the manifest lists a table twice")
    _refuse_rows_with_renames(manifest.tables)
    for table in manifest.tables:
        for earlier, later in itertools.pairwise(table.segments):
            if not _follows(later, last_order_key(earlier)):
                raise ManifestError(f"the segments of {table.name} are not in stream order")
        for segment in table.changes:
            if missing := set(segment.key) - {column.name for column in segment.columns}:
                raise ManifestError(f"key columns {sorted(missing)} are not among the columns of {segment.file.name}")


def _refuse_rows_with_renames(tables: tuple[StagedTable, ...]) -> None:
    """Raises ManifestError if a batch has both a renamed table and row changes. The tables of a batch are merged in any order. A renamed
    table copies the rows of the Delta table that has its former name, and these rows must be exactly as they were before the rename.
    """
    renamed = [table.name for table in tables for each in table.segments if getattr(each, "renamed_from", "")]
    if renamed and any(table.changes for table in tables):
        raise ManifestError(f"{renamed[0]} was renamed, and the batch also has rows from before or after the rename")


def _lowered(events: CascadeEvents) -> CascadeEvents:
    """Returns the events with all column names in lower case."""
    cascades = tuple(
        dataclasses.replace(
            each, columns=_lower(each.columns), referenced=_lower(each.referenced), key=_lower(each.key)
        )
        for each in events.cascades
    )
    return dataclasses.replace(events, referenced=_lower(events.referenced), cascades=cascades)


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(str.lower, names))


def _follows(segment: Segment, order_key: int) -> bool:
    """Returns whether a segment may follow a segment that ends at this order key. All row images of a transaction are in one segment, so
    two segments of images cannot share an order key.
    """
    if isinstance(segment, ChangesSegment):
        return order_key < segment.first_order_key <= segment.last_order_key
    return order_key <= segment.order_key


def _check_log(segment: ChangesSegment) -> None:
    if not segment.log:
        return
    path = segment.file.parent / segment.log
    try:
        rows = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise StagedBatchError(f"the manifest names the file {path}, which cannot be read: {error}{AGAIN}") from error
    if rows != segment.log_rows:
        raise StagedBatchError(
            f"the file {path} has {rows} rows instead of the {segment.log_rows} rows in the manifest{AGAIN}"
        )


def _check_file(segment: ChangesSegment) -> None:
    path = segment.file
    if not path.is_file():
        raise StagedBatchError(f"the manifest names the file {path}, which does not exist{AGAIN}")
    size_bytes = path.stat().st_size
    if size_bytes != segment.size_bytes:
        raise StagedBatchError(
            f"the file {path} has {size_bytes} bytes instead of the {segment.size_bytes} bytes in the manifest{AGAIN}"
        )
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise StagedBatchError(f"{path} is not a Parquet file: {error}{AGAIN}") from error
    if footer.num_rows != segment.rows:
        raise StagedBatchError(
            f"the file {path} has {footer.num_rows} rows instead of the {segment.rows} rows in the manifest{AGAIN}"
        )
    missing = staged_types(segment).keys() - set(footer.schema.to_arrow_schema().names)
    if missing:
        raise StagedBatchError(f"{path} lacks the columns {', '.join(sorted(missing))} that the manifest lists{AGAIN}")
