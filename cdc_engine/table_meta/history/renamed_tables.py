"""Decides whether the lake can move the rows of a renamed table to the table's new name, and describes the effect or the stop. Pure
functions.

The path of a lake table depends on the table's name. If a statement swaps two names, each lake table gets the rows that the other lake
table had directly before the statement (docs/decisions/renamed-tables.md).
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.contracts import TableChangeKind
from sluice.cdc_engine.table_meta.change import foreign_keys
from sluice.cdc_engine.table_meta.change.evolution import DDL_UNSUPPORTED, SCHEMA_UNKNOWN, CannotFollowError
from sluice.cdc_engine.table_meta.change.renaming import is_copy, is_remains
from sluice.cdc_engine.table_meta.history.ddl_context import DdlContext, DdlEffect
from sluice.cdc_engine.table_meta.history.kept.known_schemas import TableKey
from sluice.cdc_engine.table_meta.schema import Stopped, TableSchema


def may_move_rows(context: DdlContext, name: TableKey, origin: TableKey) -> bool:
    """Returns whether the lake may move the rows of the table `origin` to `name`. This is so if both names are captured, the schema of
    `origin` is known, neither table is stopped, and the lake has all rows of `origin`.

    Returns False for the copy of a table that a schema change tool made, unless the stream has the copy's CREATE TABLE. Without this
    statement, the lake may lack rows of the copy. Also returns False for an original table that such a tool has renamed and replaced by the
    copy.
    """
    there = context.state(origin)
    if not isinstance(there, TableSchema) or (is_copy(name, origin) and not there.from_create):
        return False
    return context.captured(*origin) and context.running(name) and not is_remains(name, origin)


def taken_over(name: TableKey, origin: TableKey, schema: TableSchema, *, early: bool) -> DdlEffect:
    """Returns the effect that moves the rows of the lake table `origin` to `name`. `schema` is the schema before the statement, under the
    new name. With `early`, the statement also alters the table, and the history stores only the schema after the alteration.
    """
    return DdlEffect(
        name,
        TableChangeKind.SCHEMA,
        state=None if early else schema,
        lake_schema=schema,
        early=early,
        renamed_from=origin,
    )


def under_name(schema: TableSchema, name: TableKey) -> TableSchema:
    """Returns the schema under the table's new name. If the server generated the name of a foreign key, this name changes too."""
    renamed = dataclasses.replace(schema, database=name[0], table=name[1])
    return dataclasses.replace(renamed, foreign_keys=foreign_keys.of_renamed(renamed, schema.table))


def why_stopped(context: DdlContext, origin: TableKey, schema: TableSchema | None) -> CannotFollowError:
    """Returns why a renamed table stops under its new name. `schema` is the table's schema, or None if unknown."""
    reason = f"the table was renamed from {'.'.join(origin)}, and the lake does not have its rows under the new name"
    there = context.state(origin)
    if schema is not None and is_copy((schema.database, schema.table), origin):
        reason = (
            f"the copy {'.'.join(origin)} replaced the table, and Sluice did not follow every row of the copy "
            "from its CREATE TABLE on, so the lake may lack rows of the table: the table is re-snapshotted, unless "
            "`snapshot` is never"
        )
    elif isinstance(there, Stopped) and context.captured(*origin):
        reason = (
            f"the table was renamed from {'.'.join(origin)}, which had stopped ({there.state}), so not all "
            f"rows are in the lake; resume {'.'.join(origin)}, and this table continues too"
        )
    return CannotFollowError(DDL_UNSUPPORTED if schema else SCHEMA_UNKNOWN, reason)
