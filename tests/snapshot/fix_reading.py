"""Provides a reader on a test's server, and its tables as the schema history describes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.snapshot.reader import RowReader, open_reader
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import read_snapshot
from sluice.console.toolchain.database.server import DatabaseServer


def source_of(server: DatabaseServer, user: str = "root") -> Source:
    return Source(destination="snapshot", host="127.0.0.1", port=server.port, user=user)


@contextlib.contextmanager
def reading(server: DatabaseServer) -> Iterator[RowReader]:
    reader = open_reader(source_of(server))
    try:
        yield reader
    finally:
        reader.close()


def versions(server: DatabaseServer, database: str) -> dict[str, TableVersion]:
    """Returns the tables of a database, by name."""
    with server.connect() as connection:
        found = read_snapshot(connection, lambda name, _: name == database)
    return {table.table: table.version() for table in found.tables}
