"""Tests when a parser may continue with a dump by file and offset, whatever GTIDs its own dump began with."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.shared.sharing import has_caught_up
from sluice.cdc_engine.position import Position


@pytest.mark.parametrize(
    ("file", "offset", "caught_up"),
    [
        ("binlog.000009", 500, True),
        ("binlog.000009", 501, True),
        ("binlog.000010", 4, True),
        # Between this position and the end of the binlog, there may be transactions that a dump by GTID omits. A dump by file and offset
        # would deliver them again.
        ("binlog.000009", 499, False),
        ("binlog.000008", 900, False),
        ("", 4, False),  # On another server, no transaction has arrived yet.
    ],
)
def test_what_was_executed_before_it_connected_is_before_the_position_where_it_changes_over(
    file: str, offset: int, caught_up: bool
) -> None:
    facts = ServerFacts(
        version="8.0.31", mariadb=False, server_uuid="u", gtid_enabled=True, file="binlog.000009", offset=500
    )
    assert has_caught_up(Position(epoch=2, file=file, offset=offset), facts) is caught_up


def test_of_a_server_that_does_not_say_where_its_binlog_ends_nothing_is_known() -> None:
    facts = ServerFacts(version="8.0.31", mariadb=False, server_uuid="u", gtid_enabled=True)
    assert not has_caught_up(Position(epoch=1, file="binlog.000001", offset=900), facts)
