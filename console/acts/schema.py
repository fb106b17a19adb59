"""Implements `sluice schema show` and `sluice schema held`: shows the schemas of a destination's tables, and the pending schema changes.
Reads only the destination's files. `cdc_engine.acts.stopped_table` records an operator's decision about a pending schema change.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from sluice.cdc_engine.acts.stopped_table import PendingSchemaChange, pending_changes
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import StoppedTable, read_ledger
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.console.acts.long_list import shortened
from sluice.console.source.query import require_destination
from sluice.console.toolchain.errors import SetupError


def statement_of(file: str) -> str:
    """Returns the content of a file, or of standard input for "-". Raises SetupError if the file cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} cannot be read: {error}; name a readable text file, or - for stdin") from error


def directory_of(config: SluiceConfig, name: str) -> Path:
    """Returns the directory of a destination. Raises ConfigurationError if conf/ does not have the destination."""
    return config.destination_dir(require_destination(config, name).name)


def pending_changes_of(config: SluiceConfig, name: str = "") -> dict[str, list[PendingSchemaChange]]:
    """Returns destination → its pending schema changes, for the destination `name`, or for all destinations if `name` is empty."""
    names = [name] if name else sorted(config.destinations)
    return {each: pending_changes(directory_of(config, each)) for each in names}


def pending_json(changes: Mapping[str, list[PendingSchemaChange]]) -> list[dict[str, Any]]:
    return [_pending_json(name, change) for name, pending in changes.items() for change in pending]


def _pending_json(destination: str, change: PendingSchemaChange) -> dict[str, Any]:
    stop, record = change.stop, change.record
    name = f"{stop.database}.{stop.table}"
    shown = {"destination": destination, "table": name, "state": stop.state, "reason": stop.reason}
    if record is None:
        return shown
    return {
        **shown,
        "statement": record.statement,
        "position": record.position,
        "items": [{"change": what, "plans": plans} for what, plans in record.items],
        "choices": list(record.choices),
    }


def schema_json(config: SluiceConfig, name: str) -> list[dict[str, Any]]:
    """Returns one dict for each table of a destination: its columns, key, schema policies and state. The tables are those in the list of
    captured tables that the engine has written, and all stopped tables. For a stopped table that is not in this list, columns and key are
    empty.
    """
    destination = require_destination(config, name)
    stops = {(stop.database, stop.table): stop for stop in read_ledger(config.destination_dir(name)).stopped_tables}
    tables = {(each.database, each.table): each for each in read_tables(config.destination_dir(name))}
    return [_table_json(destination, each, tables.get(each), stops.get(each)) for each in sorted({*tables, *stops})]


def _table_json(
    destination: DestinationConfig, name: tuple[str, str], table: TableVersion | None, stop: StoppedTable | None
) -> dict[str, Any]:
    return {
        "table": ".".join(name),
        "state": stop.state if stop else TableState.FLOWING,
        "reason": stop.reason if stop else "",
        "key": list(table.key) if table else [],
        "columns": [
            {"name": column.name, "type": column.mysql_type, "nullable": column.nullable}
            for column in (table.columns if table else ())
        ],
        "schema_changes": destination.schema_policy(*name),
    }


def listed(name: str, tables: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Returns at most LISTED_MAX of `tables`, and a message about the tables that are left out, or "" if none is left out. Stopped tables
    come first. `name` is the destination of the tables.
    """
    stopped = sorted({each["state"] for each in tables} - {TableState.FLOWING})
    return shortened(tables, lambda each: str(each["state"]), stopped, f"sluice schema show {name} --verbose")


def render_schema(tables: list[dict[str, Any]]) -> Table:
    """Formats the tables for the terminal, one line per table."""
    shown = Table("table", "state", "key", "columns", "waits for approval")
    for table in tables:
        columns = ", ".join(f"{column['name']} {column['type']}" for column in table["columns"])
        for_approval = ", ".join(kind for kind, policy in table["schema_changes"].items() if policy == "hold")
        state = Text(table["state"], "green" if table["state"] == TableState.FLOWING else "red")
        shown.add_row(table["table"], state, ", ".join(table["key"]), columns, for_approval)
    return shown


def render_pending(changes: Mapping[str, list[PendingSchemaChange]]) -> Group:
    """Formats pending schema changes for the terminal. For each change, shows the table and the reason of the table's stop. The reason
    contains the statement, the possible plans, and the command that approves each plan.
    """
    parts: list[Any] = []
    for name, pending in changes.items():
        for change in pending:
            parts += [
                Text(f"{name}: {change.stop.database}.{change.stop.table}", "bold"),
                Markdown(change.stop.reason),
            ]
    return Group(*parts) if parts else Group(Text("no schema change waits for approval", "green"))
