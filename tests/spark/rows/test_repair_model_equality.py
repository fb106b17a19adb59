"""Tests the rule of a repair on a model, in which a table is a dict and the stream is a list. Chosen keys become right, and stay right,
whatever was wrong.

The test uses the product's fold with its files, and implements the clauses of the MERGE in Python. Rows are read one by one at different
positions of the stream, while the lake follows the stream. Then the lake is repaired at its position, perhaps twice, and continues.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import ChangesSegment, LakeColumn
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.rows.fold import Fold, Read, cleared, folded
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW
from tests.spark.fix_stream import AFTER, DELETE, INSERT, Image, stream

KEYS = st.integers(0, 4)
COLUMNS = (LakeColumn(name="n", type="bigint", nullable=False), LakeColumn(name="v", type="bigint"))
SCHEMA = pa.schema([("n", pa.int64()), ("v", pa.int64())])


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the lake: its value, and its order key."""

    value: int
    at: int


Lake = dict[int, tuple[Row, ...]]


def source(images: list[Image], index: int) -> dict[int, int]:
    """Returns key → value of the source's rows at a position."""
    rows: dict[int, int] = {}
    for image in images:
        if image.at <= index:
            rows.pop(image.key, None)
            if image.kind in (INSERT, AFTER):
                rows[image.key] = image.at
    return rows


def lake_of(images: list[Image], index: int) -> Lake:
    return {key: (Row(value, value),) for key, value in source(images, index).items()}


def merged(lake: Lake, segment: ChangesSegment | None) -> Lake:
    """Applies `merge_sql.again_clauses` to the images of a repair."""
    after = dict(lake)
    for image in pq.read_table(segment.file).to_pylist() if segment else []:
        key, at = image["n"], image[ORDER_KEY]
        rows = lake.get(key, ())
        leaves = image[OPERATION] in (INSERT, AFTER)
        new = tuple((Row(image["v"], at) if leaves else None) if at >= row.at else row for row in rows)
        if not rows and leaves:
            new = (Row(image["v"], at),)
        after[key] = tuple(row for row in new if row is not None)
    return {key: rows for key, rows in after.items() if rows}


def streamed(lake: Lake, images: list[Image], after: int) -> Lake:
    """Returns the lake after the stream has applied the images after a position. An older image never changes a row."""
    rows = dict(lake)
    for image in images:
        if image.at <= after or any(image.at <= row.at for row in rows.get(image.key, ())):
            continue
        rows.pop(image.key, None)
        if image.kind in (INSERT, AFTER):
            rows[image.key] = (Row(image.at, image.at),)
    return rows


def staged(folder: Path, images: list[Image]) -> list[ChangesSegment]:
    """Stages the images in two batches, one after the other."""
    middle = len(images) // 2
    parts = [part for part in (images[:middle], images[middle:]) if part]
    return [_segment(folder / f"batch-{number}.parquet", part) for number, part in enumerate(parts)]


def _segment(path: Path, images: list[Image]) -> ChangesSegment:
    columns: dict[str, Any] = {
        OPERATION: pa.array([image.kind for image in images], pa.int8()),
        ORDER_KEY: pa.array([image.at for image in images], pa.int64()),
        COMMIT_TIME: pa.array([image.at for image in images], pa.timestamp("us", "UTC")),
        "n": pa.array([image.key for image in images], pa.int64()),
        "v": pa.array([image.at for image in images], pa.int64()),
        ROW: pa.array(range(1, len(images) + 1), pa.int64()),
    }
    pq.write_table(pa.table(columns), path)
    counts: dict[str, Any] = dict.fromkeys(("size_bytes", "rows", "inserts", "updates", "deletes", "key_changes"), 1)
    names = ("first_order_key", "last_order_key", "first_commit_time_us", "last_commit_time_us")
    zeros: dict[str, Any] = dict.fromkeys(names, 0)
    return ChangesSegment(
        file=path, unique_keys=False, key=("n",), key_min=(), key_max=(), columns=COLUMNS, **counts, **zeros
    )


def repaired(given_: Read, segments: list[ChangesSegment], path: Path, up_to: int) -> Fold:
    return folded("a.b", segments, path, up_to, read=given_)


def read(folder: Path, rows: list[tuple[int, int]], keys: list[int], had: list[bool], doubled: list[bool]) -> Read:
    """Writes the rows into two files, and returns the input of a repair with them. The second file has the first row once more, as if the
    server had found this row by two keys.
    """
    files = (folder / "1.parquet", folder / "2.parquet")
    for path, part in zip(files, (rows, rows[:1]), strict=True):
        table = {name: [row[index] for row in part] for index, name in enumerate(SCHEMA.names)}
        pq.write_table(pa.table(table, schema=SCHEMA), path)
    return Read(key=("n",), columns=COLUMNS, files=files, keys={"n": keys}, had=had, doubled=doubled, read_at_us=1)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Image], int, int, int]:
    """Draws a stream, its low and high position, and the position of the lake when it is repaired."""
    acts = draw(st.lists(st.tuples(st.sampled_from(["write", "write", "delete", "move"]), KEYS, KEYS), max_size=20))
    low = draw(st.integers(0, len(acts)))
    high = draw(st.integers(low, len(acts)))
    return stream(acts), low, high, draw(st.integers(high, len(acts)))


