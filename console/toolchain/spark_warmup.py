"""One tiny Delta table written, merged and thrown away over a Spark Connect session; called by SparkConnectServer.warm.

The first MERGE of a fresh server loads and compiles for half a minute; this is that minute, spent before anyone waits.
"""

import shutil
import time
from pathlib import Path

from pyspark.sql.connect.session import SparkSession

MERGES = 2


def warm_up(url: str, folder: Path) -> float:
    """Run the statements a batch runs, on twenty rows under `folder`; returns the seconds it took."""
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    session = SparkSession.builder.remote(url).create()
    try:
        _merge_tiny_table(session, folder)
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return time.monotonic() - began


def _merge_tiny_table(session: SparkSession, folder: Path) -> None:
    staged, table = f"parquet.`{folder / 'staged'}`", f"delta.`{folder / 'table'}`"
    session.sql("SELECT id, CAST(id AS STRING) AS label, id % 3 = 0 AS gone FROM range(20)").write.parquet(
        str(folder / "staged")
    )
    session.sql(
        f"CREATE TABLE {table} (id BIGINT, label STRING) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    for _ in range(MERGES):
        session.sql(
            f"MERGE INTO {table} t USING {staged} s ON t.id = s.id AND t.id BETWEEN 0 AND 20"
            " WHEN MATCHED AND s.gone THEN DELETE"
            " WHEN MATCHED THEN UPDATE SET t.label = s.label"
            " WHEN NOT MATCHED AND NOT s.gone THEN INSERT (id, label) VALUES (s.id, s.label)"
        ).collect()
    session.sql(f"SELECT count(*) FROM {table}").collect()
