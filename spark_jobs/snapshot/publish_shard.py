"""Replaces the rows of one shard in the shared Delta table by the rows of its snapshot. `publish` calls this module."""

from __future__ import annotations

from sluice.spark_jobs import sql_text
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.snapshot import publish_sql
from sluice.spark_jobs.snapshot.publication import Publication
from sluice.spark_jobs.table_owner import refuse_others
from sluice.spark_jobs.tables.alteration_steps import alter
from sluice.spark_jobs.tables.delta_table import DeltaSnapshot, DeltaTable, schema_statements, wanted_columns
from sluice.spark_jobs.targets import shards


def give_columns(session: LakeSession, given: Publication, table: DeltaTable) -> DeltaSnapshot:
    """Creates the table, or adds the shard's columns to it, without changing rows. Returns the table's new state."""
    wanted = wanted_columns(given.columns, soft_deletes=given.soft_deletes)

    def due() -> list[str]:
        return schema_statements(table, given.target, wanted, given.key, given.owner.to_text())

    # Another run may create the table at the same moment, so its owner is checked.
    alter(session, table, due, lambda there: refuse_others(given.owner, there.found(None, given.owner.to_text())))
    return table.snapshot


def statement(given: Publication, there: DeltaSnapshot, rows: publish_sql.Rows) -> str:
    """Returns the statement that replaces the shard's rows in one commit. Columns that the shard lacks get NULL. `there` is the table, with
    the columns of the shard.
    """
    has = {column.name.lower() for column in wanted_columns(given.columns, soft_deletes=rows.soft_deletes)}
    values = [
        sql_text.identifier(name) if name.lower() in has else f"CAST(NULL AS {kind})" for name, kind in there.schema
    ]
    into = f"INSERT INTO {sql_text.delta_path(given.target.path)} REPLACE"
    return f"{into}{shards.where(given.target.shard)} SELECT {', '.join(values)} FROM ({publish_sql.selection(rows)})"
