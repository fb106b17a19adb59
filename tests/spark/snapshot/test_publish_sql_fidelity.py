"""Tests that the SQL statement that publishes a snapshot has no part that Spark refuses, such as a column that occurs twice."""

from __future__ import annotations

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs.snapshot.publish_sql import Rows, incomplete, selection

COLUMNS = (LakeColumn(name="id", type="int", nullable=False), LakeColumn(name="a", type="string"))


def test_a_key_may_be_spelled_otherwise_than_its_column_fidelity() -> None:
    reported = Rows(columns=COLUMNS, key=("ID",), label=1, read_at_us=1, partial=True)
    same = Rows(columns=COLUMNS, key=("id",), label=1, read_at_us=1, partial=True)
    for statement in (selection, incomplete):
        assert "max_by(`id`" not in statement(reported), "twice in one result"
        assert statement(reported).lower() == statement(same).lower()
