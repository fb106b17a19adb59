"""Draws the live view of `sluice demo` in the terminal: the rows in MySQL and in the lake, the lag, the last run, and the address of
Dagster's UI.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymysql
from rich.console import Group
from rich.table import Table
from rich.text import Text

from sluice.console.demo.home import open_home
from sluice.console.demo.lake import DemoTable
from sluice.console.demo.runs import RunLog, RunSummary
from sluice.console.demo.schema import DATABASE
from sluice.console.status.report import DestinationStatus


@dataclasses.dataclass(frozen=True)
class Picture:
    """The state of the demo at one moment. `rows` has for each table the number of rows in MySQL, the number of rows in the lake, and the
    Delta version, which is -1 while the Delta table does not exist. `transactions` is the number of transactions that the traffic has
    committed.
    """

    rows: Mapping[str, tuple[int, int, int]]
    engine: DestinationStatus
    runs: RunSummary
    transactions: int


def take(
    connection: pymysql.Connection[Any],
    lake: Mapping[str, DemoTable],
    runs: RunLog,
    engine: DestinationStatus,
    transactions: int,
) -> Picture:
    """Returns the current state of the demo. Counting the rows in MySQL and in the lake takes a few milliseconds per table while the tables
    are small.
    """
    rows = {}
    with contextlib.closing(connection.cursor()) as cursor:
        for name, table in lake.items():
            cursor.execute(f"SELECT COUNT(*) FROM {DATABASE}.{name}")
            counted = cursor.fetchone()
            rows[name] = (int(counted[0]) if counted else 0, table.row_count(), table.version)
    return Picture(rows, engine, runs.read(), transactions)


def draw(picture: Picture, url: str) -> Group:
    """Formats the state of the demo as the live view for the terminal. `url` is the address of Dagster's UI."""
    shown = Table("table", title=f"shop: {picture.transactions} transactions so far", title_justify="left")
    for column in ("rows in MySQL", "rows in Delta", "behind", "Delta version"):
        shown.add_column(column, justify="right")
    for name, (source, target, version) in picture.rows.items():
        behind = source - target
        colour = "green" if behind == 0 else "yellow"
        newest = str(version) if version >= 0 else "none"
        shown.add_row(name, f"{source:,}", f"{target:,}", Text(f"{behind:,}", colour), newest)
    engine, runs = picture.engine, picture.runs
    state = Text.assemble(
        ("engine ", "dim"),
        (engine.state, "green" if engine.state == "RUNNING" else "yellow"),
        f" {engine.reason}   lag {engine.lag_seconds:.0f} s   acked up to {engine.cursor or 'nothing yet'}",
    )
    ran = Text(f"runs {runs.runs}   batches merged {runs.batches}   last run {runs.last}")
    where = Text.assemble("Dagster's UI: ", (url, "bold cyan underline"), "   (Ctrl-C stops everything)")
    return Group(shown, state, ran, where)


def example_query(conf: Path) -> str:
    """Returns a shell command that queries the lake of this demo, for the user to copy."""
    question = f"SELECT status, count(*) AS orders FROM {DATABASE}.orders GROUP BY status"
    usual = conf == open_home(None).conf
    command = "sluice sql --demo" if usual else f"SLUICE_CONF={conf} sluice sql"
    return f'query a table, for example:\n  {command} "{question}"'
