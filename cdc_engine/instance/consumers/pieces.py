"""Splits pieces of a stream at the ends of transactions. Pure functions. Called by the streams of destinations and groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition


def ends_in(piece: WindowPiece) -> int:
    """Returns how many transactions end in a piece of the stream."""
    return piece.last_transaction - piece.first_transaction


def first_transactions(pieces: Sequence[WindowPiece], count: int) -> tuple[WindowPiece, ...]:
    """Returns the pieces with the first `count` transactions. `count` is at least 1. Raises ValueError if fewer transactions end in the
    pieces.
    """
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
    """Splits a piece after its first `count` transactions."""
    ended = piece.first_transaction + count
    event = int(piece.block.transaction_events[ended - 1])
    head = dataclasses.replace(piece, last_event=event, last_transaction=ended)
    return head, dataclasses.replace(piece, first_event=event, first_transaction=ended)


def end_of(pieces: Sequence[WindowPiece]) -> WindowPosition:
    """Returns the position after some pieces of the stream; the last piece must end where a transaction ends. Computes the executed set,
    which takes time proportional to the number of transactions in the last piece's block.
    """
    return WindowPosition(end_position(pieces[-1].block, pieces[-1].last_transaction - 1))
