"""Tests that one task merges all shards of a table, one after the other. If two tasks merged them, each would have to begin again at
commits of the other task.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sluice.spark_jobs.small.job import _shares
from sluice.spark_jobs.targets.report import TableTarget


def test_shards_of_a_table_are_one_tasks_in_a_group() -> None:
    paths = [f"/lake/{number if number % 2 else 'common'}" for number in range(48)]
    jobs: list[Any] = [SimpleNamespace(target=TableTarget(path=path)) for path in paths]
    shares = _shares(jobs, 4)
    assert len(shares) == 4
    assert sorted(number for share in shares for number in share) == list(range(len(jobs)))
    (whole,) = [share for share in shares if 0 in share]
    assert [number for number in whole if not number % 2] == list(range(0, len(jobs), 2))
    assert all(share for share in shares)


def test_no_job_is_one_task_that_says_what_the_executor_has_in_a_group() -> None:
    assert _shares([], 1) == [[]]
