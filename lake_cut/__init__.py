"""Reads the tables of a destination as they were together, at the end of a batch: joins then see whole transactions.

For who reads the lake; it needs `deltalake` alone, and DuckDB or Spark where their functions are called. docs/readers.md has examples.
"""

from lake_cut.cut import Cut, CutError, CutTable, read_cut
from lake_cut.readers import deltalake_tables, duckdb_views, spark_views

__all__ = ["Cut", "CutError", "CutTable", "deltalake_tables", "duckdb_views", "read_cut", "spark_views"]
