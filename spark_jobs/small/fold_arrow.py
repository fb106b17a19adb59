"""Folds row images in Arrow tables, with the same rules as `fold` and `fold_partial` in SQL, for merges without Spark. `small.merge` calls
this module. The functions in this module read files and write nothing.

In the result, every row has all columns. If a column is missing in an image, its value comes from the lake's row with the same key
(`Lake`). The lake is read at the version into which the result is merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.batch_manifest.values import ChangesSegment
from sluice.object_stores.files import opened
from sluice.spark_jobs.merging import fold
from sluice.spark_jobs.staged_batch import (
    BIRTH,
    COMMIT_TIME,
    GROUP_COLUMNS,
    OPERATION,
    ORDER_KEY,
    ORIGIN,
    PRESENT,
    ROW,
    staged_types,
)

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
REMOVING = (fold.UPDATE_BEFORE, fold.DELETE)


class UnknownRowError(Exception):
    """Raised if an image lacks columns and the lake does not have the row. `order_key` is the order key of the image."""

    def __init__(self, order_key: int) -> None:
        super().__init__(order_key)
        self.order_key = order_key


class DuplicateKeysError(Exception):
    """Raised if images lack columns and two of the lake's rows have the same key, so it is unknown which row has the missing values."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lake:
    """The rows of the Delta table whose keys may be in the segment. `rows` has the columns of the segment, with the names that they have in
    the segment, and the order key. `deleted` is a mask of the rows that are marked as deleted.
    """

    rows: pa.Table
    deleted: Mask


def staged_images(segment: ChangesSegment, storage_options: Mapping[str, str]) -> pa.Table:
    """Returns all images of the segment's file in stream order. `storage_options` are deltalake's options, for a file
    in an object store.
    """
    file = opened(segment.stored, storage_options) if segment.stored else segment.file
    names = list(staged_types(segment))
    # For a small file, `pq.read_table` needs three times as long, because it starts threads.
    with pq.ParquetFile(file) as read:
        return read.read(columns=names, use_threads=False).select(names)


def fresh_images(images: pa.Table, applied_order_key: int) -> pa.Table:
    """Returns the images that have not been committed to the table yet."""
    return images.filter(pc.greater(images[ORDER_KEY], pa.scalar(applied_order_key, pa.int64())))


def last_images(images: pa.Table, segment: ChangesSegment) -> pa.Table:
    """Returns the last image of each key."""
    if not fold.needs_fold(segment):
        return images
    return images.filter(pa.array(is_last(key_codes([images[name] for name in segment.key]))))


def removes(images: pa.Table) -> Mask:
    """Returns a mask that is true for images that remove their row: deletes, and before images of updates that change the key."""
    return np.isin(_numbers(images[OPERATION]), REMOVING)


def operation_names(images: pa.Table, names: Mapping[int, str]) -> Any:
    """Returns the name of each image's operation, from its staged number."""
    texts = [names.get(number) for number in range(max(names) + 1)]
    return pa.array(texts, pa.string()).take(pa.array(_numbers(images[OPERATION])))


def whole_images(
    images: pa.Table, segment: ChangesSegment, applied_order_key: int, lake: Lake, *, soft: bool
) -> pa.Table:
    """Returns the last image of each key, with all columns. Leaves out images that would change nothing in the lake. `images` are all
    images of the segment, including those that the table already has.

    Raises UnknownRowError if the lake does not have the row of an image that lacks columns. Raises DuplicateKeysError if two rows of `lake`
    have the same key.
    """
    return _Partial(images, segment, applied_order_key).resolved(lake, soft=soft)


