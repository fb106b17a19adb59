"""Reads a Delta table at its newest version, for comparisons. `DeltaTable.scan` of the library deltalake streams the rows, and supports
deletion vectors and column mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.equality.table_plan import DELETED, OPERATION, ORDER_KEY, SIGNS, ComparisonPlan, RefusedError
from sluice.spark_jobs.sql_text import double_quoted, spark_type

SIGN = "_sluice_sign"


class LakeSide:
    """Reads one Delta table. If `shard` (column, value) is given, reads only the rows that have this value in this column. While the table
    does not exist, `exists` is False and the version is -1. Raises RefusedError if the table cannot be read.
    """

    def __init__(
        self,
        name: str,
        path: str,
        storage_options: Mapping[str, str] | None = None,
        shard: tuple[str, str] | None = None,
    ) -> None:
        self.name, self.path, self._shard = name, path, shard
        self._options = dict(storage_options or {}) or None
        self._log: Any = None
        self.refresh()

    def refresh(self) -> None:
        """Loads the table's newest version. If the table does not exist, `exists` is False afterwards."""
        try:
            if self._log is None:
                self._log = deltalake.DeltaTable(self.path, storage_options=self._options)
            else:
                self._log.update_incremental()
        except TableNotFoundError:
            self._log = None
        except (DeltaError, OSError) as error:
            raise RefusedError(
                f"the log of the Delta table {self.path} cannot be read: {error}; check the disk or object "
                "store of the lake"
            ) from error

    @property
    def exists(self) -> bool:
        return self._log is not None

    @property
    def version(self) -> int:
        return -1 if self._log is None else int(self._log.version())

    @property
    def table_id(self) -> str:
        return "" if self._log is None else str(self._log.metadata().id)

    def columns(self) -> dict[str, str]:
        """Returns the Spark type of each column, except the column with the name of the shard. Returns {} if the table does not exist."""
        found = {field.name: spark_type(field.type) for field in self._log.schema().fields} if self._log else {}
        return {name: kind for name, kind in found.items() if self._shard is None or name != self._shard[0]}

    def row_count(self) -> int:
        """Returns the approximate number of rows from the files' statistics. The number includes rows that deletion vectors delete."""
        if self._log is None:
            return 0
        return int(pc.sum(pa.table(self._log.get_add_actions(flatten=True))["num_records"]).as_py() or 0)

    def rows(self, plan: ComparisonPlan, condition: str = "") -> Any:
        """Returns a stream of the Delta table's rows, which are read while the caller consumes the stream. `condition` is SQL. Rows that do
        not meet the condition are left out, and files without matching rows are not read. An empty `condition` selects all rows.
        """
        ours = [ORDER_KEY] if plan.key else [OPERATION, ORDER_KEY]
        wanted = [*(self.spelled(column.name) for column in plan.columns), *ours, *([DELETED] if plan.soft else [])]
        conditions = [f"({each})" for each in (condition, _is(*self._shard) if self._shard else "") if each]
        try:
            predicate = " AND ".join(conditions) or None
            return pa.RecordBatchReader.from_stream(self._log.scan(columns=wanted, predicate=predicate))
        except (DeltaError, OSError) as error:
            raise RefusedError(
                f"the Delta table {self.path} cannot be read: {error}; check the disk or object store of the lake"
            ) from error

    def spelled(self, name: str) -> str:
        """Returns the name that the Delta table has for the source's column `name`. The two names may differ in upper and lower case."""
        return next(each for each in self.columns() if each.lower() == name.lower())


def _is(column: str, value: str) -> str:
    text = value.replace("'", "''")
    return f"{double_quoted(column)} = '{text}'"


def canonical_rows(plan: ComparisonPlan) -> str:
    """Returns DuckDB's SELECT list that converts the values of a Delta table to the canonical form, in which source and lake are compared.
    Its last column is a sign: -1 for an image in a change log that removes a row, otherwise 1.
    """
    columns = [
        f"{column.from_delta.replace('{}', double_quoted(column.name))} AS {double_quoted(column.name)}"
        for column in plan.columns
    ]
    return ", ".join([*columns, f"{_sign(plan)} AS {SIGN}"])


def _sign(plan: ComparisonPlan) -> str:
    if plan.key:
        return "1"
    cases = " ".join(f"WHEN '{name}' THEN {sign}" for name, sign in SIGNS.items())
    return f"CASE {OPERATION} {cases} END"


def counted(plan: ComparisonPlan, order_key_max: int | None) -> str:
    """Returns DuckDB's condition for the rows to compare. Rows that are marked as deleted are left out. If `plan.key` is empty, the lake
    has a change log of the table, and its rows above the order key `order_key_max` are left out too, unless `order_key_max` is None.
    """
    conditions = [f"NOT coalesce({DELETED}, false)"] if plan.soft else []
    if not plan.key and order_key_max is not None:
        conditions.append(f"{ORDER_KEY} <= {order_key_max}")
    return " AND ".join(conditions) or "true"
