"""Handles shards: source tables that share one Delta table, in which a column names the shard of each row. Pure functions, which merges and
publications use.

Statements that empty or replace a table are restricted to the rows of one shard. Each shard has its own owner, in a table property with the
shard's name. A table has either one owner, or shards with one owner each. If several destinations write the table, a property also has the
location of the table's locks.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from sluice.batch_manifest.values import (
    AlterationKind,
    ChangesSegment,
    LakeColumn,
    SchemaSegment,
    StagedTable,
    TruncateSegment,
)
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.table_owner import OWNER_PROPERTY, Owner, take_it_over
from sluice.spark_jobs.targets.casting import widens

COLUMN_PROPERTY = "sluice.shardColumn"
# A table property with the id of the installation whose table lock protects the table.
LOCKS_PROPERTY = "sluice.shardLocks"
DDL_UNSUPPORTED = "DDL_UNSUPPORTED"
# For each kind of alteration, the plans that leave the columns of other shards unchanged.
FOLLOWED = {
    AlterationKind.ADD: ("apply",),
    AlterationKind.DROP: ("keep",),
    AlterationKind.WIDEN: ("apply",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard of a Delta table. In each row, the column `column` has the shard's `name`. `locks` is where writers take the table's lock,
    and is empty for readers.
    """

    column: str
    name: str
    locks: str = ""

    @property
    def condition(self) -> str:
        """The SQL condition that selects the rows of the shard."""
        return f"{sql_text.identifier(self.column)} = {sql_text.text(self.name)}"

    @property
    def owner_property(self) -> str:
        return f"{OWNER_PROPERTY}:{self.name}"

    @property
    def dropped_property(self) -> str:
        """The table property that lists all columns that were ever dropped in this shard."""
        return f"sluice.droppedColumns:{self.name}"


def owner_property(shard: Shard | None) -> str:
    return OWNER_PROPERTY if shard is None else shard.owner_property


def where(shard: Shard | None, *, after: str = "WHERE") -> str:
    """Returns the keyword `after` and the condition that selects the shard's rows. Returns "" if the table has no shards."""
    return "" if shard is None else f" {after} {shard.condition}"


