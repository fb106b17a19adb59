"""Which tables a destination has, for the definitions: read from tables.json, which the engine writes. Opens no connection.

Every run process imports the definitions, so this reads one file a destination and nothing else. A table that was created after the
code server started is merged all the same; it gets its page with lineage when the code server starts again.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import dagster as dg

from cdc_engine.config import SluiceConfig
from cdc_engine.contracts import Column, TableVersion
from cdc_engine.table_meta.history import tables_file


def read_tables(directory: Path) -> tuple[TableVersion, ...]:
    """The tables of a destination, by name; none before its sources were asked. Raises MetaError, which says what to do."""
    return tuple(sorted(tables_file.read_tables(directory / tables_file.TABLES_FILE), key=lambda table: table.name))


def foreign_keys(config: SluiceConfig, destination: str) -> dict[str, list[str]]:
    """Table → what foreign keys do to its rows without row events, and what the lake makes of it; sentences. Raises MetaError."""
    cascades = tables_file.read_cascades(config.destination_dir(destination) / tables_file.TABLES_FILE)
    notes = tables_file.foreign_key_notes(cascades, config.destinations[destination].cascade_policy)
    return {
        table: [note.sentence for note in found] for table, found in itertools.groupby(notes, lambda note: note.table)
    }


def delta_key(destination: str, name: str) -> dg.AssetKey:
    """The asset of a Delta table; `name` is "database.table" (a database's name holds no dot in practice; the first one parts them)."""
    database, _, table = name.partition(".")
    return dg.AssetKey([destination, database, table])


def source_key(destination: str, name: str) -> dg.AssetKey:
    """The external asset of a MySQL table."""
    return dg.AssetKey(["mysql", *delta_key(destination, name).path])


def engine_key(destination: str) -> dg.AssetKey:
    """The external asset of the engine itself, which is observed once a minute."""
    return dg.AssetKey([destination, "engine"])


def source_schema(columns: Iterable[Column]) -> dg.TableSchema:
    """What Dagster shows as a MySQL table's columns."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=column.mysql_type or "unknown",
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in columns
        ]
    )


def checkable(destination: str, names: Iterable[str]) -> list[str]:
    """The tables that can have a check of their own: Dagster makes the check's name from letters, digits and underscores of the
    table's, so a table with other characters, or one that would get another one's name, has none. The engine's own check names it.
    """
    identifiers = {name: delta_key(destination, name).to_python_identifier() for name in names}
    counts = Counter(identifiers.values())
    return [
        name
        for name, identifier in identifiers.items()
        if re.fullmatch(r"\w+", identifier, re.ASCII) and counts[identifier] == 1
    ]
