"""The tables of a cut, in deltalake, DuckDB and Spark. Each checks that a table is still the one that the cut saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import deltalake
from deltalake.exceptions import DeltaError

from lake_cut.cut import Cut, CutError, CutTable


def deltalake_tables(cut: Cut, storage_options: Mapping[str, str] | None = None) -> dict[str, deltalake.DeltaTable]:
    """Each table at its version, by "database.table". Raises CutError where a version is gone."""
    return {table.name: _opened(table, storage_options) for table in cut.tables.values()}


def duckdb_views(connection: Any, cut: Cut) -> list[str]:
    """Views `database.table` in a DuckDB connection that has loaded its delta extension; their names. Raises CutError."""
    made = []
    for table, database, short in _named(cut):
        _opened(table, None)
        path, schema = table.path.replace("'", "''"), _quoted(database, '"')
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        name = f"{schema}.{_quoted(short, chr(34))}"
        connection.execute(
            f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM delta_scan('{path}', version => {table.version})"
        )
        made.append(name)
    return made


def spark_views(spark: Any, cut: Cut, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Temporary views `database_table` of a Spark session with Delta; their names. Raises CutError."""
    made = []
    for table, database, short in _named(cut):
        _opened(table, storage_options)
        name = f"{database}_{short}"
        path = _quoted(_of_spark(table.path), "`")
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name, '`')} AS SELECT * FROM delta.{path} VERSION AS OF {table.version}"
        )
        made.append(name)
    return made


def _named(cut: Cut) -> Iterator[tuple[CutTable, str, str]]:
    for name, table in sorted(cut.tables.items()):
        database, _, short = name.partition(".")
        yield table, database, short


def _of_spark(path: str) -> str:
    """Spark's client of S3 has a name of its own."""
    return path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path


def _opened(table: CutTable, storage_options: Mapping[str, str] | None) -> deltalake.DeltaTable:
    """The table at its version. A table of another id was dropped and made anew: its versions are not those of the cut."""
    options = dict(storage_options or {}) or None
    try:
        found = deltalake.DeltaTable(table.path, version=table.version, storage_options=options)
        table_id = str(found.metadata().id)
    except (DeltaError, OSError) as error:
        raise CutError(
            f"version {table.version} of {table.name} at {table.path} cannot be read: {error}; read a newer cut"
        ) from error
    if table_id != table.table_id:
        raise CutError(f"{table.name} at {table.path} is another table than the cut saw; read a newer cut")
    return found


def _quoted(name: str, mark: str) -> str:
    return f"{mark}{name.replace(mark, 2 * mark)}{mark}"
