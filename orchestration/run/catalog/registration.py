"""Registers the Delta tables of a destination in the catalog of conf/ at the end of a run. `sluice lake register` also calls this module.

The record `catalog.json` lists what is registered. Each run compares this record with the tables in the lake and, for views, with the
columns of the tables that the run wrote. A run calls Spark only if there is a difference. If the columns of a view's table changed, the run
first removes the digest of the columns from the view's entry in the record, and then replaces the view. If the run fails in between, a
later run finds no digest and replaces the view.

If the catalog refuses a table or does not answer, the run does not fail: the record stores the reason, the engine's status shows the
reason, and a later run tries again. If a run crashes after Spark has registered a table and before the record is written, the next run
finds the table in the catalog.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.destination_files.catalog_record import (
    CatalogEntry,
    Registered,
    read_registered,
    write_registered,
)
from sluice.cdc_engine.table_meta.table_list.reading import read_comments
from sluice.cdc_engine.table_meta.table_list.values import Comments
from sluice.orchestration.base.lake_settings import lake_error_line, spark_settings, storage_options

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.spark_jobs.catalog import CatalogTable, Columns, Identifier

logger = logging.getLogger(__name__)

NO_COMMENTS: Comments = MappingProxyType({})
NO_COLUMNS: Mapping[str, Columns] = MappingProxyType({})
AGAIN_SECONDS = 300.0  # After a registration failed, runs try it again once this time has passed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class CatalogChanges:
    """The tables and views to register in the catalog (`register`) and to remove from it (`unregister`).

    - `clashes` says for each name why it cannot be registered.
    - `failed` says why an earlier attempt failed, for names that are not tried again now.
    - `error` says why nothing is tried now, although there may be work.
    """

    register: tuple[CatalogTable, ...] = ()
    unregister: tuple[CatalogTable, ...] = ()
    clashes: Mapping[Identifier, str] = dataclasses.field(default_factory=dict)
    failed: Mapping[Identifier, str] = dataclasses.field(default_factory=dict)
    error: str = ""


def wanted_tables(
    config: SluiceConfig, destination: str, tables: LakeTables, comments: Comments = NO_COMMENTS
) -> list[CatalogTable]:
    """Returns the tables and views to register: the Delta tables in the lake, with the catalog names that conf/ gives them, then the views
    of these tables. The order is fixed. `comments` are the comments of the source's tables, for the views.
    """
    from sluice.spark_jobs.catalog import CatalogTable  # noqa: PLC0415  pyspark takes a second to import

    found: list[CatalogTable] = []
    views: list[CatalogTable] = []
    for name in tables.names:
        database, _, table = name.partition(".")
        log, history = config.side_table_paths(destination, database, table)
        main = config.table_path(destination, database, table)
        there = {
            **({"": main} if tables.get(name) else {}),
            **{kind: {"log": log, "history": history}[kind] for kind in tables.side_tables(name)},
        }
        for kind, path in sorted(there.items()):
            if path:
                identifier = config.catalog_name(destination, database, table, kind)
                found.append(CatalogTable(of=name, identifier=identifier, path=path))
                view = config.catalog_view(destination, database, table, kind)
                if view is not None:
                    views.append(
                        CatalogTable(
                            of=name,
                            identifier=view,
                            path=path,
                            over=identifier,
                            shaped_by=config.kept_path(destination, database, table),
                            current=kind == "history",
                            comments=comments.get(name, {}),
                        )
                    )
    return [*found, *views]


def changes_of(
    wanted: Iterable[CatalogTable],
    known: Registered,
    *,
    again: bool,
    whole: bool = False,
) -> CatalogChanges:
    """Returns what must be done so that the catalog has exactly the `wanted` tables and views. `known` is the record of what the catalog
    has.

    If `again`, names whose registration failed are tried again now. If `whole`, tables and views are registered again although the record
    has them. If neither is set and `known.error` says that the catalog could not be used, nothing is tried now.
    """
    if known.error and not (again or whole):
        return CatalogChanges(failed=known.failed, error=known.error)
    first: dict[Identifier, CatalogTable] = {}
    clashes: dict[Identifier, str] = {}
    for table in wanted:
        other = first.setdefault(table.identifier, table)
        if (other.path, other.over) != (table.path, table.over):
            settings = "catalog.views" if table.over else "catalog.schema or catalog.table"
            what = f"{other.of} and {'the view of ' if table.over else ''}{table.of}"
            clashes[table.identifier] = f"{what} have the same name in the catalog: set {settings} in conf/sluice.yaml"
    register = tuple(
        dataclasses.replace(table, before=known.tables[name].path if name in known.tables else "")
        for name, table in first.items()
        if whole or (_is_due(table, known.tables.get(name)) and (again or name not in known.failed))
    )
    from sluice.spark_jobs.catalog import CatalogTable  # noqa: PLC0415

    gone = tuple(
        CatalogTable(of=entry.of, identifier=name, path=entry.path, over=entry.over)
        for name, entry in known.tables.items()
        if name not in first or (entry.over is None) != (first[name].over is None)
    )
    tried = {each.identifier for each in (*register, *gone)}
    failed = {
        name: why
        for name, why in known.failed.items()
        if name in first and name not in known.tables and name not in tried
    }
    return CatalogChanges(register=register, unregister=gone, clashes=clashes, failed=failed)


def _is_due(table: CatalogTable, entry: CatalogEntry | None) -> bool:
    """Returns whether a table or view must be registered. `entry` is its entry in the record, or None.

    It must be registered if it has no entry, or if the entry has another source table, path or underlying table. A view must also be
    registered if its comments have changed, or if its entry has no shape (see `without_shapes`).
    """
    if entry is None or (entry.of, entry.path, entry.over) != (table.of, table.path, table.over):
        return True
    return table.over is not None and (not entry.shape or table.comments_digest != entry.comments)


def without_shapes(known: Registered, shapes: Mapping[str, str], shaped_by: Callable[[str], str]) -> Registered:
    """Returns `known`, the record of registered tables and views, without the shape (the digest of the columns) of each view whose columns
    have changed. So these views are registered again.

    `shapes` has the digest of a Delta table's columns by path, for tables whose columns the run knows. `shaped_by` returns for
    "database.table" the path of the Delta table from which the view gets its columns.
    """
    changed = {
        name: entry._replace(shape="")
        for name, entry in known.tables.items()
        if entry.over is not None and shapes.get(shaped_by(entry.of), entry.shape) != entry.shape
    }
    return dataclasses.replace(known, tables={**known.tables, **changed}) if changed else known


def _only_here(config: SluiceConfig, destination: str, gone: Iterable[CatalogTable]) -> tuple[CatalogTable, ...]:
    """Returns the tables in `gone` that no other destination has registered. If another destination has registered a table too, that
    destination writes the same Delta table and still needs the registration. Raises MetaError if a record cannot be read.
    """
    left = tuple(gone)
    for name in config.destinations if left else ():
        if name != destination:
            others = read_registered(config.destination_dir(name)).tables
            left = tuple(
                each
                for each in left
                if (other := others.get(each.identifier)) is None or (other.path, other.over) != (each.path, each.over)
            )
    return left


def register_tables(
    config: SluiceConfig, destination: str, *, whole: bool = False, written: Mapping[str, Columns] = NO_COLUMNS
) -> Registered:
    """Registers the Delta tables of a destination and their views, as conf/ says. Returns the record of what is registered. The record is
    empty if conf/ has no catalog.

    If `whole`, looks up every table in the catalog, even if the record lists it. `written` has the columns of the tables that the run
    wrote, by path. Raises SluiceError or SparkJobError if the record or Spark cannot be used, and MergeFailedError if a secret cannot be
    read.
    """
    from sluice.spark_jobs.catalog import register, shape_of, unregister  # noqa: PLC0415
    from sluice.spark_jobs.session import open_sessions  # noqa: PLC0415

    if config.catalog is None:
        return Registered()
    directory = config.destination_dir(destination)
    shapes = {path: shape_of(columns) for path, columns in written.items() if columns} if config.catalog.views else {}
    known = _without_shapes_kept(config, destination, shapes)
    comments = read_comments(directory) if config.catalog.views else NO_COMMENTS
    wanted = wanted_tables(config, destination, LakeTables(directory), comments)
    again = abs(time.time() - known.tried_at) >= AGAIN_SECONDS
    todo = changes_of(wanted, known, again=again, whole=whole)
    gone = _only_here(config, destination, todo.unregister)
    tried = {each.identifier for each in (*todo.register, *todo.unregister)}
    if not todo.register and not gone:
        left = {name: value for name, value in known.tables.items() if name not in tried}
        now = dataclasses.replace(known, tables=left, failed={**todo.failed, **todo.clashes}, error=todo.error)
        if now != known:
            write_registered(directory, now)
        return now
    # `sessions_file` is None, because only the holder of the run lock may use the file of open Spark sessions.
    settings = dataclasses.replace(spark_settings(config, destination), sessions_file=None)
    with open_sessions(settings, 1) as (session,):
        removed = unregister(session, gone)
        done = register(session, todo.register, storage_options(config.storage_options))
    failed = {name: lake_error_line(config, why) for name, why in {**done.failed, **removed}.items()}
    made = {
        each.identifier: CatalogEntry(
            each.of,
            each.path,
            each.over,
            shapes.get(each.shaped_by) or done.shapes.get(each.identifier, ""),
            each.comments_digest,
        )
        for each in todo.register
    }
    kept = {name: value for name, value in known.tables.items() if name not in tried or name in removed}
    now = Registered(
        tables={**kept, **{name: value for name, value in made.items() if name not in failed}},
        failed={**todo.failed, **failed, **todo.clashes},
        tried_at=time.time(),
    )
    write_registered(directory, now)
    return now


def _without_shapes_kept(config: SluiceConfig, destination: str, shapes: Mapping[str, str]) -> Registered:
    """Removes, from the record `catalog.json` of registered tables and views, the shape (the digest of the columns) of each view whose
    columns have changed. Returns the resulting record. If this run fails afterwards, a later run replaces these views, because their
    entries have no shape.
    """
    directory = config.destination_dir(destination)

    def shaped_by(of: str) -> str:
        database, _, table = of.partition(".")
        return config.kept_path(destination, database, table)

    known = read_registered(directory)
    noted = without_shapes(known, shapes, shaped_by)
    if noted != known:
        write_registered(directory, noted)
    return noted


def register_after_run(config: SluiceConfig, destination: str, written: Mapping[str, Columns] = NO_COLUMNS) -> None:
    """Registers the Delta tables of a destination and their views at the end of a run. An error does not fail the run: it is logged, and
    the engine's status shows it.
    """
    try:
        register_tables(config, destination, written=written)
    # Any error is only logged: the run has merged the tables, and only readers need the catalog.
    except Exception as error:
        why = lake_error_line(config, str(error).partition("\n")[0])
        logger.warning("%s: no table could be registered in the catalog: %s; a later run tries again", destination, why)
        _keep_error(config, destination, why)


def _keep_error(config: SluiceConfig, destination: str, why: str) -> None:
    try:
        directory = config.destination_dir(destination)
        known = read_registered(directory)
        write_registered(directory, dataclasses.replace(known, error=why, tried_at=time.time()))
    except Exception as error:  # The run must report its own error, and not this one.
        logger.warning(
            "%s: no table could be registered in the catalog, and the reason could not be stored: %s",
            destination,
            error,
        )
