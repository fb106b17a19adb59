"""Converts entries to one Arrow table per source table, with one row per row image, in binlog order. `Batch.to_arrow` calls this module.

The Arrow table has the columns of the source table, and these columns:

| column | value |
|---|---|
| `_change_type` | insert, update_preimage, update_postimage or delete, as in Delta's change data feed |
| `_commit_timestamp` | the time of the row event by the source's clock, in UTC |
| `_file`, `_offset` | the position of the row event in the binlog |

If the type of a column changes within a batch, the column is text in the Arrow table of that batch. If a row image omits a column, the
column is NULL in that row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from sluice.canal_client.column_types import ClientColumnType, column_type
from sluice.canal_client.messages import EntryType, EventType, row_change

TEXT = ClientColumnType("text")
ABOUT = {
    "_change_type": pa.string(),
    "_commit_timestamp": pa.timestamp("ms", "UTC"),
    "_file": pa.string(),
    "_offset": pa.int64(),
}


@dataclasses.dataclass
class _Images:
    """Collects the row images of one table. A column that first appears in a later row is NULL in the earlier rows."""

    about: list[tuple[str, int, str, int]] = dataclasses.field(default_factory=list)
    texts: dict[str, list[str | None]] = dataclasses.field(default_factory=dict)
    declared: dict[str, str] = dataclasses.field(default_factory=dict)
    mixed: set[str] = dataclasses.field(default_factory=set)

    def add(self, change_type: str, header: Any, columns: Any) -> None:
        count = len(self.about)
        self.about.append((change_type, header.executeTime, header.logfileName, header.logfileOffset))
        for column in columns:
            name = column.name
            texts = self.texts.setdefault(name, [])
            if len(texts) < count:
                texts += [None] * (count - len(texts))
            texts.append(None if column.isNull else column.value)
            if self.declared.setdefault(name, column.mysqlType) != column.mysqlType:
                self.mixed.add(name)

    def table(self) -> pa.Table:
        count = len(self.about)
        arrays: dict[str, pa.Array[Any]] = {
            name: pa.array([each[at] for each in self.about], kind) for at, (name, kind) in enumerate(ABOUT.items())
        }
        for name, texts in self.texts.items():
            kind = TEXT if name in self.mixed else column_type(self.declared[name])
            arrays[name] = kind.column([*texts, *[None] * (count - len(texts))])
        return pa.table(arrays)


def tables_of(entries: Iterable[Any]) -> dict[str, pa.Table]:
    """Groups the row images of entries by "database.table", and returns one Arrow table for each of these names."""
    found: dict[str, _Images] = {}
    for entry in entries:
        if entry.entryType != EntryType.ROWDATA:
            continue
        change = row_change(entry)
        images = found.setdefault(f"{entry.header.schemaName}.{entry.header.tableName}", _Images())
        for row in change.rowDatas:
            if change.eventType == EventType.INSERT:
                images.add("insert", entry.header, row.afterColumns)
            elif change.eventType == EventType.DELETE:
                images.add("delete", entry.header, row.beforeColumns)
            else:
                images.add("update_preimage", entry.header, row.beforeColumns)
                images.add("update_postimage", entry.header, row.afterColumns)
    return {name: images.table() for name, images in found.items() if images.about}
