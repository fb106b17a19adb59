"""Tests that no property test fails because the machine was busy: no example has a time limit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=3)
@given(st.none())
def with_settings_of_its_own(_: None) -> None:
    """Serves as an example of a property test whose own settings do not set a deadline."""


def test_no_example_has_a_time_limit() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert with_settings_of_its_own._hypothesis_internal_use_settings.deadline is None  # type: ignore[attr-defined]
