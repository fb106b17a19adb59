"""Tests the transitions of the ledger, with an example for each rule. `tests/property` tests them in any order."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sluice.cdc_engine.contracts import ClientIdentity, OutstandingBatch
from sluice.cdc_engine.errors import BatchNotFirstError, BatchNotFoundError, CanalServiceError, MetaError, SluiceError
from sluice.cdc_engine.meta.ledger import EPOCH_MAX, Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from sluice.cdc_engine.states import TableState
from tests.fix_ledgers import CLIENT, LEDGER, at, handed_out, stopped


@pytest.fixture
def ledger() -> Ledger:
    return LEDGER.set_cursor(at(4))


def test_batches_follow_each_other_from_the_cursor(ledger: Ledger) -> None:
    ledger = two(ledger)
    assert [(each.batch_id, each.delivery, each.start, each.end) for each in ledger.outstanding] == [
        (1, 1, at(4), at(10)),
        (2, 2, at(10), at(20)),
    ]
    assert ledger.resume_position == at(20)
    assert ledger.cursor == at(4)


def test_a_batch_needs_a_start() -> None:
    with pytest.raises(MetaError, match="set the position of the destination with `sluice position set` first"):
        handed_out(LEDGER, at(10))
    assert handed_out(LEDGER, at(10), at(4)).outstanding[0].start == at(4)


@pytest.mark.parametrize("end", [at(10), at(9), at(500, epoch=0)])
def test_a_batch_that_does_not_follow_the_last_one_is_refused(ledger: Ledger, end: object) -> None:
    with pytest.raises(MetaError, match="does not end after its start"):
        handed_out(handed_out(ledger, at(10)), end)  # type: ignore[arg-type]


def test_identity_a_batch_begins_exactly_where_the_last_one_ends_also_over_epochs(ledger: Ledger) -> None:
    for start in (at(5), at(3), at(4, epoch=2), at(5, epoch=2), at(4, file=2)):
        with pytest.raises(MetaError, match="does not begin at"):
            handed_out(ledger, at(20, epoch=2), start)


def test_ack_moves_the_cursor_in_order_only(ledger: Ledger) -> None:
    ledger = two(ledger)
    with pytest.raises(BatchNotFirstError, match="batch 2 cannot be acked before batch 1"):
        ledger.ack(2)
    ledger = ledger.ack(1)
    assert ledger.cursor == at(10)
    assert ledger.server_uuid == "u"
    assert ledger.ack(2).cursor == at(20)
    with pytest.raises(BatchNotFoundError):
        ledger.ack(1)


def test_after_a_rollback_ids_and_deliveries_continue(ledger: Ledger) -> None:
    ledger = handed_out(two(ledger).rollback(), at(15))
    assert [(each.batch_id, each.delivery, each.start) for each in ledger.outstanding] == [(3, 3, at(4))]


def test_rollback_of_one_takes_the_later_ones_with_it(ledger: Ledger) -> None:
    ledger = two(ledger)
    with pytest.raises(BatchNotFirstError):
        ledger.rollback_one(2)
    with pytest.raises(BatchNotFoundError):
        ledger.rollback_one(3)
    assert ledger.rollback_one(1).outstanding == ()


def test_a_batch_is_handed_out_as_it_was_staged(ledger: Ledger) -> None:
    before = handed_out(ledger, at(10))
    due = before.next_batch(at(20))
    assert before.outstanding[-1].end == at(10), "the ledger does not have the next batch yet"
    staged_batch = dataclasses.replace(due, path="staging/b", rows=5, bytes=77, tables=("shop.orders",))
    after = before.hand_out(staged_batch)
    assert after.outstanding[-1] == dataclasses.replace(staged_batch, first_end=at(20).order_key)
    assert (after.next_batch_id, after.next_delivery) == (3, 3)
    with pytest.raises(MetaError, match="it is not staged"):
        before.hand_out(due)


def test_identity_numbers_that_others_have_seen_are_not_used_again(ledger: Ledger) -> None:
    due = dataclasses.replace(ledger.next_batch(at(10)), path="staging/a")
    reserved = ledger.reserve()
    assert reserved.hand_out(due).outstanding[0].delivery == 1
    assert reserved.hand_out(due).next_delivery == 2
    assert handed_out(reserved, at(10)).outstanding[0].delivery == 2
    for numbers in ({"batch_id": 2}, {"delivery": 2}, {"batch_id": 3, "delivery": 3}, {"ledger_id": "another"}):
        with pytest.raises(MetaError, match="the ledger continues with batch 2 and delivery 2"):
            reserved.hand_out(dataclasses.replace(due, **numbers))
    with pytest.raises(MetaError, match="cannot be handed out as delivery 1"):
        reserved.reserve().hand_out(due)


def test_a_restart_keeps_the_batches_that_are_staged(ledger: Ledger) -> None:
    for end in (10, 20, 30):
        ledger = handed_out(ledger, at(end), path=f"staging/{end}")
    restarted = ledger.restarted(lambda batch: batch.path != "staging/20")
    assert [each.batch_id for each in restarted.outstanding] == [1]
    assert restarted.resume_position == at(10)
    assert ledger.restarted(lambda _: False).outstanding == ()


def test_identity_a_staged_batch_that_is_given_up_is_remembered_until_it_was_read_again(ledger: Ledger) -> None:
    handed_out = staged_up_to(ledger, 20)
    for given_up in (handed_out.rollback(), handed_out.restarted(lambda _: False)):
        assert given_up.given_up == at(20)
        assert "merged in part" in given_up.unfinished
        half = staged_up_to(given_up, 15)
        assert half.ack(half.outstanding[0].batch_id).unfinished
        whole = staged_up_to(given_up, 25)
        assert not whole.ack(whole.outstanding[0].batch_id).unfinished
        assert not given_up.set_cursor(at(9)).unfinished  # An operator chose this position.


def test_identity_what_is_delivered_again_is_the_same_batch_under_another_delivery(ledger: Ledger) -> None:
    before = handed_out(staged_up_to(ledger, 20), at(30))
    again = before.redeliver(1, without={"shop.audit"})
    (first, second), (old, _) = again.outstanding, before.outstanding
    assert (first.batch_id, first.delivery, second.batch_id, second.delivery) == (1, 3, 2, 4)
    assert (first.start, first.end, first.path, first.tables) == (old.start, old.end, old.path, ("shop.orders",))
    assert not again.unfinished
    for settle in (Ledger.ack, Ledger.redeliver, Ledger.rollback_one):
        with pytest.raises(BatchNotFoundError, match="delivery 3 of this batch was handed out"):
            settle(again, 1, 1)
    with pytest.raises(BatchNotFirstError):
        again.redeliver(2)
    assert again.ack(1, 3).cursor == at(20)


def staged_up_to(ledger: Ledger, offset: int) -> Ledger:
    return handed_out(ledger, at(offset))


def two(ledger: Ledger) -> Ledger:
    return handed_out(handed_out(ledger, at(10)), at(20))


def test_setting_the_cursor_forgets_what_waits_and_the_stops_behind_it(ledger: Ledger) -> None:
    ledger = handed_out(handed_out(ledger, at(50)).ack(1), at(60))
    for table, offset in (("a", 20), ("b", 30), ("c", 40)):
        ledger = ledger.stop_table(stopped(table, offset))
    ledger = ledger.set_cursor(at(30))
    assert ledger.cursor == at(30)
    assert ledger.outstanding == ()
    assert [each.table for each in ledger.stopped_tables] == ["a"]
    assert ledger.next_batch_id == 3


def test_setting_the_cursor_keeps_stops_that_the_stream_does_not_show_again(ledger: Ledger) -> None:
    for table in ("a", "b"):
        ledger = ledger.stop_table(dataclasses.replace(stopped(table, 40), state=TableState.NEWLY_INCLUDED))
    ledger = ledger.set_cursor(at(30), resumed={"shop.b"})
    assert [each.table for each in ledger.stopped_tables] == ["a"]


def test_a_stopped_table_keeps_its_first_position_until_it_is_resumed(ledger: Ledger) -> None:
    ledger = ledger.stop_table(stopped("orders", 20)).stop_table(stopped("orders", 40))
    assert ledger.stopped("shop", "orders") == stopped("orders", 20)
    ledger = ledger.resume_table("shop", "orders")
    assert ledger.stopped_tables == ()
    with pytest.raises(MetaError, match=r"shop\.orders has not stopped"):
        ledger.resume_table("shop", "orders")


def test_the_epoch_grows_to_its_last_and_leaves_what_waits(ledger: Ledger) -> None:
    ledger = handed_out(ledger, at(10)).begin_epoch(2)
    assert ledger.epoch == 2
    assert ledger.outstanding
    for epoch in (1, 2, EPOCH_MAX + 1):
        with pytest.raises(MetaError, match="cannot follow epoch 2"):
            ledger.begin_epoch(epoch)
    with pytest.raises(MetaError, match="create the destination again"):
        dataclasses.replace(ledger, epoch=EPOCH_MAX).begin_epoch(EPOCH_MAX + 1)


def test_identity_the_epoch_follows_the_batches_that_are_handed_out(ledger: Ledger) -> None:
    assert handed_out(ledger, at(4, epoch=3)).epoch == 3
    assert handed_out(ledger, at(4, epoch=3)).rollback().epoch == 3


def test_subscribing_again_replaces_the_filter(ledger: Ledger) -> None:
    ledger = ledger.subscribe(CLIENT).subscribe(ClientIdentity(destination="shop", filter="a"))
    assert [each.filter for each in ledger.clients] == ["a"]


def test_a_destination_has_one_reader(ledger: Ledger) -> None:
    ledger = ledger.subscribe(CLIENT)
    with pytest.raises(CanalServiceError, match=f"client {CLIENT.client_id} reads it"):
        ledger.subscribe(ClientIdentity(destination="shop", client_id=7))


def longer_than(ledger: Ledger, end: int, **changes: object) -> OutstandingBatch:
    longer = {"end": at(end), "path": "staging/longer", "rows": 9, **changes}
    return dataclasses.replace(ledger.outstanding[0], **longer)  # type: ignore[arg-type]


def staged(ledger: Ledger, *, appendable: bool = True) -> Ledger:
    return handed_out(ledger, at(10), tables=("shop.orders",), appendable=appendable)


def test_the_end_of_an_appendable_batch_is_fixed_when_it_is_taken(ledger: Ledger) -> None:
    before = staged(ledger)
    as_staged, longer = (
        before.taken(before.outstanding[0]),
        before.taken(before.outstanding[0], longer_than(before, 20), at(10)),
    )
    for after, end, path, rows in ((as_staged, 10, "staging/x", 1), (longer, 20, "staging/longer", 9)):
        (batch,) = after.outstanding
        assert (batch.batch_id, batch.delivery, batch.start, batch.appendable) == (1, 1, at(4), False)
        assert (batch.end, batch.path, batch.rows) == (at(end), path, rows)
        assert batch.first_end == at(10).order_key, "its name stays"
        assert (after.next_batch_id, after.next_delivery, after.cursor) == (2, 2, at(4))
        assert after.ack(1, 1).cursor == at(end)
        with pytest.raises(BatchNotFirstError, match="fixed already"):
            after.taken(batch)


def test_a_batch_that_may_be_merged_or_whose_longer_form_does_not_fit_is_not_taken(ledger: Ledger) -> None:
    out = staged(ledger)
    batch, longer = out.outstanding[0], longer_than(out, 20)
    for wrong, longer_one, start in (
        (ledger, longer, at(10)),  # This batch is not in flight.
        (staged(ledger, appendable=False), longer, at(10)),
        (out.redeliver(1), longer, at(10)),  # The batch was handed out again meanwhile.
        (out.ack(1), longer, at(10)),
        (handed_out(out, at(15)), longer, at(10)),  # Another batch waits behind it.
        (out, longer, at(11)),  # There is a gap.
        (out, longer_than(out, 10), at(10)),  # The longer batch has no more changes.
        (out, dataclasses.replace(longer, end=at(20, epoch=2)), at(10)),
        (out, longer_than(out, 20, path=""), at(10)),
    ):
        with pytest.raises(SluiceError):
            wrong.taken(batch, longer_one, start)
    assert not out.redeliver(1).outstanding[0].appendable, "it may be merged in part by now"


def test_a_batch_that_no_run_has_taken_was_not_merged_in_part(ledger: Ledger) -> None:
    out = staged(ledger)
    for given_up in (out.rollback(), out.restarted(lambda _: False)):
        assert not given_up.unfinished
    assert out.taken(out.outstanding[0]).rollback().unfinished


def test_a_batch_in_the_ledger_of_an_earlier_version_has_a_fixed_end(ledger: Ledger) -> None:
    text = ledger_to_text(staged(ledger))
    record = json.loads(text)
    del record["outstanding"][0]["appendable"], record["outstanding"][0]["first_end"]
    assert ledger_from_text(text, "shop") == staged(ledger)
    assert ledger_from_text(json.dumps(record), "shop") == staged(ledger, appendable=False)


def test_a_batch_that_an_earlier_version_had_not_staged_yet_is_not_in_flight(ledger: Ledger) -> None:
    record = json.loads(ledger_to_text(two(ledger)))
    record["outstanding"][1]["path"] = ""
    again = ledger_from_text(json.dumps(record), "shop")
    assert [each.batch_id for each in again.outstanding] == [1]
    assert again.next_batch_id == 3
