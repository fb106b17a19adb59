"""What a source keeps in fact: the age of its oldest binlog file, and whether files before it were seen to go."""

from __future__ import annotations

import math

import pytest

from sluice.cdc_engine.parser.positions.oldest_file import OldestFile, purges_early
from sluice.cdc_engine.parser.positions.retention_left import kept_until, short_retention
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts

NOW, HOUR = 1_000_000.0, 3600


def facts(*numbers: int, uuid: str = "a", **created_hours: float) -> ServerFacts:
    """A server with these files, of which some are so old."""
    return ServerFacts(
        version="8.0.31",
        mariadb=False,
        server_uuid=uuid,
        gtid_enabled=True,
        logs=tuple(BinaryLog(file=f"binlog.{number:06}", size_bytes=1000) for number in numbers),
        created={f"binlog.{int(name[1:]):06}": int(NOW - hours * HOUR) for name, hours in created_hours.items()},
    )


def test_the_creation_of_a_file_is_asked_once() -> None:
    oldest = OldestFile().seen(facts(3, 4))
    assert oldest.unknown(facts(3, 4)) == ("binlog.000003",)
    assert oldest.age_seconds(NOW) is None
    oldest = oldest.seen(facts(3, 4, b3=30))
    assert oldest.unknown(facts(3, 4)) == ()
    assert oldest.seen(facts(3, 4)).age_seconds(NOW) == 30 * HOUR
    assert oldest.unknown(facts(4)) == ("binlog.000004",)
    assert oldest.unknown(facts()) == ()


def test_a_purge_that_was_seen_says_what_is_kept() -> None:
    oldest = OldestFile().seen(facts(3, 4, b3=5))
    assert oldest.kept_seconds(NOW) == math.inf, "a young file is no purge"
    assert purges_early(oldest, facts(3, 4), NOW) == ""
    oldest = oldest.seen(facts(4, 5)).seen(facts(4, 5, b4=2))
    assert oldest.kept_seconds(NOW) == 2 * HOUR
    assert "up to binlog.000004, a file that is less than a day old" in purges_early(oldest, facts(4, 5), NOW)
    assert purges_early(oldest, facts(4, 5), NOW + 23 * HOUR) == "", "it kept that file for longer since then"


@pytest.mark.parametrize("after", [facts(1, b1=0), facts(9, uuid="b", b9=0)], ids=["reset", "another-server"])
def test_other_files_are_no_purge(after: ServerFacts) -> None:
    oldest = OldestFile().seen(facts(3, 4, b3=9)).seen(facts(4, b4=8)).seen(after)
    assert oldest.kept_seconds(NOW) == math.inf


def test_the_retention_left_goes_by_what_was_observed_if_that_is_less() -> None:
    """The file that is needed ended 3 h ago; the server never purges by its settings, and was seen to purge after 4 h."""
    there = facts(3, 4, b4=3)
    assert kept_until("binlog.000003", there, NOW) is None
    assert kept_until("binlog.000003", there, NOW, 4 * HOUR) == NOW + HOUR
    assert "in 1.0 h" in short_retention(1.0, there, 12, 4 * HOUR)
    assert short_retention(2.5, there, 12, 4 * HOUR) == ""
