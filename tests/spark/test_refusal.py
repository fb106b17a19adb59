"""Tests that, before each table of a batch, the merge checks whether it may continue. No Spark is needed to test a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.orchestration.base.testing import fake_report
from sluice.spark_jobs.batch import run_batch
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.staged import INSERT, Changes, Image, Schema, stage

NAMES = ("shop.customers", "shop.items", "shop.orders")


def test_a_refusal_between_two_tables_leaves_the_rest_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[str] = []

    def merge_table(_session: object, _batch: object, table: Any, *_: object, **_kept: object) -> object:
        merged.append(table.name)
        return fake_report(table.name)

    @contextmanager
    def sessions(*_: object) -> Iterator[list[object]]:
        yield [object()]

    monkeypatch.setattr(run_batch, "merge_table", merge_table)
    monkeypatch.setattr(run_batch, "open_sessions", sessions)
    schema = Schema({"id": "bigint"}, key=("id",))
    tables = {name: [Changes(schema, [Image(INSERT, 1, {"id": 1})])] for name in NAMES}
    staged = stage(tmp_path / "staging", tables, delivery=1)
    with pytest.raises(MergeError, match="was rolled back") as caught:
        run_batch.merge_batch(
            read_staged_batch(staged),
            {name: TableTarget(path=str(tmp_path / name), merge="spark") for name in NAMES},
            SparkSettings(),
            BatchContext(fence=Fence(lambda: "delivery 1 was rolled back" if merged else "")),
        )
    assert len(merged) == 1
    assert caught.value.merged == tuple(merged)
    assert set(caught.value.failed) == set(NAMES) - set(merged)
