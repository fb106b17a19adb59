"""Tests that values of conf/ that Dagster refuses are refused in a sentence when conf/ is read. Dagster would refuse all definitions
because of one such value.
"""

from __future__ import annotations

import pytest
from dagster._core.definitions.utils import VALID_GROUP_NAME_REGEX, is_valid_owner
from dagster._utils.schedules import is_valid_cron_string
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sluice.cdc_engine.config.operation import AssetOfTable, MaintenanceConfig
from sluice.cdc_engine.time_text import cron

NUMBER = st.integers(0, 62).map(str)
WORD = st.sampled_from(["*", "mon", "SUN", "jan", "dec", "x", "@", "l"])
PART = st.one_of(
    WORD,
    NUMBER,
    st.builds("{}-{}".format, NUMBER, NUMBER),
    st.builds("*/{}".format, NUMBER),
    st.builds("1-5/{}".format, NUMBER),
)
FIELD = st.lists(PART, min_size=1, max_size=2).map(",".join)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.tuples(FIELD, FIELD, FIELD, FIELD, FIELD).map(" ".join), st.text(max_size=12)))
def test_dagster_takes_each_time_that_conf_may_have(text: str) -> None:
    try:
        cron(text)
    except ValueError:
        return
    assert not text or is_valid_cron_string(text)


@pytest.mark.parametrize("text", ["", "23 * * * *", "41 4 * * 0", "*/15 0-6,22 1 JAN-MAR mon-fri", "0 0 29 2 *"])
def test_usual_times_are_taken(text: str) -> None:
    assert cron(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("61 * * * *", "the minute goes from 0 to 59"),
        ("a b c d e", "'a' is not a minute"),
        ("0 0 30 2 *", "none of its months has a day 30"),
        ("0 0 * *", "five fields"),
        ("*/0 * * * *", "from 0 to 59"),
    ],
)
def test_times_that_never_come_are_refused_by_name(text: str, why: str) -> None:
    for name in ("optimize", "vacuum"):
        with pytest.raises(ValidationError, match=why):
            MaintenanceConfig(**{name: text})


def test_hourly_is_a_separate_value() -> None:
    assert MaintenanceConfig().optimize == "hourly"
    with pytest.raises(ValidationError, match="is not a cron schedule"):
        MaintenanceConfig(vacuum="hourly")


@pytest.mark.parametrize("minutes", [0.5, float("inf"), 1e12, float("nan"), -1.0])
def test_freshness_that_dagster_cannot_have_is_refused(minutes: float) -> None:
    with pytest.raises(ValidationError):
        AssetOfTable(fresh_within_minutes=minutes)
    assert AssetOfTable(fresh_within_minutes=1).fresh_within_minutes == 1


@pytest.mark.parametrize("owner", ["ann@shop.engineering", "änne@example.org", ".ann@example.org", "team:", "ann"])
def test_owners_that_dagster_refuses_are_refused(owner: str) -> None:
    with pytest.raises(ValidationError, match="is not an owner: use team:NAME"):
        AssetOfTable(owners=(owner,))


@pytest.mark.parametrize("owner", ["ann@example.org", "team:shop", "a.b+c@x-y.example.museum"])
def test_owners_that_are_taken_are_taken_by_dagster(owner: str) -> None:
    assert AssetOfTable(owners=(owner,)).owners == (owner,)
    assert is_valid_owner(owner)


def test_groups_have_only_plain_characters() -> None:
    assert VALID_GROUP_NAME_REGEX.match(AssetOfTable(group="Sales_1").group)
    with pytest.raises(ValidationError, match="is not a group name"):
        AssetOfTable(group="größe")
