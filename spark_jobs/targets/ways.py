"""Decides who merges a table's part of a batch: Spark with a MERGE, or `deltalake` in a task. Pure functions, which `small.merge` uses.
`run_batch` (`_may_be_small`) calls `small.merge` only for tables whose changes do not exceed the limits below.

A MERGE by Spark takes almost a second of CPU time, even for few rows. `deltalake` takes hundredths of a second, but it reads and writes
whole files in one task, and does not support all features of Delta. So `deltalake` merges small tables without special features, and Spark
merges the others.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Literal

from sluice.batch_manifest.table_report import Way
from sluice.batch_manifest.values import ChangesSegment, Segment, TruncateSegment

SmallSetting = Literal["auto", "spark", "small"]
# The limit for a small merge: the changes, and the files that may contain their keys, have at most this many rows in total. One task reads
# and rewrites these rows. Above the limit, Spark merges the table.
ROWS_MAX = 100_000
BYTES_MAX = 64 << 20  # The same limit in bytes, for the changes and the files that may contain their keys.
# A table may be merged by deltalake only if all its features are in this set. deltalake adds `variantType` by itself when it changes a
# property. No source has columns of this type.
FEATURES = frozenset({"appendOnly", "invariants", "deletionVectors", "columnMapping", "timestampNtz", "variantType"})
# deltalake may write Delta tables with these writer versions: 2 for tables without named features, and 7 for tables whose features are all
# in FEATURES.
PLAIN_WRITER, FEATURED_WRITER = 2, 7
MAPPINGS = frozenset({"none", "name"})
# Spark merges tables with a key column of these types, because only Spark treats 0.0 and -0.0 as the same key.
UNSAFE_KEYS = frozenset({"float", "double"})
CONFIGURED = "`merge` in conf/ selects this"
PLAIN_TYPES = frozenset(
    {
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "boolean",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    }
)
PLAIN_NAME = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeChoice:
    """Whether Spark or `deltalake` merges (`way`), and a short reason that the page of the run shows."""

    way: Way
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeFacts:
    """The facts that decide whether Spark or `deltalake` merges a table.

    - `rows` and `bytes` are the size of the changes and of the files that may contain their keys.
    - `alters` tells whether columns or properties of the Delta table must change before rows are merged.
    - `makes` tells whether the task can create a missing table.
    - `mapping` is the mode of Delta's column mapping.
    - `rounded` tells whether files may have bounds that deltalake rounded.
    - `columns` are pairs of name and Spark SQL type.
    - `ruled` are columns with a constraint or a generated value.
    """

    exists: bool
    makes: bool = True
    ruled: tuple[str, ...] = ()
    writer_version: int
    features: frozenset[str]
    partitioned: bool
    mapping: str
    rounded: bool = False
    alters: bool
    columns: tuple[tuple[str, str], ...]
    segments: tuple[Segment, ...]
    rows: int
    bytes: int


def choose(setting: SmallSetting, facts: MergeFacts) -> MergeChoice:
    """Decides whether Spark or `deltalake` merges. With the setting "small", `deltalake` merges tables of any size if it can write them."""
    if setting == "spark":
        return MergeChoice(way="spark", reason=CONFIGURED)
    if why := next(_obstacles(facts), ""):
        return MergeChoice(way="spark", reason=why)
    if setting == "small":
        return MergeChoice(way="small", reason=CONFIGURED)
    if facts.rows > ROWS_MAX or facts.bytes > BYTES_MAX:
        size = f"{facts.rows:,} rows and {facts.bytes >> 20} MiB"
        return MergeChoice(way="spark", reason=f"the changes and the files that may contain their keys have {size}")
    return MergeChoice(
        way="small", reason=f"the changes and the files that may contain their keys have {facts.rows:,} rows"
    )


def _obstacles(facts: MergeFacts) -> Iterator[str]:
    """Yields the reasons why `deltalake` cannot merge the table. The caller reports only the first one."""
    if not facts.exists and not facts.makes:
        yield (
            "the table is new, and only Spark can create it: conf/ defines its layout, the Spark session has default "
            "properties for new tables, or the lake is not in a folder"
        )
    if facts.alters:
        yield "columns or properties of the table change"
    if facts.writer_version > PLAIN_WRITER and facts.writer_version != FEATURED_WRITER:
        yield f"the table has writer version {facts.writer_version} of Delta"
    if others := sorted(facts.features - FEATURES):
        yield f"the table has features for which Sluice does not use deltalake: {', '.join(others)}"
    if facts.mapping not in MAPPINGS:
        yield f"the table's columns are mapped by {facts.mapping}"
    if facts.rounded:
        yield "the minimum and maximum of the table's files may be rounded, which Spark corrects first"
    if facts.partitioned:
        yield "the table is partitioned"
    yield from _obstacles_in_columns(facts)
    for segment in facts.segments:
        yield from _obstacles_in(segment)


def _obstacles_in_columns(facts: MergeFacts) -> Iterator[str]:
    if facts.ruled:
        yield f"column {facts.ruled[0]} has a constraint or is a generated column"
    for name, type_name in facts.columns:
        if not PLAIN_NAME.fullmatch(name):
            yield f"the name of column {name!r} has characters other than letters, digits and underscores"
        if type_name not in PLAIN_TYPES and not type_name.startswith("decimal("):
            yield f"column {name} is a {type_name}"


def _obstacles_in(segment: Segment) -> Iterator[str]:
    if isinstance(segment, TruncateSegment):
        yield "the table is truncated"
    elif not isinstance(segment, ChangesSegment):
        if segment.alterations or segment.fills or segment.renamed_from:
            yield "a statement altered the table, or gave it another name"
    else:
        for column in segment.columns:
            if column.name in segment.key and column.nullable:
                yield f"the key column {column.name} may be NULL"
            if column.name in segment.key and column.type in UNSAFE_KEYS:
                yield f"the key column {column.name} is a {column.type}"
