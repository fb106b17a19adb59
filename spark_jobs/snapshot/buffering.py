"""Buffers the changes of a table with a running snapshot: links its staged files into a folder that the publication reads, instead of
merging them. `run_batch` calls this module.

A batch that was rolled back may be handed out again with another end. Changes that are already buffered are then left out, so each image is
buffered once. A second copy would become a second row in a table without a key.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Protocol

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import ChangesSegment, Segment, StagedTable, TruncateSegment
from sluice.object_stores.errors import StoreError
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.durable_lake import link, sync
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.staged_batch import ORDER_KEY, last_order_key
from sluice.spark_jobs.targets.report import TableTarget, report_of_buffered

IMAGE_NOT_FULL = "IMAGE_NOT_FULL"
KEY_DIGITS = 19  # The number of decimal digits of the largest int64.
DERIVED_SUFFIX = ".derived.parquet"  # The suffix of the file to which a publication writes the changes of foreign keys.
# A snapshot restarts if rows changed their keys and the images of these changes lack columns. After this many restarts, the snapshot fails.
RESTARTS_MAX = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferedChanges:
    """The buffered changes of a table. The name of each file is the order key of its last change. Changes up to the order key `after` are
    not buffered: the snapshot was restarted at this position, and reads all rows later.

    `restarts` counts how often the rows were read again because images lack columns. `cascades` are the files with the changes of parent
    rows that foreign keys pass on to the table.
    """

    files: StoredFiles
    cascades: StoredFiles
    after: int
    restarts: int = 0


class SnapshotBuffers(Protocol):
    """The running snapshots of a destination, by "database.table". Only the holder of the run lock changes their state."""

    def get(self, name: str) -> BufferedChanges | None:
        """Returns the buffer of a table. Returns None if the table has no running snapshot."""

    def again(self, name: str, order_key: int, why: str, *, images: bool = False) -> BufferedChanges:
        """Restarts the snapshot: drops the rows that were read and the changes up to this order key, and reads all rows again. `why` is the
        cause. If `images`, the cause is row images that lack columns, and the number of restarts is limited.
        """

    def cascades_unseen(self, name: str, order_key: int, why: str, through: frozenset[str]) -> BufferedChanges:
        """Restarts the snapshot. Called if foreign keys changed rows up to this order key, and these changes cannot be derived. After too
        many such restarts, the snapshot fails. The restarted snapshot reads the rows only after the tables `through` have been published.
        """

    def fail(self, name: str, why: str) -> None:
        """Marks the snapshot as failed. Only an operator can start a failed snapshot again."""


class NoSnapshotBuffers:
    """Implements `SnapshotBuffers` for a destination without running snapshots."""

    def get(self, name: str) -> BufferedChanges | None:  # noqa: ARG002
        return None

    def again(self, name: str, order_key: int, why: str, *, images: bool = False) -> BufferedChanges:
        raise NotImplementedError

    def cascades_unseen(self, name: str, order_key: int, why: str, through: frozenset[str]) -> BufferedChanges:
        raise NotImplementedError

    def fail(self, name: str, why: str) -> None:
        raise NotImplementedError


NO_SNAPSHOT_BUFFERS = NoSnapshotBuffers()


def buffer_table(
    staged: StagedTable, target: TableTarget, holds: SnapshotBuffers, buffered: BufferedChanges
) -> TableReport:
    """Buffers the changes of a table in a batch, and syncs them to disk. Leaves out changes that are already buffered. Restarts the
    snapshot if a segment truncates or alters the table, or if a segment cannot be buffered because its images lack columns (`_read_again`).
    Raises TableError if the changes cannot be stored, or if `_read_again` makes the snapshot fail.
    """
    started, rows = time.monotonic(), 0
    for segment in staged.segments:
        if last_order_key(segment) <= buffered.after:
            continue
        if isinstance(segment, ChangesSegment) and segment.partial and (segment.moves or not segment.key):
            buffered = _read_again(staged.name, segment, holds, buffered)
        elif isinstance(segment, ChangesSegment):
            rows += _buffer(staged.name, segment, buffered)
        else:
            buffered = holds.again(staged.name, segment.order_key, _why(segment))
    return report_of_buffered(staged, target.kept, rows, round((time.monotonic() - started) * 1000))


def buffered_up_to(files: StoredFiles) -> int:
    """Returns the order key of the last buffered change. Returns -1 if there is none. Raises StoreError if the store with the buffer does
    not answer.
    """
    names = [name for name in files.names() if not name.endswith(DERIVED_SUFFIX)]
    return int(Path(names[-1]).stem) if names else -1


def _read_again(
    name: str, segment: ChangesSegment, holds: SnapshotBuffers, buffered: BufferedChanges
) -> BufferedChanges:
    """Restarts the snapshot after a segment that cannot be buffered. Called for a segment whose images lack columns, if one of its
    rows changed its key or the table has no key. After a change of the key, it is unknown under which key the snapshot read the row.

    After RESTARTS_MAX restarts, or if the table has no key, marks the snapshot as failed instead, and raises TableError.
    """
    if segment.key and buffered.restarts < RESTARTS_MAX:
        why = "rows changed their keys, and their images lack columns"
        return holds.again(name, segment.last_order_key, why, images=True)
    cause = (
        f"in each of {buffered.restarts + 1} attempts, rows changed their keys during the snapshot"
        if segment.key
        else "the table has no key, rows changed during the snapshot"
    )
    why = (
        f"{cause}, and their row images lack columns (binlog_row_image is not FULL). Set binlog_row_image=FULL on "
        "the source until the table is published, or avoid such changes until then; then start the snapshot again"
    )
    holds.fail(name, why)
    raise TableError(name, f"the snapshot of the table failed: {why}", state=IMAGE_NOT_FULL, for_good=True)


def _buffer(name: str, segment: ChangesSegment, buffered: BufferedChanges) -> int:
    try:
        after = max(buffered.after, buffered_up_to(buffered.files))
        if segment.last_order_key <= after:
            return 0
        return (_put if buffered.files.url else _keep)(segment, buffered.files, after)
    except (OSError, StoreError) as error:
        where = buffered.files.url or buffered.files.folder
        why = f"changes of the table could not be buffered in {where}: {error}; Sluice tries again"
        raise TableError(name, why, own=False) from error


def _put(segment: ChangesSegment, files: StoredFiles, after: int) -> int:
    """Uploads the segment's images above the order key `after` to the buffer in an object store. Returns the number of these images. The
    publication may run on another host, so it cannot read local files.
    """
    if segment.first_order_key > after:
        files.put(segment.file, _name(segment))
        return segment.rows
    with tempfile.TemporaryDirectory(prefix="sluice-buffered-") as folder:
        rest = Path(folder) / _name(segment)
        rows = _write_rest(segment.file, rest, after)
        files.put(rest, rest.name)
    return rows


def _name(segment: ChangesSegment) -> str:
    """Returns the name of the buffered file: the order key of its last change."""
    return f"{segment.last_order_key:0{KEY_DIGITS}d}.parquet"


def _keep(segment: ChangesSegment, files: StoredFiles, after: int) -> int:
    """Links or copies the segment's images above the order key `after` into the local buffer. Returns the number of these images."""
    folder = files.folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(segment)
    # A crash may leave this file behind. Spark ignores it, because its name begins with a dot.
    temporary = folder / f".{path.stem}.tmp"
    temporary.unlink(missing_ok=True)
    if segment.first_order_key > after:
        link(segment.file, temporary)
        rows = segment.rows
    else:
        rows = _write_rest(segment.file, temporary, after)
    for each in (temporary, None, folder, folder.parent):
        if each is None:
            temporary.replace(path)
        else:
            sync(each)
    return rows


def _write_rest(staged: Path, target: Path, after: int) -> int:
    source = ds.dataset(staged, format="parquet")
    rows = 0
    with pq.ParquetWriter(target, source.schema, compression="none") as writer:
        for batch in source.to_batches(filter=pc.field(ORDER_KEY) > after):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _why(segment: Segment) -> str:
    return "the table was truncated" if isinstance(segment, TruncateSegment) else "the table was altered"
