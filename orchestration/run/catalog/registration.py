"""Registers the Delta tables of a destination in the catalog of conf/, at the end of a run. `sluice lake register` calls it too.

The record `catalog.json` has what is registered. Each run compares it with the tables that the lake has, and asks Spark only if they
differ. A catalog that refuses a table or does not answer fails no run: the record keeps the reason, the engine's status shows it, and a
later run tries again. A crash between Spark's answer and the record leaves a registration that the next run finds."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.destination_files.catalog_record import Registered, read_registered, write_registered
from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.base.lake_settings import spark_settings, storage_options, told

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.spark_jobs.catalog import CatalogTable, Identifier

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 300.0  # The wait before a run tries again what failed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class CatalogChanges:
    """What to do in the catalog. `clashes`: name → why it cannot be registered."""

    register: tuple[CatalogTable, ...] = ()
    unregister: tuple[CatalogTable, ...] = ()
    clashes: Mapping[Identifier, str] = dataclasses.field(default_factory=dict)


def wanted_tables(config: SluiceConfig, destination: str, tables: LakeTables) -> list[CatalogTable]:
    """Returns the Delta tables in the lake, with their names in the catalog of conf/, in a fixed order."""
    from sluice.spark_jobs.catalog import CatalogTable  # noqa: PLC0415  pyspark takes a second to import

    found: list[CatalogTable] = []
    for name in tables.names:
        database, _, table = name.partition(".")
        log, history = config.side_table_paths(destination, database, table)
        main = config.table_path(destination, database, table)
        there = {
            **({"": main} if tables.get(name) else {}),
            **{kind: {"log": log, "history": history}[kind] for kind in tables.beside(name)},
        }
        for kind, path in sorted(there.items()):
            if path:
                identifier = config.catalog_name(destination, database, table, kind)
                found.append(CatalogTable(of=name, identifier=identifier, path=path))
    return found


def changes_of(
    wanted: Iterable[CatalogTable], known: Registered, *, again: bool, whole: bool = False
) -> CatalogChanges:
    """Compares the wanted tables with the record. `again`: includes what failed before. `whole`: includes what is registered. Pure."""
    if known.error and not (again or whole):
        return CatalogChanges(clashes={})
    first: dict[Identifier, CatalogTable] = {}
    clashes: dict[Identifier, str] = {}
    for table in wanted:
        other = first.setdefault(table.identifier, table)
        if other.path != table.path:
            clashes[table.identifier] = (
                f"{other.of} and {table.of} have this name there: set catalog.schema or catalog.table in conf/sluice.yaml"
            )
    register = tuple(
        dataclasses.replace(table, before=known.tables.get(name, ("", ""))[1])
        for name, table in first.items()
        if whole or (known.tables.get(name) != (table.of, table.path) and (again or name not in known.failed))
    )
    from sluice.spark_jobs.catalog import CatalogTable  # noqa: PLC0415

    gone = tuple(
        CatalogTable(of=of, identifier=name, path=path)
        for name, (of, path) in known.tables.items()
        if name not in first
    )
    return CatalogChanges(register=register, unregister=gone, clashes=clashes)


def register_tables(config: SluiceConfig, destination: str, *, whole: bool = False) -> Registered:
    """Registers the Delta tables of a destination as conf/ requires, and returns the record. Does nothing without a catalog.

    `whole`: looks up every table in the catalog, also those that are registered. Raises SluiceError, SparkJobError.
    """
    from sluice.spark_jobs.catalog import register, unregister  # noqa: PLC0415
    from sluice.spark_jobs.session import open_sessions  # noqa: PLC0415

    if config.catalog is None:
        return Registered()
    directory = config.destination_dir(destination)
    known = read_registered(directory)
    wanted = wanted_tables(config, destination, LakeTables(directory))
    again = abs(time.time() - known.tried_at) >= AGAIN_SECONDS
    todo = changes_of(wanted, known, again=again, whole=whole)
    if not todo.register and not todo.unregister and all(known.failed.get(name) for name in todo.clashes):
        if not known.error or not (again or whole):
            return known
        known = dataclasses.replace(known, error="", tried_at=time.time())  # The attempt left nothing to do.
        write_registered(directory, known)
        return known
    settings = dataclasses.replace(spark_settings(config, destination), sessions_file=None)  # That file is for merges.
    with open_sessions(settings, 1) as (session,):
        removed = unregister(session, todo.unregister)
        refused = register(session, todo.register, storage_options(config.storage_options))
    failed = {name: told(config, why) for name, why in {**refused, **removed}.items()}
    tried = {each.identifier for each in (*todo.register, *todo.unregister)}
    made = {each.identifier: (each.of, each.path) for each in todo.register}
    kept = {name: value for name, value in known.tables.items() if name not in tried or name in removed}
    now = Registered(
        tables={**kept, **{name: value for name, value in made.items() if name not in failed}},
        failed={**{name: why for name, why in known.failed.items() if name not in tried}, **failed, **todo.clashes},
        tried_at=time.time(),
    )
    write_registered(directory, now)
    return now


def register_after_run(config: SluiceConfig, destination: str) -> None:
    """Calls `register_tables` at the end of a run. It logs an error, which the engine's status shows; the run does not fail."""
    try:
        register_tables(config, destination)
    # The error may be of any kind: the tables are merged, and the catalog is only for readers.
    except Exception as error:
        why = told(config, str(error).partition("\n")[0])
        logger.warning("%s: no table could be registered in the catalog: %s", destination, why)
        _keep_error(config, destination, why)


def _keep_error(config: SluiceConfig, destination: str, why: str) -> None:
    try:
        directory = config.destination_dir(destination)
        known = read_registered(directory)
        write_registered(directory, dataclasses.replace(known, error=why, tried_at=time.time()))
    except (SluiceError, ValueError) as error:
        logger.warning("%s: the reason could not be stored: %s", destination, error)
