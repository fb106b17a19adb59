"""Splits pieces of a stream at the ends of transactions. Pure; used by the feeds of a destination and of a group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition


def ends_in(piece: WindowPiece) -> int:
    """Returns how many transactions end in a piece."""
    return piece.last_transaction - piece.first_transaction


def first_transactions(pieces: Sequence[WindowPiece], count: int) -> tuple[WindowPiece, ...]:
    """Returns the pieces of the first `count` transactions, at least one. Raises ValueError if fewer end in the pieces."""
    taken: list[WindowPiece] = []
    left = count
    for piece in pieces:
        ends = ends_in(piece)
        if ends >= left:
            return (*taken, parted(piece, left)[0])
        taken.append(piece)
        left -= ends
    raise ValueError(f"there are no {count} transactions in {len(pieces)} pieces")


def parted(piece: WindowPiece, count: int) -> tuple[WindowPiece, WindowPiece]:
    """Splits a piece at the end of its `count`th transaction."""
    ended = piece.first_transaction + count
    event = int(piece.block.transaction_events[ended - 1])
    head = dataclasses.replace(piece, last_event=event, last_transaction=ended)
    return head, dataclasses.replace(piece, first_event=event, first_transaction=ended)


def end_of(pieces: Sequence[WindowPiece]) -> WindowPosition:
    """Returns the end of pieces that end with a transaction. Computing its executed GTID set takes time proportional to the transactions in
    its block.
    """
    return WindowPosition(end_position(pieces[-1].block, pieces[-1].last_transaction - 1))
