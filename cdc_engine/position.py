"""Defines positions in the binlog of a source, and the number that orders all changes of a destination.

A `Position` has everything that a failover needs: the server, the file and offset after the last event that was read, the executed set up
to this offset, and the commit time.

The order key packs (epoch, file number, offset in units of 16 bytes) into one int64. The epoch rises whenever file names can no longer be
compared. The offset in an order key is the end of an event. The row images of a transaction get the end of its first event, so they have
one order key, however large the transaction is. No two events end within 16 bytes of each other, so no two transactions have the same order
key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.errors import BinlogFormatError

EPOCH_BITS = 14  # The number of bits for the epoch: enough for 16,383 failovers of one destination.
# The number of bits for the file number: a million files per epoch, enough for ten years with a new file every five minutes.
FILE_NUMBER_BITS = 20
# The number of bits for the offset: enough for offsets up to 8 GiB in units of 16 bytes. A binlog file can be larger than max_binlog_size
# (1 GiB), because the server never divides a transaction between two files.
OFFSET_BITS = 29
# An order key counts offsets in units of 2**UNIT_BITS = 16 bytes. Two events never end in the same unit, because an event has at least the
# 19 bytes of its header.
UNIT_BITS = 4
OFFSET_MAX = (1 << OFFSET_BITS + UNIT_BITS) - 1


def file_number(file: str) -> int:
    """Returns the number in the name of a binlog file: 42 for `mysql-bin.000042`. Raises BinlogFormatError if the name has no number."""
    _, _, digits = file.rpartition(".")
    if not digits.isdigit():
        raise BinlogFormatError(f"the binlog file name {file!r} does not end in a number")
    return int(digits)


def order_key(epoch: int, number: int, offset: int) -> int:
    """Returns the order key of a position: an int64 that grows with the stream. Raises BinlogFormatError if a part is out of its range,
    because a key that overflows would reorder changes silently.
    """
    if not (0 <= epoch < 1 << EPOCH_BITS and 0 <= number < 1 << FILE_NUMBER_BITS and 0 <= offset <= OFFSET_MAX):
        raise BinlogFormatError(f"epoch {epoch}, file number {number}, offset {offset} do not fit an order key")
    return (((epoch << FILE_NUMBER_BITS) | number) << OFFSET_BITS) | (offset >> UNIT_BITS)


def order_keys(epoch: int, number: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the order keys of one or more offsets in one file. Raises BinlogFormatError if a part is out of its range."""
    order_key(epoch, number, int(offsets.max()))  # Raises BinlogFormatError if an offset is too large.
    keys: npt.NDArray[np.int64] = order_key(epoch, number, 0) + (offsets >> UNIT_BITS)
    return keys


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """A position in the binlog of a source: the end of a transaction, or of an event that belongs to no transaction.

    - `file`: the name of the binlog file. Empty if the server finds the position by the GTID set. A position without a file orders before
      all positions with a file in its epoch.
    - `offset`: the number of bytes from the file's start to the end of the last event that was read. May exceed 4 GiB, although the field
      for the offset in events has only 32 bits.
    - `gtid_set`: the executed set at the position, as the server prints it. Empty if the server has no GTIDs.
    - `server_uuid`: the identity of the server. Empty if unknown.
    - `time_us`: the commit time in µs since 1970, or 0 if unknown.
    - `file_created`: when the file was created, in seconds since 1970, or 0 if unknown. The creation time distinguishes two files with the
      same name.
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
        """The order key of the position. All offsets above 8 GiB get the last key of the file. This key is still unique: a file becomes so
        large only by its last transaction, so no other transaction ends above 8 GiB.
        """
        return order_key(self.epoch, file_number(self.file) if self.file else 0, min(self.offset, OFFSET_MAX))

    def counts_as(self, other: Position) -> bool:
        """Returns True if two positions are in the same sequence of binlog files, so that their order keys can be compared. This requires
        the same epoch and, if both name a server, the same server.
        """
        return self.epoch == other.epoch and (
            "" in {self.server_uuid, other.server_uuid} or self.server_uuid == other.server_uuid
        )

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}@{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Position:
        """Parses the result of `to_json`. Raises KeyError or TypeError if the record has another structure."""
        return cls(**record)


def position_text(record: object) -> str:
    """Returns the text of a position from its JSON (`Position.to_json`), or "" if the record is empty or not a JSON object."""
    if not isinstance(record, Mapping) or not record:
        return ""
    return f"{record.get('file')}:{record.get('offset')}@{record.get('epoch')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupPosition:
    """The position of a consumer that reads a group of destinations as one stream: one position per member, all at the same commit time.

    - `members`: (name of the destination, position), sorted by name. A destination that has left the group stays in `members`.
    - `barrier_us`: the commit time in µs since 1970 up to which transactions were handed out.
    - `late`: the number of transactions that arrived when `barrier_us` was already later than their commit times.
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
