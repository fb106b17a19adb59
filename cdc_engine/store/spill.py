"""Blocks of one open transaction on disk, when it fills the ring by itself. Owns the files of a destination's `spill/` directory.

`memory_store` appends under its lock; the readers of a batch read one block at a time, from any thread. A file exists as long as its
transaction waits: it is unlinked on ack, rollback of the stream or clear, and a read in progress can finish (the descriptor stays open
until the last slice is gone). Nothing in it survives the process: the transaction is read from the source again.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc_engine.binlog.block import Skeleton, arrays_of, skeleton_of
from cdc_engine.contracts import Block, BlockSlice, TableChange
from cdc_engine.errors import StagingError

SUFFIX = ".blocks"
CALL_BYTES_MAX = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call


class SpillDirectory:
    """Makes spill files. `path` is made when first needed; files that an ended process left in it are removed at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = itertools.count(1)
        for stale in path.glob(f"*{SUFFIX}"):
            stale.unlink(missing_ok=True)

    def create(self) -> SpillFile:
        """Makes a new empty file. Raises StagingError if it cannot be made."""
        path = self._path / f"{os.getpid()}-{next(self._number)}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return SpillFile(path)
        except OSError as error:
            raise _sentence(path, error) from error


class SpillFile:
    """An append-only file of blocks. `append` is called by one thread at a time, `load` by any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._size = 0
        self._last_loaded: tuple[int, Block] | None = None
        weakref.finalize(self, os.close, self._descriptor)

    def append(self, block: Block) -> SpilledBlock:
        """Writes the block after the last one. After a StagingError (disk full, I/O) the file is unchanged."""
        start = end = self._size
        try:
            for array in arrays_of(block):
                end = self._write(array, end)
        except OSError as error:
            os.ftruncate(self._descriptor, start)
            raise _sentence(self.path, error) from error
        self._size = end
        return SpilledBlock(self, start, skeleton_of(block))

    def load(self, offset: int, skeleton: Skeleton) -> Block:
        """Reads a block back. Raises StagingError if the file ends early or cannot be read.

        The last block is kept until another one is read, so reading it again costs nothing.
        """
        last = self._last_loaded
        if last is not None and last[0] == offset:
            return last[1]
        block = self._load(offset, skeleton)
        self._last_loaded = (offset, block)
        return block

    def _load(self, offset: int, skeleton: Skeleton) -> Block:
        arrays = skeleton.empty_arrays()
        try:
            for array in arrays.values():
                offset = self._read(array, offset)
        except OSError as error:
            raise _sentence(self.path, error) from error
        return skeleton.filled(arrays)

    def remove(self) -> None:
        """Unlinks the file, because its transaction is acked or dropped. Removing it twice is allowed."""
        self._last_loaded = None
        self.path.unlink(missing_ok=True)

    def _write(self, array: npt.NDArray[np.generic], offset: int) -> int:
        view = array.view(np.uint8).data
        while view:
            written = os.pwrite(self._descriptor, view[:CALL_BYTES_MAX], offset)
            view, offset = view[written:], offset + written
        return offset

    def _read(self, array: npt.NDArray[np.generic], offset: int) -> int:
        view = array.view(np.uint8).data
        while view:
            count = os.preadv(self._descriptor, [view[:CALL_BYTES_MAX]], offset)
            if count == 0:
                raise OSError(f"the file ends at byte {offset}")
            view, offset = view[count:], offset + count
        return offset


@dataclasses.dataclass(frozen=True, eq=False)
class SpilledBlock:
    """A block without a transaction end that is on disk."""

    file: SpillFile
    offset: int
    skeleton: Skeleton

    def load(self) -> Block:
        """Reads the block. At most one block of a file is in memory, so a huge transaction is read one block at a time."""
        return self.file.load(self.offset, self.skeleton)


class SpilledSlice(BlockSlice):
    """A `BlockSlice` whose block is read on access. Accessing the block of another slice of the file frees the memory."""

    def __init__(self, spilled: SpilledBlock, first_event: int, last_event: int) -> None:
        # The frozen dataclass above would store a block; this stores only where to find it.
        object.__setattr__(self, "spilled", spilled)
        object.__setattr__(self, "first_event", first_event)
        object.__setattr__(self, "last_event", last_event)

    spilled: SpilledBlock

    @property
    def block(self) -> Block:
        """The block from disk."""
        return self.spilled.load()

    @property
    def changes(self) -> tuple[TableChange, ...]:
        """Empty: a block of table changes ends a transaction and is never spilled."""
        return ()


def _sentence(path: Path, error: OSError) -> StagingError:
    return StagingError(
        f"a transaction larger than the ring could not be kept in {path.parent} ({error.strerror or error}): "
        "free space there or raise ring.bytes_max; it is read again from the source"
    )
