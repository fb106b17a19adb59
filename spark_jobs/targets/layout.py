"""Defines the configured layout of a Delta table: partitions, clustering, change data feed. Returns clauses and properties as text. Pure
functions.

`delta_table` uses it for existing tables, `renamed_table` and `snapshot.publish` for tables that are created again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.errors import TableError

FEED_PROPERTY = "delta.enableChangeDataFeed"
CLUSTERING = "clustering"  # The name of Delta's feature.
CLUSTERED = (
    "conf/ has partition_by for it, and Delta cannot partition a clustered table: remove partition_by from conf/, or move "
    "the table's folder away and re-snapshot it with `sluice snapshot start`"
)
# The clustering that was set last. Delta itself stores it where clients do not read it.
CLUSTER_PROPERTY = "sluice.clusterBy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The configured layout of one table. `partition_by` or `cluster_by` is empty."""

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
    """Returns the part of CREATE TABLE after USING, with a space before it. `stays`, `features`: the partition columns and the Delta
    features of the existing table.

    Without a setting in conf/, a table that is created again stays partitioned, if it still has those columns. Raises TableError if conf/
    names a column that the table lacks, or if Delta does not support the layout.
    """
    known = {column.name.lower() for column in wanted}
    for column in (*layout.partition_by, *layout.cluster_by):
        if column.lower() not in known:
            raise TableError(
                name,
                f"partition_by or cluster_by in conf/ names {column}, which is not a column of it; correct the setting",
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
    """Returns the properties that a table with the properties `there` lacks. A change data feed is enabled and never disabled, because its
    readers would see a gap.
    """
    return {FEED_PROPERTY: "true"} if layout.change_feed and there.get(FEED_PROPERTY) != "true" else {}


def cluster_change(layout: Layout, there: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """Returns the clause of ALTER TABLE that clusters a table as configured, and the property that records it; None if the table is already
    clustered like this.
    """
    if json.dumps(layout.cluster_by) == there.get(CLUSTER_PROPERTY, "[]"):
        return None
    by = f"({sql_text.identifiers(layout.cluster_by)})" if layout.cluster_by else "NONE"
    return f"CLUSTER BY {by}", {CLUSTER_PROPERTY: json.dumps(layout.cluster_by)}


def refuse_other_partitions(name: str, path: str, layout: Layout, there: tuple[str, ...]) -> None:
    """Raises TableError if the table's partitions differ from conf/. Without a setting in conf/, any partitions are accepted."""
    configured = [part.lower() for part in layout.partition_by]
    if (configured and configured != [part.lower() for part in there]) or (layout.cluster_by and there):
        is_by, ours = ", ".join(there) or "nothing", ", ".join(layout.partition_by) or "nothing (cluster_by)"
        raise TableError(
            name,
            f"the Delta table {path} is partitioned by {is_by}, and conf/ has partition_by {ours}: Delta partitions a table when it is "
            "created; remove that setting from conf/, or create the table again with `sluice snapshot start`",
        )
