"""A consumer's own stream goes over by the clock where the live one may, in that one's epoch: both number the same files the same way."""

from __future__ import annotations

import dataclasses

import pytest

from cdc_engine.instance.consumers.own_stream import in_live_epoch
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import DumpStart, Epochs, Lost, in_new_epoch
from cdc_engine.position import Position

CURSOR = Position(epoch=2, file="binlog.000003", offset=700, server_uuid="one", time_us=5)
FACTS = ServerFacts(version="8.0.31", mariadb=False, server_uuid="two", gtid_enabled=False)


def by_time(cursor: Position, facts: ServerFacts, epochs: Epochs) -> DumpStart | Lost:
    place = dataclasses.replace(cursor, file="other.000001", offset=90, server_uuid=facts.server_uuid)
    start = DumpStart(position=place, by_gtid=False, executed_known=False, by_time=True)
    return in_new_epoch(start, cursor, epochs)


@pytest.mark.parametrize(("live", "expected"), [(3, 3), (5, 5), (2, 3)], ids=["went", "twice", "not-yet"])
def test_failover_an_own_stream_takes_the_epoch_of_the_live_one(live: int, expected: int) -> None:
    start = in_live_epoch(by_time, lambda: live, CURSOR, FACTS, Epochs(highest=live))
    assert isinstance(start, DumpStart)
    assert (start.position.epoch, start.position.file) == (expected, "other.000001")


def test_failover_an_own_stream_without_a_place_says_why() -> None:
    lost = Lost(reason="it lacks what was read")
    assert in_live_epoch(lambda *_: lost, lambda: 3, CURSOR, FACTS, Epochs()) is lost
