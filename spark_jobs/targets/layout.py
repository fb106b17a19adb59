"""Defines the layout of a Delta table that conf/ configures: partitions, clustering, change data feed. Generates its SQL clauses and
properties. Pure functions.

`delta_table` uses the layout to create and alter tables. `renamed_table`, `retyped_table` and `snapshot.publish` use it to create a table
again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.errors import TableError

FEED_PROPERTY = "delta.enableChangeDataFeed"
CLUSTERING = "clustering"  # Delta's name of the table feature for clustered tables.
CLUSTERED = (
    "conf/ has partition_by for the table, and Delta cannot partition a clustered table: remove partition_by "
    "from conf/, or move the table's folder away and re-snapshot it with `sluice snapshot start`"
)
# This table property has the clustering columns that Sluice set last. Delta stores the clustering columns too, but clients cannot read them
# there.
CLUSTER_PROPERTY = "sluice.clusterBy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout that conf/ configures for one table. At most one of `partition_by` and `cluster_by` is set."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    change_feed: bool = False

    def __bool__(self) -> bool:
        return bool(self.partition_by or self.cluster_by or self.change_feed)


PLAIN = Layout()


def clause(
    name: str,
    layout: Layout,
    wanted: tuple[LakeColumn, ...],
    stays: tuple[str, ...] = (),
    features: Collection[str] = (),
) -> str:
    """Returns the PARTITIONED BY or CLUSTER BY clause of CREATE TABLE, with a leading space, or "". `stays` and `features` are the
    partition columns and the Delta features of the existing table.

    If conf/ sets neither partition_by nor cluster_by, a table that is created again keeps its partitions, if it still has these columns.
    Raises TableError if conf/ names a column that the table does not have, or if Delta does not support the layout.
    """
    known = {column.name.lower() for column in wanted}
    for column in (*layout.partition_by, *layout.cluster_by):
        if column.lower() not in known:
            raise TableError(
                name,
                f"partition_by or cluster_by in conf/ names {column}, which is not a column of the table; "
                "correct the setting",
            )
    if layout.partition_by and CLUSTERING in features:
        raise TableError(name, CLUSTERED)
    if layout.cluster_by:
        return f" CLUSTER BY ({sql_text.identifiers(layout.cluster_by)})"
    parts = layout.partition_by or (stays if {part.lower() for part in stays} <= known else ())
    return f" PARTITIONED BY ({sql_text.identifiers(parts)})" if parts else ""


def properties(layout: Layout) -> dict[str, str]:
    """Returns the properties of a new table with this layout."""
    clustered = {CLUSTER_PROPERTY: json.dumps(layout.cluster_by)} if layout.cluster_by else {}
    return {**clustered, **({FEED_PROPERTY: "true"} if layout.change_feed else {})}


def changed_properties(layout: Layout, there: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that must be added to a table with the properties `there`. A change data feed is switched on, but never off,
    because readers of the feed would miss changes.
    """
    return {FEED_PROPERTY: "true"} if layout.change_feed and there.get(FEED_PROPERTY) != "true" else {}


def cluster_change(layout: Layout, there: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """Returns the clause of ALTER TABLE that changes the clustering to that of conf/, and the property that records it. Returns None if
    nothing changes.
    """
    if json.dumps(layout.cluster_by) == there.get(CLUSTER_PROPERTY, "[]"):
        return None
    by = f"({sql_text.identifiers(layout.cluster_by)})" if layout.cluster_by else "NONE"
    return f"CLUSTER BY {by}", {CLUSTER_PROPERTY: json.dumps(layout.cluster_by)}


def refuse_other_partitions(
    name: str, path: str, layout: Layout, there: tuple[str, ...], *, shared: bool = False
) -> None:
    """Raises TableError if conf/ sets partition_by and the table has other partitions, or if conf/ sets cluster_by and the table is
    partitioned. `there` are the table's partition columns. `shared` says whether the table has several shards.
    """
    configured = [part.lower() for part in layout.partition_by]
    if (configured and configured != [part.lower() for part in there]) or (layout.cluster_by and there):
        is_by = f"partitioned by {', '.join(there)}" if there else "not partitioned"
        ours = f"partition_by {', '.join(layout.partition_by)}" if layout.partition_by else "cluster_by"
        # A snapshot of a shard replaces only the rows of this shard, and does not create the table again.
        again = (
            "move the table's folder away, and run `sluice lake accept` for each of its shards"
            if shared
            else "create the table again with `sluice snapshot start`"
        )
        raise TableError(
            name,
            f"the Delta table {path} is {is_by}, and conf/ has {ours}: Delta "
            f"partitions a table when it is created; remove the setting from conf/, or {again}",
        )
