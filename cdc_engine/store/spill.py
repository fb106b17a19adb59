"""Writes blocks of an open transaction to disk if that transaction alone fills the ring. Owns the files of a destination's `spill/`
directory.

The blocks are records as in the event files, with checksums. The file is unlinked on ack, rollback of the stream or clear. A read in
progress can still finish, because the descriptor stays open until the last slice is released. The file is not used after the process ends:
the transaction is read from the source again. A store with event files writes no second copy: its ring refers to the blocks in those files.
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
    """The spilled blocks of one store. `directory`: created at the first spill; files of earlier processes in it are removed."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._number = directory, itertools.count(1)
        for stale in directory.glob(f"*{SUFFIX}"):
            stale.unlink(missing_ok=True)
        self._begin()

    def _begin(self) -> None:
        self._file: SegmentFile | None = None
        self._size = self._seed = 0
        # Cache the last loaded block, so that loading it again costs nothing.
        self._load = functools.lru_cache(maxsize=1)(StoredBlock.load)

    def spilled(self, block: Block, stored: StoredBlock | None) -> SpilledBlock:
        """Returns a block as a block on disk. `stored`: the block's location if it is on disk already; otherwise the block is written. If
        this raises StagingError (disk full, I/O error), the store is unchanged.
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
        """Removes the file, because its transaction is acked or dropped."""
        if self._file is not None:
            self._file.path.unlink(missing_ok=True)
        self._begin()


@dataclasses.dataclass(frozen=True, eq=False)
class SpilledBlock:
    """A block on disk that ends no transaction. A store holds at most one such block in memory, so a huge transaction is read block by
    block.
    """

    stored: StoredBlock
    loader: Callable[[StoredBlock], Block]

    def load(self) -> Block:
        """Returns the block; any thread may call this. Raises StoreDamagedError if the record is damaged."""
        return self.loader(self.stored)


class SpilledSlice(BlockSlice):
    """A `BlockSlice` whose block is loaded from disk on access. Access to another slice's block frees the memory of the first one."""

    def __init__(self, spilled: SpilledBlock, first_event: int, last_event: int) -> None:
        # The frozen base class would store a block; this class stores only the block's location.
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
