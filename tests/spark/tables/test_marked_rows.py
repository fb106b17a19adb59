"""Tests the count of rows that deletion vectors delete, for logs that are shortened or made by other programs. `tests/spark/small` compares
the count with Spark's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.spark_jobs.tables.marked_rows import COMMITS_MAX, marked_rows


def vector(count: int) -> dict[str, Any]:
    return {"path": "a.parquet", "deletionVector": {"storageType": "u", "cardinality": count}}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    made = tmp_path / "_delta_log"
    made.mkdir()
    return made


def commit(log: Path, version: int, *actions: dict[str, Any]) -> None:
    lines = [json.dumps(action) for action in ({"commitInfo": {}}, *actions)]
    (log / f"{version:020d}.json").write_text("\n".join(lines))


def checkpoint(log: Path, version: int, counts: list[int | None] | None) -> None:
    """Writes a checkpoint with one entry per item of `counts`, where None is an entry without deletion vector. If `counts` is None, the
    checkpoint has no column for deletion vectors.
    """
    vectors = [{"deletionVector": None if count is None else {"cardinality": count}} for count in counts or []]
    adds = vectors if counts is not None else [{"path": "a.parquet"}]
    pq.write_table(pa.table({"add": pa.array([*adds, None])}), log / f"{version:020d}.checkpoint.parquet")
    (log / "_last_checkpoint").write_text(json.dumps({"version": version}))


def test_commits_are_added_up_from_the_first_one(log: Path) -> None:
    commit(log, 0, {"add": {"path": "a.parquet"}})
    commit(log, 1, {"remove": {"path": "a.parquet"}}, {"add": vector(3)})
    commit(log, 2, {"remove": vector(3)}, {"add": vector(5)})
    commit(log, 3, {"add": {"path": "deletionVector"}})
    assert [marked_rows(str(log.parent), version) for version in range(4)] == [0, 3, 5, 5]


@pytest.mark.parametrize(("counts", "expected"), [([2, None, 4], 7), ([None], 1), (None, 1)])
def test_a_checkpoint_stands_for_what_was_before_it(log: Path, counts: list[int | None] | None, expected: int) -> None:
    checkpoint(log, 50, counts)
    commit(log, 51, {"remove": vector(4)}, {"add": vector(5)})
    assert marked_rows(str(log.parent), 51) == expected


def test_a_log_that_does_not_say_is_not_guessed_at(log: Path) -> None:
    commit(log, 9, {"add": vector(3)})
    assert marked_rows(str(log.parent), 9) is None, "the commits before it are gone, and no checkpoint has them"
    (log / f"{9:020d}.crc").write_text("{}")
    commit(log, 10, {"add": vector(1)})
    assert marked_rows(str(log.parent), 10) is None, "a summary of a Spark that counts no vectors"
    (log / f"{10:020d}.crc").write_text('{"numDeletedRecordsOpt": 7}')
    assert marked_rows(str(log.parent), 10) == 7
    for version in range(11, 11 + COMMITS_MAX):
        commit(log, version)
    assert marked_rows(str(log.parent), 9 + COMMITS_MAX) == 7
    assert marked_rows(str(log.parent), 10 + COMMITS_MAX) is None, "looking back has an end"
    assert marked_rows("s3://bucket/table", 0) is None
