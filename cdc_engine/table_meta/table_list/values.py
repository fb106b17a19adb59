"""Defines the list of the captured tables of a destination: each table with its columns, their types in the lake, comments, and the
foreign keys that change its rows without row events.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.contracts import TableVersion

# "database.table" → the comments of its columns by column, with the table's own comment under "".
Comments = Mapping[str, Mapping[str, str]]
# "database.table" → the types of its columns in the lake, in the order of the columns. A setting of the table may change the type that a
# column has in the lake.
Types = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedTable:
    """A table in the list of a destination: a captured table, or a table whose rows foreign keys change. `name` is its "database.table".

    - `version`: None if the table is not captured, but foreign keys change its rows.
    - `types`: the types of the columns in the lake, or empty if the lake has no type for one of the columns.
    - `cascades`: the foreign keys whose child table is this table, and that change its rows without row events.
    """

    name: str
    version: TableVersion | None = None
    types: tuple[str, ...] = ()
    comments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cascades: tuple[Cascade, ...] = ()


@dataclasses.dataclass(frozen=True)
class TableList:
    """The list of a destination's captured tables. `by_name` has the tables by "database.table", in sorted order."""

    by_name: Mapping[str, ListedTable] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def tables(self) -> tuple[TableVersion, ...]:
        """The captured tables, sorted by name."""
        return tuple(each.version for each in self.by_name.values() if each.version is not None)

    @functools.cached_property
    def versions(self) -> Mapping[str, TableVersion]:
        """The captured tables by "database.table"."""
        return {table.name: table for table in self.tables}

    @functools.cached_property
    def cascades(self) -> tuple[Cascade, ...]:
        """The foreign keys that change rows without row events, sorted by child."""
        return tuple(cascade for each in self.by_name.values() for cascade in each.cascades)

    @functools.cached_property
    def comments(self) -> Comments:
        """The comments of tables and columns in the source, by table."""
        return {each.name: each.comments for each in self.by_name.values() if each.comments}


def list_of(listed: Iterable[ListedTable]) -> TableList:
    """Returns a TableList of the tables, sorted by name."""
    return TableList({each.name: each for each in sorted(listed, key=lambda each: each.name)})


def listed_tables(
    tables: Iterable[TableVersion], cascades: Iterable[Cascade], comments: Comments, types: Types
) -> dict[str, ListedTable]:
    """Returns the tables of a list by name. Each table has its own version, cascades, comments and types from the arguments."""
    versions = {table.name: table for table in tables}
    below = defaultdict[str, list[Cascade]](list)
    for cascade in cascades:
        below[cascade.child_name].append(cascade)
    return {
        name: ListedTable(
            name=name,
            version=versions.get(name),
            types=tuple(types.get(name, ())),
            comments=comments.get(name, {}),
            cascades=tuple(sorted(below.get(name, ()), key=lambda each: (each.parent, each.name))),
        )
        for name in {*versions, *below, *comments}
    }
