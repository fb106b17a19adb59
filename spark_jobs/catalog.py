"""Registers Delta tables, and views of them, in a Spark catalog, so that readers find them by name. A Dagster run calls this module.

A registration is an external table of the catalog: `CREATE TABLE … USING DELTA LOCATION …`. A registration commits nothing to the Delta
table. The columns are in the Delta log, so a change of columns needs no new registration. DROP TABLE removes a registration and leaves the
files. If the catalog manages a table, DROP TABLE would also remove the files, so Sluice never executes DROP TABLE for such a table.

A view lists the columns of its table. The view's property MARK has a digest of the Delta table's path. A view without this property was not
created by Sluice, and is not replaced.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import deltalake

from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.object_store import spark_path
from sluice.spark_jobs.session import LakeSession, first_line, is_away
from sluice.spark_jobs.sql_text import identifier, identifiers, spark_type, text
from sluice.spark_jobs.staged_batch import DELETED

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
Identifier = tuple[str, str, str]  # catalog, schema, name
Columns = tuple[tuple[str, str], ...]  # (name, Spark's type)
NOT_DELTA = "no Delta table"  # The `_Entry.location` of a catalog entry that is not a Delta table.
# The longest comment of a column, in characters. Longer comments are cut, because a Hive metastore refuses them.
COMMENT_MAX = 256
NO_SCHEMA = "[SCHEMA_NOT_FOUND]"  # Spark's errors about a schema that does not exist begin with this text.
OURS = "_sluice_"  # The columns that Sluice adds to a table have this prefix.
IS_CURRENT = "is_current"  # The column of a history that marks the current rows.
MARK = "sluice.of"  # The property of Sluice's views whose value identifies the Delta table of the view (`mark_of`).


@dataclasses.dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A name to register in the catalog, for a Delta table or for a view of a Delta table.

    - `of` is the "database.table" in the source.
    - `before` is the path that Sluice last registered under this name, or is empty if Sluice registered none.

    The following fields are for views only:

    - `over` is the name of the table that the view reads. It is None for a table.
    - `comments` has the comment of each column, by the column's name. The empty name has the comment of the view.
    - `shaped_by` is the path of a Delta table. If the columns of this table change, the view is created again.
    - `current` restricts the view to the current rows of a history.
    """

    of: str
    identifier: Identifier
    path: str
    before: str = ""
    over: Identifier | None = None
    shaped_by: str = ""
    current: bool = False
    comments: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def comments_digest(self) -> str:
        """A digest of the comments of the view and its columns, or "" if there are no comments."""
        return _digest(sorted(self.comments.items())) if self.comments else ""

    @property
    def quoted(self) -> str:
        return quoted(self.identifier)

    @property
    def schema(self) -> str:
        return ".".join(identifier(part) for part in self.identifier[:2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registration:
    """The result of `register`: for each view, the digest of the columns for which it was created (`shapes`), and for each name that could
    not be registered, the reason (`failed`).
    """

    shapes: Mapping[Identifier, str]
    failed: Mapping[Identifier, str]


def register(
    session: LakeSession, tables: Sequence[CatalogTable], storage_options: Mapping[str, str] = NO_OPTIONS
) -> Registration:
    """Registers tables and views in the given order, in which each view must follow its table. `storage_options` are deltalake's options
    for the lake's object store. Raises SparkUnavailableError if Spark is not available. Other errors are in the result.
    """
    shapes: dict[Identifier, str] = {}

    def act(table: CatalogTable) -> None:
        if table.over is None:
            _register(session, table, storage_options)
        else:
            shapes[table.identifier] = _create_view(session, table, table.over, storage_options)

    return Registration(failed=_each(tables, act), shapes=shapes)


def unregister(session: LakeSession, tables: Sequence[CatalogTable]) -> Mapping[Identifier, str]:
    """Removes the entries of these tables and views from the catalog. Leaves an entry if it has the name of a table or view but another
    path. Returns the reason for each name that could not be removed. Raises SparkUnavailableError if Spark is not available.
    """

    def act(table: CatalogTable) -> None:
        there = _entry(session, table.identifier)
        if there is None:
            return
        if table.over is not None and there.is_view_of(table.path):
            session.sql(f"DROP VIEW {table.quoted}")
        elif table.over is None and same_location(there.location, table.path):
            _drop(session, table, there)

    return _each(tables, act)


def shape_of(columns: Columns) -> str:
    """Returns a digest of a Delta table's columns. If the digest changes, the view must be created again."""
    return _digest(columns)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def quoted(name: Identifier) -> str:
    return ".".join(identifier(part) for part in name)


def same_location(one: str, other: str) -> bool:
    """Returns whether two URLs name the same location. Spark, Hadoop and deltalake may write the URL of one location differently."""
    return _plain(one) == _plain(other)


def mark_of(path: str) -> str:
    """Returns the value of the property MARK for a view of the Delta table at `path`.

    The value is a digest, because Spark redacts properties that look like a secret, for example a path that contains `tokens`.
    """
    return hashlib.sha256(_plain(path).encode()).hexdigest()


def _each(tables: Sequence[CatalogTable], act: Callable[[CatalogTable], None]) -> Mapping[Identifier, str]:
    failed: dict[Identifier, str] = {}
    for table in tables:
        try:
            act(table)
        # An error concerns only this table or view, unless the connection to Spark was lost.
        except Exception as error:
            if is_away(error):
                raise SparkUnavailableError(f"the connection to Spark was lost: {first_line(error)}") from error
            failed[table.identifier] = first_line(error)
    return failed


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
    """An entry of the catalog. `location` is NOT_DELTA for a view, and for a table of another format. If `managed`, DROP TABLE would
    remove the table's files. `mark` is the view's property MARK, or empty.
    """

    location: str
    managed: bool = False
    mark: str = ""

    def is_view_of(self, path: str) -> bool:
        return self.mark == mark_of(path)


def _register(session: LakeSession, table: CatalogTable, storage_options: Mapping[str, str]) -> None:
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
    there = _entry(session, table.identifier)
    if there is not None and same_location(there.location, table.path):
        return
    if there is not None and not (table.before and same_location(there.location, table.before)):
        raise ValueError(
            f"the catalog has another table of this name ({there.location}): remove that table from the "
            "catalog, or set catalog.schema or catalog.table in conf/sluice.yaml"
        )
    if not deltalake.DeltaTable.is_deltatable(table.path, storage_options=dict(storage_options) or None):
        raise ValueError(f"no Delta table exists at {table.path}")  # Spark would create an empty table there.
    if there is not None:
        _drop(session, table, there)
    # Does not use `session.commit`, which checks the fence, because registering a table commits nothing to the Delta table.
    session.spark.sql(f"CREATE TABLE {table.quoted} USING DELTA LOCATION {text(spark_path(table.path))}")


def _create_view(session: LakeSession, view: CatalogTable, over: Identifier, storage_options: Mapping[str, str]) -> str:
    """Creates a view, or replaces it if Sluice created it. Returns the digest of the columns for which it was created."""
    table = _entry(session, over)
    # A table of another path may have the name that the view reads. The view would then show the rows of that table.
    if table is None or not same_location(table.location, view.path):
        name = ".".join(over)
        why = f"has no table {name}" if table is None else f"has {name} at {table.location} instead of {view.path}"
        raise ValueError(f"the view cannot be created, because the catalog {why}")
    there = _entry(session, view.identifier)
    if there is not None and not (there.is_view_of(view.path) or (view.before and there.is_view_of(view.before))):
        raise ValueError(
            "the catalog has another table or view of this name: remove that entry from the catalog, or set "
            "catalog.views in conf/sluice.yaml"
        )
    shape = shape_of(_columns_at(view.shaped_by, storage_options))
    session.spark.sql(view_statement(view, over, _columns_at(view.path, storage_options)))
    return shape


def view_statement(view: CatalogTable, over: Identifier, columns: Columns) -> str:
    """Returns the statement that creates a view of a Delta table with these columns. The view leaves out Sluice's columns, and leaves out
    rows that are marked as deleted. If `view.current`, the view has only the current rows of a history.
    """
    names = {name.lower(): name for name, _ in columns}
    shown = tuple(name for folded, name in names.items() if not folded.startswith(OURS))
    rule = ""
    if view.current:
        rule = f" WHERE {identifier(names[IS_CURRENT])}"
    elif DELETED in names:
        rule = f" WHERE NOT coalesce({identifier(names[DELETED])}, false)"
    comments = {name.lower(): comment for name, comment in view.comments.items()}
    described = ", ".join(
        f"{identifier(name)}{_comment(comments.get(name.lower(), '')[:COMMENT_MAX])}" for name in shown
    )
    return (
        f"CREATE OR REPLACE VIEW {view.quoted} ({described}){_comment(comments.get('', ''))} "
        f"TBLPROPERTIES ({text(MARK)} = {text(mark_of(view.path))}) AS SELECT {identifiers(shown)} FROM {quoted(over)}{rule}"
    )


def _comment(comment: str) -> str:
    return f" COMMENT {text(comment)}" if comment else ""


def _columns_at(path: str, storage_options: Mapping[str, str]) -> Columns:
    log = deltalake.DeltaTable(path, storage_options=dict(storage_options) or None)
    return tuple((field.name, spark_type(field.type)) for field in log.schema().fields)


def _drop(session: LakeSession, table: CatalogTable, entry: _Entry) -> None:
    """Removes a registration. Raises ValueError if DROP TABLE would remove the files of the Delta table too."""
    if entry.managed:
        raise ValueError(
            f"the catalog manages the table at {entry.location}, so DROP TABLE would remove its files: remove the entry in the catalog "
            "without its files"
        )
    session.sql(f"DROP TABLE {table.quoted}")


def _entry(session: LakeSession, of: Identifier) -> _Entry | None:
    """Returns the catalog's entry with this name, or None if there is no such entry or no such schema.

    SHOW TABLES is executed before DESCRIBE, because pyspark logs a long error if DESCRIBE finds no such name. SHOW TABLES reads the
    pattern as a regular expression, so each special character is replaced by a dot.
    """
    catalog, schema, name = of
    pattern = re.sub(r"\W", ".", name)
    within = f"{identifier(catalog)}.{identifier(schema)}"
    try:
        listed = session.spark.sql(f"SHOW TABLES IN {within} LIKE {text(pattern)}").collect()
    except Exception as error:  # pyspark's classes of errors differ between its versions and with Spark Connect.
        if not first_line(error).startswith(NO_SCHEMA):
            raise
        return None
    if not any(str(row["tableName"]).lower() == name for row in listed):
        return None
    rows = session.spark.sql(f"DESCRIBE TABLE EXTENDED {quoted(of)}").collect()
    found = {str(row[0]).lower(): str(row[1]) for row in rows}
    if found.get("type", "").upper() == "VIEW":
        properties = session.spark.sql(f"SHOW TBLPROPERTIES {quoted(of)}").collect()
        return _Entry(location=NOT_DELTA, mark={str(row[0]): str(row[1]) for row in properties}.get(MARK, ""))
    if found.get("provider", "").lower() != "delta":
        return _Entry(location=NOT_DELTA)
    return _Entry(location=found.get("location", NOT_DELTA), managed=found.get("type", "").upper() == "MANAGED")


def _plain(location: str) -> str:
    """Converts a location to one spelling, so that spellings of Spark, Hadoop and deltalake can be compared."""
    local = re.sub(r"^file:/+", "/", location)
    return re.sub(r"^s3[an]://", "s3://", local).rstrip("/")
