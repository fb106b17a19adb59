"""Describes where a block is in a file that `log` or `spill` wrote, so that the block is read and verified only when it is needed.

A `StoredBlock` keeps its file open, so the block can be read even after the file is removed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import StoreDamagedError
from sluice.cdc_engine.store.files.encoding import Names, arrays_of, block_of, described, empty_arrays, text_of
from sluice.cdc_engine.store.files.record import (
    BLOCK,
    RecordHeader,
    TornError,
    Where,
    read_arrays,
    read_head,
    read_text,
    write_record,
)
from sluice.cdc_engine.store.files.segment import SegmentFile

UNREADABLE = (TornError, OSError, KeyError, TypeError, ValueError)  # The errors of reading a damaged record.


@dataclasses.dataclass(frozen=True, eq=False)
class StoredBlock:
    """The location of a block in a file: the block's record begins at `at`, and ends before the byte `end`. The block refers by index to
    the table versions and GTID sources (such as a server's uuid) in `names`.
    """

    file: SegmentFile
    at: Where
    end: int
    names: Names

    def load(self) -> Block:
        """Reads and verifies the block. Raises StoreDamagedError if its record is damaged."""
        try:
            return read_block(self.at, read_head(self.at, self.end), self.names)
        except UNREADABLE as error:
            raise damaged(self.file.path, self.at.offset, error) from error


def write_block(at: Where, block: Block) -> RecordHeader:
    """Writes a block as a record, without its table versions and GTID sources. After an OSError, the file may have a part of the record."""
    return write_record(at, BLOCK, text_of(described(block)), arrays_of(block))


def read_block(at: Where, head: RecordHeader, names: Names) -> Block:
    """Reads a block from its record, and verifies the record. Raises one of UNREADABLE if the record is damaged."""
    record, text = read_text(at, head)
    arrays = empty_arrays(record)
    read_arrays(at, head, text, list(arrays.values()))
    return block_of(record, arrays, names)


def damaged(path: Path, offset: int, error: Exception) -> StoreDamagedError:
    """Returns the StoreDamagedError for a record of the event file `path` that cannot be read at the byte `offset`. Its message says how
    the operator gets the changes back.
    """
    return StoreDamagedError(
        f"{path} cannot be read at byte {offset} ({error}): stop the engine, remove the folder {path.parent}, "
        "and start the engine, which then reads all unmerged changes from the source again. If the source has "
        "purged these changes, restore the file from a copy instead"
    )
