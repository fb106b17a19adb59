"""Publishes the rows of a shard in place of those it has in the Delta table that it shares with others. `publish` calls it."""

from __future__ import annotations

from spark_jobs import sql_text
from spark_jobs.session import Lane
from spark_jobs.snapshot import publish_sql
from spark_jobs.snapshot.publication import Publication
from spark_jobs.tables import shards
from spark_jobs.tables.delta_table import DeltaTable, Snapshot, schema_statements, wanted_columns
from spark_jobs.tables.table_owner import refuse_others


def give_columns(lane: Lane, given: Publication, table: DeltaTable) -> Snapshot:
    """The table, made or with the columns of the shard; no row of it has changed yet."""
    wanted = wanted_columns(given.columns, soft_deletes=given.soft_deletes)
    for statement in schema_statements(table, given.target, wanted, given.key, given.owner.to_text()):
        lane.commit(given.owner.table, statement)
    after = table.refresh()
    refuse_others(given.owner, table.found(None, given.owner.to_text()))  # another may have made it in the same moment
    return after


def statement(given: Publication, there: Snapshot, rows: publish_sql.Rows) -> str:
    """One commit. What the shard lacks of the table is NULL. `there`: the table, with the columns of the shard."""
    has = {column.name.lower() for column in wanted_columns(given.columns, soft_deletes=rows.soft_deletes)}
    values = [
        sql_text.identifier(name) if name.lower() in has else f"CAST(NULL AS {kind})" for name, kind in there.schema
    ]
    into = f"INSERT INTO {sql_text.delta_path(given.target.path)} REPLACE"
    return f"{into}{shards.where(given.target.shard)} SELECT {', '.join(values)} FROM ({publish_sql.selection(rows)})"
