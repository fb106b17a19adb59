"""Compares one table. The number of rows and the sum of the rows' hashes show for each chunk whether it differs. The rows of differing
chunks are then compared. Rows that differ are looked at again.

The source changes during the comparison, so a row may differ just because its change is not merged yet. So the differing rows are looked at
up to LOOKS_MAX times. Each look reads these rows from the source, waits until the lake has merged everything up to the position of this
read, and reads the rows from the lake. A row that is equal in source and lake at a look is EQUAL. A row that differs at two looks, and that
neither the source nor the lake changed between these looks, is DIFFERENT. If a row is still undecided after the last look, and its last
change in the lake is newer than the last read of the source, the row is reported as moving.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sluice.equality.chunks import Chunks, chunks_of
from sluice.equality.lake_side import LakeSide
from sluice.equality.merged import Merged
from sluice.equality.source_side import BinlogEnd, SourceSide, literal
from sluice.equality.table_plan import ComparisonPlan
from sluice.equality.tables import LAKE, NO_ROWS, SOURCE, ComparedRow, DifferingKey, Key, Sum, Tables, difference
from sluice.equality.values import (
    DIFFERENCES_MAX,
    SHOWN_MAX,
    ChunkDifference,
    Difference,
    Extent,
    Seen,
    TableResult,
    proven,
    steady,
    undecided,
    verdict_of,
)

LOOKS_MAX = 8
# About how many rows of differing chunks are read and compared at one time. The rows of the other differing chunks are read afterwards.
LOOKED_ROWS = 2_000_000
# A comparison for a repair reports at most this many differing keys. If more keys differ, the next repair corrects the other keys.
KEYS_MAX = 1_000_000
Sums = Mapping[int, Sum]
Choose = Callable[[Chunks, Sums], Collection[int] | None]


@dataclasses.dataclass
class FoundDifferences:
    """The differences between source and lake that the comparison of one table has found so far.

    - `count` is the number of rows that are proven to differ. `moving` is the number of rows that stay undecided because they change all
      the time: in the lake, they have a newer change than the last read of the source. `open` is the number of the other undecided rows.
    - `chunks` has the numbers of chunks with rows that differ. It also has chunks whose sums differ and whose rows were not compared.
    - `late` is true if merges did not reach the position up to which the source was read.
    - `hidden` is true if reads of the source do not show everything that the lake has, for example because commits wait for a semi-sync
      replica.
    - `keys` are the keys that differ. When at least DIFFERENCES_MAX rows are proven to differ, the comparison proves no more. If
      `Extent.every_key` is set, `keys` then also has keys of rows that were compared only once. Such a row may differ just because its
      change is not merged yet.
    """

    differences: list[Difference] = dataclasses.field(default_factory=list)
    count: int = 0
    open: int = 0
    moving: int = 0
    chunks: set[int] = dataclasses.field(default_factory=set)
    late: bool = False
    hidden: bool = False
    keys: dict[Key, DifferingKey] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Compared:
    """The result of a comparison, and what the next comparison uses.

    - `chunks` says how the table was split, and `compared` has the numbers of the compared chunks.
    - `equal_sums` has the lake's sums of the chunks that are equal. A chunk without rows has the sum NO_ROWS.
    - `keys` has the keys that differ. It is empty for a table without a key.
    """

    result: TableResult
    chunks: Chunks
    compared: Collection[int]
    equal_sums: Sums
    keys: Mapping[Key, DifferingKey]


class Comparison:
    """Compares one table over open connections to source and lake. DuckDB writes data that does not fit into memory to `folder`, or to its
    own default folder if `folder` is empty. `visible(seconds)` waits at most `seconds` until reads of the source show everything that the
    lake has. It returns False if they still do not show everything.
    """

    def __init__(
        self,
        plan: ComparisonPlan,
        source: SourceSide,
        lake: LakeSide,
        merged: Merged,
        *,
        extent: Extent,
        folder: str = "",
        visible: Callable[[float], bool] = lambda _: True,
    ) -> None:
        self._plan, self._source, self._lake, self._merged, self._extent = plan, source, lake, merged, extent
        self._folder, self._visible = folder, visible
        self._deadline = time.monotonic() + extent.settle_seconds
        self._end: BinlogEnd | None = None

    def run(self, chunks: Chunks | None = None, choose: Choose | None = None) -> Compared:
        """Compares the table. `chunks` says how the table's previous comparison split the table. If it is None, the table is split again.
        `choose` gets the chunks and the lake's current sums, and returns the numbers of the chunks to compare, or None for all chunks.
        Without `choose`, all chunks are compared. A table without a key is always compared as a whole.
        """
        started, began_us = time.monotonic(), time.time_ns() // 1000
        chunks = chunks or chunks_of(self._plan.key_columns, self._lake.row_count(), *self._source.bounds(self._plan))
        self._chunks, self._tables = chunks, Tables(self._plan, chunks, self._folder)
        try:
            wanted = choose(chunks, self._lake_sums(None)) if choose else None
            if self._plan.key:
                source, lake, found = self._keyed(wanted)
            else:
                source, lake, found = self._keyless()
        finally:
            self._tables.close()
        different = self._different(found.chunks, source, lake)
        end = self._end
        result = TableResult(
            table=self._plan.name,
            verdict=verdict_of(found.count, found.open),
            reason=self._reason(found),
            mode=self._extent.mode,
            rows=sum(each.rows for each in source.values()),
            lake_rows=sum(each.rows for each in lake.values()),
            chunks=chunks.count,
            chunks_compared=chunks.count if wanted is None else len(wanted),
            chunks_different=tuple(different),
            difference_count=found.count,
            differences=tuple(found.differences[:SHOWN_MAX]),
            moving=found.moving,
            left_out=self._plan.left_out,
            version=self._lake.version,
            server_uuid=end.server_uuid if end else "",
            position=str(end) if end else "",
            gtid_set=end.gtid_set if end else "",
            checked_at_us=began_us,
            seconds=round(time.monotonic() - started, 3),
        )
        compared = range(chunks.count) if wanted is None else wanted
        # The sums of the equal chunks. A chunk that has rows neither in the source nor in the lake is equal, and gets the sum NO_ROWS.
        alike = {
            number: lake.get(number, NO_ROWS)
            for number in {*compared, *lake, *source}
            if source.get(number) == lake.get(number)
        }
        return Compared(result, chunks, compared, alike, found.keys)

    # Tables with a key.

    def _keyed(self, wanted: Collection[int] | None) -> tuple[Sums, Sums, FoundDifferences]:
        numbers = range(self._chunks.count) if wanted is None else wanted
        source = self._tables.sums_of_source(self._source.rows(self._plan, self._chunks.where(numbers)), wanted)
        self._note()
        lake = self._lake_sums(wanted)
        left = sorted(number for number in {*source, *lake} if source.get(number) != lake.get(number))
        found = FoundDifferences()
        while left and not (found.late or found.open) and found.count < DIFFERENCES_MAX:
            looked, keys = self._candidates(left, DIFFERENCES_MAX)
            if keys:
                self._decide(keys, found)
            if len(keys) < DIFFERENCES_MAX:
                left = left[len(looked) :]
            elif not self._left():
                found.open, found.late = len(keys), True
        if found.count >= DIFFERENCES_MAX:
            found.chunks |= set(left)
            if self._extent.every_key:
                self._add_keys(left, found)
        return source, lake, found

    def _add_keys(self, left: list[int], found: FoundDifferences) -> None:
        """Adds the keys of the rows that differ in the chunks `left` (chunk numbers) to `found.keys`, at most KEYS_MAX keys in total. Each
        row is compared only once. So a key may belong to a row that differs just because its change is not merged yet.
        """
        while left and len(found.keys) < KEYS_MAX:
            looked, keys = self._candidates(left, KEYS_MAX - len(found.keys))
            found.keys.update({key: each for key, each in keys.items() if key not in found.keys})
            left = left[len(looked) :]

    def _candidates(self, left: list[int], limit: int) -> tuple[list[int], dict[Key, DifferingKey]]:
        """Reads the rows of the first chunks in `left` again, about LOOKED_ROWS rows. Returns these chunks, and the keys of the rows that
        differ, at most `limit`.
        """
        looked = left[: max(1, LOOKED_ROWS // max(1, self._rows_a_chunk()))]
        self._tables.keep_source(self._source.rows(self._plan, self._chunks.where(looked)), whole=False)
        self._lake.refresh()
        self._tables.keep_lake(self._lake.rows(self._plan), whole=False, chunks=self._tables.chunks_in(looked))
        return looked, self._tables.differing(limit)

    def _rows_a_chunk(self) -> int:
        return self._lake.row_count() // self._chunks.count

    def _decide(self, first: Mapping[Key, DifferingKey], found: FoundDifferences) -> None:
        """Looks at the rows of the keys in `first` up to LOOKS_MAX times, until it is certain for each row whether it differs. Adds to
        `found` the rows that are proven to differ, and the numbers of rows that stay undecided: `moving` if they change all the time,
        otherwise `open`.
        """
        keys = list(first)
        before: Mapping[Key, Seen] = {}
        sure: set[Key] = set()
        rows: dict[Key, ComparedRow] = {}
        columns: dict[Key, dict[str, Any]] | None = None
        for number in range(LOOKS_MAX):
            looked = self._look(keys, found) if self._may_prove(number, found) else None
            if looked is None:
                found.open = len(keys)
                return
            rows = looked
            now = {key: row.seen for key, row in rows.items()}
            sure = proven(before, now)
            keys = sorted(undecided(now, sure), key=repr)
            if not keys:
                break
            columns = self._steady(columns, keys)
            keys = sorted({*keys, *sure}, key=repr)
            before = now
        # A row that changes at every look is still proven to differ if one of its columns had one value in the source at all looks, and
        # another value in the lake at all looks.
        sure |= {key for key in keys if columns and columns.get(key)}
        self._add_rows(sure, rows, found)
        # `in_source` is taken from `first`, for which whole chunks were read and their keys compared byte by byte. `_look` selects rows by
        # the server's collation, so it may also return keys with other bytes. These keys are not in `first`, and are left out.
        found.keys.update(
            {key: dataclasses.replace(first[key], lake_rows=rows[key].lake_rows) for key in sure if key in first}
        )
        ahead = self._merged.order_key(self._end) if self._end else None
        moving = {key for key in keys if key not in sure and ahead is not None and rows[key].order_key > ahead}
        found.moving += len(moving)
        found.open += len([key for key in keys if key not in sure | moving])

    def _may_prove(self, number: int, found: FoundDifferences) -> bool:
        """Returns whether the look with this number may be made. The first look has the number 0 and may always be made.

        A later look can prove that rows differ, so reads of the source must show everything that the lake has. Waits for this. If the
        comparison's time ends during the wait, returns False and sets `found.hidden`.
        """
        found.hidden = bool(number) and not self._visible(self._left())
        return not found.hidden

    def _steady(self, before: dict[Key, dict[str, Any]] | None, keys: list[Key]) -> dict[Key, dict[str, Any]]:
        """Returns, for each key, the columns that had one value in the source at all looks so far, and another value in the lake at all
        looks so far. Compares the rows that the last `_look` has stored. `before` is the result for the previous look, or None at the first
        look.
        """
        source, lake = self._tables.values(SOURCE, keys), self._tables.values(LAKE, keys)
        names = [column.name for column in self._plan.columns]
        return {
            key: steady(None if before is None else before.get(key, {}), source[key], lake[key], names)
            for key in keys
            if key in source and key in lake
        }

    def _look(self, keys: list[Key], found: FoundDifferences) -> dict[Key, ComparedRow] | None:
        """Reads the rows of the keys from the source, waits until the lake has merged everything up to the position of this read, and reads
        the rows from the lake. Returns None, and sets `found.late`, if merges do not reach this position within the comparison's
        `settle_seconds`.
        """
        columns = self._plan.key_columns
        literals = [[literal(column, value) for column, value in zip(columns, key, strict=True)] for key in keys]
        self._tables.keep_source(self._source.rows_of_keys(self._plan, literals), whole=True)
        if not self._wait():
            found.late = True
            return None
        self._lake.refresh()
        self._tables.keep_keys(keys)
        self._tables.keep_lake(self._lake.rows(self._plan, self._reach(keys)), whole=True, keys=True)
        return self._tables.rows()

    def _reach(self, keys: list[Key]) -> str:
        """Returns a SQL condition by which Delta skips files that cannot contain these keys. Returns "" (no condition) if the first key
        column is not an integer.
        """
        if not self._plan.key or not all(isinstance(key[0], int) for key in keys):
            return ""
        name = self._lake.spelled(self._plan.key[0]).replace('"', '""')
        values = [key[0] for key in keys]
        return f'"{name}" BETWEEN {min(values)} AND {max(values)}'

    def _add_rows(self, sure: Collection[Key], rows: Mapping[Key, ComparedRow], found: FoundDifferences) -> None:
        """Adds the rows of the keys `sure` to `found`.

        The keys of one row can differ in bytes between source and lake, although the server's collation considers them equal, for example
        'a' and 'A'. Such a pair of keys is reported as one row with other values, and not as a missing row and a surplus row.
        """
        keys = sorted(sure, key=repr)
        source, lake = self._tables.values(SOURCE, keys), self._tables.values(LAKE, keys)
        renamed = self._equal_for_the_server([key for key in keys if key not in source][:DIFFERENCES_MAX])
        paired = set(renamed.values())
        for key in keys:
            if key in paired:
                continue
            other = renamed.get(key, key)
            found.count += 1
            number = self._tables.chunk_of(key)
            found.chunks.add(number)
            if len(found.differences) < SHOWN_MAX:
                differing = functools.partial(difference, self._plan, key, self._chunks.name(number))
                found.differences.append(
                    differing(source=source.get(other), lake=lake.get(key), lake_rows=rows[key].lake_rows)
                )

    def _equal_for_the_server(self, keys: list[Key]) -> dict[Key, Key]:
        """Returns, for each of the first SHOWN_MAX keys of the lake in `keys`, the key of the source that the server's collation considers
        equal. Leaves out keys without an equal key in the source. Returns {} if no key column is text.
        """
        columns, found = self._plan.key_columns, {}
        if not any(column.type == "BLOB" and not column.is_bytes for column in columns):
            return {}
        for key in keys[:SHOWN_MAX]:
            literals = [literal(column, value) for column, value in zip(columns, key, strict=True)]
            self._tables.keep_source(self._source.rows_of_keys(self._plan, [literals]), whole=True)
            for other in self._tables.keys_of(SOURCE):
                found[key] = other
        return found

    # Tables without a key.

    def _keyless(self) -> tuple[Sums, Sums, FoundDifferences]:
        """Compares a table without a key. Reads the source's rows in a read view at an exact position, and compares them with the rows that
        result from the change log up to this position. If rows differ, repeats this, up to LOOKS_MAX times, until a difference is proven.
        Returns the sums of source and lake, and the differences.
        """
        found = FoundDifferences()
        before: Mapping[Key, Seen] = {}
        source: Sums = {}
        lake: Sums = {}
        for number in range(LOOKS_MAX):
            if not self._may_prove(number, found):
                found.open = 1
                return source, lake, found
            with self._source.read_view() as end:
                if end is None:
                    found.open, found.late = 1, False
                    return source, lake, found
                source = self._tables.sums_of_source(self._source.rows(self._plan, [""]))
                self._end = end
                if not self._merged.wait(end, self._left()):
                    found.open, found.late = 1, True
                    return source, lake, found
                self._lake.refresh()
                upto = self._merged.order_key(end)
                lake = self._tables.sums_of_lake(self._lake.rows(self._plan), None, upto)
                if source == lake or not any(each.rows or each.hashes for each in (*source.values(), *lake.values())):
                    return source, lake, found
                self._tables.keep_source(self._source.rows(self._plan, [""]), whole=True)
            self._tables.keep_lake(self._lake.rows(self._plan), whole=True, order_key_max=upto)
            now = self._tables.differing_rows(DIFFERENCES_MAX)
            sure = proven(before, now)
            if sure:
                self._add_counted_rows({key: now[key] for key in sure}, found)
                return source, lake, found
            before = now
        found.open = len(before)
        return source, lake, found

    def _add_counted_rows(self, rows: Mapping[Key, Seen], found: FoundDifferences) -> None:
        every = dataclasses.replace(self._plan, key=tuple(column.name for column in self._plan.columns))
        for row, seen in sorted(rows.items(), key=repr):
            more = (seen.source or 0) - (seen.lake or 0)
            found.count += abs(more)
            left, right = (row, None) if more > 0 else (None, row)
            example = difference(every, row, self._chunks.name(0), source=left, lake=right)
            found.differences.append(dataclasses.replace(example, count=abs(more)))
        found.chunks.add(0)

    # All tables.

    def _lake_sums(self, wanted: Collection[int] | None) -> Sums:
        self._lake.refresh()
        return self._tables.sums_of_lake(self._lake.rows(self._plan), wanted)

    def _different(self, numbers: Collection[int], source: Sums, lake: Sums) -> list[ChunkDifference]:
        none = Sum(0, 0)
        return [
            ChunkDifference(
                chunk=self._chunks.name(number),
                source_rows=source.get(number, none).rows,
                lake_rows=lake.get(number, none).rows,
            )
            for number in sorted(numbers)
        ]

    def _note(self) -> BinlogEnd:
        self._end = self._source.end()
        return self._end

    def _wait(self) -> bool:
        end = self._note()
        return self._merged.wait(end, self._left())

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _reason(self, found: FoundDifferences) -> str:
        if found.hidden:
            return (
                f"after {self._extent.settle_seconds:.0f} s, reads of the source still do not show all "
                "changes that the lake has, because commits wait for a semi-sync replica: compare again once "
                "the replica answers"
            )
        if found.late and (why := self._merged.halted()):
            return (
                f"the source was read up to {self._end}, the lake has {self._merged.progress()}, and {why}. The "
                "differences may be changes that are not merged yet: compare again when the engine runs"
            )
        if found.late:
            return (
                f"the source was read up to {self._end}, and the lake has {self._merged.progress()} after "
                f"{self._extent.settle_seconds:.0f} s: the differences may be changes that are not merged "
                "yet. `sluice status` shows what delays the merges"
            )
        if found.open:
            return (
                f"{found.open} row(s) changed between any two reads, so Sluice does not know whether these rows are "
                "equal: compare again when the table changes less"
            )
        return (
            f"{found.moving} row(s) changed between any two reads, and the lake followed each change"
            if found.moving
            else ""
        )