@settings(max_examples=400, deadline=None)
@given(history=histories(), data=st.data())
def test_chosen_keys_become_right_and_stay_so_repair(
    history: tuple[list[Image], int, int, int], data: st.DataObject
) -> None:
    images, low, high, index = history
    right = lake_of(images, index)
    lake, wrong = dict(right), data.draw(st.sets(KEYS))
    for key in sorted(wrong):
        match data.draw(st.sampled_from(["right", "gone", "other", "dead", "twice"])):
            case "gone":
                lake.pop(key, None)
            # The lake has a wrong value for this key, with an order key of any earlier position. The source may not have the row.
            case "other" | "dead":
                lake[key] = (Row(-1, data.draw(st.integers(-1, index))),)
            case "twice" if key in lake:
                lake[key] = (*lake[key], Row(-2, data.draw(st.integers(-1, index))))
    requested = sorted(wrong | data.draw(st.sets(KEYS)))
    if not requested:
        return
    rows = []
    for key in requested:  # Each key is read at a different position.
        at = data.draw(st.integers(low, high))
        if key in source(images, at):
            rows.append((key, source(images, at)[key]))
    doubled = [len(lake.get(key, ())) > 1 for key in requested]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given_ = read(folder, rows, requested, [False] * len(requested), doubled)
        segments = staged(folder, [image for image in images if image.at > low])
        fold = repaired(given_, segments, folder / "made.parquet", index)
        made, away = fold.segment, cleared(given_, fold.lost, folder / "away.parquet", index)
        after = merged(merged(lake, away), made)
        twice = merged(after, made)
        reported = {row["n"] for row in pq.read_table(made.file).to_pylist()} if made else set()
    values = {key: tuple(row.value for row in found) for key, found in after.items()}
    assert values == {key: tuple(row.value for row in found) for key, found in right.items()}
    assert twice == after
    assert reported <= {*requested}, "no other key is touched"
    end = streamed(after, images, index)
    assert {key: found[0].value for key, found in end.items()} == source(images, 99)


def test_rows_after_the_position_of_the_lake_are_left_alone_repair(tmp_path: Path) -> None:
    given_ = read(tmp_path, [(1, 3)], [1, 2], [True, False], [False, False])
    made = repaired(given_, [], tmp_path / "made.parquet", 5).segment
    newer: Lake = {1: (Row(7, 7),), 2: (Row(6, 6),)}
    assert merged(newer, made) == newer
    assert merged({1: (Row(9, 5),), 2: (Row(9, 5),)}, made) == {1: (Row(3, 5),)}, "of just that place: replaced"
    assert made is not None
    assert made.again, "rows with exactly the lake's order key are replaced too"


def test_a_row_that_was_there_and_is_not_found_by_its_key_is_not_removed_repair(tmp_path: Path) -> None:
    given_ = read(tmp_path, [], [1], [True], [False])
    with pytest.raises(TableError, match="the source did not find 1 rows by their keys"):
        repaired(given_, [], tmp_path / "made.parquet", 5)
    deleted = staged(tmp_path, [Image(DELETE, 1, 4)])
    made = repaired(given_, deleted, tmp_path / "made.parquet", 5).segment
    assert merged({1: (Row(9, 2),)}, made) == {}


def test_rows_that_went_before_the_reading_leave_the_others_to_be_repaired_repair(tmp_path: Path) -> None:
    """The source deleted the row with key 2 between the comparison and the low position. The stream delivers this delete later. Until then,
    the lake keeps the row.
    """
    given_ = read(tmp_path, [(1, 3)], [1, 2, 3], [True, True, False], [False, True, False])
    fold = repaired(given_, [], tmp_path / "made.parquet", 5)
    assert [bool(each) for each in fold.lost] == [False, True, False]
    assert cleared(given_, fold.lost, tmp_path / "away.parquet", 5) is None
    lake: Lake = {1: (Row(9, 2),), 2: (Row(9, 2), Row(8, 2)), 3: (Row(9, 2),)}
    assert merged(lake, fold.segment) == {1: (Row(3, 5),), 2: (Row(9, 2), Row(8, 2))}


def test_columns_that_changed_while_rows_were_read_are_refused_repair(tmp_path: Path) -> None:
    given_ = read(tmp_path, [(1, 3)], [1], [True], [False])
    (segment,) = staged(tmp_path, [Image(DELETE, 1, 4)])
    for other in ({"partial": True}, {"columns": COLUMNS[:1]}, {"key": ("v",)}):
        with pytest.raises(TableError, match="start the repair again"):
            repaired(given_, [dataclasses.replace(segment, **other)], tmp_path / "made.parquet", 5)
