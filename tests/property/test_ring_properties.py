"""Tests the arithmetic of the ring with random sequences of operations: the marks stay in order, and the fill equals what was put and not
acked.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.store.files.mark import Mark
from sluice.cdc_engine.store.ring import Ring

# What a block adds: (transactions, row events, bytes). A block of a spill ends no transaction.
SIZES = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 50))
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SIZES),
        st.tuples(st.sampled_from(["get", "ack", "rollback", "drop", "clear"]), st.none()),
    ),
    max_size=40,
)


def moved(ring: Ring, move: str, sizes: tuple[int, int, int] | None) -> Ring:
    if move == "put" and sizes is not None:
        put = ring.put.plus(*sizes)
        return ring.added(put, put if sizes[0] else ring.complete)
    return {
        "get": ring.get_at(ring.complete),
        "ack": ring.acked(ring.get, 0, 0),
        "rollback": ring.rolled_back(),
        "drop": ring.open_dropped(0, 0),
        "clear": ring.cleared(),
    }[move]


@given(MOVES)
def test_marks_stay_in_order_and_the_fill_is_what_waits(moves: list[tuple[str, tuple[int, int, int] | None]]) -> None:
    ring, acked = Ring(bytes_max=100, events_max=10), Mark()
    for move, sizes in moves:
        ring = moved(ring, move, sizes)  # This raises ValueError if the marks are out of order.
        assert ring.ack >= acked
        acked = ring.ack
        assert ring.fill_bytes == ring.put.bytes - ring.ack.bytes
        assert ring.full == (ring.fill_bytes >= 100 or ring.fill_events >= 10)
        assert ring.waiting_transactions == ring.complete.transactions - ring.get.transactions
        if move in ("rollback", "clear"):
            assert ring.get == ring.ack
        if move == "clear":
            assert ring.fill_events == 0


@given(st.integers(0, 50), st.integers(0, 5))
def test_blocks_on_disk_take_no_space_in_the_ring(size: int, events: int) -> None:
    ring = Ring(bytes_max=100, events_max=10).spilled(Mark(0, events, size))
    assert (ring.fill_bytes, ring.fill_events) == (0, 0)
    assert ring.only_open_transaction
    assert ring.open_dropped(events, size) == Ring(bytes_max=100, events_max=10, forgotten_events=events)


@pytest.mark.parametrize(
    "move",
    [
        lambda ring: ring.get_at(ring.complete.plus(1, 0, 0)),
        lambda ring: ring.get_at(Mark()),
        lambda ring: ring.acked(ring.put, 0, 0),
        lambda ring: ring.acked(ring.get, 0, 1),
        lambda ring: ring.added(ring.complete, ring.put),
    ],
)
def test_a_move_out_of_order_is_a_fault(move: object) -> None:
    reached = Mark(2, 4, 8)
    ring = Ring(
        bytes_max=1,
        events_max=1,
        put=reached.plus(0, 3, 3),
        complete=reached.plus(0, 1, 1),
        get=reached,
        ack=Mark(1, 1, 1),
    )
    with pytest.raises(ValueError, match=r"out of order|more than"):
        move(ring)  # type: ignore[operator]
