"""Tests the batches that `bench wide` merges. The reader of staged batches accepts them, and the changes of each batch follow those of the
one before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.wide import SEED_ROWS, WideBatches
from sluice.spark_jobs.staged_files.read import read_staged_batch


def test_each_batch_is_staged_whole_and_comes_after_the_one_before(tmp_path: Path) -> None:
    batches = WideBatches(tmp_path, tables=3, changes=5)
    made = [read_staged_batch(batches.make(fill=number == 0)) for number in range(4)]
    assert [[table.rows for table in batch.tables] for batch in made] == [[SEED_ROWS] * 3, *[[5] * 3] * 3]
    known: set[int] = set()
    after = 0
    for batch in made:
        (segment,) = batch.tables[-1].changes
        rows = pq.read_table(segment.file)
        ids: list[Any] = rows["id"].to_pylist()
        operations = rows["_sluice_operation"].to_pylist()
        assert len(set(ids)) == len(ids)
        assert {key for key, operation in zip(ids, operations, strict=True) if operation == 3} == known & set(ids)
        assert after < segment.first_order_key <= segment.last_order_key
        known |= set(ids)
        after = segment.last_order_key
