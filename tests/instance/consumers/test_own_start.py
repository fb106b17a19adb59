"""Tests the position from which a consumer's own stream uses the schemas of the main stream. It is the earlier one of two positions, which
are on one server or on two.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.instance.consumers.own_start import known_position, own_start
from sluice.cdc_engine.parser.positions.scan_ddl import has_come_to
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind

HERE = Position(epoch=1, file="b.000002", offset=500, gtid_set="0-1-5,7-1-5", server_uuid="one")
THERE = dataclasses.replace(HERE, epoch=2, file="b.000001", offset=90, server_uuid="two")


def executed(position: Position, gtid_set: str) -> Position:
    return dataclasses.replace(position, gtid_set=gtid_set)


def test_of_two_positions_of_one_server_the_earlier_one_is_chosen() -> None:
    later = dataclasses.replace(HERE, file="b.000003", offset=4)
    assert known_position(HERE, later) == known_position(later, HERE) == HERE


@pytest.mark.parametrize(
    ("begin", "live", "known"),
    [
        (HERE, executed(THERE, "0-1-9,7-1-9"), HERE),
        (HERE, THERE, HERE),
        (executed(HERE, "0-1-6,7-1-5"), THERE, THERE),
        (executed(HERE, "0-1-6,7-1-4"), THERE, dataclasses.replace(executed(THERE, "0-1-5,7-1-4"), file="", offset=4)),
        (executed(HERE, ""), THERE, executed(HERE, "")),
        (HERE, executed(THERE, ""), HERE),
    ],
    ids=["behind", "the-same", "ahead", "both", "unknown-here", "unknown-there"],
)
def test_of_two_servers_it_is_what_both_have_executed(begin: Position, live: Position, known: Position) -> None:
    assert known_position(begin, live) == known


@pytest.mark.parametrize(("begin", "live"), [(executed(HERE, "0-1"), THERE), (THERE, executed(THERE, "0-1-9"))])
def test_a_set_that_cannot_be_read_says_so(begin: Position, live: Position) -> None:
    record = HistoryRecord(kind=RecordKind.SERVER, position=executed(HERE, "0-1"), content={})
    review = SchemaDecisions()
    with pytest.raises(PositionLostError, match="cannot be read"):
        own_start(begin, live, [record], tables=TableFilter(), review=review, recorded_before=lambda *_: None)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (HERE, True),
        (dataclasses.replace(HERE, offset=400), False),
        (THERE, True),
        (executed(THERE, "0-1-4,7-1-9"), False),
        (dataclasses.replace(HERE, server_uuid="three", gtid_set="0-1-9"), False),
    ],
    ids=["there", "before", "by-what-it-has", "lacks-one", "another-numbering"],
)
def test_statements_are_listed_up_to_a_position_and_not_after_it(position: Position, *, expected: bool) -> None:
    assert has_come_to(HERE, position) == expected
