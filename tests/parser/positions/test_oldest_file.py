"""Tests what a source really keeps: the age of its oldest binlog file, and whether earlier files were seen to disappear."""

from __future__ import annotations

import dataclasses
import math

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.parser.positions.oldest_file import OldestFile, purges_early
from sluice.cdc_engine.parser.positions.retention_left import kept_until, short_retention
from sluice.cdc_engine.parser.providers.facts import ProviderFacts
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.source_check import short_retention_sentence

NOW, HOUR = 1_000_000.0, 3600


def facts(*numbers: int, uuid: str = "a", **created_hours: float) -> ServerFacts:
    """Returns the facts of a server with the binlog files `numbers`. `created_hours` has the ages of some files: `b3=30` means that
    binlog.000003 is 30 h old.
    """
    return ServerFacts(
        version="8.0.31",
        mariadb=False,
        server_uuid=uuid,
        gtid_enabled=True,
        logs=tuple(BinaryLog(file=f"binlog.{number:06}", size_bytes=1000) for number in numbers),
        created={f"binlog.{int(name[1:]):06}": int(NOW - hours * HOUR) for name, hours in created_hours.items()},
    )


def test_the_creation_of_a_file_is_queried_once() -> None:
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
    assert oldest.kept_seconds(facts(3, 4), NOW) == math.inf, "a young file is no purge"
    assert purges_early(oldest, facts(3, 4), NOW) == ""
    oldest = oldest.seen(facts(4, 5)).seen(facts(4, 5, b4=2))
    assert oldest.kept_seconds(facts(3, 4), NOW) == 2 * HOUR
    assert "up to binlog.000004, a file that is less than 24 h old" in purges_early(oldest, facts(4, 5), NOW)
    assert purges_early(oldest, facts(4, 5), NOW + 23 * HOUR) == "", "it kept that file for longer since then"


@pytest.mark.parametrize("after", [facts(1, b1=0), facts(9, uuid="b", b9=0)], ids=["reset", "another-server"])
def test_other_files_are_no_purge(after: ServerFacts) -> None:
    oldest = OldestFile().seen(facts(3, 4, b3=9)).seen(facts(4, b4=8)).seen(after)
    assert oldest.kept_seconds(facts(3, 4), NOW) == math.inf


def test_the_retention_left_goes_by_what_was_observed_if_that_is_less() -> None:
    """The file that is needed ended 3 h ago. By its settings the server never purges, but it was seen to purge after 4 h."""
    there = facts(3, 4, b4=3)
    assert kept_until("binlog.000003", there, NOW) is None
    assert kept_until("binlog.000003", there, NOW, 4 * HOUR) == NOW + HOUR
    assert "in 1.0 h" in short_retention(1.0, there, 12, 4 * HOUR)
    assert short_retention(2.5, there, 12, 4 * HOUR) == ""


@pytest.mark.managed
def test_files_that_live_for_minutes_only_leave_no_gap_in_what_is_known() -> None:
    """The creation time of a new oldest file is read only at the next query of the source. Until then, the creation time of the purged file
    before it is the limit.
    """
    oldest = OldestFile().seen(facts(3, 4, b3=0.2))
    for number in range(4, 9):
        oldest = oldest.seen(facts(number, number + 1))
        assert purges_early(oldest, facts(number, number + 1), NOW) != "", number
    assert oldest.unknown(facts(8, 9)) == ("binlog.000008",)
    assert dict(oldest.creations) == {"binlog.000003": int(NOW - 0.2 * HOUR)}, "no more is kept than is needed"
    assert dict(oldest.seen(facts(8, 9, b8=0.1)).creations) == {
        "binlog.000003": int(NOW - 0.2 * HOUR),
        "binlog.000008": int(NOW - 0.1 * HOUR),
    }


@pytest.mark.managed
def test_a_file_whose_creation_was_read_as_the_newest_is_known_when_it_is_the_oldest() -> None:
    oldest = OldestFile().seen(facts(3, 4, b4=0.1)).seen(facts(4, 5, b5=0.05))
    assert oldest.unknown(facts(4, 5)) == ()
    assert oldest.age_seconds(NOW) == pytest.approx(0.1 * HOUR)


@pytest.mark.managed
def test_a_source_that_keeps_little_on_purpose_is_accepted() -> None:
    oldest = OldestFile().seen(facts(3, 4)).seen(facts(4, 5, b4=2))
    assert "less than 6 h old" in purges_early(oldest, facts(4, 5), NOW, 6)
    assert purges_early(oldest, facts(4, 5), NOW, 1.5) == ""
    hour = dataclasses.replace(facts(4, 5), variables={"binlog_expire_logs_seconds": "3600"})
    assert "for 1.0 h only" in short_retention_sentence(hour)
    assert short_retention_sentence(hour, 1) == ""
    nothing = dataclasses.replace(
        facts(4, 5), provider=ProviderFacts(host="a.b.rds.amazonaws.com", rds_retention="NULL")
    )
    assert "is NULL" in short_retention_sentence(nothing, 1)
    assert short_retention_sentence(nothing, 0) == ""


@pytest.mark.parametrize(("setting", "warns"), [({}, True), ({"retention_left_hours_min": 0.5}, False)])
def test_a_retention_below_twice_the_retention_left_is_too_short(setting: dict[str, float], warns: bool) -> None:
    shop = DestinationConfig.model_validate({"name": "shop", "source": {"user": "u"}, **setting})
    hour = dataclasses.replace(facts(4, 5), variables={"binlog_expire_logs_seconds": "3600"})
    assert bool(short_retention_sentence(hour, shop.retention_hours_min)) is warns


@pytest.mark.managed
def test_a_source_that_promises_nothing_has_an_unknown_retention_left_until_a_purge_is_seen() -> None:
    provider = ProviderFacts(host="a.b.rds.amazonaws.com", rds_retention="NULL")
    nothing = dataclasses.replace(facts(4, 5, b4=3, b5=1), provider=provider)
    assert kept_until("binlog.000004", nothing, NOW) is None
    seen = OldestFile().seen(facts(3, 4)).seen(nothing)
    assert kept_until("binlog.000004", nothing, NOW, seen.kept_seconds(nothing, NOW)) == NOW + 2 * HOUR


@pytest.mark.managed
def test_at_cloud_sql_what_is_there_counts_and_not_the_flag() -> None:
    """On Cloud SQL, the database flag may be larger than the days of logs of point-in-time recovery, which no query shows. So Sluice
    assumes the age of the oldest file, but at least a day.
    """
    provider = ProviderFacts(version="8.0.31-google")
    month = {"binlog_expire_logs_seconds": str(20 * 24 * HOUR)}
    for hours, kept in ((2, 24), (70, 70)):
        there = dataclasses.replace(facts(4, 5, b4=hours, b5=1), provider=provider, variables=month)
        seen = OldestFile().seen(there)
        assert seen.kept_seconds(there, NOW) == kept * HOUR
        assert kept_until("binlog.000004", there, NOW, seen.kept_seconds(there, NOW)) == NOW + (kept - 1) * HOUR
