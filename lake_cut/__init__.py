"""Reads a consistent snapshot of a destination's tables: all tables as they were at the end of one batch, so that joins see whole
transactions.

For programs that read the lake. It needs only `deltalake`. `duckdb_views` also needs DuckDB, and `spark_views` needs Spark.
docs/readers.md has examples.
"""

from sluice.lake_cut.cut import Cut, CutError, CutTable, read_cut
from sluice.lake_cut.readers import deltalake_tables, duckdb_views, spark_views

__all__ = ["Cut", "CutError", "CutTable", "deltalake_tables", "duckdb_views", "read_cut", "spark_views"]
