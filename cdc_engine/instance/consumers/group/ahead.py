"""Holds a member's available transactions with their times, and splits them into those that are handed out next and the rest. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np

from sluice.cdc_engine.contracts import Int64s
from sluice.cdc_engine.instance.consumers.pieces import ends_in, first_transactions, parted
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition, WindowReading

NOTHING: Int64s = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Ahead:
    """The available part of a member's stream. `pieces`: the pieces from a position up to `end`. `times`: commit times (µs since 1970) of
    the transactions that end in them, in the stream's order; if none ends, the time of the open one. `restarted`: as in `WindowReading`.
    """

    pieces: tuple[WindowPiece, ...]
    end: WindowPosition
    times: Int64s
    restarted: bool = False

    def first(self, count: int) -> tuple[WindowPiece, ...]:
        """Returns the pieces of the first transactions, 1 ≤ count ≤ len(times)."""
        return self.pieces if count == len(self.times) else first_transactions(self.pieces, count)

    def after(self, count: int) -> Ahead:
        """Returns the part after the first `count` transactions."""
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
    """Returns the available part of a member's stream after a reading."""
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
    """Returns the bytes of the row events in the pieces."""
    return sum(int(piece.block.event_bytes[piece.first_event : piece.last_event].sum()) for piece in pieces)


def _time_us(pieces: tuple[WindowPiece, ...]) -> int:
    """Returns the commit time of the transaction to which the pieces belong; 0 if it is unknown."""
    for piece in pieces:
        if piece.last_event > piece.first_event:
            return int(piece.block.event_time_us[piece.first_event])
        if piece.block.statement is not None:
            return piece.block.statement.seconds * 1_000_000
    return 0
