"""Finds the tables in which foreign keys delete or change rows when rows of another table change. The binlog has no row events for these
changes of child tables.

InnoDB executes ON DELETE and ON UPDATE inside the storage engine, so the binlog has row events only for the change of the parent table.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN
from sluice.cdc_engine.table_meta.ddl.reader import defect_text
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable, TableKey
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, ForeignKey, TableSchema

Captured = Callable[[str, str], bool]
_DATES = frozenset({"date", "datetime", "timestamp"})


class Cascades:
    """All foreign keys that can change rows without row events, at one position of the stream."""

    def __init__(self, tables: Iterable[TableSchema], captured: Captured) -> None:
        known = {(table.database, table.table): table for table in tables}
        self._by_parent: dict[TableKey, list[Cascade]] = defaultdict(list)
        for table in known.values():
            for key in table.foreign_keys:
                if key.on_delete or key.on_update or key.doubt:
                    self._by_parent[key.parent].append(_followed(key, table, known, captured))
        self._reaching = self._find_reaching()
        self.children = {each.child for cascades in self._by_parent.values() for each in cascades}

    def depend_on(self, name: TableKey, state: KnownTable) -> bool:
        """Returns whether the cascades depend on a table: whether the table is the parent or the child of a cascade, or has foreign keys
        in `state`, its new state in the schema history.
        """
        schema = state if isinstance(state, TableSchema) else getattr(state, "schema", None)
        return name in self._by_parent or name in self.children or bool(schema and schema.foreign_keys)

    def below(self, name: TableKey) -> tuple[Cascade, ...]:
        """Returns the cascades that a change of the table's rows can trigger: first the cascades with this table as parent, then the
        cascades with their child tables as parents, and so on. Leaves out cascades through which no captured table is reached.
        """
        found: list[Cascade] = []
        seen, waiting = {name}, [name]
        while waiting:
            for cascade in self._by_parent.get(waiting.pop(0), ()):
                if cascade.captured or cascade.child in self._reaching:
                    found.append(cascade)
                    if cascade.child not in seen:
                        seen.add(cascade.child)
                        waiting.append(cascade.child)
        return tuple(found)

    @functools.cached_property
    def all(self) -> tuple[Cascade, ...]:
        """All cascades that lead to a captured table, directly or through other tables."""
        every = (each for cascades in self._by_parent.values() for each in cascades)
        return tuple(each for each in every if each.captured or each.child in self._reaching)

    def _find_reaching(self) -> set[TableKey]:
        """Returns the tables whose cascades lead to a captured table, directly or through other tables."""
        parents = defaultdict(list)
        for cascades in self._by_parent.values():
            for each in cascades:
                parents[each.child].append(each.parent)
        waiting = [each.child for cascades in self._by_parent.values() for each in cascades if each.captured]
        reaching: set[TableKey] = set()
        while waiting:
            for parent in parents[waiting.pop()]:
                if parent not in reaching:
                    reaching.add(parent)
                    waiting.append(parent)
        return reaching


def _followed(
    key: ForeignKey, table: TableSchema, known: Mapping[TableKey, TableSchema], captured: Captured
) -> Cascade:
    """Returns the cascade of a foreign key. After an unexpected error, the cascade has a `doubt`, so that changes of the parent are not
    applied to the child.
    """
    try:
        return _cascade(key, table, known, captured)
    except Exception as error:
        return Cascade(
            name=key.name,
            parent=key.parent,
            child=(table.database, table.table),
            columns=key.columns,
            referenced=key.referenced,
            on_delete=key.on_delete,
            on_update=key.on_update,
            doubt=f"Sluice cannot follow the foreign key: {defect_text(error)}",
            unlike=True,
            captured=captured(table.database, table.table),
            key=table.key,
        )


def _cascade(key: ForeignKey, table: TableSchema, known: Mapping[TableKey, TableSchema], captured: Captured) -> Cascade:
    parent = known.get(key.parent)
    referenced = key.referenced or (parent.key if parent else ())
    unlike = _unlike(table, key.columns, parent, referenced)
    return Cascade(
        name=key.name,
        parent=key.parent,
        child=(table.database, table.table),
        columns=key.columns,
        referenced=referenced,
        on_delete=key.on_delete,
        on_update=key.on_update,
        doubt=unlike or key.doubt,
        unlike=bool(unlike),
        captured=captured(table.database, table.table),
        key=table.key,
        generated=any(column.generated and column.generated not in HIDDEN for column in table.columns),
        dated=any(_base(column) in _DATES for column in _named(table, key.columns)),
    )


def _unlike(child: TableSchema, columns: Sequence[str], parent: TableSchema | None, referenced: Sequence[str]) -> str:
    """Returns a sentence if values of a foreign key's `columns` in the lake cannot be compared with values of the `referenced` columns of
    the parent, otherwise "". Returns "" if the parent's schema is unknown.

    For ENUMs, the server compares the numbers of the labels, but the lake has the labels. If the foreign key makes the server copy a value
    from a char to a varchar, the server copies the padding blanks too, which the lake does not have.
    """
    if parent is None:
        return ""
    for ours, theirs in zip(_named(child, columns), _named(parent, referenced), strict=False):
        if any(one != other for one, other in zip(ours.column().labels, theirs.column().labels, strict=False)):
            return (
                f"column {ours.name} has other labels than the referenced column {theirs.name}, and the "
                "server compares the numbers of labels"
            )
        if {_base(ours), _base(theirs)} == {"char", "varchar"}:
            return (
                f"of column {ours.name} and the referenced column {theirs.name}, one is a char and one a "
                "varchar, which treat trailing blanks differently"
            )
    return ""


def _named(table: TableSchema, names: Sequence[str]) -> list[DeclaredColumn]:
    """Returns the columns with these names, in this order. Missing columns are left out."""
    found = {column.name.lower(): column for column in table.columns}
    return [found[name.lower()] for name in names if name.lower() in found]


def _base(column: DeclaredColumn) -> str:
    return column.type.lower().partition("(")[0].split()[0]
