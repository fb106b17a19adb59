"""Reads from the source which tables a destination captures, and writes the list of captured tables before an engine runs.

`sluice up` calls this module before it starts the code server. Dagster's asset definitions are made from the list, so importing the
definitions opens no connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, clashing_tables, path_clashes
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError, SluiceError, StaleWriteError
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.history.cascades import Cascades
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, read_snapshot
from sluice.cdc_engine.table_meta.schema import is_of_users
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.cdc_engine.table_meta.table_list.values import Comments
from sluice.cdc_engine.table_meta.table_list.writing import write_tables

# Held while a destination claims its tables, so that destinations that start at the same time see each other's tables.
_claiming = threading.Lock()


def claim_tables(config: SluiceConfig, destination: str, captured: Iterable[TableVersion]) -> None:
    """Writes the list of captured tables of a new destination. Raises ConfigurationError if another destination already writes one of the
    Delta tables of the new destination. The other destination continues.

    The check needs the source, because only the source has the names that a pattern of conf/ captures. So the engine calls this function
    when it starts. If two tables of one destination have the same path in the lake, the destination starts, and the run that would create
    the Delta table stops one of the two tables.
    """
    tables = tuple(captured)
    names = {table.name for table in tables}
    with _claiming:
        others = {other: _listed(config, other) for other in config.destinations if other != destination}
        before = path_clashes(_without(config, destination), others)
        found = clashing_tables(config, {**others, destination: names})
        with_others = {each for (owner, _), each in found.items() if owner != destination}
        clashes = [each for each in dict.fromkeys(found.values()) if each in with_others and each not in before]
        if clashes:
            raise ConfigurationError(
                f"{destination} is not started, and the other destinations continue: {'; '.join(clashes)}"
            )
        if names != _listed(config, destination):
            _list(config, destination, tables)


def _listed(config: SluiceConfig, destination: str) -> set[str]:
    """Returns the tables ("database.table") of the written list that conf/ still captures."""
    settings, tables = config.destinations[destination], read_tables(config.destination_dir(destination))
    captured = TableFilter(settings.include, settings.exclude)
    return {table.name for table in tables if captured.keeps(table.database, table.table)}


def _list(
    config: SluiceConfig,
    destination: str,
    tables: Iterable[TableVersion],
    cascades: Iterable[Cascade] = (),
    comments: Comments | None = None,
) -> None:
    """Writes the list of captured tables. Does nothing if an engine with a shared ledger has written the list, because the engine updates
    it with each schema change in the stream. Raises MetaError if the record store does not answer.
    """
    with contextlib.suppress(StaleWriteError):
        write_tables(config.destination_dir(destination), tables, cascades, comments)


def _without(config: SluiceConfig, destination: str) -> SluiceConfig:
    others = {name: each for name, each in config.destinations.items() if name != destination}
    return config.model_copy(update={"destinations": others})


class SourceSchema:
    """The tables that a destination's source has now. The first call of a method reads the server. Later calls return the same tables, or
    raise the same error. Writes nothing.

    Methods raise SourceConnectionError or ConfigurationError.
    """

    def __init__(self, destination: DestinationConfig) -> None:
        self.destination = destination
        self._filter = TableFilter(destination.include, destination.exclude)
        self._error: SluiceError | None = None

    @functools.cached_property
    def captured(self) -> tuple[TableVersion, ...]:
        """The captured tables with their present columns and keys."""
        return tuple(each.version() for each in self._snapshot.tables if self._filter.keeps(each.database, each.table))

    def foreign_keys(self) -> tuple[Cascade, ...]:
        """Returns the foreign keys that change rows of captured tables without row events."""
        found = self._snapshot
        return () if found.server.logs_cascades else Cascades(found.tables, self._filter.keeps).all

    @functools.cached_property
    def _snapshot(self) -> SchemaSnapshot:
        """Returns the schemas of all tables. Includes tables that are not captured, because their foreign keys may change rows of captured
        tables.
        """
        if self._error is not None:
            raise self._error
        try:
            return _read_schemas(source_of(self.destination), lambda database, _: is_of_users(database))
        except SluiceError as error:
            self._error = error
            raise


def _read_schemas(source: Source, keeps: Callable[[str, str], bool]) -> SchemaSnapshot:
    """Reads the schemas of the tables for which `keeps` returns True, over a new connection."""
    connection = SourceConnection(source)
    try:
        found: SchemaSnapshot = connection.query(lambda session: read_snapshot(session, keeps))
        return found
    finally:
        connection.close()


def discover(config: SluiceConfig, destination: str, password: str | None = None) -> tuple[TableVersion, ...]:
    """Reads from the server which tables the destination captures, writes the list of them, and returns them. `password` replaces the
    password that conf/ names.

    Raises SourceConnectionError, ConfigurationError or MetaError.
    """
    settings = config.destinations[destination]
    captured = TableFilter(settings.include, settings.exclude)
    source = source_of(settings)
    if password is not None:
        source = dataclasses.replace(source, password=lambda: password)
    snapshot = _read_schemas(source, captured.keeps)
    tables = tuple(schema.version() for schema in snapshot.tables)
    cascades = () if snapshot.server.logs_cascades else Cascades(snapshot.tables, captured.keeps).all
    comments = {f"{each.database}.{each.table}": each.comments for each in snapshot.tables if each.comments}
    _list(config, destination, tables, cascades, comments)
    return tables
