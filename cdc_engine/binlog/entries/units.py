"""Divides rows into units, assigns a partition to each unit, and groups units into messages.

A unit is an insert, an update or a delete of one row. If rows are assigned to partitions by a hash of their key, an update of the key can
move a row to another partition, and a reader of both partitions may see the old and the new row in any order. So such an update becomes two
units: a delete of the old key in the old partition, and an insert of the new key in the new partition.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.binlog.entries.assemble import ABSENT
from sluice.cdc_engine.binlog.entries.locate import BEFORE
from sluice.cdc_engine.binlog.entries.rows import ShownRows
from sluice.cdc_engine.binlog.rows.locate import KIND_DELETE, KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s
from sluice.cdc_engine.errors import ConsumerStoppedError

Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Hashing:
    """How rows of a table are assigned to partitions: by the hash of `columns` (indices of columns that consumers get), with `seed`, modulo
    `partitions`.

    `splits`: whether an update that moves a row between partitions becomes two units. `table`: "database.table", for errors.
    """

    columns: tuple[int, ...]
    partitions: int
    seed: int = 0
    splits: bool = True
    table: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """Units, with one value per unit in each array. `kind`: insert, update or delete. `event`: the index in `ShownRows.facts` of the entry
    from which the unit comes. `image`: the index of the unit's first image (of an update, the before image). Units of one partition are in
    stream order.
    """

    kind: Int8s
    event: Int64s
    image: Int64s
    partition: Int64s

    @property
    def messages(self) -> Int64s:
        """Returns one array: the index of the first unit of each message, and as last element the number of units. Adjacent units form one
        message if they have the same kind, event and partition.
        """
        if not len(self.kind):
            return np.zeros(1, np.int64)
        same = np.ones(len(self.kind) - 1, np.bool_)
        for each in (self.kind, self.event, self.partition):
            same &= each[1:] == each[:-1]
        return np.concatenate([[0], np.flatnonzero(~same) + 1, [len(self.kind)]]).astype(np.int64)


def units_of(shown: ShownRows, partition: int, hashing: Hashing | None = None) -> Units:
    """Divides all rows into units. `partition`: the partition of every row if `hashing` is None. Raises ConsumerStoppedError if
    `hashing.splits` is True and a partition cannot be computed: all images of a row omit a column in `hashing.columns`, or the before image
    of an update that becomes two units omits one.
    """
    kinds = shown.facts.kinds[shown.event]
    first = np.flatnonzero((kinds != KIND_UPDATE) | (shown.side == BEFORE)).astype(np.int64)
    kind, event = kinds[first], shown.event[first].astype(np.int64)
    if hashing is None:
        return Units(kind, event, first, np.full(len(first), partition, np.int64))
    paired = kind == KIND_UPDATE
    goes_to = _partitions(_whole_in(shown, first + paired, first, hashing), first + paired, hashing)
    comes_from = goes_to.copy()
    comes_from[paired] = _partitions(shown, first[paired], hashing)
    moves = np.zeros(len(first), np.bool_)
    if hashing.splits:
        moves = (comes_from != goes_to) & _whole(shown, first + paired)
        _require_columns(shown, first[moves], hashing)
    return _ordered(kind, event, first, goes_to, comes_from, moves)


def _ordered(  # noqa: PLR0917  columns of one table
    kind: Int8s, event: Int64s, first: Int64s, goes_to: Int64s, comes_from: Int64s, moves: Mask
) -> Units:
    row = np.repeat(np.arange(len(kind)), 1 + moves)
    second = np.zeros(len(row), np.bool_)
    second[1:] = row[1:] == row[:-1]
    moved = moves[row]
    kinds = np.where(moved, np.where(second, KIND_INSERT, KIND_DELETE), kind[row]).astype(np.int8)
    partition = np.where(moved & ~second, comes_from[row], goes_to[row])
    events, image = event[row], first[row] + (moved & second)
    order = np.lexsort((partition, events))
    return Units(kinds[order], events[order], image[order], partition[order])


def _whole(shown: ShownRows, images: Int64s) -> Mask:
    """Returns which of the images have all columns. An update whose after image omits a column is not divided into a delete and an
    insert, because the insert would lack the column.
    """
    found: Mask = (shown.sizes[:, images] != ABSENT).all(axis=0)
    return found


def _whole_in(shown: ShownRows, images: Int64s, before: Int64s, hashing: Hashing) -> ShownRows:
    """Completes after images that omit hashed columns: copies the values from the before image, because the update did not change them. If
    `hashing.splits` is False, the rows stay unchanged, because Canal hashes an omitted column like an empty text. Raises
    ConsumerStoppedError if the before image omits the column too.
    """
    lacks = [shown.sizes[column, images] == ABSENT for column in hashing.columns]
    if not hashing.splits or not any(each.any() for each in lacks):
        return shown
    starts, sizes = shown.starts.copy(), shown.sizes.copy()
    for column, each in zip(hashing.columns, lacks, strict=True):
        starts[column, images[each]] = starts[column, before[each]]
        sizes[column, images[each]] = sizes[column, before[each]]
    completed = dataclasses.replace(shown, starts=starts, sizes=sizes)
    _require_columns(completed, images, hashing)
    return completed


def _require_columns(shown: ShownRows, images: Int64s, hashing: Hashing) -> None:
    if any((shown.sizes[column, images] == ABSENT).any() for column in hashing.columns):
        raise ConsumerStoppedError(
            f"the partition of a row of {hashing.table} is unknown: the row image leaves out a column "
            "that partition_hash names (binlog_row_image MINIMAL or NOBLOB). Hash by columns of the key "
            "(`$pk$`), or set binlog_row_image=FULL on the source"
        )


def _partitions(shown: ShownRows, images: Int64s, hashing: Hashing) -> Int64s:
    hashes = np.full(len(images), hashing.seed, np.int64)
    hash_values(images, np.array(hashing.columns, np.int64), shown.starts, shown.sizes, shown.texts, hashes)
    return np.abs(hashes) % hashing.partitions


@compiled
def hash_values(  # noqa: PLR0917  numba has no keyword-only arguments
    images: Int64s, columns: Int64s, starts: Int64s, sizes: Int64s, texts: Bytes, hashes: Int64s
) -> None:
    """Combines (XOR) the value of each image in `hashes` with the Java hash of each of the image's values in `columns`. NULL and omitted
    values do not change the hash. On entry, `hashes` has the start value of each image.
    """
    for index in range(images.shape[0]):
        for column in columns:
            size = sizes[column, images[index]]
            if size > 0:
                hashes[index] ^= java_hash(texts, starts[column, images[index]], size)


@compiled
def java_hash(text: Bytes, start: Integer, size: Integer) -> Integer:
    """Returns Java's String.hashCode of UTF-8 text: for each UTF-16 unit, hash = 31 * hash + unit, as a signed 32-bit number."""
    value, at, end = np.int64(0), start, start + size
    while at < end:
        byte = np.int64(text[at])
        length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        point = byte if length == 1 else byte & (0x7F >> length)
        for index in range(1, length):
            point = point << 6 | (np.int64(text[at + index]) & 0x3F)
        if point >= 0x10000:
            value = (31 * value + 0xD800 + ((point - 0x10000) >> 10)) & 0xFFFFFFFF
            point = 0xDC00 + ((point - 0x10000) & 0x3FF)
        value = (31 * value + point) & 0xFFFFFFFF
        at += length
    return value - (np.int64(1) << 32) if value >= (np.int64(1) << 31) else value
