"""Computes the foreign keys after a statement: the foreign keys of the statement's table, and the foreign keys of other tables that refer
to this table. Pure functions.

If a foreign key has no name, the server names it `<child>_ibfk_<n>`, where n is one higher than the highest n so far. If the table is
renamed, the server changes these generated names too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluice.cdc_engine.table_meta.ddl.foreign_key import ForeignKeyDefinition
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.statement import (
    AddForeignKey,
    AlterTable,
    ChangeColumn,
    CreateTable,
    DropForeignKey,
    RenameColumn,
)
from sluice.cdc_engine.table_meta.schema import ForeignKey, TableSchema

TableKey = tuple[str, str]
_LOST = "one statement altered and renamed the table, and MariaDB may have lost the foreign key"


class ForeignKeyRules(NamedTuple):
    """How a server interprets the definition of a foreign key.

    - `inline`: REFERENCES in a column definition creates a foreign key.
    - `indexed`: in FOREIGN KEY name (…), the name is the constraint's name. Without `indexed`, the name is only the index's name.
    - `lower_case`: the server converts the names of databases and tables to lower case.
    - `match_ends`: the server ignores ON DELETE and ON UPDATE after MATCH.
    - `same_names`: a definition that does not list the parent's columns refers to the parent's columns with the names of the child's
      columns (MariaDB). Without `same_names`, such a definition refers to the parent's primary key.
    """

    inline: bool = False
    indexed: bool = False
    lower_case: bool = False
    match_ends: bool = False
    same_names: bool = False


# The rules for the output of SHOW CREATE TABLE. No rule of a server is needed, because this output defines every foreign key after the
# columns, with a name after CONSTRAINT and with the parent's columns.
RULES_OF_SHOWN = ForeignKeyRules()


def of_created(statement: CreateTable, schema: TableSchema, rules: ForeignKeyRules) -> tuple[ForeignKey, ...]:
    """Returns the foreign keys of a table that was created as `schema`. Returns () if the table's engine does not support foreign keys."""
    if schema.engine:
        return ()
    found: tuple[ForeignKey, ...] = ()
    for definition in statement.foreign_keys:
        found = _with(found, definition, schema, rules, highest=_highest(found, schema.table))
    return in_order(found)


def of_altered(
    statement: AlterTable, before: TableSchema, after: TableSchema, rules: ForeignKeyRules, *, renamed: bool = False
) -> tuple[ForeignKey, ...]:
    """Returns the foreign keys of a table after an ALTER TABLE. `before` and `after` are the schemas before and after the statement, but
    `after` still has the old foreign keys. `renamed` tells whether the statement gives the table another name. Returns () if the table's
    engine does not support foreign keys.

    If MariaDB copies the rows for a statement that also renames the table, the table loses the foreign keys that it had before. The binlog
    does not tell whether MariaDB copied the rows, so these foreign keys get a `doubt`. Foreign keys that change no row get no `doubt`.
    """
    if after.engine:
        return ()
    found, highest = before.foreign_keys, _highest(before.foreign_keys, before.table)
    if renamed and statement.alters and rules.same_names:
        found = tuple(
            dataclasses.replace(each, doubt=_LOST) if each.on_delete or each.on_update else each for each in found
        )
    for item in statement.items:
        if isinstance(item, DropForeignKey):
            found = _without(found, item)
    found = tuple(_renamed_columns(each, column_names(statement)) for each in found)
    for item in statement.items:
        if isinstance(item, AddForeignKey) and not _is_passed_over(item.definition, (*before.foreign_keys, *found)):
            found = _with(found, item.definition, after, rules, highest=max(highest, _highest(found, before.table)))
    return in_order(found)


def _is_passed_over(definition: ForeignKeyDefinition, there: tuple[ForeignKey, ...]) -> bool:
    """Returns whether MariaDB ignores a foreign key with IF NOT EXISTS, because one of the foreign keys `there` has its name. MariaDB
    compares the name of the index, or else the name after CONSTRAINT, or else the name of the first column. A foreign key that the
    statement drops counts too.
    """
    name = definition.index or definition.symbol or definition.columns[0]
    return definition.if_not_exists and any(_same(each.name, name) for each in there)


