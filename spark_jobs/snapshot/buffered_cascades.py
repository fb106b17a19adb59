"""Stores the changes of parent rows that foreign keys pass on to a table with a running snapshot. `table_buffering` writes the files,
`apply_cascades` reads them.

The current rows of a table are not known during its snapshot, so a run cannot derive yet how foreign keys change these rows. Instead, the
run stores each change of a value that the foreign keys reference, and the publication derives the changes of the rows. For each change, the
run stores the value that was deleted or changed, and how many images of the table precede the change in its transaction. By this number,
the publication sorts the change between the images. The number does not depend on how the stream is split into batches.

A run writes in this order: the changes of referenced values, the buffered images of the table, and a mark that both are complete. Then it
writes the manifest of derived changes (`cascades.files`), and last it merges other tables. If the run crashes before it has written this
manifest, the next run derives the changes of the batch again from the unchanged lake, even if the batch then has another end.

The files of the crashed run stay, because a publication may include the images that the crashed run has buffered. So the next run writes
only changes of transactions that are in no file. Once the manifest exists, a publication always includes the whole batch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.file import from_record, to_record
from sluice.batch_manifest.values import Cascade, StagedTable
from sluice.object_stores.errors import StoreError
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.cascades.play import ChangeOrder, Event, Passed, Values
from sluice.spark_jobs.cascades.rows import positions_of
from sluice.spark_jobs.durable_lake import sync
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.snapshot.buffering import KEY_DIGITS, BufferedChanges
from sluice.spark_jobs.staged_batch import ORDER_KEY

# The maximum number of buffered changes per snapshot, over all foreign keys. It is limited, because the run that publishes the snapshot
# replays the changes in its memory. With more changes, the snapshot reads all rows again.
CHANGES_MAX = 100_000
# The format of the files. Another version of Sluice may write another format, and its files are refused.
FORMAT_KEY, FORMAT = b"sluice.format", b"2"
COUNT_DIGITS = 9
COMPLETE = "complete"
CASCADES = b"sluice.cascades"
TYPES: dict[str, pa.DataType] = {
    "order_key": pa.int64(),
    "images": pa.int64(),
    "sequence_number": pa.int64(),
    "commit_time": pa.timestamp("us", "UTC"),
    "cascade": pa.int32(),
    "before": pa.string(),
    "after": pa.string(),
}
SCHEMA = pa.schema(TYPES)


class TooManyChangesError(Exception):
    """Raised if more changes of parent rows must be buffered than a publication can replay."""


def complete_up_to(cascades: StoredFiles) -> int:
    """Returns the last order key of the last batch whose changes are all buffered. Returns -1 if there is no such batch. Raises StoreError
    if the store does not answer.
    """
    names = [name for name in cascades.names() if COMPLETE in name]
    return int(names[-1].split(".")[0]) if names else -1


def buffer_changes(table: StagedTable, changes: Sequence[Passed], buffered: BufferedChanges, end: int) -> None:
    """Stores a batch's changes of the values that the table's foreign keys reference, and syncs the file to disk. The batch ends at the
    order key `end`. Leaves out transactions that an earlier attempt has written.

    Raises TooManyChangesError before anything is written, and TableError if the disk or the store fails.
    """
    with _as_table_error(table.name, buffered.cascades):
        new = [each for each in changes if each.at.order_key > buffered.after]
        written = _unmarked_transactions(table.name, buffered.cascades) if new else set()
        new = [each for each in new if each.at.order_key not in written]
        if not new:
            return
        before = _count(buffered.cascades)
        if before + len(new) > CHANGES_MAX:
            raise TooManyChangesError(
                "foreign keys of the table refer to values that changed more than "
                f"{CHANGES_MAX:,} times during the snapshot"
            )
        name = f"{end:0{KEY_DIGITS}d}.{before + len(new):0{COUNT_DIGITS}d}.parquet"
        write_rows(_rows(new, _images_before(table, new)), buffered.cascades, name)


def mark_complete(table: str, buffered: BufferedChanges, end: int) -> None:
    """Writes the mark that all changes of the table up to the order key `end` are buffered. Does nothing if there is such a mark. Raises
    TableError if the disk or the store fails.
    """
    with _as_table_error(table, buffered.cascades):
        if complete_up_to(buffered.cascades) < end:
            write_rows(SCHEMA.empty_table(), buffered.cascades, f"{end:0{KEY_DIGITS}d}.{COMPLETE}.parquet")


def buffered_events(cascades: StoredFiles, child: str, after: int, up_to: int) -> list[tuple[int, Event]]:
    """Returns the buffered changes of parent rows of the table `child`, in stream order: the changes whose order key is above `after` and
    at most `up_to`. Each change comes with the number of the child's images that precede it in its transaction. Raises TableError for files
    of another format. Also raises StoreError and OSError.

    Several attempts at a batch may have written the same transaction, each attempt completely. The transaction is read from only one of the
    files.
    """
    found: list[tuple[int, Event]] = []
    seen: set[int] = set()
    for name in cascades.names():
        if COMPLETE in name:
            continue
        table = _read(child, cascades, name)
        known = [from_record(Cascade, each) for each in json.loads((table.schema.metadata or {})[CASCADES])]
        rows = [row for row in table.to_pylist() if after < row["order_key"] <= up_to and row["order_key"] not in seen]
        found += [(row["images"], _event(row, known[row["cascade"]], child)) for row in rows]
        seen.update(row["order_key"] for row in rows)
    return sorted(found, key=lambda each: (each[1].at.order_key, each[1].at.index))


def _read(child: str, cascades: StoredFiles, name: str, columns: list[str] | None = None) -> pa.Table:
    """Reads one file. Raises TableError if another version of Sluice wrote it in another format."""
    table = pq.read_table(cascades.opened(name), columns=columns)
    found = (table.schema.metadata or {}).get(FORMAT_KEY, b"none")
    if found != FORMAT:
        why = (
            f"the buffered changes of parent rows in {cascades.url or cascades.folder}/{name} have the format "
            f"{found.decode()} instead of {FORMAT.decode()}, which this version of Sluice reads: use `sluice "
            "snapshot cancel`, then `sluice snapshot start`; or continue with the version that wrote the file"
        )
        raise TableError(child, why)
    return table


def _unmarked_transactions(child: str, cascades: StoredFiles) -> set[int]:
    """Returns the order keys of the stored transactions whose batches were not marked as complete. Raises TableError for a file of another
    format. Also raises StoreError and OSError.
    """
    marked = complete_up_to(cascades)
    names = [name for name in cascades.names() if COMPLETE not in name and int(name.split(".")[0]) > marked]
    read = [_read(child, cascades, name, ["order_key"])["order_key"] for name in names]
    return {int(key) for keys in read for key in np.asarray(keys)}


def _event(row: Mapping[str, Any], cascade: Cascade, child: str) -> Event:
    at = ChangeOrder(row["order_key"], row["sequence_number"], row["commit_time"])
    old = dict(zip(cascade.referenced, _decoded(row["before"]), strict=True))
    new = None if row["after"] is None else dict(zip(cascade.referenced, _decoded(row["after"]), strict=True))
    return Event(at, cascade.parent_name, old, new, (cascade,), frozenset({child}))


def _images_before(table: StagedTable, changes: Sequence[Passed]) -> list[int]:
    """Returns, for each change, how many images of the table precede it in its transaction."""
    segments = [np.asarray(pq.read_table(each.file, columns=[ORDER_KEY])[ORDER_KEY]) for each in table.changes]
    if not segments:
        return [0] * len(changes)
    keys, indices = np.concatenate(segments), np.asarray(positions_of(table), np.int64)
    order = np.lexsort((indices, keys))
    keys, indices = keys[order], indices[order]
    counts = []
    for change in changes:
        begin, end = np.searchsorted(keys, [change.at.order_key, change.at.order_key + 1])
        counts.append(int(np.searchsorted(indices[begin:end], change.at.index, side="right")))
    return counts


def _rows(changes: Sequence[Passed], images: Sequence[int]) -> pa.Table:
    cascades = list(dict.fromkeys(each.cascade for each in changes))
    rows = [
        {
            "order_key": each.at.order_key,
            "images": count,
            "sequence_number": each.at.index,
            "commit_time": each.at.commit_time,
            "cascade": cascades.index(each.cascade),
            "before": _encoded(each.before),
            "after": None if each.after is None else _encoded(each.after),
        }
        for each, count in zip(changes, images, strict=True)
    ]
    text = json.dumps([to_record(each) for each in cascades])
    return pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata({CASCADES: text.encode(), FORMAT_KEY: FORMAT}))


def write_rows(rows: pa.Table, files: StoredFiles, name: str) -> None:
    """Writes one file of a snapshot. After a crash, the file is complete and on disk, or does not exist. Raises OSError and StoreError."""
    with tempfile.TemporaryDirectory(prefix="sluice-cascades-") as scratch:
        folder = Path(scratch) if files.url else files.folder
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}.tmp"
        pq.write_table(rows, temporary)
        if files.url:
            files.put(temporary, name)
            return
        sync(temporary)
        temporary.replace(folder / name)
        sync(folder)
        sync(folder.parent)


def _count(files: StoredFiles) -> int:
    names = [name for name in files.names() if COMPLETE not in name]
    return int(names[-1].split(".")[1]) if names else 0


@contextlib.contextmanager
def _as_table_error(table: str, files: StoredFiles) -> Iterator[None]:
    """Converts errors of the disk or the store to a TableError, so that the batch is repeated."""
    try:
        yield
    except (OSError, StoreError) as error:
        why = (
            "the changes that foreign keys made to the table could not be buffered in "
            f"{files.url or files.folder}: {error}; Sluice tries again"
        )
        raise TableError(table, why, own=False) from error


# ── referenced values as JSON, which has no type for most of them ──

_KINDS: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "decimal": (Decimal, str, Decimal),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "seconds": (dt.timedelta, lambda value: value // dt.timedelta(microseconds=1), lambda us: dt.timedelta(0, 0, us)),
}


def _encoded(values: Values) -> str:
    return json.dumps(list(_each_encoded(values)))


def _each_encoded(values: Values) -> Iterator[Any]:
    for value in values:
        kind = next((name for name, (known, _, _) in _KINDS.items() if isinstance(value, known)), "")
        yield {kind: _KINDS[kind][1](value)} if kind else value


def _decoded(text: str) -> Values:
    return tuple(
        _KINDS[next(iter(each))][2](*each.values()) if isinstance(each, dict) else each for each in json.loads(text)
    )
