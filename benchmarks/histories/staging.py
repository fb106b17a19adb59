"""Simulates staging without Parquet. Writes a batch's row images to small files, with production's own manifest.

The images are read from the binlog bytes that production's scan and ring have processed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from benchmarks.histories import binlog_bytes as binlog
from benchmarks.histories.faults import Trouble
from benchmarks.histories.statements import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Image, write_images
from sluice.batch_manifest.file import MANIFEST_FILE, manifest_json
from sluice.batch_manifest.values import ChangesSegment, LakeColumn, Manifest, Segment, TruncateSegment
from sluice.batch_manifest.values import StagedTable as ManifestTable
from sluice.cdc_engine.contracts import Batch, BlockSlice, OutstandingBatch, Staged, TableChangeKind
from sluice.cdc_engine.errors import StagingError
from sluice.cdc_engine.position import Position, file_number, order_key
from sluice.cdc_engine.staging.stager import RulesFor
from sluice.cdc_engine.staging.staging import batch_directory

COLUMNS = (
    LakeColumn(name="id", type="int", nullable=False, mysql_type="int"),
    LakeColumn(name="number", type="bigint", nullable=False, mysql_type="bigint"),
)


@dataclasses.dataclass
class _Table:
    segments: list[Segment] = dataclasses.field(default_factory=list)
    images: list[Image] = dataclasses.field(default_factory=list)


class PlayedStaging:
    """Implements `ports.Stager` for one destination. Calls `meanwhile` while a part of the batch is staged, so that the
    parser continues.
    """

    def __init__(
        self, destination: str, folder: Path, rules_for: RulesFor, trouble: Trouble, meanwhile: Callable[[], None]
    ) -> None:
        self._destination, self._folder, self._rules_for, self._trouble = destination, folder, rules_for, trouble
        self._meanwhile = meanwhile

    def __call__(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        error = StagingError("the batch could not be staged: played")
        staged = self._trouble.reach("staging", lambda: self._stage(batch, record, more), lambda: error)
        assert isinstance(staged, Staged)
        return staged

    def _stage(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        assert batch.start is not None
        assert batch.end is not None
        start, end = batch.start, batch.end
        tables: dict[str, _Table] = {}
        size = 0
        while not batch.empty:
            for part in batch.slices:
                _take(part, tables)
            end, size = batch.end or end, size + batch.byte_count
            self._meanwhile()
            batch = more(batch)
        path = self._folder / batch_directory(end, record.delivery)
        path.mkdir(parents=True, exist_ok=True)
        left_out = self._rules_for(record).left_out
        staged = [
            ManifestTable(database=binlog.DATABASE, table=name, segments=tuple(_closed(table, name, path)))
            for name, table in tables.items()
            if f"{binlog.DATABASE}.{name}" not in left_out
        ]
        staged = [table for table in staged if table.segments]
        manifest = _manifest(self._destination, record, (start, end), tuple(staged), size)
        (path / MANIFEST_FILE).write_text(manifest_json(manifest))
        return Staged(
            path=path,
            rows=manifest.rows,
            size_bytes=size,
            tables=tuple(table.name for table in staged),
            first_commit_time_us=manifest.first_commit_time_us,
        )


def _take(part: BlockSlice, tables: dict[str, _Table]) -> None:
    block = part.block
    for change in part.changes:
        if change.kind is TableChangeKind.TRUNCATE:
            table = tables.setdefault(change.table, _Table())
            _close(table)
            table.segments.append(TruncateSegment(order_key=change.order_key, commit_time_us=change.time_us))
    for event in range(part.first_event, part.last_event):
        name = block.tables[int(block.event_table[event])].table
        begin = int(block.event_offset[event])
        content = block.buffer[begin : begin + int(block.event_length[event])].tobytes()
        table = tables.setdefault(name, _Table())
        key = order_key(block.epoch, file_number(block.file), int(block.event_transaction_offset[event]))
        table.images += _images(content, name, key, len(table.images))


def _images(content: bytes, table: str, order_key: int, row: int) -> list[Image]:
    """Returns the images that staging keeps. If the table has a key, the before image of an update is kept only if the key changed."""
    kind = content[4]
    pairs = binlog.images_of(content, kind)
    if kind != binlog.UPDATE:
        return [Image(INSERT if kind == binlog.WRITE else DELETE, order_key, row, *pairs[0])]
    before, after = pairs
    keeps = table == binlog.KEYLESS or before[0] != after[0]
    first = [Image(UPDATE_BEFORE, order_key, row, *before)] if keeps else []
    return [*first, Image(UPDATE_AFTER, order_key + len(first), row + len(first), *after)]


def _close(table: _Table) -> None:
    """Ends the current segment, before a TRUNCATE. A placeholder in `segments` keeps the segment's images until the files are written."""
    if table.images:
        table.segments.append(_Pending(tuple(table.images)))  # type: ignore[arg-type]
        table.images = []


@dataclasses.dataclass(frozen=True)
class _Pending:
    images: tuple[Image, ...]


def _closed(table: _Table, name: str, folder: Path) -> list[Segment]:
    _close(table)
    return [
        _segment(segment.images, name, folder / f"{name}.{index}.images") if isinstance(segment, _Pending) else segment
        for index, segment in enumerate(table.segments)
    ]


def _segment(images: tuple[Image, ...], name: str, path: Path) -> ChangesSegment:
    size = write_images(path, list(images))
    keyed = name == binlog.KEYED
    ids = [image.id for image in images]
    counts = {kind: sum(image.operation == kind for image in images) for kind in (1, 2, 3, 4)}
    return ChangesSegment(
        file=Path(path.name),
        size_bytes=size,
        version="1",
        rows=len(images),
        inserts=counts[INSERT],
        updates=counts[UPDATE_AFTER],
        deletes=counts[DELETE],
        key_changes=counts[UPDATE_BEFORE] if keyed else 0,
        unique_keys=keyed and len(set(ids)) == len(ids),
        first_order_key=min(image.order_key for image in images),
        last_order_key=max(image.order_key for image in images),
        first_commit_time_us=1,
        last_commit_time_us=1,
        key=("id",) if keyed else (),
        key_min=(min(ids),) if keyed else (),
        key_max=(max(ids),) if keyed else (),
        columns=COLUMNS,
    )


def _manifest(
    destination: str,
    record: OutstandingBatch,
    bounds: tuple[Position, Position],
    tables: tuple[ManifestTable, ...],
    size: int,
) -> Manifest:
    start, end = bounds
    segments = [each for table in tables for each in table.segments if isinstance(each, ChangesSegment)]
    return Manifest(
        destination=destination,
        epoch=end.epoch,
        ledger_id=record.ledger_id,
        delivery=record.delivery,
        start=start.to_json(),
        end=end.to_json(),
        end_order_key=end.order_key,
        rows=sum(segment.rows for segment in segments),
        changes=sum(segment.changes for segment in segments),
        bytes=size,
        staged_at_us=end.time_us,
        first_commit_time_us=end.time_us,
        last_commit_time_us=end.time_us,
        tables=tables,
    )
