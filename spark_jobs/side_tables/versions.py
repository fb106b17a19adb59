"""Folds row images for a history: returns the versions that they open, and the keys whose open version they close. Pure functions.
`history` applies the result.

An image after which the row exists (`insert`, `update_postimage`) opens a version at the position of its transaction. The next image of
the same key closes this version. The first image of a key closes the version that is open in the table. So a delete closes a version. A
changed key closes the old key's version and opens one for the new key. A key that is deleted and inserted again has a gap. If a
transaction has several images of a key, only the last one is used, because no other transaction could see the earlier ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs.merging.fold import KEYED_NAMES
from sluice.spark_jobs.small.fold_arrow import key_codes, operation_names, removes
from sluice.spark_jobs.staged_batch import COMMIT_TIME, ORDER_KEY, ROW

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
FROM_KEY, TO_KEY, OPERATION_NAME = "_sluice_from_order_key", "_sluice_to_order_key", "_sluice_operation"
COMMIT_TIME_TYPE = pa.timestamp("us", "UTC")
PERIOD_TYPES = {
    VALID_FROM: COMMIT_TIME_TYPE,
    VALID_TO: COMMIT_TIME_TYPE,
    IS_CURRENT: pa.bool_(),
    FROM_KEY: pa.int64(),
    TO_KEY: pa.int64(),
    OPERATION_NAME: pa.string(),
}
PERIOD = (  # Sluice's columns in a history, which follow the source's columns.
    LakeColumn(name=VALID_FROM, type="timestamp"),
    LakeColumn(name=VALID_TO, type="timestamp"),
    LakeColumn(name=IS_CURRENT, type="boolean"),
    LakeColumn(name=FROM_KEY, type="bigint"),
    LakeColumn(name=TO_KEY, type="bigint"),
    LakeColumn(name=OPERATION_NAME, type="string"),
)
CLOSES = "_sluice_closes"  # True if the row closes an open version. False if it is a new version.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versions:
    """The changes to a history table, which `folded` returns. `opened` has the new versions of rows, with the source's columns and then
    Sluice's own columns (`PERIOD`, such as VALID_FROM). `closed` has the keys whose open version in the table ends, and the VALID_TO and
    TO_KEY that this version gets.
    """

    opened: pa.Table
    closed: pa.Table


def folded(images: pa.Table, key: Sequence[str], columns: Sequence[str]) -> Versions:
    """Folds row images to the new versions of rows, and to the ends of versions that are open in the history. `images` are the images that
    the history does not have yet, with all `columns`. If an update changed a key, `images` includes the before image of the update.
    """
    codes = key_codes([images[name] for name in key])
    order = np.lexsort((np.asarray(images[ROW]), codes))
    order_keys = np.asarray(images[ORDER_KEY])
    last = _last_of_transactions(codes[order], order_keys[order])
    chosen = order[last]
    images, codes = images.take(pa.array(chosen)), codes[chosen]
    first = np.r_[True, codes[1:] != codes[:-1]] if len(codes) else np.zeros(0, np.bool_)
    next_index = np.arange(1, len(codes) + 1)
    is_open = np.r_[first[1:], True] if len(codes) else first
    upto: Any = pa.array(next_index, mask=is_open)
    times: Any = images[COMMIT_TIME].cast(COMMIT_TIME_TYPE)
    values: dict[str, Any] = {name: images[name] for name in columns}
    values |= {VALID_FROM: times, VALID_TO: times.take(upto), IS_CURRENT: pa.array(is_open)}
    values |= {FROM_KEY: images[ORDER_KEY], TO_KEY: images[ORDER_KEY].take(upto)}
    values |= {OPERATION_NAME: operation_names(images, KEYED_NAMES)}
    begins: Any = pa.array(first)
    closed = {name: images[name].filter(begins) for name in key}
    closed |= {VALID_TO: times.filter(begins), TO_KEY: images[ORDER_KEY].filter(begins)}
    return Versions(opened=pa.table(values).filter(pa.array(~removes(images))), closed=pa.table(closed))


def _last_of_transactions(codes: Any, order_keys: Any) -> Any:
    """Returns a mask of the images that are the last of their key in their transaction. The images are sorted by key and stream order."""
    if not len(codes):
        return np.zeros(0, np.bool_)
    return np.r_[(codes[1:] != codes[:-1]) | (order_keys[1:] != order_keys[:-1]), True]


def as_source(versions: Versions, names: dict[str, str], schema: pa.Schema) -> pa.Table:
    """Returns the rows that close versions and the rows that open versions as one table. The table has the history's columns (`schema`) and
    the column CLOSES, which is true in the rows that close a version. `names` maps each column of the source to the history's column.
    """
    opened = _in_columns(versions.opened, names, schema)
    closed = _in_columns(versions.closed, names, schema)
    marks: Any = pa.array(np.r_[np.ones(closed.num_rows, np.bool_), np.zeros(opened.num_rows, np.bool_)])
    return pa.concat_tables([closed, opened]).append_column(CLOSES, marks)


def _in_columns(rows: pa.Table, names: dict[str, str], schema: pa.Schema) -> pa.Table:
    back = {theirs: ours for ours, theirs in names.items()}
    columns = []
    for field in schema:
        name = back.get(field.name, field.name)
        there = name in rows.column_names and (field.name in back or field.name in PERIOD_TYPES)
        columns.append(rows[name].cast(field.type) if there else pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)
