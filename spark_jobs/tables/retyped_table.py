"""Converts columns of a Delta table to other types, in one commit that replaces the table by a copy of itself. `merge` calls this module.

The conversion must rewrite every row. The columns of the copy keep their names, so the table needs no column mapping, which readers such as
Polars do not support. The commit records the DDL statement as a Delta transaction, so a second attempt changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sluice.batch_manifest.values import LakeColumn, SchemaSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.tables.alterations import KEPT_PROPERTY, LOCAL_TIMES, PLAN_PROPERTY, AlterationPlan
from sluice.spark_jobs.tables.delta_table import (
    DELETED_COLUMN,
    METADATA_COLUMNS,
    DeltaSnapshot,
    DeltaTable,
    needs_mapping,
    pairs,
    wanted_columns,
)
from sluice.spark_jobs.tables.renamed_table import carried_properties, is_mapped
from sluice.spark_jobs.targets import layout
from sluice.spark_jobs.targets.report import TableTarget

OWN = "sluice."  # The prefix of Sluice's properties, such as the owner.
# A table with a property whose name begins with one of these is not replaced by a copy: row tracking and in-commit timestamps would
# restart.
TRACKS = ("delta.enableRowTracking", "delta.rowTracking", "delta.enableInCommitTimestamps")


def can_be_retyped(snapshot: DeltaSnapshot, segment: SchemaSegment, plan: AlterationPlan) -> bool:
    """Returns whether one commit can execute the plan, by replacing the table by a copy of itself (`retype`). If not, separate steps
    execute the plan (`alteration_steps`). One commit cannot execute the plan in these cases:

    - The plan does more than convert and add columns.
    - The table has column mapping already. A copy would not remove the mapping, and the separate steps take no longer than a copy.
    - Generated columns or NOT NULL would be lost, or row tracking and in-commit timestamps would restart.
    - A column has another type than the statement expects. The separate steps report this error.
    - A new column has a name that requires column mapping.
    """
    ruled = snapshot.ruled or any(name.startswith(TRACKS) for name in snapshot.properties)
    if not plan.retyped or is_mapped(snapshot) or ruled or needs_mapping(segment.columns):
        return False
    retyped = {name.lower() for name, _ in plan.retyped}
    types = {column.name.lower(): column.type for column in (*segment.columns, *METADATA_COLUMNS, DELETED_COLUMN)}
    return all(kind == types.get(name, kind) for name, (_, kind) in snapshot.columns.items() if name not in retyped)


def retype(
    table: DeltaTable, segment: SchemaSegment, target: TableTarget, plan: AlterationPlan, values: Mapping[str, str]
) -> str:
    """Returns the statement that rewrites the table. `values` has the SQL expressions of converted columns, and of new columns that get a
    value. New columns without an expression are NULL.

    Existing columns keep their order, including those that the source dropped earlier. Raises TableError if conf/ has other partitions than
    the table.
    """
    layout.refuse_other_partitions(table.name, target.path, target.layout, table.snapshot.partitions)
    there = table.snapshot.columns
    soft = target.deletes == "soft" and bool(segment.key)
    wanted = {column.name.lower(): column for column in wanted_columns(segment.columns, soft_deletes=soft)}
    stay = [
        LakeColumn(name=own, type=wanted[name].type if name in wanted else kind) for name, (own, kind) in there.items()
    ]
    columns = (*stay, *(column for name, column in wanted.items() if name not in there))
    given = {name.lower(): value for name, value in values.items()}
    selected = ", ".join(
        f"{given.get(column.name.lower()) or _value(column, there)} AS {sql_text.identifier(column.name)}"
        for column in columns
    )
    properties = {
        **carried_properties(table.snapshot),
        **{name: value for name, value in table.snapshot.properties.items() if name.startswith(OWN)},
        **({KEPT_PROPERTY: json.dumps(plan.kept)} if plan.kept else {}),
        **(LOCAL_TIMES if any(column.type == "timestamp_ntz" for column in columns) else {}),
    }
    properties.pop(PLAN_PROPERTY, None)
    laid = layout.clause(table.name, target.layout, columns, table.snapshot.partitions, table.snapshot.features)
    path = sql_text.delta_path(target.path)
    return f"CREATE OR REPLACE TABLE {path} USING delta{laid} TBLPROPERTIES ({pairs(properties)}) AS SELECT {selected} FROM {path}"


def _value(column: LakeColumn, there: Mapping[str, tuple[str, str]]) -> str:
    name = there.get(column.name.lower(), ("", ""))[0]
    return sql_text.identifier(name) if name else f"CAST(NULL AS {column.type})"
