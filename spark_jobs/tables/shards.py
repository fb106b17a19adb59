"""A shard: a source table whose rows are some of those of a Delta table, told apart by a column. Pure; merges and publications ask.

What empties or replaces a table is confined to the rows of the shard. Each shard has an owner of its own, in a property of the table that
has the shard's name; a table has shards, or it has one owner. Shards of several destinations say there too where their runs take turns.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from spark_jobs import sql_text
from spark_jobs.errors import TableError
from spark_jobs.staged_batch import ChangesSegment, Column, SchemaSegment, StagedTable, TruncateSegment
from spark_jobs.tables.casting import widens
from spark_jobs.tables.table_owner import OWNER_PROPERTY, Owner

COLUMN_PROPERTY = "sluice.shardColumn"
LOCKS_PROPERTY = "sluice.shardLocks"  # where those who write the table take turns
DDL_UNSUPPORTED = "DDL_UNSUPPORTED"
# kind of alteration → plans that leave other shards alone
FOLLOWED = {
    "add": ("apply",),
    "drop": ("keep",),
    "widen": ("apply",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """`column`: that has the shard's `name` in its rows. `locks`: where who writes the table takes turns; empty for who only reads it."""

    column: str
    name: str
    locks: str = ""

    @property
    def condition(self) -> str:
        """SQL's, of its rows."""
        return f"{sql_text.identifier(self.column)} = {sql_text.text(self.name)}"

    @property
    def owner_property(self) -> str:
        return f"{OWNER_PROPERTY}:{self.name}"

    @property
    def dropped_property(self) -> str:
        """Has the columns that left this shard at any time."""
        return f"sluice.droppedColumns:{self.name}"


def owner_property(shard: Shard | None) -> str:
    return OWNER_PROPERTY if shard is None else shard.owner_property


def where(shard: Shard | None, *, after: str = "WHERE") -> str:
    """The condition with a word before it, for the end of a statement; empty where the table is one source table's."""
    return "" if shard is None else f" {after} {shard.condition}"


def owners(properties: Mapping[str, str]) -> dict[str, str]:
    """Name of a shard → its owner, as a text."""
    begin = f"{OWNER_PROPERTY}:"
    return {name.removeprefix(begin): value for name, value in properties.items() if name.startswith(begin)}


def mismatch(shard: Shard | None, properties: Mapping[str, str], path: str, owner: str) -> str:
    """Why the rows of a table are not told apart as conf/ says; empty where they are. `owner`: who asks, as a text."""
    return next(_mismatches(shard, properties, path, owner), "")


def _mismatches(shard: Shard | None, properties: Mapping[str, str], path: str, owner: str) -> Iterator[str]:
    there, column = owners(properties), properties.get(COLUMN_PROPERTY, "")
    apart = "Give this one another path in conf/"
    if shard is None:
        if there:
            yield f"the Delta table {path} has rows of {len(there)} shards, and this table is none of them. {apart}"
        return
    if OWNER_PROPERTY in properties:
        yield f"the Delta table {path} belongs to one source table, and its rows do not tell shards apart. {apart}"
    if column and column != shard.column:
        yield f"the Delta table {path} has the names of shards in {column}, and conf/ says {shard.column}. Say {column} there"
    asks, kept = Owner.from_text(owner), properties.get(LOCKS_PROPERTY, "")
    elsewhere = sorted(name for name, whose in there.items() if not _same_runs(Owner.from_text(whose), asks))
    if elsewhere and shard.locks and kept and kept != shard.locks:
        theirs = Owner.from_text(there[elsewhere[0]]).destination
        yield (
            f"the Delta table {path} has rows of the destination {theirs} (shard {elsewhere[0]!r}), whose runs take turns at the locks "
            f"{kept}; those of {asks.destination} take theirs at {shard.locks}, so both would write at once. Keep both in one conf/, or "
            "with one `meta` and one folder of engines; else give this one another `into` in conf/"
        )
    if others := sorted(name for name, whose in there.items() if whose == owner and name != shard.name):
        yield (
            f"the Delta table {path} has rows of this table under the shard {others[0]!r}, and conf/ calls it {shard.name!r} now. "
            f"Call it {others[0]!r} again, or have the Delta table made anew under another path"
        )


