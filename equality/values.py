"""Defines the request and the result of a comparison, and the rule that proves that a row differs. Pure functions.

A table has one of four verdicts. EQUAL means that no row differs, and DIFFERENT that differences are proven. UNDECIDED means that rows
differ, but their changes may not be merged yet. REFUSED means that the table cannot be compared.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Mode = Literal["full", "sample", "since-last"]
# A comparison stops looking for differing rows after it has found this many. Of the chunks that it has not searched, it reports only which
# ones differ.
DIFFERENCES_MAX = 1_000
SHOWN_MAX = 10


class Verdict(enum.StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """Which chunks of a table to compare. With the `mode` "full", all chunks are compared. With "sample", `percent` of the chunks are
    compared, selected at random. With "since-last", a chunk is compared if its rows in the lake have changed since it was last found equal,
    or if it was never found equal.

    `settle_seconds` is how long to wait until merges reach the position up to which the source was read. A comparison stops after it has
    found DIFFERENCES_MAX differing rows. If `every_key`, it then still looks for the keys of all other rows that differ, for a repair.
    """

    mode: Mode = "full"
    percent: float = 100.0
    settle_seconds: float = 300.0
    every_key: bool = False


@dataclasses.dataclass(frozen=True)
class Difference:
    """A row that differs: it is missing in the lake, surplus in the lake, doubled in the lake, or has other values (`kind`).

    - `key` has the key's values by column, as text.
    - `columns` has the name, the value in the source and the value in the lake of each column that differs, if both sides have exactly one
      row of the key.
    - `count` is the number of rows that the lake has for a doubled key. For a table without a key, it says how often the row is missing or
      surplus. In all other cases it is 1.
    """

    kind: Literal["missing", "surplus", "doubled", "value"]
    key: Mapping[str, str]
    chunk: str = ""
    columns: tuple[tuple[str, str, str], ...] = ()
    count: int = 1

    def __str__(self) -> str:
        where = ", ".join(f"{name}={value}" for name, value in self.key.items())
        times = f" {self.count} times" if self.count > 1 else ""
        match self.kind:
            case "missing":
                return f"{where}: missing in the lake{times}"
            case "surplus":
                return f"{where}: missing in the source{times}"
            case "doubled":
                return f"{where}: the lake has this row {self.count} times"
            case "value":
                pairs = (
                    f"{name} is {left} in the source and {right} in the lake" for name, left, right in self.columns
                )
                return f"{where}: {'; '.join(pairs)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkDifference:
    """A chunk with rows that differ, and the number of its rows on each side."""

    chunk: str
    source_rows: int
    lake_rows: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableResult:
    """The result of comparing one table.

    - `rows` and `lake_rows` are the numbers of rows in the compared chunks, in the source and in the lake.
    - `version` is the version of the Delta table that was read last.
    - `position` ("file:offset"), `gtid_set` and `server_uuid` are the source's position after its last rows were read.
    - At least `difference_count` rows differ. `differences` are the first of these rows.
    - `moving` is the number of rows that no read could compare, because they changed in the source between any two reads, and the lake
      merged each change.
    - `left_out` are the columns of source or lake that were not compared.
    """

    table: str
    verdict: Verdict
    reason: str = ""
    mode: Mode = "full"
    rows: int = 0
    lake_rows: int = 0
    chunks: int = 0
    chunks_compared: int = 0
    chunks_different: tuple[ChunkDifference, ...] = ()
    difference_count: int = 0
    differences: tuple[Difference, ...] = ()
    moving: int = 0
    left_out: tuple[str, ...] = ()
    version: int = -1
    server_uuid: str = ""
    position: str = ""
    gtid_set: str = ""
    checked_at_us: int = 0
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        return self.verdict is Verdict.EQUAL

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "sentences": [str(each) for each in self.differences]}


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one look found for one key. A look reads the rows of some keys from the source, waits until the lake has merged everything up to
    the position of this read, and then reads the rows from the lake.

    - `source` and `lake` are hashes of the key's rows in source and lake, or None if there is no row. For a table without a key, they say
      how often a row occurs in source and lake.
    - `order_key` is the order key of the lake's row, or -1 if the lake has none.
    - `doubled` is true if the lake has several rows of the key.
    """

    source: int | None
    lake: int | None
    order_key: int = -1
    doubled: bool = False


def proven(before: Mapping[Any, Seen], now: Mapping[Any, Seen]) -> set[Any]:
    """Returns the keys that two looks, `before` and `now`, prove to differ. A look reads the rows of some keys from the source, waits until
    merges have reached the position of this read, and reads the rows from the lake.

    If the lake has several rows for a key, this is a proof by itself, because no order of merges produces them. Any other key is proven in
    two cases:

    - Neither the source's row nor the lake's row changed between the looks.
    - The lake's row did not change between the looks (same values, same order key). At the second look, the lake had merged everything up
      to a position after the second read of the source. So the row did not change in the source between the looks either, and the second
      read of the source should have found the values of the lake's row.
    """
    return {
        key
        for key, seen in now.items()
        if seen.doubled
        or (seen.source != seen.lake and (before.get(key) == seen or _lake_stood_still(before.get(key), seen)))
    }


def _lake_stood_still(before: Seen | None, now: Seen) -> bool:
    """Returns whether the lake's row did not change between two looks at it, `before` and `now`. Returns False if the lake has no row at
    the look `now`, because the row may have been inserted and deleted between the looks. Also returns False if `before` is None.
    """
    return before is not None and now.order_key >= 0 and (before.lake, before.order_key) == (now.lake, now.order_key)


def undecided(now: Mapping[Any, Seen], sure: Iterable[Any]) -> set[Any]:
    """Returns the keys whose rows in source and lake differ, but are not proven to differ: their changes may not be merged yet. `now` is
    what was read last for each key. `sure` are the keys that are proven to differ.
    """
    known = set(sure)
    return {key for key, seen in now.items() if (seen.doubled or seen.source != seen.lake) and key not in known}


def steady(
    before: Mapping[str, tuple[Any, Any]] | None, source: Sequence[Any], lake: Sequence[Any], names: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """Returns the columns of a row that differ, and that had the same two values at all looks so far. A look reads the row from the source
    (`source`) and from the lake (`lake`). The result maps a column to (value in the source, value in the lake). `before` is the result for
    the previous look, or None at the first look.
    """
    pairs = zip(names, source, lake, strict=True)
    return {
        name: (left, right)
        for name, left, right in pairs
        if left != right and (before is None or before.get(name) == (left, right))
    }


def verdict_of(different: int, open_keys: int) -> Verdict:
    """Returns the verdict from the number of rows that are proven to differ, and the number of undecided keys."""
    if different:
        return Verdict.DIFFERENT
    return Verdict.UNDECIDED if open_keys else Verdict.EQUAL
