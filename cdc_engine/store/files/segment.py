"""Creates event files (segments), and reads the first record of an event file, which describes the segment. `log` writes the other records,
which contain the blocks, and `reader` reads them.

A segment begins between two transactions, and records how many bytes of the previous segment are valid. Bytes after the valid part are an
incomplete record from a crash, a transaction that never ended, or blocks that a process wrote after it had lost the lease.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from pathlib import Path
from typing import Any

from sluice.cdc_engine.durable_files import make_folder, sync
from sluice.cdc_engine.errors import StoreDamagedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.files.encoding import text_of
from sluice.cdc_engine.store.files.mark import Mark
from sluice.cdc_engine.store.files.record import (
    HEAD,
    SEGMENT,
    TornError,
    Where,
    read_arrays,
    read_head,
    read_text,
    write_record,
)
from sluice.cdc_engine.store.window.positions import Key, key_of

SUFFIX, FORMAT = ".events", 1


@dataclasses.dataclass(eq=False)
class Segment:
    """An event file and its valid part. The segment begins at the position `start`, between two transactions. `mark` says how many
    transactions, row events and bytes are before `start` since the store was created. `before_bytes` is the number of valid bytes of the
    previous segment, and `size` the number of valid bytes of this segment. Blocks begin at the offset `first`, after the first record,
    which has the checksum `seed`.
    """

    path: Path
    number: int
    ledger_id: str
    filters: str
    start: Position
    mark: Mark
    before_bytes: int
    first: int
    seed: int
    size: int

    @property
    def key(self) -> Key:
        return key_of(self.start)


def path_of(directory: Path, number: int) -> Path:
    return directory / f"{number:012d}{SUFFIX}"


def numbers_in(directory: Path) -> list[int]:
    """Returns the numbers of the segments in a directory, ascending. Raises StoreDamagedError if a file has the suffix of segments, but no
    number as its name.
    """
    try:
        return sorted(int(path.name.removesuffix(SUFFIX)) for path in directory.glob(f"*{SUFFIX}"))
    except ValueError as error:
        raise StoreDamagedError(
            f"{directory} has a file that Sluice did not write ({error}): remove that file"
        ) from error


class SegmentFile:
    """An open file descriptor, which is closed when no object refers to it any more."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self.descriptor = os.open(path, flags, 0o600)
        weakref.finalize(self, os.close, self.descriptor)


def make_segment(directory: Path, segment: Segment) -> tuple[SegmentFile, Segment]:
    """Creates a segment with its first record, and syncs the file and its directory. After an OSError, the file does not exist."""
    make_folder(directory)
    record: dict[str, Any] = {
        "format": FORMAT,
        "ledger_id": segment.ledger_id,
        "filters": segment.filters,
        "start": segment.start.to_json(),
        "mark": dataclasses.astuple(segment.mark),
        "before_bytes": segment.before_bytes,
    }
    file = SegmentFile(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        head = write_record(Where(file.descriptor, 0), SEGMENT, text_of(record), ())
        os.fsync(file.descriptor)
        sync(directory)
    except OSError:
        with contextlib.suppress(OSError):
            segment.path.unlink()
        raise
    return file, dataclasses.replace(segment, first=head.size, seed=head.checksum, size=head.size)


def read_segment(path: Path, number: int) -> Segment:
    """Reads the first record of a segment. The returned segment has the size of the whole file. Raises TornError if the record is
    incomplete, StoreDamagedError if the file has another format, and OSError if the file cannot be read.
    """
    file = SegmentFile(path, os.O_RDONLY)
    size = os.fstat(file.descriptor).st_size
    if size < HEAD.size:
        raise TornError(f"the file has {size} bytes, fewer than the header of a record")
    at = Where(file.descriptor, 0)
    head = read_head(at, size)
    record, text = read_text(at, head)
    read_arrays(at, head, text, ())
    if head.kind != SEGMENT or record.get("format") != FORMAT:
        raise StoreDamagedError(
            f"{path} is of format {record.get('format')}, and this version of Sluice reads format {FORMAT}: "
            "run the version that wrote the file until all its events are merged"
        )
    return Segment(
        path=path,
        number=number,
        ledger_id=record["ledger_id"],
        filters=record["filters"],
        start=Position.from_json(record["start"]),
        mark=Mark(*record["mark"]),
        before_bytes=record["before_bytes"],
        first=head.size,
        seed=head.checksum,
        size=size,
    )
