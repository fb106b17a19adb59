"""Reads the current rows of a table from its history, for a comparison. `destination` uses this module for tables without a current-state
table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from sluice.batch_manifest.values import LakeColumn
from sluice.equality.lake_side import LakeSide
from sluice.equality.table_plan import ORDER_KEY, ComparisonPlan, RefusedError
from sluice.spark_jobs.side_tables.columns import mapping_of, sources_of

CURRENT, FROM_KEY = "is_current", "_sluice_from_order_key"


class HistorySide(LakeSide):
    """Reads the current version of each row from a history (the rows with `is_current`). `wanted` has the Spark type of each column of the
    source. After a column of the source got another type, the history may store the new values in a column with another name. Therefore the
    history's column is found by name and type.
    """

    def __init__(self, name: str, path: str, storage_options: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        self._wanted = wanted
        super().__init__(name, path, storage_options)

    def columns(self) -> dict[str, str]:
        there = super().columns()
        if not there:
            return {}
        found = self._found(there)
        types = {name: there[theirs] for name in self._wanted if (theirs := found[name.lower()])}
        return {**types, ORDER_KEY: there[FROM_KEY]}

    def spelled(self, name: str) -> str:
        """Returns the name that a column of the source has in the history."""
        return self._found(super().columns())[name.lower()]

    def rows(self, plan: ComparisonPlan, condition: str = "") -> Any:
        names = [*(column.name for column in plan.columns), ORDER_KEY]
        found = self._found(super().columns())
        wanted = [*(found[column.name.lower()] for column in plan.columns), FROM_KEY]
        current = f"{CURRENT} = true AND ({condition})" if condition else f"{CURRENT} = true"
        try:
            reader = pa.RecordBatchReader.from_stream(self._log.scan(columns=wanted, predicate=current))
        except (DeltaError, OSError) as error:
            raise RefusedError(
                f"the Delta table {self.path} cannot be read: {error}; check the disk or object store of the lake"
            ) from error
        fields = [field.with_name(names[wanted.index(field.name)]) for field in reader.schema]
        schema = pa.schema(fields)
        return pa.RecordBatchReader.from_batches(schema, _renamed(reader, schema))

    def _found(self, there: Mapping[str, str]) -> dict[str, str]:
        """Maps the lower-case name of each column of the source to the history's column that stores its values with its current type. If
        there is none, maps it to the column with the same name and another type, or to "" if there is no such column either.
        """
        spelled = {each.lower(): each for each in there}
        wanted = [LakeColumn(name=each, type=kind) for each, kind in self._wanted.items()]
        names = mapping_of(wanted, there, sources_of(self._log.schema().fields)).names
        return {name.lower(): ours if ours in there else spelled.get(name.lower(), "") for name, ours in names.items()}


def _renamed(reader: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
