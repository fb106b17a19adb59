"""Tests on real servers that a stream continues after a position whose offset is too large for COM_BINLOG_DUMP. The whole file is
requested, and nothing is lost or repeated.
"""

from __future__ import annotations

import pytest

from sluice.cdc_engine.parser import connection
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.fix_shop import insert, run
from tests.parser.recording import capturing, source_of

pytestmark = pytest.mark.servers

LARGE_BYTES = 17_000_000  # Larger than one packet.


def test_a_stream_continues_after_a_position_that_the_command_cannot_name(
    shop: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shop, "FLUSH BINARY LOGS")
    with capturing(source_of(shop)) as first:
        insert(shop, range(3))
        run(shop, f"INSERT INTO shop.orders VALUES (3, REPEAT('x', {LARGE_BYTES}))")
        insert(shop, range(4, 10))
        first.sink.wait_for_rows(10)
    monkeypatch.setattr(connection, "DUMP_OFFSET_MAX", 4)
    for taken in (2, 4, 9):
        file, offset = first.sink.ends[taken - 1]
        with capturing(source_of(shop), choice=StartChoice(file=file, offset=offset)) as again:
            again.sink.wait_for_rows(10 - taken)
        assert again.sink.events == first.sink.events[taken:]
        assert again.sink.ends == first.sink.ends[taken:]
    choice = StartChoice(file=file, offset=offset - 1)
    with capturing(source_of(shop), choice=choice, wait=False) as lost:
        assert f"no event begins at {file}:{offset - 1}" in lost.states.wait("POSITION_LOST")
