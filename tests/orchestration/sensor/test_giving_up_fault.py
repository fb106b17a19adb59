"""Tests a table that cannot be merged: it stops by name after some attempts, or at once if no attempt can succeed. The others continue."""

from __future__ import annotations

import pytest

from sluice.orchestration.base.ports import TableFailure
from sluice.orchestration.sensor.giving_up import TRIES_MAX, tables_to_stop

FAILED = TableFailure("MERGE_FAILED", "a type differs")
OWNED = TableFailure("TABLE_OWNED", "it belongs to another", for_good=True)


def test_fault_a_table_stops_when_it_failed_in_enough_runs_in_a_row() -> None:
    assert tables_to_stop([{"shop.a": FAILED}] * (TRIES_MAX - 1)) == {}
    stops = tables_to_stop([{"shop.a": FAILED}] * TRIES_MAX)
    assert stops == {
        "shop.a": ("MERGE_FAILED", f"a type differs ({TRIES_MAX} runs in a row could not merge the table)")
    }


@pytest.mark.parametrize("gap", range(1, TRIES_MAX))
def test_fault_a_run_that_failed_for_another_reason_starts_the_count_again(gap: int) -> None:
    runs = [{"shop.a": FAILED}] * gap + [{}] + [{"shop.a": FAILED}] * TRIES_MAX
    assert tables_to_stop(runs) == {}


def test_fault_only_what_the_newest_run_says_counts() -> None:
    assert tables_to_stop([]) == {}
    assert tables_to_stop([{}] + [{"shop.a": FAILED}] * TRIES_MAX) == {}


def test_fault_a_table_that_no_attempt_can_merge_stops_at_once_and_alone() -> None:
    assert tables_to_stop([{"shop.a": FAILED, "shop.b": OWNED}]) == {"shop.b": ("TABLE_OWNED", "it belongs to another")}
