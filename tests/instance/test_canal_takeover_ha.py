"""Tests where a destination begins if Canal has left a cursor for it in ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.instance.canal_takeover import choice_after, cursor_of_canal
from sluice.cdc_engine.parser.start_position import StartChoice

CURSOR = (
    '{"@type":"com.alibaba.otter.canal.protocol.position.LogPosition","identity":{"slaveId":-1,"sourceAddress":{"address":'
    '"db","port":3306}},"postion":{"gtid":"%s","included":false,"journalName":"mysql-bin.000009","position":15154,'
    '"serverId":1,"timestamp":%d}}'
)
GTIDS = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
AT_TIME = StartChoice(file="mysql-bin.000009", offset=15000)


@pytest.mark.parametrize(
    ("gtids", "time_ms", "by_gtid", "begin"),
    [
        (GTIDS, 1597025212000, True, StartChoice(gtid_set=GTIDS)),
        (GTIDS, 1597025212000, False, AT_TIME),
        ("", 1597025212000, True, AT_TIME),
        ("", 0, True, StartChoice(file="mysql-bin.000009")),
    ],
)
def test_ha_a_destination_begins_at_or_before_canals_cursor(
    gtids: str, time_ms: int, by_gtid: bool, begin: StartChoice
) -> None:
    requested: list[int] = []

    def at_time(time_us: int) -> StartChoice:
        requested.append(time_us)
        return AT_TIME

    assert choice_after(CURSOR % (gtids, time_ms), by_gtid=by_gtid, at_time=at_time) == begin
    assert requested == ([time_ms * 1000] if begin == AT_TIME else [])


def test_ha_a_cursor_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(MetaError, match="Canal's cursor in ZooKeeper cannot be read: the cursor has no position"):
        choice_after("{}", by_gtid=True, at_time=lambda _: AT_TIME)


def test_ha_only_zookeeper_has_a_cursor_of_canal(tmp_path: Path) -> None:
    assert cursor_of_canal(tmp_path) is None
    assert (
        cursor_of_canal(DestinationDir.of(LedgerLocation(destination="shop", directory=tmp_path, kind="memory")))
        is None
    )
