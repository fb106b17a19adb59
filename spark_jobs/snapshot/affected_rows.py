"""Finds the rows and buffered images of a snapshot that foreign keys may have changed. `apply_cascades` replays the changes of foreign
keys on them.

Files are searched with Arrow, one row group at a time. Only rows that reference a deleted or changed value, and images of the keys of these
rows, become Python values. If more than ROWS_MAX rows and images are loaded, the search ends with CascadesUnseenError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.cascades.play import CascadeRow, ChangeOrder, Event, Image, Values, coarse_values
from sluice.spark_jobs.merging.fold import INSERT, UPDATE_AFTER
from sluice.spark_jobs.snapshot.publication import OURS, CascadesUnseenError, Publication
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW

# The maximum number of rows and images that one publication loads. If foreign keys may have changed more rows and images, the snapshot
# reads all rows again.
ROWS_MAX = 200_000
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
NO_NUMBERS: Numbers = np.zeros(0, np.int64)


class AffectedRows:
    """The rows of a snapshot's table that foreign keys may have changed. `events` are the changes of rows in parent tables. `wanted` has,
    for the columns of each foreign key, the referenced values that were deleted or changed, as `cascades.play.coarse` converts them: values
    that the server may consider equal become the same coarse value. `key` is the table's key. Column names are in lower case.
    """

    def __init__(self, given: Publication, events: Sequence[Event]) -> None:
        self._given = given
        self.key = tuple(name.lower() for name in given.key)
        self.wanted: dict[tuple[str, ...], set[Values]] = defaultdict(set)
        for event in events:
            for cascade in event.cascades:
                values = tuple(event.old[name] for name in cascade.referenced)
                self.wanted[cascade.columns].add(coarse_values(values))
        schema = given.chunks.schema(given.chunks.names()[0])
        self._spelled = {name.lower(): name for name in schema.names if not name.startswith(OURS)}
        if lacking := {name for columns in self.wanted for name in columns} - self._spelled.keys():
            raise CascadesUnseenError(
                f"foreign keys change the column {min(lacking)}, which conf/ does not capture: capture the column"
            )
        self._count = 0

    def found(self, order_keys: set[int], step: int) -> tuple[list[CascadeRow], list[Image]]:
        """Returns what foreign keys may have changed: rows that the snapshot read, and buffered images. In a table with a key, the last
        image of a key replaces the row that was read. In a table without a key, images up to the order key `rows_key` are left out, because
        the rows that were read contain them.

        `order_keys` are the order keys of the events, which are changes in parent tables. The sequence numbers of images are multiples of
        `step`, so that the numbers of events fit between them.
        """
        given, keyed = self._given, bool(self.key)
        read = [record for record, _ in self._records(given.chunks, self._references)]
        images = list(self._records(given.changes, self._references))
        if not keyed:
            images = [(values, ours) for values, ours in images if ours[ORDER_KEY] > given.rows_key]
        else:
            keys = {self._key_of(values) for values in read} | {self._key_of(values) for values, _ in images}
            # `_last` loads and counts these images again, with the other images of their keys.
            self._count -= len(images)
            images = self._last(keys)
            known = {self._key_of(values) for values, _ in images}
            read = [values for values in read if self._key_of(values) not in known]
            images = [each for each in images if each[1][OPERATION] in {INSERT, UPDATE_AFTER}]
        positions = self._positions(order_keys, step)
        rows = [CascadeRow(values, given.rows_key, of_lake=True) for values in read]
        name = given.owner.table
        return rows, [
            Image(positions.of(ours), name, ours[OPERATION], values)
            for values, ours in sorted(images, key=lambda each: (each[1][ORDER_KEY], each[1][ROW]))
        ]

    def _key_of(self, values: dict[str, Any]) -> Values:
        return tuple(values[name] for name in self.key)

    def _references(self, rows: pa.Table) -> Mask:
        """Returns a mask of the rows that may reference a `wanted` value."""
        found = np.zeros(rows.num_rows, bool)
        for columns, values in self.wanted.items():
            each = [
                _may_be(rows[self._spelled[name]], {value[at] for value in values}) for at, name in enumerate(columns)
            ]
            found |= np.logical_and.reduce(each)
        return found

    def _does_point(self, values: dict[str, Any]) -> bool:
        return any(
            coarse_values(tuple(values[name] for name in columns)) in wanted for columns, wanted in self.wanted.items()
        )

    def _records(
        self, files: StoredFiles, may_matter: Callable[[pa.Table], Mask], keys: set[Values] | None = None
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yields the rows of `files` that reference a wanted value. If `keys` is given, yields the rows with one of these keys instead.
        Only rows that `may_matter` marks in a row group are examined. Each row is a pair: the values of the table's columns, and those of
        Sluice's columns.
        """
        searched = [self._spelled[name] for name in (self.key if keys is not None else self._foreign())]
        for name in files.names():
            with pq.ParquetFile(files.opened(name)) as file:
                for group in range(file.num_row_groups):
                    chosen = np.flatnonzero(may_matter(file.read_row_group(group, columns=searched)))
                    if not len(chosen):
                        continue
                    for record in file.read_row_group(group).take(pa.array(chosen, pa.int64())).to_pylist():
                        values = {lowered: record[spelled] for lowered, spelled in self._spelled.items()}
                        if self._does_point(values) if keys is None else self._key_of(values) in keys:
                            self._counted()
                            yield values, {key: value for key, value in record.items() if key.startswith(OURS)}

    def _foreign(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for columns in self.wanted for name in columns))

    def _counted(self) -> None:
        self._count += 1
        if self._count > ROWS_MAX:
            raise CascadesUnseenError(
                f"foreign keys may have changed more than {ROWS_MAX:,} rows and buffered images of the table "
                "during its snapshot"
            )

    def _last(self, keys: set[Values]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Returns the last image of each of these keys. Keys without images are left out."""
        first = {key[0] for key in keys}
        last: dict[Values, tuple[dict[str, Any], dict[str, Any]]] = {}

        def may_matter(rows: pa.Table) -> Mask:
            return _is_in(rows[self._spelled[self.key[0]]], first)

        for values, ours in self._records(self._given.changes, may_matter, keys) if keys else ():
            key = self._key_of(values)
            at = (ours[ORDER_KEY], ours[ROW])
            if key not in last or at > (last[key][1][ORDER_KEY], last[key][1][ROW]):
                last[key] = values, ours
        return list(last.values())

    def _positions(self, order_keys: set[int], step: int) -> _SequenceNumbers:
        """Returns the sequence numbers of all images in the transactions with these order keys."""
        wanted = pa.array(sorted(order_keys), pa.int64())
        found = [
            pq.read_table(
                self._given.changes.opened(name), columns=[ORDER_KEY, ROW], filters=pc.field(ORDER_KEY).isin(wanted)
            )
            for name in self._given.changes.names()
        ]
        keys, rows = (
            np.concatenate([NO_NUMBERS, *(np.asarray(each[name]) for each in found)]) for name in (ORDER_KEY, ROW)
        )
        return _SequenceNumbers(keys, rows, step)


class _SequenceNumbers:
    """Gives the images of each transaction the sequence numbers `step`, 2 · `step`, 3 · `step`, …, in the order of their row numbers. So
    there is space between two images for the sequence numbers of events, which are changes in parent tables.
    """

    def __init__(self, keys: Numbers, rows: Numbers, step: int) -> None:
        order = np.lexsort((rows, keys))
        self._keys, self._rows, self._step = keys[order], rows[order], step

    def of(self, ours: dict[str, Any]) -> ChangeOrder:
        """Returns the order key, the sequence number and the commit time of an image. If the image's transaction has no event (a change in
        a parent table), the row number serves as the sequence number. This suffices, because sequence numbers are compared only within one
        transaction.
        """
        key, row = ours[ORDER_KEY], ours[ROW]
        begin, end = np.searchsorted(self._keys, [key, key + 1])
        at = int(np.searchsorted(self._rows[begin:end], row))
        index = (at + 1) * self._step if begin < end else row
        return ChangeOrder(key, index, ours[COMMIT_TIME])


def _may_be(column: Any, values: set[Any]) -> Mask:
    """Returns a mask of the values whose coarse form (`_coarse`) may be one of `values`. The mask is also True for each value whose coarse
    value Arrow cannot compute. `_does_point` compares such a value exactly.
    """
    found = _is_in(_coarse(column), values)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return found | _true(pc.match_substring_regex(column, "[^ -~]"))
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        zero: Any = b"\0"
        return found | _true(pc.ends_with(column, pattern=zero))
    return found


def _coarse(column: Any) -> Any:
    """Computes with Arrow the coarse form of values, which is the same for values that the server may consider equal
    (`cascades.play.coarse`). The result is exact only for printable ASCII characters, so `_may_be` marks all other texts.
    """
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return pc.utf8_lower(pc.utf8_rtrim(column, characters=" ")) if is_text else column


def _is_in(column: Any, values: set[Any]) -> Mask:
    try:
        wanted = pa.array(list(values), column.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return np.ones(len(column), bool)
    return _true(pc.is_in(column, value_set=wanted))


def _true(found: Any) -> Mask:
    return np.asarray(found.fill_null(False), bool)
