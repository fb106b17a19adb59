"""Tests that a signal raises KeyboardInterrupt even if it arrives while DuckDB works and DuckDB raises another error."""

from __future__ import annotations

import pytest

from sluice.console.stack import signals


def test_duckdbs_message_for_an_interrupt_is_one_fault() -> None:
    with pytest.raises(KeyboardInterrupt), signals.duckdb_interrupts():
        raise RuntimeError("Query interrupted") from KeyboardInterrupt()


def test_any_other_error_is_shown_as_it_is_fault() -> None:
    with pytest.raises(RuntimeError, match="the like"), signals.duckdb_interrupts():
        raise RuntimeError("the like")