def _same_runs(one: Owner, other: Owner) -> bool:
    """Whether one run at a time writes for both: those of a destination have its run lock."""
    return (one.destination, one.ledger_id) == (other.destination, other.ledger_id)


def new_properties(shard: Shard | None, owner: str) -> dict[str, str]:
    """What says whose a table is, or some of its rows."""
    if shard is None:
        return {OWNER_PROPERTY: owner}
    locks = {LOCKS_PROPERTY: shard.locks} if shard.locks else {}
    return {shard.owner_property: owner, COLUMN_PROPERTY: shard.column, **locks}


def refuse_unmarked(staged: StagedTable, shard: Shard | None) -> None:
    """Raises TableError where rows were staged without the name of their shard: they would be taken for those of others."""
    if shard is None:
        return
    for segment in staged.segments:
        if isinstance(segment, TruncateSegment):
            continue
        has = shard.column in {column.name for column in segment.columns}
        if not has or (segment.key and shard.column not in segment.key):
            why = f"its changes were staged before conf/ made it the shard {shard.name!r}; roll the batch back to have them staged again"
            raise TableError(staged.name, why)


# ── statements that alter a shard ──


def dropped(shard: Shard, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Columns that left the shard at some time, in lower case."""
    return tuple(json.loads(properties.get(shard.dropped_property, "[]")))


def dropped_after(shard: Shard, properties: Mapping[str, str], segment: SchemaSegment) -> tuple[str, ...]:
    """The same after a statement. They are never forgotten: one that comes back is not among those that a row lacks."""
    gone = [each.column.lower() for each in segment.alterations if each.kind == "drop"]
    return tuple(dict.fromkeys([*dropped(shard, properties), *gone]))


def left_columns(shard: Shard, properties: Mapping[str, str], segment: ChangesSegment) -> tuple[str, ...]:
    """Columns that the shard has no more, and others may have: a row of it that is written has NULL there."""
    staged = {column.name.lower() for column in segment.columns}
    return tuple(name for name in dropped(shard, properties) if name not in staged)


def back_again(shard: Shard, properties: Mapping[str, str], segment: SchemaSegment) -> tuple[Column, ...]:
    """Columns of a statement that the shard had before and gets anew: its rows are not to have their old values."""
    had = dropped(shard, properties)
    added = {each.column.lower() for each in segment.alterations if each.kind == "add"}
    return tuple(column for column in segment.columns if column.name.lower() in added and column.name.lower() in had)


def refuse_alterations(name: str, segment: SchemaSegment) -> None:
    """Raises TableError at what one shard may not do to columns that all have; conf/ lets no such thing come as far as here."""
    if segment.renamed_from:
        why = f"the table was {segment.renamed_from} before, and rows of a shard are not moved; take them anew with `sluice snapshot start`"
        raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)
    for each in segment.alterations:
        if each.plan not in FOLLOWED.get(each.kind, ()):
            why = (
                f"a statement is to {each.kind} its column {each.column} ({each.plan}), which the other shards of its Delta table have "
                "too: let all shards have the same columns, and have the Delta table made anew under another path"
            )
            raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)


def widened(segment: SchemaSegment, there: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """(column, type) that the table's columns are to get: a shard that comes later finds it done."""
    asked = {each.column.lower() for each in segment.alterations if each.kind == "widen"}
    found = ((column, there.get(column.name.lower(), ("", ""))) for column in segment.columns)
    return tuple(
        (name, column.type)
        for column, (name, now) in found
        if column.name.lower() in asked and widens(now, column.type)
    )


def holds(shard: Shard | None, wide: str, narrow: str) -> bool:
    """Whether a column of a table takes the values of a shard that is narrower yet."""
    return shard is not None and widens(narrow, wide)
