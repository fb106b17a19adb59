"""Opens the tables of a consistent snapshot with deltalake, DuckDB and Spark. Each function checks that no table was dropped and created
again after the consistent snapshot.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import deltalake
from deltalake.exceptions import DeltaError

from sluice.consistent_snapshot.find import ConsistentSnapshot, ConsistentSnapshotError, TableAtVersion


def deltalake_tables(
    snapshot: ConsistentSnapshot, storage_options: Mapping[str, str] | None = None
) -> dict[str, deltalake.DeltaTable]:
    """Returns "database.table" → the table at its version. Raises ConsistentSnapshotError if a version cannot be read, or if a table was
    created again.
    """
    return {table.name: _opened(table, storage_options) for table in snapshot.tables.values()}


def duckdb_views(
    connection: Any, snapshot: ConsistentSnapshot, storage_options: Mapping[str, str] | None = None
) -> list[str]:
    """Creates views `database.table` in a DuckDB connection, and returns their names. The connection must have loaded the delta extension.

    `storage_options` are deltalake's options for a lake in an object store. deltalake opens each table first, to check that the table was
    not created again. DuckDB does not use `storage_options`, so the connection also needs DuckDB's extension and secret for the object
    store.

    DuckDB ignores letter case in names. If names differ only in letter case, the views are called `table__1`, `table__2`, …. If some tables
    cannot be read, creates the views of all readable tables, and then raises ConsistentSnapshotError.
    """
    made: list[str] = []
    failed: dict[str, Exception] = {}
    named = list(_named(snapshot))
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
        except Exception as error:  # Catches all errors, so that the other tables still get their views.
            failed[table.name] = error
        else:
            made.append(name)
    _refuse(failed)
    return made


def spark_views(
    spark: Any, snapshot: ConsistentSnapshot, storage_options: Mapping[str, str] | None = None
) -> list[str]:
    """Creates temporary views `database_table` in a Spark session with Delta, and returns their names.

    Spark ignores letter case in names, and `a_b.c` and `a.b_c` give the same name. If several views would have the same name, the names get
    `__1`, `__2`, … at the end. If some tables cannot be read, creates the views of all readable tables, and then raises
    ConsistentSnapshotError.
    """
    made: list[str] = []
    failed: dict[str, Exception] = {}
    named = list(_named(snapshot))
    for (table, _, _), (_, name) in zip(
        named, _distinguished([("", f"{database}_{short}") for _, database, short in named]), strict=True
    ):
        path = _quoted(_of_spark(table.path), "`")
        try:
            _opened(table, storage_options)
            spark.sql(
                f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name, '`')} AS SELECT * FROM delta.{path} VERSION AS OF {table.version}"
            )
        except Exception as error:  # Catches all errors, so that the other tables still get their views.
            failed[table.name] = error
        else:
            made.append(name)
    _refuse(failed)
    return made


def _refuse(failed: Mapping[str, Exception]) -> None:
    """Raises ConsistentSnapshotError with all errors in `failed` (table → its error). Does nothing if `failed` is empty."""
    if failed:
        why = "; ".join(
            str(error)
            if isinstance(error, ConsistentSnapshotError)
            else f"the view of {name} cannot be created: {error}"
            for name, error in failed.items()
        )
        raise ConsistentSnapshotError(why) from next(iter(failed.values()))


def _named(snapshot: ConsistentSnapshot) -> Iterator[tuple[TableAtVersion, str, str]]:
    for name, table in sorted(snapshot.tables.items()):
        database, _, short = name.partition(".")
        yield table, database, short


def _distinguished(names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the (schema, name) under which each view is created. Names that are equal, or differ only in letter case, get a number, so
    that no view replaces another one. The other names are returned as given.
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
    """Converts a URL that begins with s3:// to s3a://, the scheme of Spark's S3 client."""
    return path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path


def _opened(table: TableAtVersion, storage_options: Mapping[str, str] | None) -> deltalake.DeltaTable:
    """Opens a table at its version. Raises ConsistentSnapshotError if the version cannot be read, or if the table has another id because it
    was created again.
    """
    options = dict(storage_options or {}) or None
    try:
        found = deltalake.DeltaTable(table.path, version=table.version, storage_options=options)
        table_id = str(found.metadata().id)
    except (DeltaError, OSError) as error:
        raise ConsistentSnapshotError(
            f"version {table.version} of {table.name} at {table.path} cannot be read: {error}; check the disk or "
            "object store of the lake, or, if the version was removed, read a newer consistent snapshot"
        ) from error
    if table_id != table.table_id:
        raise ConsistentSnapshotError(
            f"{table.name} at {table.path} is not the table in the consistent snapshot, because the table was created "
            "again since then; read a newer consistent snapshot"
        )
    return found


def _quoted(name: str, mark: str) -> str:
    return f"{mark}{name.replace(mark, 2 * mark)}{mark}"
