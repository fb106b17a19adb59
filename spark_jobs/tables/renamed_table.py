"""A table that got the name of another: it takes over that one's rows and columns. `merge` calls it.

A table of the lake stands at a place that its name says, so RENAME moves rows between places; where two tables swap their names, both
ways. Each is read as it was right before the statement, wherever the other one has come to since: in this run, or in an earlier one that
broke between the two. Delta's log tells which version that is. The table becomes what the other was in one commit, which carries
the statement's transaction; so it is done once, or not at all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

from spark_jobs import sql_text
from spark_jobs.errors import TableError
from spark_jobs.report import TableTarget
from spark_jobs.staged_batch import DELETED, Column, SchemaSegment, StagedBatch, app_id_of
from spark_jobs.tables import layout
from spark_jobs.tables.alterations import KEPT_PROPERTY, LOCAL_TIMES, kept_columns
from spark_jobs.tables.delta_table import MAPPING_PROPERTY, DeltaTable, Snapshot, new_properties, pairs, wanted_columns
from spark_jobs.tables.table_owner import Owner, TableRecords, Writer, refuse_unless_ours

DDL_UNSUPPORTED = "DDL_UNSUPPORTED"
RENAMED_AT = "sluice.renamedAt"  # property: the order key at which a table took over another one's rows
# properties that are ours, or that Delta keeps for itself; what else a table was given stays
NOT_CARRIED = (
    *("sluice.", "delta.columnMapping.", "delta.constraints.", "delta.feature.", "delta.inCommitTimestamp"),
    *("delta.rowTracking", "delta.enableRowTracking", "delta.coordinatedCommits"),
)


def nowhere(_name: str) -> TableTarget | None:
    """For a merge that knows of no tables but its own."""
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """The table that got another name: its Delta table right before that, and rows there are now, for the choice of a plan."""

    name: str
    path: str
    snapshot: Snapshot
    rows: int


@dataclasses.dataclass(frozen=True)
class Origins:
    """Finds the tables of the lake that tables of a batch were before. `writer`: of the table that is merged."""

    batch: StagedBatch
    writer: Writer
    target_of: Callable[[str], TableTarget | None]
    storage_options: Mapping[str, str]
    records: TableRecords

    def find(self, name: str, segment: SchemaSegment) -> Origin:
        """What the lake had under the former name of the table `name`. Raises TableError where that is not what this ledger left."""
        origin = segment.renamed_from
        place = self.target_of(origin)
        if place is None:
            raise TableError(name, f"the table was {origin} before, and nobody said where that is in the lake")
        if place.shard is not None:
            why = f"the table was {origin} before, a shard, whose rows are not moved; take them anew with `sluice snapshot start`"
            raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)
        if not place.mirror:
            why = f"the table was {origin} before, of which conf/ wants no mirror; take its rows with `sluice snapshot start`"
            raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)
        owner, record = self.batch.owner_of(origin), self.records.get(origin)
        table = DeltaTable(name, place.path, app_id_of(owner), self.storage_options)
        table.refresh()
        try:
            refuse_unless_ours(
                dataclasses.replace(self.writer, owner=owner), record, table.found(record, owner.to_text())
            )
        except TableError as error:
            raise TableError(
                name, f"the table was {origin} before; {error.reason}", state=error.state, for_good=True
            ) from error
        return Origin(name=origin, path=table.path, snapshot=table.before(segment.order_key), rows=table.row_count)


def take_over(table: DeltaTable, segment: SchemaSegment, target: TableTarget, origin: Origin, owner: Owner) -> str:
    """The statement by which the table becomes the origin; empty, where the lake has nothing of that. What else it was given stays.

    Raises TableError where the origin cannot be had with the columns that the table is to have.
    """
    there = origin.snapshot
    stays = table.snapshot if table.snapshot.exists else there
    left = [name for name in kept_columns(there.properties) if name.lower() in there.columns]
    staged = {column.name.lower() for column in segment.columns}
    left = [name for name in left if name.lower() not in staged]
    kept = [Column(name=there.columns[name.lower()][0], type=there.columns[name.lower()][1]) for name in left]
    soft = target.deletes == "soft" and bool(segment.key)
    wanted = wanted_columns((*segment.columns, *kept), soft_deletes=soft)
    values = ", ".join(_value(table.name, column, origin) for column in wanted)
    properties = {
        **carried_properties(stays),
        **new_properties(target, wanted, segment.key, owner.to_text()),
        RENAMED_AT: str(segment.order_key),
        **({KEPT_PROPERTY: json.dumps(left)} if left else {}),
        **({MAPPING_PROPERTY: "name"} if is_mapped(table.snapshot) or is_mapped(there) else {}),
        **(LOCAL_TIMES if any(column.type == "timestamp_ntz" for column in wanted) else {}),
    }
    laid = layout.clause(table.name, target.layout, wanted, stays.partitions, stays.features)
    return (
        f"CREATE OR REPLACE TABLE {sql_text.delta_path(target.path)} USING delta{laid} "
        f"TBLPROPERTIES ({pairs(properties)}) AS SELECT {values} FROM {_rows(origin, soft=soft)}"
    )


def _rows(origin: Origin, *, soft: bool) -> str:
    if not origin.snapshot.exists:
        return "(SELECT 1) WHERE false"
    alive = f" WHERE NOT coalesce({DELETED}, false)" if DELETED in origin.snapshot.columns and not soft else ""
    return f"{sql_text.delta_path(origin.path)} VERSION AS OF {origin.snapshot.version}{alive}"


def _value(name: str, column: Column, origin: Origin) -> str:
    there, kind = origin.snapshot.columns.get(column.name.lower(), ("", column.type))
    has_none = not origin.snapshot.exists or column.name == DELETED
    if kind != column.type or not (there or has_none):
        has = f"column {there} is {kind} and not {column.type}" if there else f"there is no column {column.name}"
        reason = (
            f"the table was {origin.name} before, and in the Delta table {origin.path} {has}: conf/ says otherwise of the two names; "
            "make them alike and resume, or take the rows anew"
        )
        raise TableError(name, reason, state=DDL_UNSUPPORTED, for_good=True)
    value = sql_text.identifier(there) if there else f"CAST(NULL AS {column.type})"
    return f"{value} AS {sql_text.identifier(column.name)}"


def carried_properties(snapshot: Snapshot) -> dict[str, str]:
    """What a table that is made anew keeps of what it was given."""
    return {name: value for name, value in snapshot.properties.items() if not name.startswith(NOT_CARRIED)}


def is_mapped(snapshot: Snapshot) -> bool:
    """Whether its columns are mapped by name, which cannot be undone."""
    return snapshot.properties.get(MAPPING_PROPERTY, "none") != "none"
