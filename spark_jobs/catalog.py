"""Registers Delta tables in a catalog of Spark, so that readers find them by name. Called by a run.

A registration is a table of the catalog without data of its own: `CREATE TABLE … USING DELTA LOCATION …`. It commits nothing to the Delta
table, whose log has the columns, so later changes of columns need no registration. DROP TABLE of it removes no file. A table that the
catalog manages is never dropped, because its files would be removed with it, even if it is at the path of a Delta table of the lake.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import deltalake

from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.object_store import spark_path
from sluice.spark_jobs.session import LakeSession, first_line, is_away
from sluice.spark_jobs.sql_text import identifier, text

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
Identifier = tuple[str, str, str]  # catalog, schema, name
NOT_DELTA = "no Delta table"  # This stands in place of a location.


@dataclasses.dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A Delta table and its name in the catalog. `of`: "database.table" in the source. `identifier`: catalog, schema and name.

    `before`: the path for which Sluice registered this name last; empty if it did not.
    """

    of: str
    identifier: Identifier
    path: str
    before: str = ""

    @property
    def quoted(self) -> str:
        return ".".join(identifier(part) for part in self.identifier)

    @property
    def schema(self) -> str:
        return ".".join(identifier(part) for part in self.identifier[:2])


def register(
    session: LakeSession, tables: Sequence[CatalogTable], storage_options: Mapping[str, str] = NO_OPTIONS
) -> Mapping[Identifier, str]:
    """Registers tables one by one. Returns name → reason for tables that could not be registered.

    `storage_options`: of the lake's store, for deltalake. Raises SparkUnavailableError.
    """

    def act(table: CatalogTable) -> None:
        _register(session, table, storage_options)

    return _each(tables, act)


def unregister(session: LakeSession, tables: Sequence[CatalogTable]) -> Mapping[Identifier, str]:
    """Removes registrations that still name the table's path. Returns and raises like `register`."""

    def act(table: CatalogTable) -> None:
        there = _entry(session, table)
        if there is not None and same_location(there.location, table.path):
            _drop(session, table, there)

    return _each(tables, act)


def same_location(one: str, other: str) -> bool:
    """Returns whether two locations are the same, whether Spark, Hadoop or deltalake wrote the URL."""
    return _plain(one) == _plain(other)


def _each(tables: Sequence[CatalogTable], act: Callable[[CatalogTable], None]) -> Mapping[Identifier, str]:
    failed: dict[Identifier, str] = {}
    for table in tables:
        try:
            act(table)
        except Exception as error:  # The error may be of any kind; it concerns one name.
            if is_away(error):
                raise SparkUnavailableError(f"the connection to Spark was lost: {first_line(error)}") from error
            failed[table.identifier] = first_line(error)
    return failed


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
    """What the catalog has under a name. `location`: NOT_DELTA for a table of another kind. `managed`: DROP TABLE removes its files."""

    location: str
    managed: bool = False


def _register(session: LakeSession, table: CatalogTable, storage_options: Mapping[str, str]) -> None:
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
    there = _entry(session, table)
    if there is not None and same_location(there.location, table.path):
        return
    if there is not None and not (table.before and same_location(there.location, table.before)):
        raise ValueError(
            f"the catalog has another table of this name ({there.location}): remove it there, or set catalog.schema or "
            "catalog.table in conf/sluice.yaml"
        )
    if not deltalake.DeltaTable.is_deltatable(table.path, storage_options=dict(storage_options) or None):
        raise ValueError(f"there is no Delta table at {table.path}")  # Spark would create an empty table.
    if there is not None:
        _drop(session, table, there)
    # It is not `commit`: it commits nothing to an existing Delta table.
    session.spark.sql(f"CREATE TABLE {table.quoted} USING DELTA LOCATION {text(spark_path(table.path))}")


def _drop(session: LakeSession, table: CatalogTable, entry: _Entry) -> None:
    """Removes a registration. Raises ValueError if that would remove the files of the Delta table."""
    if entry.managed:
        raise ValueError(
            f"the catalog manages the table at {entry.location}, so DROP TABLE would remove its files: remove the entry in the catalog "
            "without its files"
        )
    session.sql(f"DROP TABLE {table.quoted}")


def _entry(session: LakeSession, table: CatalogTable) -> _Entry | None:
    """Returns what the catalog has under a table's name; None if there is nothing.

    Lists names before it describes one, because pyspark logs pages for a name that does not exist. Spark reads the pattern as a regular
    expression, in which a dot stands for any character.
    """
    name = table.identifier[2]
    pattern = re.sub(r"\W", ".", name)
    listed = session.spark.sql(f"SHOW TABLES IN {table.schema} LIKE {text(pattern)}").collect()
    if not any(str(row["tableName"]).lower() == name for row in listed):
        return None
    rows = session.spark.sql(f"DESCRIBE TABLE EXTENDED {table.quoted}").collect()
    found = {str(row[0]).lower(): str(row[1]) for row in rows}
    if found.get("provider", "").lower() != "delta":
        return _Entry(location=NOT_DELTA)
    return _Entry(location=found.get("location", NOT_DELTA), managed=found.get("type", "").upper() == "MANAGED")


def _plain(location: str) -> str:
    """Returns a location without the parts in which two spellings of it differ."""
    local = re.sub(r"^file:/+", "/", location)
    return re.sub(r"^s3[an]://", "s3://", local).rstrip("/")
