"""Tests that a run can read the batches that `bench merge` makes without a source."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.merge_batches import LEDGER_ID, StagedFiles
from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs.staged_files.read import read_staged_batch


@pytest.mark.parametrize("keys", ["close", "anywhere"])
def test_batches_of_the_bench_are_read_by_a_run_and_follow_one_another(keys: str, tmp_path: Path) -> None:
    made = StagedFiles(tmp_path, 1_000)
    first, second = (read_staged_batch(made.make(100, keys)) for _ in range(2))
    assert (first.ledger_id, first.delivery, second.delivery) == (LEDGER_ID, 1, 2)
    assert second.start == first.end
    (segment,) = second.tables[0].segments
    assert isinstance(segment, ChangesSegment)
    assert segment.first_order_key > first.end_order_key
    ids: list[int] = pq.read_table(segment.file)["id"].to_numpy().tolist()
    assert len(set(ids)) == segment.rows == 100
    assert (segment.key_min, segment.key_max) == ((min(ids),), (max(ids),))
