"""Adds the shard column to the rows of a shard, which is one of several source tables that become one lake table. The column's value is the
name of the shard.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import ColumnType, type_of
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.rows.partial import GROUP_COLUMNS, PRESENT
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.states import TableState


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardColumn:
    """The shard column of one shard. The column shows from which shard a row of the lake table comes. `column`: the name of the column in
    the lake. `name`: the name of the shard, which is the column's value in every row of the shard.
    """

    column: str
    name: str

    def declared(self) -> Column:
        """Returns a description of the shard column, as if the column were in the source table."""
        return Column(
            name=self.column,
            type_code=TypeCode.VARCHAR,
            metadata=4 * len(self.name),
            charset="utf8mb4",
            nullable=False,
            mysql_type=f"varchar({len(self.name)})",
        )

    def type(self) -> ColumnType:
        return type_of(self.declared())

    def key(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the key that identifies a row among all shards: the source table's `key` with the shard column. Returns an empty key for
        a table without a key. The shard column comes last, because readers of the lake skip files by the first key columns.
        """
        return (*key, self.column) if key else ()

    def values(self, rows: int) -> AnyArray:
        one: Any = pa.scalar(self.name, self.type().arrow)
        return cast("AnyArray", pa.repeat(one, rows))

    def refuse_taken(self, version: TableVersion, columns: tuple[Column, ...]) -> None:
        """Raises TableStoppedError if one of the table's `columns` has the name of the shard column."""
        if any(column.name.lower() == self.column.lower() for column in columns):
            why = (
                f"the table has a column {self.column}, which conf/ uses for the name of the shard: set "
                "another `column` under `shards`"
            )
            raise TableStoppedError(version.database, version.table, TableState.SCHEMA_MISMATCH, why)

    def inserted_into(self, batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
        """Returns the Arrow record batch with the shard column at `index`, which must be the index after the table's last column. If the
        record batch has columns that say which values are present (`partial_schema`), marks the shard column as present in every row.
        """
        arrays = list(batch.columns)
        bit, own = (index - 3) % GROUP_COLUMNS, pa.field(self.column, self.type().arrow)
        fields = [*list(batch.schema)[:index], own, *list(batch.schema)[index:]]
        arrays.insert(index, self.values(batch.num_rows))
        groups = [at for at, field in enumerate(fields) if field.name.startswith(PRESENT)]
        if groups and bit:
            words = arrays[groups[-1]].to_numpy() | (1 << bit)
            arrays[groups[-1]] = pa.array(words)
        elif groups:
            name = f"{PRESENT}{len(groups)}"
            fields.insert(groups[-1] + 1, pa.field(name, pa.int64(), False))
            arrays.insert(groups[-1] + 1, pa.array(np.ones(batch.num_rows, np.int64)))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
