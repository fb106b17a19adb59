"""Defines positions in the source's binlog, and the number that orders all changes of a destination.

A `Position` contains everything that a failover needs: the server, the file and offset after the last event that was read, the GTID set
executed up to there, and the commit time. Every package uses it for positions in the stream; `meta` persists it, `parser` resumes from it.

The order key packs (epoch, file number, offset in units of 16 bytes) into one int64. The epoch rises whenever file names can no longer be
compared. No two events begin within 16 bytes, so no two transactions have one key. All row images of a transaction have the key of the
transaction's position. A transaction is never split, so this position orders it against all others, however batches are split. No
transaction is too large for this scheme.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.errors import BinlogFormatError

EPOCH_BITS = 14  # Enough for 16,383 failovers of one destination.
FILE_NUMBER_BITS = 20  # A million binlog files per epoch: ten years with a new file every five minutes.
OFFSET_BITS = 29  # 8 GiB in units of 16 bytes: one transaction may make a file larger than max_binlog_size (1 GiB).
# Two events never end in the same unit of 16 bytes, because an event has at least the 19 bytes of its header.
UNIT_BITS = 4
OFFSET_MAX = (1 << OFFSET_BITS + UNIT_BITS) - 1


def file_number(file: str) -> int:
    """Returns the number in a binlog file name: 42 for `mysql-bin.000042`. Raises BinlogFormatError if there is none."""
    _, _, digits = file.rpartition(".")
    if not digits.isdigit():
        raise BinlogFormatError(f"the binlog file name {file!r} does not end in a number")
    return int(digits)


def order_key(epoch: int, number: int, offset: int) -> int:
    """Returns one int64 for a position in the stream, which grows with the stream.

    Raises BinlogFormatError if a part is out of its range, because an overflowing key would silently reorder changes.
    """
    if not (0 <= epoch < 1 << EPOCH_BITS and 0 <= number < 1 << FILE_NUMBER_BITS and 0 <= offset <= OFFSET_MAX):
        raise BinlogFormatError(f"epoch {epoch}, file number {number}, offset {offset} do not fit an order key")
    return (((epoch << FILE_NUMBER_BITS) | number) << OFFSET_BITS) | (offset >> UNIT_BITS)


def order_keys(epoch: int, number: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the order keys of offsets in one file (n, at least one). Raises as `order_key` does."""
    order_key(epoch, number, int(offsets.max()))  # Raises if any offset is too large.
    keys: npt.NDArray[np.int64] = order_key(epoch, number, 0) + (offsets >> UNIT_BITS)
    return keys


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """The end of a transaction, or of an event outside any transaction, in a source's binlog.

    `offset`: bytes from the file's start to the end of the last event that was read, 64 bits (the protocol's 32-bit field wraps above 4
    GiB). `file` is empty if the server itself finds the position by GTID; such a position precedes all others of its epoch.
    `file_created`: when that file was created, seconds since 1970, 0 if unknown; it distinguishes two files of one name. `gtid_set`:
    executed set up to and including that event, in the server's own text form; empty if the server has none. `time_us`: commit time in
    microseconds since 1970 UTC, 0 if unknown.
    """

    epoch: int
    file: str
    offset: int
    gtid_set: str = ""
    server_uuid: str = ""
    time_us: int = 0
    file_created: int = 0

    @property
    def order_key(self) -> int:
        """The order key of the position. An offset above 8 GiB has the last key of its file: only the transaction that made the file so
        large can end there.
        """
        return order_key(self.epoch, file_number(self.file) if self.file else 0, min(self.offset, OFFSET_MAX))

    def counts_as(self, other: Position) -> bool:
        """Returns whether both positions number files in the same way, so that their order keys can be compared."""
        return self.epoch == other.epoch and (
            "" in {self.server_uuid, other.server_uuid} or self.server_uuid == other.server_uuid
        )

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}@{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Position:
        """Parses the form of `to_json`. Raises KeyError or TypeError on a record of another shape."""
        return cls(**record)


def position_text(record: object) -> str:
    """Formats a record of `Position.to_json` like the position itself; returns an empty text for an empty record or another value."""
    if not isinstance(record, Mapping) or not record:
        return ""
    return f"{record.get('file')}:{record.get('offset')}@{record.get('epoch')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupPosition:
    """The position of a reader of several sources: one position per member, all of the same moment.

    `members`: (name, position), by name, including those that have left the group. `barrier_us`: the commit time, in microseconds since
    1970, up to which transactions were handed out. `late`: how many transactions arrived after the barrier had passed them.
    """

    members: tuple[tuple[str, Position], ...] = ()
    barrier_us: int = 0
    late: int = 0

    def of(self, member: str) -> Position | None:
        return dict(self.members).get(member)

    def __str__(self) -> str:
        return ", ".join(f"{member} {position}" for member, position in self.members)

    def to_json(self) -> dict[str, Any]:
        members = {member: position.to_json() for member, position in self.members}
        return {"members": members, "barrier_us": self.barrier_us, "late": self.late}
