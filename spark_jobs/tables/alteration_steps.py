"""Executes the plan of `alterations` on a Delta table in one Spark session, in steps that a repeated merge can continue. `merge` calls this
module.

Delta alters a table in commits without a transaction. Some plans cannot be derived again from a partly altered table. Such a plan is first
stored in a table property, with an identifier of its DDL statement and the last completed stage. The next attempt reads the plan and the
stage from this property:

BEGUN ─ drop and move columns ─▶ MOVED ─ rename, widen and add columns, copy values ─▶ COPIED ─ drop copied columns

A move gives a column another name, so that its present name becomes free for another column.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

from sluice.batch_manifest.values import ChangesSegment, SchemaSegment
from sluice.spark_jobs.errors import LostCommitError
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.staged_batch import DELETED
from sluice.spark_jobs.tables import alterations
from sluice.spark_jobs.tables.alterations import PLAN_PROPERTY, AlterationPlan
from sluice.spark_jobs.tables.delta_table import DeltaTable, set_properties
from sluice.spark_jobs.tables.retyped_table import can_be_retyped
from sluice.spark_jobs.targets import shards
from sluice.spark_jobs.targets.shards import Shard

BEGUN, MOVED, COPIED = "begun", "moved", "copied"
# A table property with this prefix adds a feature to the table's protocol. Delta does not store such a property among the table's
# properties, so the table's features show whether the property was set.
FEATURE = "delta.feature."


def retyping_plan(table: DeltaTable, app_id: str, segment: SchemaSegment) -> AlterationPlan | None:
    """Returns the plan of a DDL statement if one commit can execute it, because it only converts and adds columns (`retyped_table`).
    Returns None if the plan needs several steps, or if an earlier attempt has begun these steps.
    """
    if not segment.alterations or has_begun(table, app_id, segment):
        return None
    plan = _made(table, segment)
    return plan if can_be_retyped(table.snapshot, segment, plan) else None


def has_begun(table: DeltaTable, app_id: str, segment: SchemaSegment) -> bool:
    """Returns whether an earlier attempt has begun the steps of a DDL statement that drop or rename columns."""
    return _kept_plan(table, f"{app_id}@{segment.order_key}") is not None


def begin(session: LakeSession, table: DeltaTable, app_id: str, segment: SchemaSegment) -> AlterationPlan:
    """Executes the first steps of a DDL statement's plan: drops columns, gives columns another name if another column needs their name, and
    renames and widens columns. Returns the plan. The caller then adds columns and copies the values in the plan's `copies`. If an earlier
    attempt has copied the values, `copies` is empty. The caller's last commit stores the DDL statement as a Delta transaction.
    """
    name = f"{app_id}@{segment.order_key}"
    stage, plan = _kept_plan(table, name) or (BEGUN, _made(table, segment))
    if stage == BEGUN:
        _keep_plan(session, table, BEGUN, name, plan)
        alter(session, table, lambda: alterations.removing_statements(table.path, plan, table.snapshot.columns))
        _keep_plan(session, table, MOVED, name, plan)
    alter(session, table, lambda: alterations.giving_statements(table.path, plan, table.snapshot.columns))
    return dataclasses.replace(plan, copies=()) if stage == COPIED else plan


def end(session: LakeSession, table: DeltaTable, app_id: str, segment: SchemaSegment, plan: AlterationPlan) -> None:
    """Stores that the values have been copied, and drops the columns from which they were copied."""
    _keep_plan(session, table, COPIED, f"{app_id}@{segment.order_key}", plan)
    alter(session, table, lambda: alterations.closing_statements(table.path, plan, table.snapshot.columns))


def alter_shard(session: LakeSession, table: DeltaTable, shard: Shard, segment: SchemaSegment) -> dict[str, str]:
    """Applies a DDL statement of one shard to the shared table: widens columns, and records the columns that the shard no longer has.

    If the statement adds a column that the shard had earlier, the shard's existing rows still have the earlier values in this column. For
    each such column, returns the SQL expression of NULL. The caller writes NULL to these rows, in the commit that has the statement's
    transaction. Skips steps that are already done. Raises TableError for a statement that would change other shards.
    """
    shards.refuse_alterations(table.name, segment)
    properties = table.snapshot.properties
    back = shards.back_again(shard, properties, segment)
    wider = shards.widened(segment, table.snapshot.columns)
    plan = AlterationPlan(kept=(), widened=wider)
    wanted = alterations.table_properties(plan, properties, table.snapshot.features) if wider else {}
    wanted.pop(alterations.KEPT_PROPERTY, None)
    if gone := shards.dropped_after(shard, properties, segment):
        wanted[shard.dropped_property] = json.dumps(gone)
    _set_properties(session, table, wanted)
    alter(session, table, lambda: alterations.giving_statements(table.path, plan, table.snapshot.columns))
    return {column.name: f"CAST(NULL AS {column.type})" for column in back}


def left_columns(segment: ChangesSegment, table: DeltaTable, *, soft: bool) -> tuple[str, ...]:
    """Returns the columns that the Delta table has and that are NULL in the segment's rows. These are the columns that the source dropped.
    If conf/ had soft deletes earlier and `soft` is False now, the result also has the column DELETED, which marks rows as deleted.
    """
    there, staged = table.snapshot.columns, {column.name.lower() for column in segment.columns}
    marks = (DELETED,) if DELETED in there and not soft else ()
    if table.shard is not None:
        left = shards.left_columns(table.shard, table.snapshot.properties, segment)
        return (*(there[name][0] for name in left if name in there), *marks)
    kept = alterations.kept_columns(table.snapshot.properties)
    return (*(name for name in kept if name.lower() in there and name.lower() not in staged), *marks)


def _made(table: DeltaTable, segment: SchemaSegment) -> AlterationPlan:
    snapshot = table.snapshot
    return alterations.plan_of(snapshot.columns, alterations.kept_columns(snapshot.properties), segment)


def _kept_plan(table: DeltaTable, name: str) -> tuple[str, AlterationPlan] | None:
    """Returns the stage and the plan that an earlier attempt of this statement stored, or None."""
    record = json.loads(table.snapshot.properties.get(PLAN_PROPERTY, "{}"))
    if record.get("name") != name:
        return None
    return str(record["stage"]), AlterationPlan.from_json(record["plan"])


def _keep_plan(session: LakeSession, table: DeltaTable, stage: str, name: str, plan: AlterationPlan) -> None:
    """Stores the plan and its stage in a table property, and sets the other table properties that the plan needs."""
    snapshot = table.snapshot
    properties = alterations.table_properties(plan, snapshot.properties, snapshot.features)
    if plan.is_kept_in_table:
        properties[PLAN_PROPERTY] = json.dumps({"name": name, "stage": stage, "plan": plan.to_json()})
    _set_properties(session, table, properties)


def _set_properties(session: LakeSession, table: DeltaTable, properties: Mapping[str, str]) -> None:
    def due() -> list[str]:
        snapshot = table.snapshot
        lacking = {
            name: value
            for name, value in properties.items()
            if snapshot.properties.get(name) != value and name.removeprefix(FEATURE) not in snapshot.features
        }
        return [set_properties(table.path, lacking)] if lacking else []

    alter(session, table, due)


def _any_table(table: DeltaTable) -> None:
    """Accepts every table, because the caller has already checked it."""


def alter(
    session: LakeSession,
    table: DeltaTable,
    due: Callable[[], list[str]],
    check: Callable[[DeltaTable], None] = _any_table,
) -> None:
    """Executes the statements that `due` derives from the table's state, and reads the table again. Then calls `check`, which raises an
    error if another run or program has created the table meanwhile.

    Raises LostCommitError if `due` still returns a statement afterwards, because a commit of another writer replaced the statement's
    commit. The loss is found only in this way, because a statement's commit has no Delta transaction.
    """
    before, statements = table.snapshot.version, due()
    for statement in statements:
        session.commit(table.name, statement)
    if statements:
        table.refresh()
        check(table)
        if due():
            raise LostCommitError(table.name, table.path, before)
