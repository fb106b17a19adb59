"""Tests the forms of a time: with its zone, as a time ago, and as conf/ accepts it."""

from __future__ import annotations

import pytest
import yaml

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.source.settings import StartConfig
from sluice.cdc_engine.time_text import time_text, time_us

NOW_US = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z


@pytest.mark.parametrize(
    ("word", "expected_us"),
    [
        ("2026-03-01T12:00:00Z", NOW_US),
        ("2026-03-01T13:00:00+01:00", NOW_US),
        ("2026-03-01 12:00:00.999999+00:00", NOW_US + 999_999),
        ("-30s", NOW_US - 30_000_000),
        ("-10m", NOW_US - 600_000_000),
        ("-2h", NOW_US - 7_200_000_000),
        ("-1d", NOW_US - 86_400_000_000),
    ],
)
def test_a_time_is_read_exactly_backfill(word: str, expected_us: int) -> None:
    assert time_us(word, NOW_US) == expected_us
    assert time_us(time_text(expected_us), 0) == expected_us


@pytest.mark.found
@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("-999999999d", "1970-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00+14:00", "1970-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.5-14:00", "9999-12-31T23:59:59Z"),
    ],
)
def test_a_time_long_ago_or_far_away_has_a_text_backfill(word: str, shown: str) -> None:
    """Defect 1150: `backfill --from -999999999d` ended with an OverflowError."""
    assert time_text(time_us(word, NOW_US)) == shown


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("2026-03-01T12:00:00", "write 2026-03-01T12:00:00Z for UTC"),
        ("2026-03-01", "write 2026-03-01T00:00:00Z for UTC"),
        ("yesterday", "is not a time"),
        ("-10", "is not a time"),
        ("10m", "is not a time"),
    ],
)
def test_a_time_without_its_zone_or_of_no_form_is_refused_with_what_to_write_backfill(word: str, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        time_us(word, NOW_US)


def test_conf_takes_a_time_quoted_or_as_yaml_reads_it_and_only_one_start_backfill() -> None:
    for text in ("time: 2026-03-01T13:00:00+01:00", 'time: "2026-03-01T12:00:00Z"'):
        assert time_us(StartConfig.model_validate(yaml.safe_load(text)).time, 0) == NOW_US
    with pytest.raises(ValueError, match="zone"):
        StartConfig.model_validate(yaml.safe_load("time: 2026-03-01 12:00:00"))
    assert StartConfig(time="-10m", file="binlog.000001").file, "the time in that file"
    for starts in (
        {"time": "-10m", "file": "binlog.000001", "offset": 700},
        {"time": "-10m", "gtid_set": "0-1-2"},
        {"earliest": True, "time": "-10m"},
        {"earliest": True, "file": "binlog.000001"},
        {"offset": 700},
    ):
        with pytest.raises(ValueError, match="set only one kind of start"):
            StartConfig.model_validate(starts)
