"""Tests the retention left of a position: when the source may purge the binlog file that contains the position, and whether the file is
gone. The source purges by age, by the size of all files, or never.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sluice.cdc_engine.parser.positions.retention_left import is_gone, kept_until, next_file, short_retention
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.position import Position

NOW, HOUR = 1_000_000.0, 3600
FACTS = ServerFacts(
    version="8.0.31",
    mariadb=False,
    server_uuid="a",
    gtid_enabled=True,
    logs=tuple(BinaryLog(file=f"binlog.{number:06}", size_bytes=1000) for number in (3, 4, 5)),
    variables={"binlog_expire_logs_seconds": str(24 * HOUR)},
    created={"binlog.000004": int(NOW) - 20 * HOUR, "binlog.000005": int(NOW) - HOUR},
)


@pytest.mark.parametrize(
    ("file", "changes", "hours"),
    [
        ("binlog.000003", {}, 4),
        ("binlog.000004", {}, 23),
        ("binlog.000005", {}, 24),
        ("binlog.000003", {"variables": {"expire_logs_days": "2"}}, 28),
        ("binlog.000003", {"variables": {"binlog_expire_logs_seconds": "0"}}, None),
        ("binlog.000002", {}, None),
        ("binlog.000003", {"created": {}}, None),
        ("binlog.000003", {"variables": {"max_binlog_total_size": "4000"}}, 10),
        ("binlog.000003", {"variables": {"binlog_space_limit": "2000"}}, 0),
        ("binlog.000003", {"variables": {"max_binlog_total_size": "4000", "expire_logs_days": "1"}}, 4),
    ],
    ids=["old", "younger", "last", "days", "for-ever", "gone", "unknown", "size", "full", "sooner"],
)
def test_failover_the_retention_left_of_a_file(file: str, changes: dict[str, Any], hours: float | None) -> None:
    until = kept_until(file, dataclasses.replace(FACTS, **changes), NOW)
    assert until == (None if hours is None else pytest.approx(NOW + hours * HOUR))


A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("changes", "facts", "archived", "gone"),
    [
        ({}, {"gtid_enabled": False}, False, True),
        ({}, {"gtid_enabled": False}, True, False),
        ({"file": "binlog.000003"}, {"gtid_enabled": False}, False, False),
        ({"file": "binlog.000009"}, {"gtid_enabled": False}, False, False),
        ({}, {"gtid_enabled": False, "logs": ()}, False, False),
        ({"gtid_set": f"{A}:1-9"}, {"executed": f"{A}:1-20", "purged": f"{A}:1-9"}, False, False),
        ({"gtid_set": f"{A}:1-9"}, {"executed": f"{A}:1-20", "purged": f"{A}:1-10"}, False, True),
        ({"gtid_set": f"{A}:1-9"}, {"executed": f"{A}:1-20", "purged": f"{A}:1-10"}, True, False),
    ],
    ids=["gone", "archived", "there", "begun-since", "not-listed", "all-read", "purged", "purged-archived"],
)
def test_failover_what_is_purged_is_gone_where_a_restart_would_be_lost(
    changes: dict[str, Any],
    facts: dict[str, Any],
    archived: bool,
    gone: bool,
) -> None:
    there = dataclasses.replace(FACTS, **{"server_uuid": A, "file": "binlog.000005", "offset": 1000, **facts})
    saved = Position(epoch=1, file="binlog.000002", offset=900, server_uuid=A)
    assert is_gone(dataclasses.replace(saved, **changes), there, archived=archived) is gone


def test_failover_the_file_after_another_has_its_end() -> None:
    assert next_file("binlog.000003", FACTS) == "binlog.000004"
    assert next_file("binlog.000005", FACTS) == ""
    assert next_file("binlog.000001", FACTS) == ""


def test_failover_a_short_retention_left_is_reported_in_time_and_of_a_server_that_keeps_little_at_half() -> None:
    assert "in 3.0 h" in short_retention(3.0, FACTS, 12)
    assert short_retention(12.0, FACTS, 12) == ""
    hour = dataclasses.replace(FACTS, variables={"binlog_expire_logs_seconds": str(HOUR)})
    assert short_retention(1.0, hour, 12) == ""
    assert "may purge" in short_retention(0.4, hour, 12)
