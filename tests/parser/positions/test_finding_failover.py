"""Tests how a requested position becomes an exact one, on real servers: the beginning of a transaction, a position in one file, the
earliest position.
"""

from __future__ import annotations

import pytest

from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.positions.decision import RequestedPosition
from sluice.cdc_engine.parser.positions.finding import exact_position
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.positions.test_time_search_backfill import SECOND_US, Clocked
from tests.parser.recording import capturing, source_of

pytestmark = pytest.mark.servers


def found(clock: Clocked, wanted: RequestedPosition) -> StartChoice:
    return exact_position(source_of(clock.server), clock.facts(), wanted)


def test_failover_a_position_inside_a_transaction_is_its_begin(shop: DatabaseServer) -> None:
    clock = Clocked(shop)
    clock.file(0)
    first, second = clock.row(0, 10), clock.row(1, 20)
    begin = found(clock, RequestedPosition(file=first.file, offset=first.offset - 1))
    for inside in (first.offset, first.offset + 16, second.offset - 100):
        position = found(clock, RequestedPosition(file=first.file, offset=inside))
        assert (position.file, position.executed) == (first.file, first.executed)
    assert begin.offset == 4, "no transaction of the file ends before its first one's last byte"
    with capturing(source_of(shop), choice=begin) as capture:
        capture.sink.wait_for_rows(2)
    with pytest.raises(PositionLostError, match="is after the end"):
        found(clock, RequestedPosition(file=first.file, offset=second.offset + 10_000_000))


def test_failover_a_time_in_one_file_is_looked_for_in_no_other(shop: DatabaseServer) -> None:
    clock = Clocked(shop)
    clock.file(0)
    first, second = clock.row(0, 10), clock.row(1, 20)
    clock.file(30)
    clock.row(2, 40)
    moment = clock.base * SECOND_US
    early, amid, late = (
        found(clock, RequestedPosition(file=first.file, time_us=moment + seconds * SECOND_US))
        for seconds in (0, 20, 50)
    )
    assert (early.file, early.offset) == (first.file, 4)
    # The end of the file is not compared, because MariaDB adds checkpoints to it at any time.
    assert (amid.file, amid.executed) == (first.file, first.executed)
    assert (late.file, late.executed) == (first.file, second.executed)
    assert found(clock, RequestedPosition(earliest=True)).file == clock.facts().logs[0].file
    assert found(clock, RequestedPosition()) == StartChoice()
