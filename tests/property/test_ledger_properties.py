"""Tests any order of transitions of the ledger: ids and deliveries only increase, and only an operator moves the cursor back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from tests.fix_ledgers import CLIENT, LEDGER, at, handed_out, stopped

IDS = st.integers(1, 8)
OFFSETS = st.integers(4, 60)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["hand_out", "reserve_and_hand_out"]), OFFSETS),
        st.tuples(st.sampled_from(["ack", "rollback_one", "redeliver"]), IDS),
        st.tuples(st.sampled_from(["set_cursor", "stop", "taken_with_more"]), OFFSETS),
        st.tuples(
            st.sampled_from(["rollback", "restarted", "begin_epoch", "subscribe", "resume", "taken"]), st.just(0)
        ),
    ),
    max_size=40,
)


def taken(ledger: Ledger, number: int) -> Ledger:
    if ledger.head is None:
        return ledger
    longer = dataclasses.replace(ledger.head, end=at(number), path="staging/y") if number else None
    return ledger.taken(ledger.head, longer, ledger.head.end)


TRANSITIONS: dict[str, Callable[[Ledger, int], Ledger]] = {
    "hand_out": lambda ledger, number: handed_out(ledger, at(number), rows=number, appendable=number % 4 == 0),
    "reserve_and_hand_out": lambda ledger, number: ledger.reserve().hand_out(
        dataclasses.replace(ledger.next_batch(at(number)), path="staging/z")
    ),
    "taken": taken,
    "taken_with_more": taken,
    "ack": Ledger.ack,
    "rollback_one": Ledger.rollback_one,
    "redeliver": Ledger.redeliver,
    "set_cursor": lambda ledger, number: ledger.set_cursor(at(number)),
    "stop": lambda ledger, number: ledger.stop_table(stopped("t", number)),
    "resume": lambda ledger, _: ledger.resume_table("shop", "t"),
    "rollback": lambda ledger, _: ledger.rollback(),
    "restarted": lambda ledger, _: ledger.restarted(lambda batch: batch.rows % 2 == 0),
    "begin_epoch": lambda ledger, _: ledger.begin_epoch(ledger.epoch + 1),
    "subscribe": lambda ledger, _: ledger.subscribe(CLIENT),
}


@given(MOVES)
def test_promises_hold_under_any_order(moves: list[tuple[str, int]]) -> None:
    ledger = LEDGER.set_cursor(at(4))
    handed_out: set[int] = set()
    for move, number in moves:
        before = ledger
        try:
            ledger = TRANSITIONS[move](ledger, number)
        except SluiceError:
            continue  # A refused transition gives no new ledger.
        assert ledger.next_batch_id >= before.next_batch_id
        assert ledger.next_delivery >= before.next_delivery
        assert ledger.epoch >= before.epoch
        assert ledger.ledger_id == before.ledger_id
        assert ledger.cursor is not None
        assert before.cursor is not None
        if move != "set_cursor":
            assert ledger.cursor.order_key >= before.cursor.order_key
        now = {each.batch_id: each for each in ledger.outstanding}
        for each in before.outstanding:
            if not each.appendable and each.batch_id in now:
                end_and_path = (now[each.batch_id].end, now[each.batch_id].path)
                assert end_and_path == (each.end, each.path), "a fixed end never moves"
        deliveries = {each.delivery for each in ledger.outstanding} - {each.delivery for each in before.outstanding}
        assert not deliveries & handed_out
        handed_out |= deliveries
        positions = [ledger.cursor, *(each.end for each in ledger.outstanding)]
        # The first batch in flight starts at the cursor, and each batch starts at the end of the batch before.
        assert [each.start for each in ledger.outstanding] == positions[:-1]
        assert ledger_from_text(ledger_to_text(ledger), "shop") == ledger
