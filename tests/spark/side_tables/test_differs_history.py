"""Tests that the open versions of a history are compared with the current-state table column by column."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from sluice.spark_jobs.side_tables.history import _quoted
from sluice.spark_jobs.side_tables.history_sql import HistoryDifference
from sluice.spark_jobs.side_tables.versions import FROM_KEY, IS_CURRENT
from sluice.spark_jobs.staged_batch import COMMIT_TIME, ORDER_KEY


@pytest.mark.found
@pytest.mark.parametrize("kind", [pa.int32(), pa.bool_(), pa.string()], ids=str)
def test_rows_with_several_columns_are_compared_by_deltalake_history(tmp_path: Path, kind: pa.DataType) -> None:
    """Defect 13: with several columns in addition to the key, deltalake could not compare the history with rows that were read, or compared
    flags wrongly. So a table with a history could not be re-snapshotted, repaired or backfilled.
    """

    def values(numbers: list[int]) -> pa.Array[Any]:
        return pa.array(numbers, pa.int32()).cast(kind)

    one, other = [0], [1]
    rows = {"id": pa.array([1, 2, 3, 4], pa.int32())}
    now = {"a": values(other * 4), "b": values((one + other) * 2)}
    then = {"a": values(other + other + one + other), "b": values(one + one + one + other)}
    ours = {ORDER_KEY: pa.array([7] * 4, pa.int64()), COMMIT_TIME: pa.array([7] * 4, pa.timestamp("us", "UTC"))}
    opened = {FROM_KEY: pa.array([5] * 4, pa.int64()), IS_CURRENT: pa.array([True] * 4)}
    deltalake.write_deltalake(str(tmp_path / "m"), pa.table({**rows, **now, **ours}))
    deltalake.write_deltalake(str(tmp_path / "h"), pa.table({**rows, **then, **opened}))
    differs = HistoryDifference(names={"id": "id", "a": "a", "b": "b"}, key=("id",), order_key=9, time_us=9)
    found = QueryBuilder()
    for name in ("m", "h"):
        found = found.register(name, deltalake.DeltaTable(str(tmp_path / name)))
    query = differs.query("m", "h", _quoted, "to_timestamp_micros")
    answer = pa.table(found.execute(query).read_all())
    assert Counter(answer["id"].to_pylist()) == {2: 2, 3: 2}, "each that differs closes and opens"
