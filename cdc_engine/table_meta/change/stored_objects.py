"""Finds the tables that a statement may change through triggers and views. Pure functions.

The schema history uses this module for row changes in statement format, for which the binlog has no row events. The search only compares
names: a trigger or view counts as changing every table, in any database, whose name occurs in its body. So the result can have too many
tables, but never too few.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sluice.cdc_engine.table_meta.change.renaming import moved
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    CreateStoredObject,
    DropStoredObjects,
    RenameTables,
    Statement,
    TableName,
    Unread,
    dropped_database,
)
from sluice.cdc_engine.table_meta.ddl.stored_object import TRIGGER

TableKey = tuple[str, str]
ObjectKey = tuple[str, str, str]  # (TRIGGER or VIEW, database, name).
_ABOUT_OBJECTS = re.compile(r"(?<![\w$])(?:TRIGGER|VIEW)(?![\w$])", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredObject:
    """A trigger or view. `what` is TRIGGER or VIEW. `table` is the table of the trigger, or the view itself. `words` are all names in the
    body, in lower case. `calls` is True if the body calls a routine, or if the body is unknown.
    """

    what: str
    database: str
    name: str
    table: TableKey
    words: frozenset[str] = frozenset()
    calls: bool = False

    @property
    def key(self) -> ObjectKey:
        return self.what, self.database, self.name

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "table": list(self.table), "words": sorted(self.words), "calls": self.calls}

    @classmethod
    def from_json(cls, database: str, name: str, content: Mapping[str, Any]) -> StoredObject:
        """Converts the result of `to_json` back to an object. Raises KeyError or ValueError if the JSON has another structure."""
        of_database, table = content["table"]
        return cls(
            what=content["what"],
            database=database,
            name=name,
            table=(of_database, table),
            words=frozenset(content["words"]),
            calls=bool(content["calls"]),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredObjects:
    """The known triggers and views of a server. If `complete` is False, the server may have other triggers and views too, so a statement
    may change any table.
    """

    objects: tuple[StoredObject, ...] = ()
    complete: bool = True

    def views(self) -> frozenset[TableKey]:
        return frozenset(each.table for each in self.objects if each.what != TRIGGER)

    def reached(
        self, changed: Iterable[TableKey], mentioned: Collection[str], tables: Collection[TableKey]
    ) -> ObjectReach:
        """Returns which of `tables` a statement may change through triggers and views. `changed` are the tables and views that the
        statement names as changed. `mentioned` are all names in the statement's text.
        """
        if not self.complete:
            return ObjectReach(everything="the triggers and views of the source at this position are unknown")
        at: dict[TableKey, list[StoredObject]] = defaultdict(list)
        named: dict[str, set[TableKey]] = defaultdict(set)
        for each in self.objects:
            at[each.table].append(each)
            named[lowered(each.table[1])].add(each.table)
        for table in tables:
            named[lowered(table[1])].add(table)
        read = {table for word in mentioned for table in named.get(word, ()) if _is_view(at.get(table, ()))}
        if why := _calling(read, at, named):
            return ObjectReach(everything=why)
        found: dict[TableKey, str] = {}
        left = [(table, "") for table in changed]
        while left:
            table, through = left.pop()
            if table in found:
                continue
            found[table] = through
            for each in at.get(table, ()):
                if each.calls:
                    return ObjectReach(everything=_why_everything(each))
                via = f"{each.what.lower()} {each.database}.{each.name}"
                left += [(other, via) for word in sorted(each.words) for other in sorted(named.get(word, ()))]
        return ObjectReach(tables={table: via for table, via in found.items() if via})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectReach:
    """The tables that a statement may change in addition to the tables that it names. `tables` maps each table to the trigger or view
    through which it may change. If every table of the source may change, `everything` tells why. Otherwise `everything` is empty.
    """

    tables: Mapping[TableKey, str] = dataclasses.field(default_factory=dict)
    everything: str = ""


def _is_view(objects: Iterable[StoredObject]) -> bool:
    return any(each.what != TRIGGER for each in objects)


def _calling(
    views: Iterable[TableKey], at: Mapping[TableKey, list[StoredObject]], named: Mapping[str, set[TableKey]]
) -> str:
    """Returns why a statement that reads these views may change any table: one of the views, or a view that they read, calls a routine.
    Returns "" if none of these views calls a routine.
    """
    left, seen = list(views), set[TableKey]()
    while left:
        table = left.pop()
        if table in seen:
            continue
        seen.add(table)
        for each in at.get(table, ()):
            if each.what == TRIGGER:
                continue
            if each.calls:
                return _why_everything(each)
            left += [other for word in each.words for other in named.get(word, ())]
    return ""


def _why_everything(found: StoredObject) -> str:
    return f"the {found.what.lower()} {found.database}.{found.name} calls a function or a procedure that may write to any table"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectChanges:
    """What a statement does to triggers and views. `objects` has the new definition of each changed trigger or view by its key, or None if
    no trigger or view has this key after the statement. If `unknown` is True, the statement may change any trigger or view.
    """

    objects: Mapping[ObjectKey, StoredObject | None] = dataclasses.field(default_factory=dict)
    unknown: bool = False


def object_changes(
    statement: Statement,
    there: StoredObjects,
    full_name: Callable[[TableName], TableKey],
    database_name: Callable[[str], str],
) -> ObjectChanges:
    """Returns what a statement does to triggers and views. `there` are the triggers and views before the statement. `full_name` and
    `database_name` convert names to the form in which the server stores them.
    """
    match statement:
        case CreateStoredObject():
            return _created(statement, full_name)
        case DropStoredObjects():
            return ObjectChanges(objects={(statement.what, *full_name(name)): None for name in statement.names})
        case RenameTables():
            return _renamed([(full_name(old), full_name(new)) for old, new in statement.pairs], there)
        case AlterTable(renames_to=TableName() as new):
            return _renamed([(full_name(statement.name), full_name(new))], there)
        case Unread() if not statement.names and _ABOUT_OBJECTS.search(statement.text or " ".join(statement.words)):
            return ObjectChanges(unknown=True)
    dropped = dropped_database(statement)
    if dropped is None:
        return ObjectChanges()
    gone = database_name(dropped)
    return ObjectChanges(objects={each.key: None for each in there.objects if each.database == gone})


def _created(statement: CreateStoredObject, full_name: Callable[[TableName], TableKey]) -> ObjectChanges:
    if statement.name is None:
        return ObjectChanges(unknown=True)
    database, name = full_name(statement.name)
    table = (database, name)
    if statement.table is not None:
        # A trigger is in the database of its table, even if the statement qualifies only one of the two names with the database.
        table = full_name(statement.table)
        database = table[0]
    made = StoredObject(
        what=statement.what,
        database=database,
        name=name,
        table=table,
        words=statement.words,
        calls=statement.calls,
    )
    return ObjectChanges(objects={made.key: made})


def _renamed(pairs: list[tuple[TableKey, TableKey]], there: StoredObjects) -> ObjectChanges:
    """Returns what a RENAME does to triggers and views: a table's triggers move with the table, and a view gets the new name."""
    new = {origin: name for name, origin in moved(pairs).items() if origin is not None}
    gone: dict[ObjectKey, StoredObject | None] = {}
    made: dict[ObjectKey, StoredObject | None] = {}
    for each in there.objects:
        table = new.get(each.table)
        if table is None:
            continue
        name = each.name if each.what == TRIGGER else table[1]
        renamed = dataclasses.replace(each, database=table[0], name=name, table=table)
        gone[each.key] = None
        made[renamed.key] = renamed
    return ObjectChanges(objects=gone | made)