class _Partial:
    """Completes images that may lack columns. The images are sorted by row, then in stream order."""

    def __init__(self, images: pa.Table, segment: ChangesSegment, applied_order_key: int) -> None:
        self.segment = segment
        self.names = [column.name for column in segment.columns]
        # If no row changed its key (`moves`), leaves out images that the table already has. Otherwise these images are needed, because they
        # show under which key the lake has a row.
        if not segment.moves:
            images = fresh_images(images, applied_order_key)
        lives = self._lives(images)
        order = np.argsort(lives, kind="stable")
        self.images, self.lives = images.take(_as_indices(order)), lives[order]
        self.fresh = _numbers(self.images[ORDER_KEY]) > applied_order_key
        self.starts = np.maximum.accumulate(np.where(np.r_[True, self.lives[1:] != self.lives[:-1]], _range(order), 0))
        self.rows = _numbers(self.images[ROW])
        keys = key_codes([self.images[name] for name in segment.key])
        last_of_key = np.zeros(len(order), np.bool_)
        by_row = np.argsort(self.rows, kind="stable")
        last_of_key[by_row] = is_last(keys[by_row])
        self.last = np.flatnonzero(last_of_key & self.fresh)

    def resolved(self, lake: Lake, *, soft: bool) -> pa.Table:
        taken = self.images.take(_as_indices(self.last))
        here = _Found(lake, [taken[name] for name in self.segment.key], self.segment, alive=False)
        stored, born = self._stored_keys()
        moved = self._moved(taken, stored, born)
        there = _Found(lake, stored, self.segment, alive=True).where(moved & ~born)
        known = {name: self._known(index, name) for index, name in enumerate(self.names)}
        whole = there.mask | np.logical_and.reduce([mask for mask, _ in known.values()])
        gone = removes(taken)
        newer = here.mask & here.older_than(_numbers(taken[ORDER_KEY]))
        self._refuse(taken, (newer & moved & ~whole & ~(gone & (not soft))) | (~here.mask & ~gone & ~whole))
        columns: dict[str, Any] = {}
        for name in self.names:
            mask, values = known[name]
            if name in self.segment.key:
                columns[name] = taken[name]
            else:
                columns[name] = _picked([(mask, values), there.values(name), here.values(name)])
        columns |= {name: taken[name] for name in (ORDER_KEY, COMMIT_TIME, OPERATION)}
        useful = here.mask | (whole if soft else ~gone)
        return pa.table(columns).filter(pa.array(useful))

    def _lives(self, images: pa.Table) -> Numbers:
        """Returns, for each image, a number that identifies its row."""
        keys = [images[name] for name in self.segment.key]
        if not self.segment.moves:
            return key_codes(keys)
        return key_codes([*self._origins(images), _filled(images[BIRTH], 0)])

    def _origins(self, images: pa.Table) -> list[Any]:
        """Returns, for each image, the key that its row had before the segment. For a row that was inserted in the segment, returns its
        first key.
        """
        plain: Any = pc.is_null(images[BIRTH])
        return [pc.if_else(plain, images[name], images[f"{ORIGIN}{k}"]) for k, name in enumerate(self.segment.key)]

    def _before(self, mask: Mask) -> Numbers:
        """Searches, for each last image of a key, this image and the earlier images of the same row. Returns the index of the newest of
        these images for which `mask` is set, or -1 if there is none.
        """
        indices = np.maximum.accumulate(np.where(mask, _range(mask), -1))
        return np.where(indices >= self.starts, indices, -1)[self.last]

    def _known(self, index: int, name: str) -> tuple[Mask, Any]:
        """Returns a mask and values of the column `name`, with one element for each last image of a key. The mask tells whether this image
        or an earlier image of the same row has the column. The value is the newest one in these images. Leaves out images that the table
        already has.
        """
        bits = _numbers(self.images[f"{PRESENT}{index // GROUP_COLUMNS}"]) >> (index % GROUP_COLUMNS)
        indices = self._before(self.fresh & ((bits & 1) == 1))
        return indices >= 0, _take(self.images[name], indices)

    def _stored_keys(self) -> tuple[list[Any], Mask]:
        """Returns, for each last image of a key, the key under which the lake has the image's row. It differs from the image's key if the
        row's key has changed in the segment. Also returns a mask of the images whose row was inserted in the segment and is not in the lake
        yet.
        """
        if not self.segment.moves:
            return [self.images[name].take(_as_indices(self.last)) for name in self.segment.key], np.zeros(
                len(self.last), np.bool_
            )
        indices = self._before(~self.fresh)
        is_known = indices >= 0
        since = _numbers(_filled(self.images[BIRTH], 0))[self.last]
        origins = [column.take(_as_indices(self.last)) for column in self._origins(self.images)]
        stored = [
            _picked([(is_known, _take(self.images[name], indices)), (np.ones(len(indices), np.bool_), origin)])
            for name, origin in zip(self.segment.key, origins, strict=True)
        ]
        return stored, (since > 0) & ~is_known

    def _moved(self, taken: pa.Table, stored: Sequence[Any], born: Mask) -> Mask:
        if not self.segment.moves:
            return np.zeros(len(born), np.bool_)
        at_home = np.ones(len(born), np.bool_)
        for name, column in zip(self.segment.key, stored, strict=True):
            at_home &= _codes_equal(taken[name], column)
        return born | ~at_home

    def _refuse(self, taken: pa.Table, lost: Mask) -> None:
        if lost.any():
            raise UnknownRowError(int(_numbers(taken[ORDER_KEY])[np.flatnonzero(lost)[0]]))