def column_names(statement: AlterTable) -> dict[str, str]:
    """Returns the names that columns have after RENAME, CHANGE and MODIFY, by their old names in lower case."""
    names = {}
    for item in statement.items:
        if isinstance(item, RenameColumn):
            names[item.name.lower()] = item.new_name
        elif isinstance(item, ChangeColumn):
            names[item.name.lower()] = item.definition.name
    return names


def of_renamed(schema: TableSchema, before: str) -> tuple[ForeignKey, ...]:
    """Returns the foreign keys of a table that was renamed from `before`. In names that the server generated, the new table name replaces
    the old one.
    """
    return in_order(
        dataclasses.replace(each, name=f"{schema.table}_ibfk_{number}")
        if (number := _generated(each.name, before))
        else each
        for each in schema.foreign_keys
    )


def pointing(
    schema: TableSchema, tables: Mapping[TableKey, TableKey], columns: Mapping[TableKey, Mapping[str, str]]
) -> TableSchema:
    """Returns the table with foreign keys that use the new names of their parents and of the parents' columns.

    `tables`: old → new table name. `columns`: old name of the parent table → (old column name in lower case → new column name), for the
    renamed columns.
    """
    found = []
    for each in schema.foreign_keys:
        names = columns.get(each.parent, {})
        referenced = tuple(names.get(name.lower(), name) for name in each.referenced)
        found.append(dataclasses.replace(each, parent=tables.get(each.parent, each.parent), referenced=referenced))
    return dataclasses.replace(schema, foreign_keys=in_order(found))


def in_order(found: Iterable[ForeignKey]) -> tuple[ForeignKey, ...]:
    """Returns foreign keys in the order of their names, so that equal sets of foreign keys compare as equal."""
    return tuple(sorted(found, key=lambda each: (each.name.lower(), each.columns)))


def _with(
    found: tuple[ForeignKey, ...],
    definition: ForeignKeyDefinition,
    schema: TableSchema,
    rules: ForeignKeyRules,
    *,
    highest: int,
) -> tuple[ForeignKey, ...]:
    if definition.inline and not rules.inline:
        return found
    given = definition.symbol or (definition.index if rules.indexed else "")
    database, table = definition.parent[0] or schema.database, definition.parent[1]
    if rules.lower_case:
        database, table = lowered(database), lowered(table)
    spelling = {column.name.lower(): column.name for column in schema.columns}
    acts = not (definition.matches and rules.match_ends)
    columns = tuple(spelling.get(name.lower(), name) for name in definition.columns)
    key = ForeignKey(
        name=given or f"{schema.table}_ibfk_{highest + 1}",
        columns=columns,
        parent=(database, table),
        referenced=definition.referenced or (columns if rules.same_names else ()),
        on_delete=definition.on_delete if acts else "",
        on_update=definition.on_update if acts else "",
    )
    return (*found, key)


def _without(found: tuple[ForeignKey, ...], item: DropForeignKey) -> tuple[ForeignKey, ...]:
    """Removes the foreign key that a statement drops.

    A DROP FOREIGN KEY without IF EXISTS can succeed only if the server has a foreign key of this name. If the schema history does not
    have this name, the name of one of its foreign keys is wrong. Then every foreign key of the table gets a `doubt`. DROP CONSTRAINT (not
    `certain`) may drop another kind of constraint, so it causes no doubt.
    """
    left = tuple(each for each in found if not _same(each.name, item.name))
    if len(left) < len(found) or not item.certain or item.if_exists:
        return left
    doubt = f"the foreign key {item.name} was dropped, and the schema history has no foreign key of this name"
    return tuple(dataclasses.replace(each, doubt=doubt) for each in found)


def _renamed_columns(key: ForeignKey, names: Mapping[str, str]) -> ForeignKey:
    return dataclasses.replace(key, columns=tuple(names.get(name.lower(), name) for name in key.columns))


def _highest(found: tuple[ForeignKey, ...], table: str) -> int:
    return max((_generated(each.name, table) for each in found), default=0)


def _generated(name: str, table: str) -> int:
    """Returns the number n in a name `<table>_ibfk_<n>` that the server generated, or 0 for any other name."""
    match = re.fullmatch(rf"{re.escape(table)}_ibfk_(\d+)", name, re.IGNORECASE)
    return int(match[1]) if match else 0


def _same(name: str, other: str) -> bool:
    return name.lower() == other.lower()
