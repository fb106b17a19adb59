"""Tests how the commands print JSON."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Group
from rich.table import Table

from sluice.console.commands.screen import Screen

FOUND = {"name": "größe [bold]", "rows": [1, None]}


def test_json_for_a_program_is_plain() -> None:
    printed = io.StringIO()
    Screen(file=printed, width=20).print_json(json.dumps(FOUND))
    assert printed.getvalue() == json.dumps(FOUND, indent=2, ensure_ascii=False) + "\n"


def test_json_on_a_terminal_has_colors() -> None:
    printed = io.StringIO()
    Screen(file=printed, force_terminal=True).print_json(json.dumps(FOUND))
    assert "\x1b[" in printed.getvalue()


@pytest.mark.found
def test_a_narrow_terminal_shows_whole_names() -> None:
    """Defect 1157: on 80 columns, tables showed long names, paths and positions only as far as they fit, and then `…`."""
    names = ["shop.orders_of_the_customers_2025", "shop.orders_of_the_customers_2026"]
    for made in (lambda table: table, lambda table: Group(table, "the first rows")):
        printed, table = io.StringIO(), Table("table", "path")
        for name in names:
            table.add_row(name, f"/lake/{name}")
        Screen(file=printed, width=40).print(made(table))
        assert "…" not in printed.getvalue()
        first = "".join(line.split("│")[1].strip() for line in printed.getvalue().splitlines() if line.startswith("│"))
        assert first == "".join(names)