class _Found:
    """The lake's row for each of several keys. If `alive`, rows that are marked as deleted are left out. Raises DuplicateKeysError if the
    lake has two rows with one key.
    """

    def __init__(self, lake: Lake, keys: Sequence[Any], segment: ChangesSegment, *, alive: bool) -> None:
        count = len(keys[0])
        theirs = [lake.rows[name].cast(key.type) for name, key in zip(segment.key, keys, strict=True)]
        codes = key_codes(
            [pa.chunked_array([*_chunks(key), *_chunks(their)]) for key, their in zip(keys, theirs, strict=True)]
        )
        usable = np.flatnonzero(~lake.deleted) if alive else _range(lake.deleted)
        index_of = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        of_lake = codes[count:][usable]
        index_of[of_lake] = usable
        if len(np.unique(of_lake)) != len(of_lake):
            raise DuplicateKeysError
        self._lake, self._indices = lake, index_of[codes[:count]]

    @property
    def mask(self) -> Mask:
        return self._indices >= 0

    def where(self, mask: Mask) -> _Found:
        self._indices = np.where(mask, self._indices, -1)
        return self

    def values(self, name: str) -> tuple[Mask, Any]:
        return self.mask, _take(self._lake.rows[name], self._indices)

    def older_than(self, order_keys: Numbers) -> Mask:
        """Returns, for each key, whether the lake's row is older than the key's image. `order_keys` are those of the images. Only older
        rows may be changed. A row without an order key is older than every image.
        """
        theirs = _take(self._lake.rows[ORDER_KEY], self._indices)
        return np.asarray(_filled(theirs, -1)) < order_keys


def key_codes(columns: Sequence[Any]) -> Numbers:
    """Returns a number for each row. Rows with equal values in all columns get the same number. NULL equals NULL."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = pa.chunked_array(_chunks(column)).combine_chunks().dictionary_encode("encode")
        part = _numbers(encoded.indices)
        codes = np.unique(codes * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1].reshape(-1)
    return codes


def _codes_equal(left: Any, right: Any) -> Mask:
    codes = key_codes([pa.chunked_array([*_chunks(left), *_chunks(right)])])
    same: Mask = codes[: len(left)] == codes[len(left) :]
    return same


def is_last(codes: Numbers) -> Mask:
    """Returns a mask that is true for the last element with each code."""
    last = np.zeros(len(codes), np.bool_)
    last[len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]] = True
    return last


def _picked(choices: Sequence[tuple[Mask, Any]]) -> Any:
    """Returns, for each row, the value of the first choice whose mask is set. Returns NULL if no mask is set."""
    (mask, values), *others = choices
    rest = _picked(others) if others else pa.nulls(len(mask), values.type)
    return pc.if_else(pa.array(mask), values, pc.cast(rest, values.type))


def _take(column: Any, indices: Numbers) -> Any:
    """Returns the values at the indices, and NULL for the index -1."""
    present: Any = pa.array(indices, mask=indices < 0)
    return pa.chunked_array(_chunks(column), column.type).take(present)


def _chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _numbers(column: Any) -> Any:
    return np.asarray(column).astype(np.int64, copy=False)


def _filled(column: Any, value: int) -> Any:
    return pc.fill_null(column, pa.scalar(value, column.type))


def _as_indices(numbers: Numbers) -> Any:
    return pa.array(numbers, pa.int64())


def _range(like: Any) -> Numbers:
    return np.arange(len(like), dtype=np.int64)
