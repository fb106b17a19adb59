"""Tests at which committed positions a consumer continues: positions that are its own, comparable, and after its cursor."""

from __future__ import annotations

import dataclasses
import random
import uuid
from typing import Any

import pytest

from sluice.cdc_engine.errors import PublishError
from sluice.cdc_engine.instance.consumers.committed import Counting, StreamPositionCodec, packed, stream_record
from sluice.cdc_engine.instance.consumers.consumer_stream import StreamPosition
from sluice.cdc_engine.instance.consumers.group.committed import GroupPositionCodec
from sluice.cdc_engine.instance.consumers.group.group_stream import GroupStreamPosition
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.window.positions import WindowPosition

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
AT = Position(
    epoch=1, file="bin.000002", offset=1000, gtid_set=f"{SOURCE}:1-5", server_uuid="a", time_us=7, file_created=3
)
COUNTING = Counting(epoch=1, tables="shop\\..*")


def stream_at(events: int = 0, **changed: object) -> StreamPosition:
    begun = (1, 2, 1019) if events else None
    state = (1, 2, 3, 4, 5) if events else (0, 0, 0, 0, 0)
    last = 2000 if events else 0
    return StreamPosition(WindowPosition(dataclasses.replace(AT, **changed), events, begun, last), state)  # type: ignore[arg-type]


def texts(identity: str = "one", counting: Counting = COUNTING) -> StreamPositionCodec:
    return StreamPositionCodec(lambda: identity, lambda: counting)


def later(acked: StreamPosition, committed: StreamPosition, counting: Counting = COUNTING) -> StreamPosition | None:
    return texts(counting=counting).later(acked, texts().text(committed))


@pytest.mark.parametrize(
    "committed",
    [
        stream_at(offset=1001),
        stream_at(file="bin.000003", offset=4),
        stream_at(events=2),
        stream_at(offset=1001, events=300),
        stream_at(offset=1001, gtid_set="", server_uuid=""),
    ],
)
def test_consumer_continues_exactly_at_a_later_position(committed: StreamPosition) -> None:
    assert later(stream_at(), committed) == committed


@pytest.mark.parametrize("committed", [stream_at(), stream_at(offset=999), stream_at(file="bin.000001", offset=2000)])
def test_consumer_at_or_after_the_committed_position_continues_at_its_own(committed: StreamPosition) -> None:
    assert later(stream_at(), committed) is None
    assert later(stream_at(events=3), stream_at(events=2)) is None


def test_consumer_that_was_forgotten_or_has_a_new_ledger_sends_again_what_an_earlier_one_has_committed() -> None:
    assert texts("two").later(stream_at(), texts("one").text(stream_at(offset=2000))) is None


def test_consumer_compares_positions_of_two_servers_by_their_epochs() -> None:
    other = stream_at(epoch=2, file="bin.000001", offset=4, server_uuid="b")
    both = Counting(epoch=2, tables=COUNTING.tables)
    assert later(stream_at(), other, both) == other
    assert later(other, stream_at(offset=2000), both) is None


@pytest.mark.seeds
def test_consumer_that_was_moved_on_after_a_failover_continues_at_a_committed_position_of_the_former_server() -> None:
    """The cursor is on the new server, and the broker has a position of the former server. The consumer continues at the broker's position
    only if its GTID set contains more transactions.
    """
    both = Counting(epoch=2, tables=COUNTING.tables)

    def after(number: int, **changed: object) -> StreamPosition:
        return stream_at(gtid_set=f"{SOURCE}:1-{number}", **changed)  # type: ignore[arg-type]

    new: dict[str, Any] = {"epoch": 2, "file": "bin.000001", "offset": 4, "server_uuid": "b"}
    for passed, committed, moves in ((5, 9, True), (9, 9, False), (9, 5, False)):
        found = later(after(passed, **new), after(committed, offset=2000), both)
        assert (found is not None) == moves, (passed, committed)
    assert later(stream_at(gtid_set="", **new), after(9, offset=2000), both) is None, "without GTIDs the epochs decide"


def test_consumer_refuses_an_epoch_that_its_ledger_does_not_know() -> None:
    with pytest.raises(PublishError, match=r"no epoch above 1: an older ledger was restored.*another transactional_id"):
        later(stream_at(), stream_at(epoch=2))


def test_consumer_refuses_another_server_in_the_same_epoch() -> None:
    with pytest.raises(PublishError, match=r"of the server b.*cannot be compared: set another transactional_id"):
        later(stream_at(), stream_at(offset=2000, server_uuid="b"))


def test_consumer_repeats_the_part_of_a_transaction_whose_row_events_are_counted_in_another_way_now() -> None:
    other = Counting(epoch=1, tables="shop\\.orders")
    assert later(stream_at(), stream_at(offset=1001, events=2), other) == stream_at(offset=1001)
    assert later(stream_at(), stream_at(offset=1001), other) == stream_at(offset=1001)
    assert later(stream_at(), stream_at(events=2), other) is None


@pytest.mark.parametrize("text", ["", "x", "eJwDAAAAAAE=", packed("one", {"format": 2})])
def test_consumer_refuses_what_sluice_did_not_write(text: str) -> None:
    with pytest.raises(PublishError, match="this version of Sluice did not write"):
        texts().later(stream_at(), text)


def test_consumer_refuses_a_record_with_other_fields_and_reads_one_from_before_the_offset_was_added() -> None:
    """A later version of Sluice may write fields that this version does not know. An earlier version wrote no offset (`last`), and its
    records stay valid.
    """
    record = stream_record(stream_at(events=3), COUNTING)
    others: list[dict[str, Any]] = [
        {"position": {**record["position"], "later": 1}},
        {"position": [1]},
        {"state": [1]},
        {"begun": [1, 2]},
    ]
    for other in [*({**record, **each} for each in others), {"state": record["state"]}]:
        with pytest.raises(PublishError, match=r"this version of Sluice did not write .*set another transactional_id"):
            texts().later(stream_at(), packed("one", other))
    before = packed("one", {name: each for name, each in record.items() if name != "last"})
    found = texts().later(stream_at(), before)
    assert found is not None
    assert (found.window_position.events, found.window_position.last) == (3, 0)


def test_consumer_position_with_a_hundred_servers_fits_what_kafka_accepts() -> None:
    chance = random.Random(1)  # noqa: S311
    sources = [uuid.UUID(int=chance.getrandbits(128), version=1) for _ in range(100)]
    gtid_set = ",".join(f"{source}:1-{chance.randint(1, 10**9)}" for source in sources)
    assert len(texts().text(stream_at(gtid_set=gtid_set))) <= 4096


def test_group_consumer_moves_the_members_whose_committed_position_is_later() -> None:
    acked = GroupStreamPosition(
        {"east": stream_at(), "west": stream_at(offset=500), "new": stream_at()}, 5, 1, {"west": 3}
    )
    committed = GroupStreamPosition(
        {"east": stream_at(offset=900), "west": stream_at(offset=600, events=2), "gone": stream_at()},
        9,
        2,
        {"west": 8, "gone": 4},
    )
    own = GroupPositionCodec(lambda: "one", lambda _: COUNTING)
    moved = {"east": stream_at(), "west": stream_at(offset=600, events=2), "new": stream_at()}
    assert own.later(acked, own.text(committed)) == GroupStreamPosition(moved, 9, 2, {"west": 8})
    assert own.later(committed, own.text(committed)) is None
    assert GroupPositionCodec(lambda: "two", lambda _: COUNTING).later(acked, own.text(committed)) is None
