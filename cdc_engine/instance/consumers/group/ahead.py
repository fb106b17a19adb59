"""Holds the transactions that were read from a group's member and are not handed out yet, with their commit times. Splits off the ones that
are handed out next. Does no I/O.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from sluice.cdc_engine.contracts import Int64s
from sluice.cdc_engine.instance.consumers.pieces import ends_in, first_transactions, parted
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition, WindowReading

NOTHING: Int64s = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Ahead:
    """The transactions that were read from a group's member and are not handed out yet. `pieces` are the pieces of the stream with these
    transactions, and end at the position `end`. `times` are the commit times of the transactions that end in the pieces, in µs since 1970.
    If no transaction ends in the pieces, `times` has the time of the transaction that is still open. `restarted` is True if the consumer
    got a part of a transaction, and the stream now has another transaction at the consumer's position (`WindowReading`).
    """

    pieces: tuple[WindowPiece, ...]
    end: WindowPosition
    times: Int64s
    restarted: bool = False

    def first(self, count: int) -> tuple[WindowPiece, ...]:
        """Returns the pieces with the first `count` transactions, 1 ≤ count ≤ len(times)."""
        return self.pieces if count == len(self.times) else first_transactions(self.pieces, count)

    def after(self, count: int) -> Ahead:
        """Returns the transactions without the first `count`."""
        if count == len(self.times):
            return Ahead((), self.end, NOTHING)
        left = count
        for index, piece in enumerate(self.pieces):
            ends = ends_in(piece)
            if ends >= left:
                rest, others = parted(piece, left)[1], self.pieces[index + 1 :]
                is_empty = not ends_in(rest) and rest.first_event == rest.last_event
                return Ahead(others if is_empty else (rest, *others), self.end, self.times[count:])
            left -= ends
        raise ValueError(f"there are no {count} transactions in {len(self.pieces)} pieces")


def ahead_of(reading: WindowReading) -> Ahead:
    """Returns a reading of a member's stream with the commit times of its transactions."""
    if not reading.pieces:
        return Ahead((), reading.end, NOTHING)
    each = [
        piece.block.transaction_time_us[piece.first_transaction : piece.last_transaction] for piece in reading.pieces
    ]
    times = np.concatenate(each)
    if not len(times):
        times = np.array([_time_us(reading.pieces)], np.int64)
    return Ahead(reading.pieces, reading.end, times, reading.restarted)


def size_of(pieces: tuple[WindowPiece, ...]) -> int:
    """Returns the number of bytes of the row events in some pieces of the stream."""
    return sum(int(piece.block.event_bytes[piece.first_event : piece.last_event].sum()) for piece in pieces)


def _time_us(pieces: tuple[WindowPiece, ...]) -> int:
    """Returns the time of the first row event or statement in some pieces of the stream, in µs since 1970, or 0 if there is none."""
    for piece in pieces:
        if piece.last_event > piece.first_event:
            return int(piece.block.event_time_us[piece.first_event])
        if piece.block.statement is not None:
            return piece.block.statement.seconds * 1_000_000
    return 0
