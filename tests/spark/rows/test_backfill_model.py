"""Tests the rule of a backfill, with a dict as the table and a list as the stream: everything that the lake lost of the interval comes
back, and nothing else changes.

The fold is from production. The MERGE is imitated by its clauses in Python. The lake is at some position of the stream. It lacks changes of
keys that changed in the interval, or has rows too many. It is backfilled once or twice, and then continues with the stream.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.spark_jobs.rows.fold import decide
from tests.spark.fix_stream import Image, stream

KEYS = st.integers(0, 3)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the lake: the order key under which it was written, and whether it is marked as deleted."""

    at: int
    deleted: bool = False


Lake = dict[int, Row]


def merged(lake: Lake, images: list[Image], *, soft: bool) -> Lake:
    """Applies `merge_sql.whole_clauses` to folded images."""
    after = dict(lake)
    for image in images:
        row = lake.get(image.key)
        if row is not None and image.at <= row.at:
            continue
        if image.removes and not soft:
            after.pop(image.key, None)
        elif not (row is None and image.removes and not soft):
            after[image.key] = Row(image.at, deleted=image.removes)
    return after


def folded(images: list[Image], changed_up_to: int, up_to: int) -> list[Image]:
    keys = pa.array([image.key for image in images], pa.int64())
    numbers = np.array([image.at for image in images], np.int64)
    seen = numbers <= up_to
    mask = decide([keys[:0]], (), [keys[:0]], [keys], seen=seen, chosen=seen & (numbers <= changed_up_to)).images
    return [image for image, kept in zip(images, mask.tolist(), strict=True) if kept]


def streamed(lake: Lake, images: list[Image], *, soft: bool) -> Lake:
    """Returns the lake after the stream has applied the images in one batch."""
    return merged(lake, folded(images, images[-1].at, images[-1].at), soft=soft) if images else lake


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Image], int, int, int]:
    """Draws a stream, the beginning and end of the interval, and the position of the lake, which may be before, in or after the
    interval.
    """
    acts = draw(st.lists(st.tuples(st.sampled_from(["write", "write", "delete", "move"]), KEYS, KEYS), max_size=20))
    begin = draw(st.integers(0, len(acts)))
    return stream(acts), begin, draw(st.integers(begin, len(acts) + 1)), draw(st.integers(0, len(acts)))


@settings(max_examples=400, deadline=None)
@given(history=histories(), soft=st.booleans(), data=st.data())
def test_what_the_lake_lost_of_an_interval_comes_back_and_nothing_else_backfill(
    history: tuple[list[Image], int, int, int], soft: bool, data: st.DataObject
) -> None:
    images, begin, end, index = history
    right = streamed({}, [image for image in images if image.at <= index], soft=soft)
    before = streamed({}, [image for image in images if image.at <= min(begin, index)], soft=soft)
    meant = {image.key for image in images if begin < image.at <= end and image.at <= index}
    lake = dict(right)
    for key in sorted(meant):
        match data.draw(st.sampled_from(["right", "gone", "old"])):
            case "gone":
                lake.pop(key, None)
            case "old":  # The row is as before the interval, even if it was deleted since.
                lake.pop(key, None)
                lake |= {key: before[key]} if key in before else {}
    read = [image for image in images if image.at > begin]
    once = merged(lake, folded(read, end, index), soft=soft) if read else lake
    marked = {key for key, row in right.items() if row.deleted}
    assert {key: row for key, row in once.items() if key not in marked} == {
        key: row for key, row in right.items() if key not in marked
    }
    assert all(once[key].deleted for key in marked & once.keys())
    twice = merged(once, folded(read, end, index), soft=soft) if read else once
    assert twice == once
    final = streamed(once, [image for image in images if image.at > index], soft=soft)
    alive = {key for key, row in final.items() if not row.deleted}
    assert alive == {key for key, row in streamed({}, images, soft=soft).items() if not row.deleted}


@settings(max_examples=200, deadline=None)
@given(history=histories())
def test_keys_that_did_not_change_in_the_interval_are_left_alone_backfill(
    history: tuple[list[Image], int, int, int],
) -> None:
    images, begin, end, index = history
    read = [image for image in images if image.at > begin]
    meant = {image.key for image in read if image.at <= min(end, index)}
    reported = folded(read, end, index) if read else []
    assert {image.key for image in reported} == meant
    assert all(image.at <= index for image in reported)
    assert len(reported) == len(meant)
