"""Reads the tables of a database by chunks, in a separate process: `python -m tests.snapshot.read_all PORT DATABASE FOLDER`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pymysql

from sluice.cdc_engine.snapshot.chunks import chunks
from sluice.cdc_engine.snapshot.read import read_chunk
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import read_snapshot

ROWS_PER_CHUNK = 1


def read_all(port: int, database: str, folder: Path) -> int:
    """Returns the rows of all tables of the database."""
    source = Source(destination="all", host="127.0.0.1", port=port, user="root")
    with contextlib.closing(pymysql.connect(host=source.host, port=port, user=source.user)) as connection:
        found = read_snapshot(connection, lambda name, _: name == database)
    with contextlib.closing(open_reader(source)) as reader:
        return sum(
            read_chunk(reader, table, chunk, folder / f"{table.table}.{chunk.number}.parquet").rows
            for table in (schema.version() for schema in found.tables)
            for chunk in chunks(reader, table, ROWS_PER_CHUNK)
        )


if __name__ == "__main__":
    sys.stdout.write(f"{read_all(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))}\n")
