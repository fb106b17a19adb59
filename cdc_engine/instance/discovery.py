"""Which tables a destination captures, asked of its source and written to tables.json before any engine runs.

`sluice up` calls it before it starts the code server: asset definitions are made from that file, and importing them opens no connection.
"""

from __future__ import annotations

import dataclasses

from cdc_engine.config import DestinationConfig, SluiceConfig
from cdc_engine.contracts import Cascade, TableVersion
from cdc_engine.instance.wiring import source_of
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.table_meta.history.cascades import Cascades
from cdc_engine.table_meta.history.source.schema_snapshot import is_of_users, read_snapshot
from cdc_engine.table_meta.history.tables_file import TABLES_FILE, write_tables


def foreign_keys(destination: DestinationConfig) -> tuple[Cascade, ...]:
    """The foreign keys that change rows of captured tables without row events, as the server has them now. Raises SourceConnectionError."""
    captured = TableFilter(destination.include, destination.exclude)
    connection = SourceConnection(source_of(destination))
    try:
        snapshot = connection.ask(lambda session: read_snapshot(session, lambda database, _: is_of_users(database)))
    finally:
        connection.close()
    return () if snapshot.server.logs_cascades else Cascades(snapshot.tables, captured.keeps).all()


def captured_tables(destination: DestinationConfig) -> tuple[TableVersion, ...]:
    """The captured tables as the server has them now; writes nothing. Raises SourceConnectionError or ConfigurationError."""
    captured = TableFilter(destination.include, destination.exclude)
    connection = SourceConnection(source_of(destination))
    try:
        snapshot = connection.ask(lambda session: read_snapshot(session, captured.keeps))
    finally:
        connection.close()
    return tuple(schema.version() for schema in snapshot.tables)


def discover(config: SluiceConfig, destination: str, password: str | None = None) -> tuple[TableVersion, ...]:
    """The captured tables as the server has them now. `password`: where it is not in this process's environment.

    Raises SourceConnectionError, ConfigurationError or MetaError.
    """
    settings = config.destinations[destination]
    captured = TableFilter(settings.include, settings.exclude)
    source = source_of(settings)
    if password is not None:
        source = dataclasses.replace(source, password=lambda: password)
    connection = SourceConnection(source)
    try:
        snapshot = connection.ask(lambda session: read_snapshot(session, captured.keeps))
    finally:
        connection.close()
    tables = tuple(schema.version() for schema in snapshot.tables)
    cascades = () if snapshot.server.logs_cascades else Cascades(snapshot.tables, captured.keeps).all()
    write_tables(config.destination_dir(destination) / TABLES_FILE, tables, cascades)
    return tables
