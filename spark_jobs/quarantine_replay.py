"""Puts values that can be decoded by now back into their rows. `sluice quarantine replay` calls it while no run merges.

A row is the one the value was taken from only as long as its order key is that of the quarantined image: a later change of the row has
brought its own value. Doing it twice changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from spark_jobs import sql_text
from spark_jobs.session import Lane
from spark_jobs.staged_batch import ORDER_KEY

VIEW = "sluice_quarantine_replay"
KEY_COLUMN, VALUE_COLUMN = "order_key", "value"


def put_back(lane: Lane, path: str, column: str, type_name: str, file: Path) -> frozenset[int]:
    """Sets `column` of the Delta table at `path` to the values of a Parquet file (order_key, value); the order keys whose rows it found.

    `type_name`: Spark SQL's name of the value's type, which must be the column's.
    """
    options = f"path {sql_text.text(str(file))}"
    lane.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {VIEW} ({KEY_COLUMN} bigint, {VALUE_COLUMN} {type_name}) USING parquet OPTIONS ({options})"
    )
    target, key = sql_text.delta_path(path), sql_text.identifier(ORDER_KEY)
    found = lane.session.sql(
        f"SELECT {KEY_COLUMN} FROM {VIEW} LEFT SEMI JOIN {target} AS t ON t.{key} = {VIEW}.{KEY_COLUMN}"
    )
    keys = frozenset(int(row[0]) for row in found.collect())
    if keys:
        lane.sql(
            f"MERGE INTO {target} AS t USING {VIEW} AS s ON t.{key} = s.{KEY_COLUMN} "
            f"WHEN MATCHED THEN UPDATE SET {sql_text.identifier(column)} = s.{VALUE_COLUMN}"
        )
    return keys
