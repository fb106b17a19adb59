"""Tests what `sluice catch-up --until` waits for: a position that a time selects on the source, or a GTID set."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cdc_engine.acts.catch_up import gtid_end
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.instance.sources import source_facts
from sluice.cdc_engine.position import Position
from sluice.console.acts.catch_up import wanted_end
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.errors import SetupError
from tests.instance.fix_destination import Captured
from tests.rotation import begin_file
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.seeds]


def test_gtids_are_refused_where_the_source_has_none() -> None:
    facts: Any = SimpleNamespace(mariadb=False, gtid_enabled=False)
    with pytest.raises(ActRefusedError, match="the source has no GTIDs; give a time"):
        gtid_end(facts, "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
    assert gtid_end(facts, "-10m") is None


def now_us() -> int:
    return time.time_ns() // 1000


def end_now(destination: DestinationConfig) -> Position:
    facts = source_facts(destination)
    return Position(
        epoch=1, file=facts.file, offset=facts.offset, gtid_set=facts.executed, server_uuid=facts.server_uuid
    )


def server_time(server: DatabaseServer) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ')")
        return str(cursor.fetchone()[0])


def test_a_time_and_a_gtid_set_are_reached_where_the_source_was_then(tmp_path: Path, mysql80: DatabaseServer) -> None:
    captured = Captured(tmp_path, mysql80)
    shop = captured.config.destinations["shop"]
    # Begin a new binlog file, because other tests may have created files with times in the future. Then wait for the next second, because a
    # search for the second of a file's creation begins in the previous file.
    begin_file(mysql80)
    created = server_time(mysql80)[: len("2026-01-01T00:00:00")]
    captured.insert([1])
    before = end_now(shop)
    wait_for("the second after the file began", lambda: not server_time(mysql80).startswith(created))
    moment = server_time(mysql80)
    captured.insert([2])
    after = end_now(shop)
    by_time = wanted_end(shop, moment, now_us())
    assert (by_time.end.file, by_time.end.offset) == (before.file, before.offset)
    by_gtids = wanted_end(shop, after.gtid_set, now_us())
    assert str(by_gtids) == after.gtid_set
    current = wanted_end(shop, "", now_us())
    reached = [[end.is_reached(cursor) for cursor in (before, after)] for end in (by_time, by_gtids, current)]
    assert reached == [[True, True], [False, True], [False, True]]


def test_a_time_that_has_not_come_and_a_text_that_is_neither_are_refused(
    tmp_path: Path, mysql80: DatabaseServer
) -> None:
    shop = Captured(tmp_path, mysql80).config.destinations["shop"]
    with pytest.raises(SetupError, match="has not come yet"):
        wanted_end(shop, "2126-01-01T00:00:00Z", now_us())
    with pytest.raises(ConfigurationError):
        wanted_end(shop, "tomorrow", now_us())
