"""Reads a consistent snapshot of a destination's tables: all tables as they were at the end of one batch, so that joins see whole
transactions.

This package is for programs that read the lake, and needs only `deltalake`. `duckdb_views` also needs DuckDB, and `spark_views` needs
Spark. docs/readers.md has examples.
"""

from sluice.consistent_snapshot.find import (
    ConsistentSnapshot,
    ConsistentSnapshotError,
    TableAtVersion,
    read_consistent_snapshot,
)
from sluice.consistent_snapshot.readers import deltalake_tables, duckdb_views, spark_views

__all__ = [
    "ConsistentSnapshot",
    "ConsistentSnapshotError",
    "TableAtVersion",
    "deltalake_tables",
    "duckdb_views",
    "read_consistent_snapshot",
    "spark_views",
]
