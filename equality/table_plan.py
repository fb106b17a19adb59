"""Decides which columns of a table to compare, and how, from the source's schema, conf/ and the Delta table's schema. Raises RefusedError
if the table cannot be compared. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, type_of
from sluice.cdc_engine.config import DestinationConfig, TableConfig
from sluice.cdc_engine.contracts import Column, StoppedTable, TableVersion
from sluice.equality.canonical import Canonical, canonical
from sluice.spark_jobs.sql_text import double_quoted
from sluice.spark_jobs.targets.casting import widens

OPERATION, ORDER_KEY, DELETED = "_sluice_operation", "_sluice_order_key", "_sluice_deleted"
# Operation of a row in a change log → 1 if it adds a row to the table's state, or -1 if it removes one. Only rows that were merged by key,
# before a statement dropped the table's key, have the operation `update`.
SIGNS: Mapping[str, int] = {"insert": 1, "update": 1, "update_preimage": -1, "update_postimage": 1, "delete": -1}


class RefusedError(Exception):
    """Raised if a table cannot be compared. The message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """The columns and the key by which one table is compared.

    - `columns` are the columns that source and lake both have.
    - `key` has the names of the key columns. If it is empty, the lake has a change log, and the source is compared with the rows that
      result from the change log.
    - `left_out` are the columns of source or lake that are not compared.
    - `soft` is true if the lake marks deleted rows instead of removing them. Marked rows are ignored.
    """

    database: str
    table: str
    columns: tuple[Canonical, ...]
    key: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    soft: bool = False

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def key_columns(self) -> tuple[Canonical, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.key)

    @property
    def hash(self) -> str:
        """DuckDB's expression for the 64-bit hash of a row."""
        return f"hash({', '.join(double_quoted(column.name) for column in self.columns)})"


def plan(
    version: TableVersion,
    kept: Sequence[int],
    settings: DestinationConfig,
    lake: Mapping[str, str],
    *,
    whole_doubles: bool = True,
) -> ComparisonPlan:
    """Returns the plan for comparing a table. `version` is the table's current schema in the source. `kept` has the indices of the captured
    columns in `version`. `lake` has the Spark type of each column of the Delta table.

    Raises RefusedError if the table cannot be compared. One reason is that the schemas of source and lake differ, because a schema change
    is not merged yet or waits for approval.
    """
    options = settings.table(version.database, version.table)
    key = tuple(options.key) or version.key
    shared = settings.shard(version.database, version.table) is not None
    refuse_left_out_rows(version, options)
    masked = _masked(version, options, key)
    found: list[Canonical] = []
    there = {name.lower(): (name, spark_type) for name, spark_type in lake.items()}
    for index in kept:
        column = version.columns[index]
        if column.name.lower() in masked:
            continue
        _, spark_type = there.get(column.name.lower(), ("", ""))
        if not spark_type:
            raise RefusedError(
                _differs(version, f"the table in the source has the column {column.name}, which the Delta table lacks")
            )
        wanted = _expected(version, column, options.zero_dates)
        # Another shard may have widened the column of the common Delta table.
        if spark_type != wanted and not (shared and widens(wanted, spark_type)):
            raise RefusedError(
                _differs(version, f"column {column.name} is {wanted} in the source and {spark_type} in the Delta table")
            )
        charset = options.charsets.get(column.name.lower(), "")
        found.append(canonical(column, spark_type, charset=charset, whole_doubles=whole_doubles))
    if not key and OPERATION not in lake:
        raise RefusedError(
            f"{version.name} has no key, so its Delta table must be a change log of Sluice, but the Delta "
            f"table lacks the column {OPERATION}"
        )
    compared = {column.name.lower() for column in found}
    ours = {name.lower() for name in lake if name.startswith("_sluice_")}
    extra = [name for name in lake if name.lower() not in compared | ours]
    excluded = [column.name for column in version.columns if column.name.lower() not in compared]
    by_lower = {column.name.lower(): column.name for column in found}
    return ComparisonPlan(
        database=version.database,
        table=version.table,
        columns=tuple(found),
        key=tuple(by_lower[name.lower()] for name in key),
        left_out=tuple(sorted({*extra, *excluded})),
        soft=DELETED in lake,
    )


def expected_types(version: TableVersion, kept: Sequence[int], settings: DestinationConfig) -> dict[str, str]:
    """Returns the Spark type that each column must have in the lake. Raises RefusedError if a column's type cannot be compared."""
    zero_dates = settings.table(version.database, version.table).zero_dates
    columns = [version.columns[index] for index in kept]
    return {column.name: _expected(version, column, zero_dates) for column in columns}


def refuse_log_alone(version: TableVersion, settings: DestinationConfig) -> None:
    """Raises RefusedError if conf/ configures only a change log for the table."""
    if not settings.table(version.database, version.table).shows_rows:
        raise RefusedError(
            f"{version.name} cannot be compared: the lake has only its change log, which has changes instead "
            "of rows; set `history` too, because a history can be compared"
        )


def refuse_left_out_rows(version: TableVersion, options: TableConfig) -> None:
    """Raises RefusedError if conf/ or the table's transform leaves out rows of the source."""
    if options.rows:
        raise RefusedError(
            f"{version.name} cannot be compared: conf/ captures only the rows where {options.rows}, and a "
            "comparison reads all rows"
        )
    if options.transform is not None and options.transform.drops:
        raise RefusedError(
            f"{version.name} cannot be compared: the transform {options.transform.function} drops rows, and a "
            "comparison reads all rows"
        )


def _masked(version: TableVersion, options: TableConfig, key: Sequence[str]) -> set[str]:
    """Returns the columns, in lower case, whose values in lake and source differ because they are masked or because a transform writes
    them. Raises RefusedError if a key column is masked, because the table cannot be compared then.
    """
    masked = {column.lower() for column in options.masks}
    if hashed := [column for column in key if column.lower() in masked]:
        raise RefusedError(
            f"{version.name} cannot be compared: the key column {hashed[0]} is masked, so rows of the lake "
            "cannot be found in the source"
        )
    return masked | {column.lower() for column in (options.transform.writes if options.transform is not None else ())}


def refuse_stopped(name: str, stopped: Sequence[StoppedTable]) -> None:
    """Raises RefusedError if the table `name` is in `stopped`. The lake does not get the changes of a stopped table, so a comparison would
    find differences that are already known.
    """
    for each in stopped:
        if f"{each.database}.{each.table}" == name:
            raise RefusedError(
                f"{name} has stopped in {each.state} at {each.position}, so the lake lacks later changes: "
                "`sluice status` shows the reason and how to resume the table (see docs/reference/states.md)"
            )


def _expected(version: TableVersion, column: Column, zero_dates: str) -> str:
    try:
        return type_of(column, zero_dates).spark
    except TypeUnsupportedError as error:
        raise RefusedError(f"{version.name} cannot be compared: {error}") from error


def _differs(version: TableVersion, what: str) -> str:
    return (
        f"{version.name} has another schema in the source than in the lake: {what}. Compare again once the "
        "schema change is merged; `sluice schema held` lists schema changes that wait for approval"
    )
