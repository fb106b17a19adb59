"""Provides a database on a shared server, a Delta table for each of its tables, and the comparison of the two."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, SparkConfig
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.merged import Merged
from sluice.equality.values import Extent, TableResult
from tests.equality.unwritten import NothingToWaitFor


class Shelf:
    """Provides a database and the configuration of a destination that captures it. `settings` are settings of the destination in conf/."""

    def __init__(self, server: DatabaseServer, folder: Path, **settings: Any) -> None:
        self.server, self.folder = server, folder
        self.database = f"equal_{uuid.uuid4().hex[:8]}"
        self.run(f"CREATE DATABASE {self.database} DEFAULT CHARACTER SET utf8mb4")
        destination = DestinationConfig(
            name="shelf",
            source=SourceConfig(port=server.port, user="root"),
            include=rf"{self.database}\..*",
            **json.loads(json.dumps(settings).replace("{db}", self.database)),
        )
        self.config = SluiceConfig(
            data_dir=folder / "data",
            lake=str(folder / "lake"),
            spark=SparkConfig(),
            destinations={"shelf": destination},
        )
        self.config.destination_dir("shelf").mkdir(parents=True)

    def run(self, *statements: str) -> None:
        with self.server.connect(init_command="SET time_zone = '+00:00', sql_mode = ''") as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def make(self, *statements: str) -> None:
        """Runs statements in the database. `{db}` in a statement is replaced by the name of the database."""
        self.run(f"USE {self.database}", *(statement.replace("{db}", self.database) for statement in statements))

    def path(self, table: str) -> str:
        return self.config.table_path("shelf", self.database, table)

    def lay(self, table: str, rows: pa.Table) -> None:
        """Creates the Delta table with exactly these rows."""
        if "_sluice_order_key" not in rows.column_names:
            rows = rows.append_column("_sluice_order_key", pa.array([1] * rows.num_rows, pa.int64()))
        write_deltalake(self.path(table), rows, mode="overwrite", schema_mode="overwrite")

    def requested(self, merged: Merged | None = None) -> ComparedDestination:
        source = Source(destination="shelf", host="127.0.0.1", port=self.server.port, user="root")
        return ComparedDestination(self.config, "shelf", source, merged=merged or NothingToWaitFor())

    def compare(self, *tables: str, merged: Merged | None = None, **extent: Any) -> list[TableResult]:
        names: Sequence[str] = [f"{self.database}.{table}" for table in tables]
        return list(compare_destination(self.requested(merged), names, Extent(**extent)))

    def one(self, table: str, merged: Merged | None = None, **extent: Any) -> TableResult:
        (found,) = self.compare(table, merged=merged, **extent)
        return found

    def drop(self) -> None:
        self.run(f"DROP DATABASE {self.database}")


def changed(rows: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    """Returns the rows with one value changed."""
    index = rows.column_names.index(column)
    values = rows.column(column).to_pylist()
    values[row] = value
    return rows.set_column(index, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))


def dropped(rows: pa.Table, *prefixes: str) -> pa.Table:
    return rows.drop_columns([name for name in rows.column_names if name.startswith(prefixes)])
