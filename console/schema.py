"""`sluice schema`: what a destination's tables look like, which changes of them wait for an operator, and the operator's decisions.

Reads the destination's files; decides by writing an approval and a request to resume, which the running engine finds by itself. Starts and
stops nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Group
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from cdc_engine.config import DestinationConfig, SluiceConfig
from cdc_engine.contracts import TableVersion
from cdc_engine.destination_files import StoppedTable, read_ledger
from cdc_engine.instance import resume
from cdc_engine.instance.wiring import TABLES_FILE
from cdc_engine.table_meta.change.policy import DDL_HELD
from cdc_engine.table_meta.history.review_files import HeldRecord, ReviewFiles
from cdc_engine.table_meta.history.tables_file import read_tables
from console.sources import require_destination
from console.toolchain.errors import SetupError


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldChange:
    """A table in DDL_HELD. `record`: what is held, None where its file is gone."""

    destination: str
    stop: StoppedTable
    record: HeldRecord | None

    def to_json(self) -> dict[str, Any]:
        name = f"{self.stop.database}.{self.stop.table}"
        shown = {"destination": self.destination, "table": name, "state": self.stop.state, "reason": self.stop.reason}
        if self.record is None:
            return shown
        items = [{"change": what, "plans": plans} for what, plans in self.record.items]
        return {
            **shown,
            "statement": self.record.statement,
            "position": self.record.place,
            "items": items,
            "choices": list(self.record.choices),
        }


def held_changes(config: SluiceConfig, name: str = "") -> list[HeldChange]:
    """The held changes of a destination, or of all."""
    names = [require_destination(config, name).name] if name else sorted(config.destinations)
    found = []
    for each in names:
        directory = config.destination_dir(each)
        files = ReviewFiles(directory)
        for stop in read_ledger(directory).stopped_tables:
            if stop.state == DDL_HELD:
                record = files.held(stop.database, stop.table, stop.reason)
                found.append(HeldChange(destination=each, stop=stop, record=record))
    return found


def approve(config: SluiceConfig, name: str, table: str, plan: str) -> HeldRecord:
    """Keeps the decision and asks the engine to go on with the table. Raises SetupError when nothing is held or the plan has no meaning."""
    require_destination(config, name)
    wanted = [each for each in held_changes(config, name) if f"{each.stop.database}.{each.stop.table}" == table]
    if not wanted:
        stop = _stop(config, name, table)
        raise SetupError(
            f"{table} of {name} has stopped in {stop.state}, which is nothing to approve: when its cause is gone, "
            f"`sluice schema resume {name} {table}`"
        )
    record = wanted[0].record
    if record is None:
        raise SetupError(
            f"what is held of {table} is not on disk any more; `sluice schema resume {name} {table}` holds it anew"
        )
    if plan not in record.choices:
        raise SetupError(f"{plan!r} is no plan for `{record.statement}`; choose one of {', '.join(record.choices)}")
    ReviewFiles(config.destination_dir(name)).approve(record, plan)
    resume.request(config.destination_dir(name), record.database, record.table)
    return record


def resume_table(config: SluiceConfig, name: str, table: str) -> StoppedTable:
    """Asks the engine to take a stopped table up again. Raises SetupError when it has not stopped."""
    require_destination(config, name)
    stop = _stop(config, name, table)
    resume.request(config.destination_dir(name), stop.database, stop.table)
    return stop


def _stop(config: SluiceConfig, name: str, table: str) -> StoppedTable:
    for stop in read_ledger(config.destination_dir(name)).stopped_tables:
        if f"{stop.database}.{stop.table}" == table:
            return stop
    raise SetupError(f"the table {table} of {name} has not stopped; `sluice status` lists those that have")


def schema_json(config: SluiceConfig, name: str) -> list[dict[str, Any]]:
    """Every table of a destination with its columns, key, policy and state."""
    destination = require_destination(config, name)
    stops = {(stop.database, stop.table): stop for stop in read_ledger(config.destination_dir(name)).stopped_tables}
    tables = {(each.database, each.table): each for each in read_tables(config.destination_dir(name) / TABLES_FILE)}
    return [_table_json(destination, each, tables.get(each), stops.get(each)) for each in sorted({*tables, *stops})]


def _table_json(
    destination: DestinationConfig, name: tuple[str, str], table: TableVersion | None, stop: StoppedTable | None
) -> dict[str, Any]:
    return {
        "table": ".".join(name),
        "state": stop.state if stop else "FLOWING",
        "reason": stop.reason if stop else "",
        "key": list(table.key) if table else [],
        "columns": [
            {"name": column.name, "type": column.mysql_type, "nullable": column.nullable}
            for column in (table.columns if table else ())
        ],
        "schema_changes": destination.schema_policy(*name),
    }


def render_schema(tables: list[dict[str, Any]]) -> Table:
    """Tables for a person: one line each."""
    shown = Table("table", "state", "key", "columns", "waits for approval")
    for table in tables:
        columns = ", ".join(f"{column['name']} {column['type']}" for column in table["columns"])
        held = ", ".join(kind for kind, word in table["schema_changes"].items() if word == "hold")
        state = Text(table["state"], "green" if table["state"] == "FLOWING" else "red")
        shown.add_row(table["table"], state, ", ".join(table["key"]), columns, held)
    return shown


def render_held(changes: list[HeldChange]) -> Group:
    """Held changes for a person: the statement, the plans and the command that decides."""
    if not changes:
        return Group(Text("no change waits for review", "green"))
    parts: list[Any] = []
    for change in changes:
        parts += [
            Text(f"{change.destination}: {change.stop.database}.{change.stop.table}", "bold"),
            Markdown(change.stop.reason),
        ]
    return Group(*parts)
