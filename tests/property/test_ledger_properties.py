"""The ledger under any order of transitions: ids and deliveries only grow, the cursor goes back by an operator's hand alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_engine.errors import SluiceError
from cdc_engine.meta.ledger import Ledger
from cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from tests.fix_ledgers import CLIENT, at, stopped

IDS = st.integers(1, 8)
OFFSETS = st.integers(4, 60)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("hand_out"), OFFSETS),
        st.tuples(st.sampled_from(["ack", "rollback_one", "staged"]), IDS),
        st.tuples(st.sampled_from(["set_cursor", "stop"]), OFFSETS),
        st.tuples(st.sampled_from(["rollback", "restarted", "grow_epoch", "subscribe", "resume"]), st.just(0)),
    ),
    max_size=40,
)


def moved(ledger: Ledger, move: str, number: int) -> Ledger:
    match move:
        case "hand_out":
            return ledger.hand_out(at(number))
        case "staged":
            return ledger.staged(number, path="staging/x", rows=number, size_bytes=number, tables=("shop.t",))
        case "ack" | "rollback_one":
            return getattr(ledger, move)(number)  # type: ignore[no-any-return]
        case "set_cursor":
            return ledger.set_cursor(at(number))
        case "stop":
            return ledger.stop_table(stopped("t", number))
        case "resume":
            return ledger.resume_table("shop", "t")
        case "subscribe":
            return ledger.subscribe(CLIENT)
        case _:
            return getattr(ledger, move)()  # type: ignore[no-any-return]


@given(MOVES)
def test_promises_hold_under_any_order(moves: list[tuple[str, int]]) -> None:
    ledger = Ledger().set_cursor(at(4))
    handed_out: set[int] = set()
    for move, number in moves:
        before = ledger
        try:
            ledger = moved(ledger, move, number)
        except SluiceError:
            continue  # a refused transition gives no new ledger
        assert ledger.next_batch_id >= before.next_batch_id
        assert ledger.next_delivery >= before.next_delivery
        assert ledger.cursor is not None
        assert before.cursor is not None
        if move != "set_cursor":
            assert ledger.cursor.order_key >= before.cursor.order_key
        if move == "hand_out":
            assert ledger.outstanding[-1].delivery not in handed_out
            handed_out.add(ledger.outstanding[-1].delivery)
        places = [ledger.cursor, *(each.end for each in ledger.outstanding)]
        assert [each.start for each in ledger.outstanding] == places[:-1]  # no gap and no overlap in what waits
        assert ledger_from_text(ledger_to_text(ledger), "shop") == ledger
