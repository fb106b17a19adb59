"""What a comparison is asked and what it answers; and the rule by which a difference counts as proven. Pure values.

A table's verdict: EQUAL; DIFFERENT, proven; UNDECIDED, what differs could not be told from what is still on its way; REFUSED, it cannot
be compared, and the reason says why.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Mode = Literal["full", "sample", "since-last"]
DIFFERENCES_MAX = 1_000  # keys of a table that are looked into; what differs beyond is told by its chunk
SHOWN_MAX = 10


class Verdict(enum.StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """What is compared: all, `percent` of the chunks, or the chunks whose rows in the lake changed since the last time.

    `settle_seconds`: how long the merges may take to reach what was read from the source. `every_key`: all keys that differ are wanted,
    for a repair, and not only as many as are looked into.
    """

    mode: Mode = "full"
    percent: float = 100.0
    settle_seconds: float = 300.0
    every_key: bool = False


@dataclasses.dataclass(frozen=True)
class Difference:
    """One row that differs. `kind`: missing (in the lake), surplus (in the lake), doubled, or value. `key`: column → value as text.

    `columns`: (name, in the source, in the lake) of a row whose key both sides have. `count`: of equal rows without a key.
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
                return f"{where}: the source does not have it{times}"
            case "doubled":
                return f"{where}: the lake has it {self.count} times"
            case "value":
                pairs = (
                    f"{name} is {left} in the source and {right} in the lake" for name, left, right in self.columns
                )
                return f"{where}: {'; '.join(pairs)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkDifference:
    """A chunk in which rows differ, and how many rows each side counted in it."""

    chunk: str
    source_rows: int
    lake_rows: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableResult:
    """What one comparison of one table found. `rows`: of the source, in the chunks compared. `version`: Delta's at the last look.

    `position` ("file:offset"), `gtid_set`, `server_uuid`: where the source stood after its last rows were read.
    `difference_count`: rows that differ, at least; `differences`: the first of them. `moving`: rows that changed at each look, while the
    lake followed. `left_out`: columns of either side that were not compared.
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
    """One key in one round: fingerprints of its rows, None where a side has none. The lake was read after it had reached the source's.

    `order_key`: of the lake's row, -1 where there is none. `doubled`: the lake has several rows under the key.
    """

    source: int | None
    lake: int | None
    order_key: int = -1
    doubled: bool = False


def proven(before: Mapping[Any, Seen], now: Mapping[Any, Seen]) -> set[Any]:
    """Returns the keys that are proven to differ.

    Several rows of the lake under one key are proof by themselves: no order of merges makes them.
    For other keys `now` was read after `before`, and in each round the lake had merged all up to the place at which the source was
    read. Two cases are proof: neither side changed between the rounds; or the row in the lake did not (same values, same order key). The
    latter had no change up to a place after the source's second read, so this read must have found its values.
    """
    return {
        key
        for key, seen in now.items()
        if seen.doubled
        or (seen.source != seen.lake and (before.get(key) == seen or _lake_stood_still(before.get(key), seen)))
    }


def _lake_stood_still(before: Seen | None, now: Seen) -> bool:
    """A row that is absent has no order key: it may have come and gone between the rounds."""
    return before is not None and now.order_key >= 0 and (before.lake, before.order_key) == (now.lake, now.order_key)


def undecided(now: Mapping[Any, Seen], sure: Iterable[Any]) -> set[Any]:
    """The keys that differ and may still be on their way."""
    known = set(sure)
    return {key for key, seen in now.items() if (seen.doubled or seen.source != seen.lake) and key not in known}


def steady(
    before: Mapping[str, tuple[Any, Any]] | None, source: Sequence[Any], lake: Sequence[Any], names: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """The columns of one row that differ, with the same two values as in all rounds `before` (None: this is the first)."""
    pairs = zip(names, source, lake, strict=True)
    return {
        name: (left, right)
        for name, left, right in pairs
        if left != right and (before is None or before.get(name) == (left, right))
    }


def verdict_of(different: int, open_keys: int) -> Verdict:
    """`different`: rows that are proven to differ; `open_keys`: those of which it could not be told."""
    if different:
        return Verdict.DIFFERENT
    return Verdict.UNDECIDED if open_keys else Verdict.EQUAL
