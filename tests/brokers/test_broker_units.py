"""Tests the partitions of rows whose images leave columns out. Unchanged values are taken from the before image. If no image has a value,
the consumer stops instead of guessing the partition.
"""

from __future__ import annotations

import numpy as np
import pytest

from sluice.cdc_engine.binlog.entries.assemble import ABSENT
from sluice.cdc_engine.binlog.entries.locate import AFTER, BEFORE, EventFacts
from sluice.cdc_engine.binlog.entries.rows import ShownRows
from sluice.cdc_engine.binlog.entries.units import Hashing, units_of
from sluice.cdc_engine.binlog.rows.locate import KIND_DELETE, KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.errors import ConsumerStoppedError

HASHING = Hashing((0, 1), partitions=97, table="shop.orders")
Image = tuple[bytes | None, ...]


def shown(kind: int, *images: Image) -> ShownRows:
    """Returns one event of two columns. None means that the column is left out."""
    texts, starts, sizes = b"-", [], []
    for column in range(2):
        for image in images:
            value = image[column]
            starts.append(ABSENT if value is None else len(texts))
            sizes.append(ABSENT if value is None else len(value))
            texts += value or b""
    none = np.zeros(1, np.int64)
    sides = {KIND_INSERT: [AFTER], KIND_DELETE: [BEFORE]}.get(kind, [BEFORE, AFTER])
    return ShownRows(
        EventFacts(np.array([kind], np.int8), none, none, none, none, none, none),
        none,
        np.array(sides * (len(images) // len(sides)), np.int8),
        np.zeros(len(images), np.int32),
        np.array(starts, np.int64).reshape(2, -1),
        np.array(sizes, np.int64).reshape(2, -1),
        np.zeros((2, len(images)), np.int8),
        np.frombuffer(texts, np.uint8),
    )


def partition(kind: int, *images: Image) -> int:
    return int(units_of(shown(kind, *images), 0, HASHING).partition[-1])


def test_broker_sends_an_update_that_leaves_columns_out_where_its_row_is() -> None:
    whole = partition(KIND_INSERT, (b"7", b"north"))
    assert whole == partition(KIND_UPDATE, (b"7", b"north"), (None, None))
    assert whole == partition(KIND_UPDATE, (b"7", None), (None, b"north"))
    assert whole != partition(KIND_INSERT, (b"", b""))


@pytest.mark.parametrize(
    ("kind", "images"),
    [
        (KIND_UPDATE, ((b"7", None), (None, None))),
        (KIND_DELETE, ((b"7", None),)),
        (KIND_INSERT, ((None, b"north"),)),
    ],
)
def test_broker_stops_where_no_image_determines_the_partition(kind: int, images: tuple[Image, ...]) -> None:
    with pytest.raises(ConsumerStoppedError, match=r"shop\.orders is unknown"):
        units_of(shown(kind, *images), 0, HASHING)


@pytest.mark.found
def test_broker_stops_where_the_former_partition_of_a_moved_row_is_unknown() -> None:
    """Defect 80: the before image lacked the hashed column (NOBLOB), and the delete went to the partition of an empty text."""
    moved = (b"7", b"north"), (b"7", b"south")
    units = units_of(shown(KIND_UPDATE, *moved), 0, HASHING)
    assert sorted(units.kind.tolist()) == [KIND_INSERT, KIND_DELETE]
    with pytest.raises(ConsumerStoppedError, match=r"shop\.orders is unknown"):
        units_of(shown(KIND_UPDATE, (b"7", None), moved[1]), 0, HASHING)
