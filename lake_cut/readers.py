"""Opens the tables of a consistent snapshot with deltalake, DuckDB and Spark. Each function checks that each table was not created again
after the snapshot."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import deltalake
from deltalake.exceptions import DeltaError

from sluice.lake_cut.cut import Cut, CutError, CutTable


def deltalake_tables(cut: Cut, storage_options: Mapping[str, str] | None = None) -> dict[str, deltalake.DeltaTable]:
    """Returns "database.table" → the table at its version. Raises CutError if a version no longer exists."""
    return {table.name: _opened(table, storage_options) for table in cut.tables.values()}


def duckdb_views(connection: Any, cut: Cut, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Creates views `database.table` in a DuckDB connection that has loaded the delta extension. Returns their names.

    `storage_options`: deltalake's options for a lake in an object store. DuckDB does not use them: the connection needs DuckDB's extension
    and secret for the object store.

    DuckDB ignores case in names. Tables whose names differ only in case get the views `table__1`, `table__2`, …. Raises CutError for tables
    that cannot be read, after it has created the views of all other tables.
    """
    made: list[str] = []
    failed: dict[str, Exception] = {}
    named = list(_named(cut))
    for (table, _, _), (database, short) in zip(
        named, _distinguished([(database, short) for _, database, short in named]), strict=True
    ):
        path, schema = table.path.replace("'", "''"), _quoted(database, '"')
        name = f"{schema}.{_quoted(short, chr(34))}"
        try:
            _opened(table, storage_options)
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.execute(
                f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM delta_scan('{path}', version => {table.version})"
            )
        except Exception as error:  # Whatever the error is, the other tables get their views.
            failed[table.name] = error
        else:
            made.append(name)
    _refuse(failed)
    return made


def spark_views(spark: Any, cut: Cut, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Creates temporary views `database_table` in a Spark session with Delta. Returns their names.

    Spark ignores case in names, and `a_b.c` and `a.b_c` yield the same name. Such tables get `__1`, `__2`, … at the end. Raises CutError
    like `duckdb_views`.
    """
    made: list[str] = []
    failed: dict[str, Exception] = {}
    named = list(_named(cut))
    for (table, _, _), (_, name) in zip(
        named, _distinguished([("", f"{database}_{short}") for _, database, short in named]), strict=True
    ):
        path = _quoted(_of_spark(table.path), "`")
        try:
            _opened(table, storage_options)
            spark.sql(
                f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name, '`')} AS SELECT * FROM delta.{path} VERSION AS OF {table.version}"
            )
        except Exception as error:  # Whatever the error is, the other tables get their views.
            failed[table.name] = error
        else:
            made.append(name)
    _refuse(failed)
    return made


def _refuse(failed: Mapping[str, Exception]) -> None:
    """Raises CutError if any table failed. `failed`: table → its error."""
    if failed:
        why = "; ".join(
            str(error) if isinstance(error, CutError) else f"the view of {name} cannot be made: {error}"
            for name, error in failed.items()
        )
        raise CutError(why) from next(iter(failed.values()))


def _named(cut: Cut) -> Iterator[tuple[CutTable, str, str]]:
    for name, table in sorted(cut.tables.items()):
        database, _, short = name.partition(".")
        yield table, database, short


def _distinguished(names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns (schema, name) for each view. Names that are equal or differ only in case get a number, because no view
    may replace another.
    """
    lowered = [(schema.lower(), name.lower()) for schema, name in names]
    taken, found = set(lowered), list(names)
    for at, (schema, name) in enumerate(names):
        if lowered.count(lowered[at]) > 1:
            numbered = (f"{name}__{number}" for number in itertools.count(1))
            free = next(each for each in numbered if (schema.lower(), each.lower()) not in taken)
            taken.add((schema.lower(), free.lower()))
            found[at] = (schema, free)
    return found


def _of_spark(path: str) -> str:
    """Converts a URL with the scheme s3:// to s3a://, which Spark's S3 client uses."""
    return path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path


def _opened(table: CutTable, storage_options: Mapping[str, str] | None) -> deltalake.DeltaTable:
    """Opens a table at its version. Raises CutError if the table has another id: it was created again, so its versions are not those of the
    snapshot.
    """
    options = dict(storage_options or {}) or None
    try:
        found = deltalake.DeltaTable(table.path, version=table.version, storage_options=options)
        table_id = str(found.metadata().id)
    except (DeltaError, OSError) as error:
        raise CutError(
            f"version {table.version} of {table.name} at {table.path} cannot be read: {error}; read a newer consistent snapshot"
        ) from error
    if table_id != table.table_id:
        raise CutError(
            f"{table.name} at {table.path} is not the table in the consistent snapshot; read a newer "
            "consistent snapshot"
        )
    return found


def _quoted(name: str, mark: str) -> str:
    return f"{mark}{name.replace(mark, 2 * mark)}{mark}"
