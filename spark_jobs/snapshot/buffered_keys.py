"""Finds the last buffered image of each key, and the rows whose keys have buffered changes. Works on Arrow tables, without Spark.
`whole_files` uses this module.

As in `publish_sql`, the last buffered change of a key determines its row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.merging.fold import INSERT, KEYED_NAMES, UPDATE_AFTER
from sluice.spark_jobs.small.fold_arrow import Mask, is_last, key_codes, operation_names
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW


class BufferedKeys:
    """The keys of a table that have buffered changes. `live` has one row for each key whose last change is not a delete. The row has the
    values of this change, in the columns of a chunk's file.
    """

    def __init__(self, changes: StoredFiles, key: Sequence[str], chunk: pa.Schema) -> None:
        ours = [OPERATION, ORDER_KEY, COMMIT_TIME]
        names = [*ours, ROW, *(name for name in chunk.names if name not in ours)]
        images = pa.concat_tables([pq.read_table(changes.opened(name), columns=names) for name in changes.names()])
        order = np.lexsort((np.asarray(images[ROW]), np.asarray(images[ORDER_KEY])))
        images = images.take(pa.array(order, pa.int64()))
        last = images.filter(pa.array(is_last(key_codes([images[name] for name in key]))))
        self._key = tuple(key)
        self._keys = last.select(self._key)
        there = last.filter(pc.is_in(last[OPERATION], pa.array([INSERT, UPDATE_AFTER], last[OPERATION].type)))
        index = there.schema.get_field_index(OPERATION)
        named = there.set_column(index, OPERATION, operation_names(there, KEYED_NAMES))
        self.live = named.select(chunk.names).cast(chunk)

    def among(self, rows: pa.Table) -> Mask:
        """Returns a mask of the rows whose key has buffered changes. `rows` has at least the key columns."""
        # With one key column, `is_in` is at least three times as fast as the code below, which sorts the keys in each call. `whole_files`
        # calls this method for each row group of a chunk's file.
        if len(self._key) == 1:
            (name,) = self._key
            return np.asarray(pc.is_in(rows[name], self._keys[name].combine_chunks()))
        count = self._keys.num_rows
        columns = [
            pa.chunked_array([*self._keys[name].chunks, *rows[name].chunks], self._keys[name].type)
            for name in self._key
        ]
        codes = key_codes(columns)
        found: Mask = np.isin(codes[count:], codes[:count])
        return found

    def may_be_in(self, group: pq.RowGroupMetaData, index: int) -> bool:
        """Returns whether a row group may contain a key with buffered changes, by the bounds of the first key column. `index` is the index
        of this column in the file.
        """
        bounds = group.column(index).statistics
        if bounds is None or not bounds.has_min_max:
            return bool(group.num_rows)
        first: Any = self._keys[self._key[0]]
        # If a bound cannot be converted, the group may contain a key. For example, Python has no dates in MySQL's year 0.
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            low, high = (pa.scalar(value, first.type) for value in (bounds.min, bounds.max))
            return bool(pc.any(pc.and_(pc.greater_equal(first, low), pc.less_equal(first, high))).as_py())
        return True
