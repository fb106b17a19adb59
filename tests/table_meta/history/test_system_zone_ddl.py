"""Tests time_zone=SYSTEM: how Sluice finds the time zone of the server, and which values CURRENT_TIMESTAMP gives to existing rows."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from pathlib import Path

import pytest

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.system_zone import system_zone
from tests.fix_servers import ServerFactory
from tests.table_meta.replay import scene


def server_in(name: str, late_hours: int = 0) -> tuple[list[str], object]:
    requested: list[str] = []

    def select(query: str) -> tuple[object, ...]:
        requested.append(query)
        found = [dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) for text in re.findall(r"TZ\('(.*?)'", query)]
        moved = dt.timedelta(hours=late_hours)
        return tuple(each.astimezone(zoneinfo.ZoneInfo(name)).replace(tzinfo=None) + moved for each in found)

    return requested, select


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"])
def test_the_zone_that_shows_what_the_server_shows_is_found_ddl(name: str) -> None:
    requested, select = server_in(name)
    found = zoneinfo.ZoneInfo(system_zone(select))  # type: ignore[arg-type]
    for year in range(2015, 2034):
        for month in range(1, 13):
            there = dt.datetime(year, month, 11, 3, tzinfo=dt.UTC)
            assert there.astimezone(found).utcoffset() == there.astimezone(zoneinfo.ZoneInfo(name)).utcoffset()
    assert len(requested) == 1


def test_clocks_of_no_zone_are_no_zone_ddl() -> None:
    _, select = server_in("Europe/Berlin", late_hours=5)
    assert system_zone(select) == ""  # type: ignore[arg-type]


@pytest.mark.servers
@pytest.mark.parametrize("version", ["mysql-8.0.31", "mariadb-11.4.5"])
def test_rows_there_get_the_time_of_the_system_zone_ddl(
    version: str, fresh_server: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    server = fresh_server(version)
    with scene(server, "zones") as played, played.connection.cursor() as cursor:
        found = zoneinfo.ZoneInfo(played.before.server.system_zone)
        summer = dt.datetime(2020, 7, 1, tzinfo=dt.UTC)
        assert summer.astimezone(found).utcoffset() == dt.timedelta(hours=-4)
        shown = {}
        for number, seconds in enumerate((1600000000, 1606000000)):  # A time in summer and one in winter.
            cursor.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
            cursor.execute(f"INSERT INTO t{number} VALUES (1)")
            cursor.execute(f"SET time_zone = 'SYSTEM', timestamp = {seconds}")
            cursor.execute(
                f"ALTER TABLE t{number} ADD c datetime DEFAULT CURRENT_TIMESTAMP, ADD d date DEFAULT (CURRENT_DATE)"
            )
            cursor.execute(f"SELECT CAST(c AS CHAR), CAST(d AS CHAR) FROM t{number}")
            shown[f"t{number}"] = dict(zip("cd", cursor.fetchall()[0], strict=True))
        history = TableHistory(tmp_path / "schema.jsonl", played.captured)
        history.seed(played.before, Position(epoch=1, file=played.file, offset=played.start))
        changes = [change for change in played.replay(history).changes if change.fills]
    assert {change.table: dict(change.fills) for change in changes} == shown
