"""Tests which beginnings and ends of transactions a consumer gets if most of them are left out: one pair every 5 s of the source's clock,
or after 4096 omitted transactions.
"""

from __future__ import annotations

import numpy as np
import pytest

from sluice.cdc_engine.binlog.entries.elements import BEGIN, EMPTY_COUNT_MAX, END, FIRST_STATE, ROWS, elements
from sluice.cdc_engine.contracts import Block
from tests.parser.scan.event_factory import EventFactory, feed, scanner

pytestmark = pytest.mark.seeds
SECOND_US = 1_000_000
BEGUN_US = 1_700_000_000 * SECOND_US


def block_at(*seconds: float, rows: int = 1) -> Block:
    """Returns a block with one transaction at each of these times."""
    make, events = EventFactory(), list[bytes]()
    for number, second in enumerate(seconds, 1):
        events += [
            make.gtid(number, time_us=BEGUN_US + int(second * SECOND_US)),
            *make.transaction(number, rows=rows)[1:],
        ]
    (block,) = feed(scanner(), events)
    return block


def shown(block: Block, *, divided_at: int = 0, kept: bool = True) -> list[tuple[int, int]]:
    """Returns the kind and index of each element of a block. The function lists the elements in two ranges: up to the row event
    `divided_at`, and from there on.
    """
    mask, found, state = np.full(block.event_count, kept), list[tuple[int, int]](), FIRST_STATE
    ended = int(np.searchsorted(block.transaction_events, divided_at, "right"))
    for events, transactions in (
        ((0, divided_at), (0, ended)),
        ((divided_at, block.event_count), (ended, block.transaction_count)),
    ):
        kinds, indices, state = elements(block, events, transactions, mask, state, frames=False)
        found += zip(kinds.tolist(), indices.tolist(), strict=True)
    return found


def bare(number: int) -> list[tuple[int, int]]:
    return [(ROWS, 2 * number), (ROWS, 2 * number + 1)]


def pair(number: int) -> list[tuple[int, int]]:
    return [(BEGIN, number), *bare(number), (END, number)]


@pytest.mark.parametrize("divided_at", [0, 1, 2, 3, 5])
def test_one_pair_is_shown_when_five_seconds_have_passed_since_the_last(divided_at: int) -> None:
    block = block_at(0, 1, 5, 5.1, 6, rows=2)
    assert shown(block, divided_at=divided_at) == [*pair(0), *bare(1), *bare(2), *pair(3), *bare(4)]


def test_one_pair_is_shown_after_many_that_were_left_out() -> None:
    block = block_at(*[0] * (EMPTY_COUNT_MAX // 2 + 3))
    assert [index for kind, index in shown(block) if kind == BEGIN] == [0, EMPTY_COUNT_MAX // 2 + 1]


def test_transactions_without_kept_rows_move_the_client_as_before() -> None:
    assert shown(block_at(0, 1, 7), kept=False) == [(BEGIN, 0), (END, 0), (BEGIN, 2), (END, 2)]
