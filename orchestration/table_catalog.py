"""Which tables a destination has, for the definitions: read from tables.json, which the engine writes. Opens no connection.

Every run process imports the definitions, so this reads one file a destination and nothing else. A table that was created after the
code server started is merged all the same; it gets its page with lineage when the code server starts again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg

TABLES_FILE = "tables.json"
FORMAT = 1


class TablesFileError(ValueError):
    """tables.json is not what the engine writes; the message names the file and what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapturedColumn:
    """`type` is Spark SQL's name, `mysql_type` the declared one."""

    name: str
    type: str
    nullable: bool
    mysql_type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapturedTable:
    database: str
    table: str
    key: tuple[str, ...] = ()
    columns: tuple[CapturedColumn, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


def read_tables(directory: Path) -> tuple[CapturedTable, ...]:
    """The tables of a destination, by name; none before its engine has run. Raises TablesFileError."""
    path = directory / TABLES_FILE
    try:
        record = json.loads(path.read_bytes())
        return tuple(sorted((_table(item) for item in record["tables"]), key=lambda table: table.name))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TablesFileError(
            f"{path} cannot be read ({type(error).__name__}: {error}); remove it, the engine writes it again at its next start"
        ) from error


def _table(item: dict[str, Any]) -> CapturedTable:
    columns = tuple(
        CapturedColumn(
            name=str(column["name"]),
            type=str(column.get("type", "")),
            nullable=bool(column.get("nullable", True)),
            mysql_type=str(column.get("mysql_type", "")),
        )
        for column in item["columns"]
    )
    return CapturedTable(
        database=str(item["database"]), table=str(item["table"]), key=tuple(item.get("key") or ()), columns=columns
    )


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


def column_schema(columns: Iterable[CapturedColumn]) -> dg.TableSchema:
    """What Dagster shows as the asset's columns."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=column.type or column.mysql_type or "string",
                description=f"MySQL: {column.mysql_type}" if column.mysql_type else None,
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
