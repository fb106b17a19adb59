"""Tests how property tests are run: none may fail because the machine was busy."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=3)
@given(st.none())
def with_settings_of_its_own(_: None) -> None:
    """Stands for every test with settings that say nothing of a deadline."""


def test_no_example_has_a_time_limit() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert with_settings_of_its_own._hypothesis_internal_use_settings.deadline is None  # type: ignore[attr-defined]
