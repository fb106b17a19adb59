"""Provides what all benchmarks share: medians, the description of the machine, and the output as table and JSON."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from rich.table import Table

from sluice.console.commands.screen import standard_output


def median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


def machine() -> dict[str, Any]:
    """Returns the properties of the machine that affect the figures. The machine's name is not among them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": os.cpu_count(), "memory_gb": round(memory / 2**30), "python": platform.python_version()}


def write_json(path: Path | None, record: dict[str, Any]) -> None:
    """Writes the record as JSON, with the machine and the date. Does nothing if `path` is None."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        day = dt.datetime.now(dt.UTC).date().isoformat()
        path.write_text(json.dumps({**record, "machine": machine(), "day": day}, indent=2) + "\n")


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else f"{value}" for value in row.values()))
    standard_output().print(table)
