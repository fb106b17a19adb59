"""Where a change stands in the source's binlog, and the one number that orders all changes of a destination.

A `Position` is the failover passport: it names the server, the file and offset after the last event taken, the GTID set executed up to
there and the commit time. Every room speaks of places in the stream with it; `meta` persists it, `parser` resumes from it.

The order key packs (epoch, file number, offset, step) into one int64. The epoch grows whenever file names can no longer be compared. A
row image's key uses the offset of the image's own first byte, so every image of a stream has its own key, ascending, in any cut of batches.
Images of a compressed event share fewer bytes than they have: four steps a byte give each its own key there too (`binlog/rows.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cdc_engine.errors import BinlogFormatError

EPOCH_BITS = 8  # 255 re-bootstraps of one destination
FILE_NUMBER_BITS = 20  # a million binlog files an epoch; at one every five minutes, ten years
OFFSET_BITS = 33  # 8 GiB: a file may outgrow max_binlog_size (1 GiB) by one transaction
STEP_BITS = 2  # within one byte of the file


def file_number(file: str) -> int:
    """The number in a binlog file name: `mysql-bin.000042` is 42."""
    _, _, digits = file.rpartition(".")
    if not digits.isdigit():
        raise BinlogFormatError(f"the binlog file name {file!r} does not end in a number")
    return int(digits)


def order_key(epoch: int, number: int, offset: int) -> int:
    """One int64 for a place in the stream; grows with the stream.

    Raises BinlogFormatError when a part is out of its range: a wrapped key would silently reorder changes.
    """
    if not (0 <= epoch < 1 << EPOCH_BITS and 0 <= number < 1 << FILE_NUMBER_BITS and 0 <= offset < 1 << OFFSET_BITS):
        raise BinlogFormatError(f"epoch {epoch}, file number {number}, offset {offset} do not fit an order key")
    return ((((epoch << FILE_NUMBER_BITS) | number) << OFFSET_BITS) | offset) << STEP_BITS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """The end of a transaction (or of an event outside any) in a source's binlog.

    `offset`: bytes from the file's start to the end of the last event taken, 64 bits (the wire's 32-bit field wraps above 4 GiB).
    `file` is empty where the server itself finds the place by GTID; such a position lies before all others of its epoch.
    `file_created`: when that file was created, seconds since 1970, 0 when unknown: it tells two files of one name apart.
    `gtid_set`: executed set up to and including that event, in the server's own text form; empty where the server has none.
    `time_us`: commit time in microseconds since 1970 UTC, 0 when unknown.
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
        return order_key(self.epoch, file_number(self.file) if self.file else 0, self.offset)

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}@{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Position:
        """Inverse of `to_json`; raises KeyError or TypeError on a record of another shape."""
        return cls(**record)
