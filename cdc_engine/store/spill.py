"""Writes the blocks of an open transaction to a file in the directory `spill/` of a destination, if this transaction alone fills the
ring.

A block is a record with a checksum, as in the event files. The file is unlinked when its transaction is acked or dropped, and when the
store is cleared. The slices of a batch keep the file's descriptor open, so that a read in progress can finish after the file is unlinked.
After the process ends, the file is not used, because the transaction is read from the source again. A store with event files writes no
second copy, because its ring refers to the blocks in the event files.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.contracts import Block, BlockSlice, TableChange
from sluice.cdc_engine.errors import StagingError
from sluice.cdc_engine.store.files.encoding import Names
from sluice.cdc_engine.store.files.record import Where
from sluice.cdc_engine.store.files.segment import SegmentFile
from sluice.cdc_engine.store.files.stored_block import StoredBlock, write_block

SUFFIX = ".blocks"


class Spill:
    """The spilled blocks of one store. `directory` is created at the first spill. Files of earlier processes in it are removed."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._number = directory, itertools.count(1)
        for stale in directory.glob(f"*{SUFFIX}"):
            stale.unlink(missing_ok=True)
        self._begin()

    def _begin(self) -> None:
        self._file: SegmentFile | None = None
        self._size = self._seed = 0
        # Caches the last loaded block, because several slices in a row may use the same block.
        self._load = functools.lru_cache(maxsize=1)(StoredBlock.load)

    def spilled(self, block: Block, stored: StoredBlock | None) -> SpilledBlock:
        """Returns a block as a `SpilledBlock`. Writes the block to disk, unless `stored` says that a file already has it. If the disk is
        full or fails, raises StagingError and changes nothing.
        """
        try:
            return SpilledBlock(stored or self._write(block), self._load)
        except OSError as error:
            raise StagingError(
                f"a transaction larger than the ring could not be kept in {self._directory} "
                f"({error.strerror or error}): free space in that folder or raise ring.bytes_max; the engine "
                "then reads the transaction from the source again"
            ) from error

    def _write(self, block: Block) -> StoredBlock:
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._directory / f"{os.getpid()}-{next(self._number)}{SUFFIX}"
            self._file = SegmentFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        at = Where(self._file.descriptor, self._size, self._seed)
        try:
            head = write_block(at, block)
        except OSError:
            os.ftruncate(at.descriptor, at.offset)
            raise
        self._size, self._seed = at.offset + head.size, head.checksum
        return StoredBlock(self._file, at, self._size, Names(block.tables, block.gtid_sources))

    def remove(self) -> None:
        """Removes the spill file. Called when its transaction is acked or dropped."""
        if self._file is not None:
            self._file.path.unlink(missing_ok=True)
        self._begin()


@dataclasses.dataclass(frozen=True, eq=False)
class SpilledBlock:
    """A block on disk, of a transaction that ends in a later block. At most one such block of a store is in memory at a time, so a huge
    transaction is read block by block.
    """

    stored: StoredBlock
    loader: Callable[[StoredBlock], Block]

    def load(self) -> Block:
        """Reads the block. Thread-safe. Raises StoreDamagedError if the record is damaged."""
        return self.loader(self.stored)


class SpilledSlice(BlockSlice):
    """A `BlockSlice` whose block is read from disk when the slice is used. The memory of the block is freed when the block of another slice
    is read.
    """

    def __init__(self, spilled: SpilledBlock, first_event: int, last_event: int) -> None:
        # Sets the fields without the constructor of the base class, which is frozen and requires the block. This class has only the block's
        # location.
        object.__setattr__(self, "spilled", spilled)
        object.__setattr__(self, "first_event", first_event)
        object.__setattr__(self, "last_event", last_event)

    spilled: SpilledBlock

    @property
    def block(self) -> Block:
        """The block, loaded from disk."""
        return self.spilled.load()

    @property
    def changes(self) -> tuple[TableChange, ...]:
        """Empty, because a block of table changes is never spilled."""
        return ()
