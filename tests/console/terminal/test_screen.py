"""Tests how the commands print JSON."""

from __future__ import annotations

import io
import json

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