def owners(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the owner of each shard, as text, by the shard's name."""
    begin = f"{OWNER_PROPERTY}:"
    return {name.removeprefix(begin): value for name, value in properties.items() if name.startswith(begin)}


def mismatch(shard: Shard | None, properties: Mapping[str, str], path: str, owner: str) -> str:
    """Returns why the shard must not be written to the Delta table at `path`, and what to do: the rows are not divided into shards as
    conf/ says, or runs of other destinations use other table locks. Returns "" if the shard may be written. `owner` is the expected owner
    as text (`Owner.to_text`).
    """
    return undivided(shard, properties, path, owner) or _other_locks(shard, properties, path, owner)


def undivided(shard: Shard | None, properties: Mapping[str, str], path: str, owner: str) -> str:
    """Returns why the rows of the Delta table at `path` are not divided into shards as conf/ says, and what to do. Returns "" if they are.
    `sluice lake accept` cannot resolve this, because another owner in the properties leaves the rows as they are.
    """
    return next(_differences(shard, properties, path, owner), "")


def _differences(shard: Shard | None, properties: Mapping[str, str], path: str, owner: str) -> Iterator[str]:
    there, column = owners(properties), properties.get(COLUMN_PROPERTY, "")
    apart = "Give this table another path in conf/"
    if shard is None:
        if there:
            yield (
                f"the Delta table {path} has rows of {len(there)} shards, and this table is not one of these "
                f"shards. {apart}"
            )
        return
    if OWNER_PROPERTY in properties:
        yield (
            f"the Delta table {path} belongs to one source table, and no column of the Delta table names the "
            "shard of a row. Set another `into` in conf/; or move the table's folder away, and run `sluice lake accept` for each shard"
        )
    if column and column != shard.column:
        yield (
            f"the Delta table {path} has the names of shards in {column}, and conf/ has {shard.column}. Set "
            f"{column} as the column in conf/"
        )
    if others := sorted(name for name, whose in there.items() if whose == owner and name != shard.name):
        # `not_distinguished` refuses an empty name.
        restore = f"Restore the name {others[0]!r}, or set" if others[0] else "Set"
        yield (
            f"the Delta table {path} has rows of this table under the shard {others[0]!r}, and conf/ now "
            f"calls this shard {shard.name!r}. {restore} another `into` in conf/, so that Sluice creates a new Delta table"
        )


def _other_locks(shard: Shard | None, properties: Mapping[str, str], path: str, owner: str) -> str:
    """Returns a sentence if other destinations write the Delta table and their runs use other table locks, otherwise ""."""
    there, claimant, kept = owners(properties), Owner.from_text(owner), properties.get(LOCKS_PROPERTY, "")
    elsewhere = sorted(name for name, whose in there.items() if not _same_runs(Owner.from_text(whose), claimant))
    if shard and elsewhere and shard.locks and kept and kept != shard.locks:
        theirs = Owner.from_text(there[elsewhere[0]]).destination
        return (
            f"the Delta table {path} has rows of the destination {theirs} (shard {elsewhere[0]!r}), whose "
            f"runs use the locks at {kept}; the runs of {claimant.destination} use the locks at {shard.locks}, so "
            "runs of both destinations could write at the same time. Keep both destinations in one conf/, or "
            "let them share `meta` and the folder of the engines; or give this destination another `into` in "
            f"conf/; or, if all these destinations have moved, {take_it_over(claimant)}"
        )
    return ""


def _same_runs(one: Owner, other: Owner) -> bool:
    """Returns whether both owners have the same destination and ledger. If so, their run lock already prevents both from writing at the
    same time.
    """
    return (one.destination, one.ledger_id) == (other.destination, other.ledger_id)


def new_properties(shard: Shard | None, owner: str) -> dict[str, str]:
    """Returns the properties of a new table or shard: its owner and, for a shard, also the shard column and the id of the table's locks."""
    if shard is None:
        return {OWNER_PROPERTY: owner}
    locks = {LOCKS_PROPERTY: shard.locks} if shard.locks else {}
    return {shard.owner_property: owner, COLUMN_PROPERTY: shard.column, **locks}


def refuse_unmarked(staged: StagedTable, shard: Shard | None) -> None:
    """Raises TableError if changes were staged without the name of their shard. The rows of such changes could not be distinguished from
    rows of other shards.
    """
    if shard is None:
        return
    for segment in staged.segments:
        if isinstance(segment, TruncateSegment):
            continue
        has = shard.column in {column.name for column in segment.columns}
        if not has or (segment.key and shard.column not in segment.key):
            why = (
                f"changes of the table were staged before conf/ made the table the shard {shard.name!r}; run "
                "`sluice schema resume` when the table has stopped, so that Sluice reads and stages the changes again"
            )
            raise TableError(staged.name, why)


def way_to_one_type(shard: Shard | None, there: str, wanted: str) -> str:
    """Returns what to do if a column of the Delta table has the type `there`, and the source's column has the type `wanted`. For a shard,
    the advice keeps the rows of the other shards. The text continues a sentence.
    """
    if shard is None:
        return "; change the type in the Delta table, or move the Delta table away and re-snapshot it with `sluice snapshot start`"
    elsewhere = "or set another `into` in conf/ for this shard"
    if widens(there, wanted):
        return (
            f". Widen the column to {wanted} in the Delta table (type widening). Then a snapshot of this shard continues by itself; if the "
            f"shard has stopped, resume it with `sluice schema resume`; {elsewhere}"
        )
    return (
        ", which other shards write too. Give the column one type in all shards of the source, then re-snapshot this shard with "
        f"`sluice snapshot start`; {elsewhere}"
    )


# ── DDL statements that alter a shard ──


def dropped(shard: Shard, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Returns all columns that were ever dropped in the shard, in lower case."""
    return tuple(json.loads(properties.get(shard.dropped_property, "[]")))


def dropped_after(shard: Shard, properties: Mapping[str, str], segment: SchemaSegment) -> tuple[str, ...]:
    """Returns all columns that were ever dropped in the shard, including those that the DDL statement drops. A column that the shard gets
    again stays in this list; `left_columns` leaves it out.
    """
    gone = [each.column.lower() for each in segment.alterations if each.kind is AlterationKind.DROP]
    return tuple(dict.fromkeys([*dropped(shard, properties), *gone]))


def left_columns(shard: Shard, properties: Mapping[str, str], segment: ChangesSegment) -> tuple[str, ...]:
    """Returns the columns that this shard no longer has but other shards may still have. When rows of this shard are written, these columns
    get NULL.
    """
    staged = {column.name.lower() for column in segment.columns}
    return tuple(name for name in dropped(shard, properties) if name not in staged)


def back_again(shard: Shard, properties: Mapping[str, str], segment: SchemaSegment) -> tuple[LakeColumn, ...]:
    """Returns the columns that a DDL statement adds and that the shard had earlier. The shard's rows still have the earlier values in these
    columns, and the caller replaces these values by NULL.
    """
    had = dropped(shard, properties)
    added = {each.column.lower() for each in segment.alterations if each.kind is AlterationKind.ADD}
    return tuple(column for column in segment.columns if column.name.lower() in added and column.name.lower() in had)


def refuse_alterations(name: str, segment: SchemaSegment) -> None:
    """Raises TableError if the source table of a shard was renamed, or if an alteration would change columns of other shards. The schema
    policies of a shard already exclude such an alteration, so this is a second check.
    """
    if segment.renamed_from:
        why = (
            f"the table was renamed from {segment.renamed_from}, and Sluice does not move rows of a shard; "
            "re-snapshot the table with `sluice snapshot start`"
        )
        raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)
    for each in segment.alterations:
        if each.plan not in FOLLOWED.get(each.kind, ()):
            why = (
                f"a statement on this shard would {each.kind} the column {each.column} of the Delta table (plan: {each.plan}), "
                "which would change the other shards in this table too: give all shards the same columns in the source, and set "
                "another path in conf/, so that Sluice creates a new Delta table"
            )
            raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)


def widened(segment: SchemaSegment, there: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns the name and new type of each column to widen. Leaves out columns that another shard has already widened."""
    widening = {each.column.lower() for each in segment.alterations if each.kind is AlterationKind.WIDEN}
    found = ((column, there.get(column.name.lower(), ("", ""))) for column in segment.columns)
    return tuple(
        (name, column.type)
        for column, (name, now) in found
        if column.name.lower() in widening and widens(now, column.type)
    )


def holds(shard: Shard | None, wide: str, narrow: str) -> bool:
    """Returns whether the table can store the values of a shard although the types differ: the table's column has the type `wide`, and the
    shard's column still has the type `narrow`.
    """
    return shard is not None and widens(narrow, wide)
