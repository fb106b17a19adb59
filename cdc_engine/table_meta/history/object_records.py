"""Creates the records that the schema history stores about triggers and views: after a statement, and after they were read from the server.
Used by `history`.
"""

from __future__ import annotations

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.stored_objects import ObjectKey, StoredObject, StoredObjects, object_changes
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.statement import AlterTable, RenameTables, Statement
from sluice.cdc_engine.table_meta.history.ddl_context import DdlContext
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind


def object_records(statement: Statement, context: DdlContext, position: Position) -> list[HistoryRecord]:
    """Returns the records of the schema history for a statement that creates, drops or renames triggers or views. Returns no records if the
    schema history has no record of triggers and views (`KnownSchemas.stored_objects`), or for a RENAME or ALTER that may be about a
    temporary table.
    """
    there = context.known.stored_objects(context.key)
    of_temporary = context.session.thread_specific and isinstance(statement, RenameTables | AlterTable)
    if there is None or of_temporary:
        return []
    changes = object_changes(
        context.executed(statement),
        there,
        context.full_name,
        lambda database: lowered(database) if context.lower_case_names else database,
    )
    if changes.unknown:
        return [_complete_record(position, complete=False)]
    return [_object_record(position, key, made) for key, made in changes.objects.items()]


def seeded_objects(
    objects: StoredObjects | None, there: StoredObjects | None, position: Position
) -> list[HistoryRecord]:
    """Returns the records of the schema history for triggers and views that were read from the server. `objects` is None if they could not
    be read. `there` are the triggers and views that the schema history has at the position, or None if it has no record of them.
    """
    if objects is None:  # The account lacks the privilege to read triggers and views.
        return [] if there is None else [_complete_record(position, complete=False)]
    new = {each.key for each in objects.objects}
    gone = [each.key for each in (there.objects if there else ()) if each.key not in new]
    return [
        _complete_record(position, complete=objects.complete),
        *(_object_record(position, each.key, each) for each in objects.objects),
        *(_object_record(position, key, None) for key in gone),
    ]


def _complete_record(position: Position, *, complete: bool) -> HistoryRecord:
    return HistoryRecord(kind=RecordKind.OBJECTS, position=position, content={"complete": complete})


def _object_record(position: Position, key: ObjectKey, made: StoredObject | None) -> HistoryRecord:
    what, database, name = key
    content = {"what": what} if made is None else made.to_json()
    return HistoryRecord(kind=RecordKind.OBJECT, position=position, database=database, table=name, content=content)
