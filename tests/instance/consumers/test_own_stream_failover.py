"""Tests a failover of a consumer's own stream. It fails over by commit time if the live stream may do so. It gets the live stream's epoch,
so that both streams number the same files in the same way.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.instance.consumers.consumer_stream import StreamReader
from sluice.cdc_engine.instance.consumers.own_stream import OwnStreams, in_live_epoch
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import DumpStart, Epochs, Lost, in_new_epoch
from sluice.cdc_engine.parser.stream.event_parser import EventParser
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind
from tests.fix_blocks import SERVER

FLAVOUR = {"flavour": "mysql", "charset": "utf8mb4"}
CURSOR = Position(epoch=2, file="binlog.000003", offset=700, server_uuid="one", time_us=5)
FACTS = ServerFacts(version="8.0.31", mariadb=False, server_uuid="two", gtid_enabled=False)


def by_time(cursor: Position, facts: ServerFacts, epochs: Epochs) -> DumpStart | Lost:
    position = dataclasses.replace(cursor, file="other.000001", offset=90, server_uuid=facts.server_uuid)
    start = DumpStart(position=position, by_gtid=False, executed_known=False, read_twice_seconds=60)
    return in_new_epoch(start, cursor, epochs)


@pytest.mark.parametrize(("live", "expected"), [(3, 3), (5, 5), (2, 3)], ids=["went", "twice", "not-yet"])
def test_failover_an_own_stream_takes_the_epoch_of_the_live_one(live: int, expected: int) -> None:
    start = in_live_epoch(by_time, lambda: live, CURSOR, FACTS, Epochs(highest=live))
    assert isinstance(start, DumpStart)
    assert (start.position.epoch, start.position.file) == (expected, "other.000001")


def test_failover_an_own_stream_without_a_position_says_why() -> None:
    lost = Lost(reason="it lacks changes that the engine has read")
    assert in_live_epoch(lambda *_: lost, lambda: 3, CURSOR, FACTS, Epochs()) is lost


@pytest.mark.parametrize(("cursor", "expected"), [(1, "by-gtid"), (2, "as-it-is"), (3, "by-gtid")])
def test_failover_an_own_stream_begins_in_the_epoch_of_the_live_one_and_ends_with_it(
    cursor: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor may be in another epoch, from a stream that failed over before or after the live stream."""
    begun: list[Position] = []
    monkeypatch.setattr(EventParser, "start", lambda _, position: begun.append(position))
    begin = dataclasses.replace(CURSOR, epoch=cursor, gtid_set=f"{SERVER}:1-4")
    live, record = (
        [2],
        HistoryRecord(kind=RecordKind.SERVER, position=dataclasses.replace(begin, epoch=1), content=FLAVOUR),
    )
    streams = OwnStreams(
        source=Source(destination="shop", host="localhost", port=1, user="root"),
        tables=TableFilter(),
        review=SchemaDecisions(),
        known_to=lambda: begin,
        recorded_before=lambda *_: None,
        records=lambda: [record],
        epoch=lambda: live[0],
        server_uuid=lambda: "two",
    )
    stream = streams.open(StreamReader(1), WindowPosition(begin))
    again = dataclasses.replace(begin, epoch=2, file="", offset=4, server_uuid="two", file_created=0)
    assert begun == [again if expected == "by-gtid" else begin]
    assert stream.read(WindowPosition(begin), 1, 1, 0.0, lambda: True) is not None
    live[0] = 3
    assert stream.read(WindowPosition(begin), 1, 1, 0.0, lambda: True) is None
    stream.close()
