"""Creates the records that the schema history stores about tables: about all tables whose schemas were read from the source, and about
single tables. Used by `history`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.evolution import ROWS_ELSEWHERE, SCHEMA_UNKNOWN
from sluice.cdc_engine.table_meta.ddl.reader import defect_text
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DroppedTable, Stopped, TableSchema


def table_record(kind: RecordKind, position: Position, schema: TableSchema) -> HistoryRecord:
    return HistoryRecord(
        kind=kind, position=position, database=schema.database, table=schema.table, content=schema.to_json()
    )


def dropped_record(position: Position, name: tuple[str, str], dropped: DroppedTable) -> HistoryRecord:
    content = dropped.schema.to_json() if dropped.schema is not None else {}
    return HistoryRecord(kind=RecordKind.DROPPED, position=position, database=name[0], table=name[1], content=content)


def stopped_record(position: Position, name: tuple[str, str], stopped: Stopped) -> HistoryRecord:
    content = stopped.to_json()
    return HistoryRecord(kind=RecordKind.STOPPED, position=position, database=name[0], table=name[1], content=content)


def snapshot_records(snapshot: SchemaSnapshot, position: Position) -> Iterator[HistoryRecord]:
    yield HistoryRecord(kind=RecordKind.SERVER, position=position, content=dataclasses.asdict(snapshot.server))
    for database, charset in snapshot.databases:
        yield HistoryRecord(
            kind=RecordKind.DATABASE, position=position, database=database, content={"charset": charset}
        )
    elsewhere = {(database, table): reason for database, table, reason in snapshot.elsewhere}
    for schema in snapshot.tables:
        name = (schema.database, schema.table)
        try:
            if reason := elsewhere.get(name):
                yield stopped_record(position, name, Stopped(state=ROWS_ELSEWHERE, reason=reason, schema=schema))
            else:
                yield table_record(RecordKind.SNAPSHOT, position, schema)
        except Exception as error:  # Errors of any kind are caught, so that a defect of Sluice stops only this table.
            why = f"Sluice cannot follow the columns of the table: {defect_text(error)}"
            yield stopped_record(position, name, Stopped(state=SCHEMA_UNKNOWN, reason=why))
    for database, table in snapshot.unknown_tables:
        yield HistoryRecord(kind=RecordKind.UNKNOWN, position=position, database=database, table=table)
    for database, table, reason in snapshot.unreadable:
        yield stopped_record(position, (database, table), Stopped(state=TableState.TYPE_UNSUPPORTED, reason=reason))
