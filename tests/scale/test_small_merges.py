"""Tests the number of Spark tasks in which many small tables are merged. Each task loads the jobs of all tables. If the number of tasks
rose with the number of tables, the work would rise with the square of this number.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sluice.spark_jobs.small import job as small_job
from sluice.spark_jobs.small.job import TABLES_A_TASK, TASKS_A_SLOT, TASKS_MANY
from tests.scale.fix_many_tables import FEW, MANY

pytestmark = pytest.mark.scale

SLOTS = 8


def tasks(tables: int, slots: int = SLOTS) -> int:
    plan = [[f"Range (0, 1000000, step=1, splits=Some({slots}))" if slots else "no plan"]]
    session: Any = SimpleNamespace(spark=SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: plan)))
    return small_job._task_count(session, tables)


def test_the_tasks_of_many_tables_depend_on_the_slots_and_not_on_the_tables() -> None:
    assert tasks(FEW) == tasks(MANY) == TASKS_A_SLOT * SLOTS


def test_a_task_of_few_tables_has_enough_of_them_to_be_worth_its_start() -> None:
    assert [tasks(count) for count in (0, 1, TABLES_A_TASK, TABLES_A_TASK + 1, 5 * TABLES_A_TASK)] == [1, 1, 1, 2, 5]


def test_many_tables_get_several_tasks_when_spark_has_few_slots_or_an_unknown_number() -> None:
    assert tasks(MANY, slots=1) == tasks(MANY, slots=0) == TASKS_MANY
