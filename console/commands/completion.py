"""Completes the names of destinations and tables in the shell. `main` calls `complete_names` when a shell requests completions.

The names come from conf/ and from the destinations' lists of captured tables, so completions need no connection to a source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DESTINATION_PARAMETERS = {"destination", "destinations", "name"}
TABLE_PARAMETERS = {"table", "tables", "rebuilt", "into"}

Names = Callable[[str], list[str]]


def complete_names(command: Any) -> None:
    """Adds completions to those parameters of a command and its subcommands that are names of destinations or tables. A parameter that has
    a completion already keeps it.
    """
    for parameter in getattr(command, "params", ()):
        of_table = (parameter.metavar or "").startswith("DATABASE.TABLE") or parameter.name in TABLE_PARAMETERS
        if of_table:
            _complete(parameter, table_names)
        elif parameter.name in DESTINATION_PARAMETERS:
            _complete(parameter, destination_names)
    for each in getattr(command, "commands", {}).values():
        complete_names(each)


def destination_names(incomplete: str) -> list[str]:
    """Returns the destinations and groups in conf/ that begin with `incomplete`. The list is empty if conf/ cannot be read."""
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.cdc_engine.config.conf_files import read_conf_files  # noqa: PLC0415
    from sluice.cdc_engine.errors import SluiceError  # noqa: PLC0415

    try:
        return [name for name in read_conf_files(conf_dir()).destinations if name.startswith(incomplete)]
    except (SluiceError, OSError):
        return []


def table_names(incomplete: str) -> list[str]:
    """Returns the captured tables of all destinations, as "database.table", whose names begin with `incomplete`. If `incomplete` is a
    comma-separated list, completes the last name in the list. The result is empty if conf/ or a list of tables cannot be read.
    """
    from sluice.cdc_engine.config import load_config  # noqa: PLC0415
    from sluice.cdc_engine.errors import SluiceError  # noqa: PLC0415
    from sluice.cdc_engine.table_meta.table_list.reading import read_tables  # noqa: PLC0415

    before, comma, last = incomplete.rpartition(",")
    found: set[str] = set()
    try:
        config = load_config()
        for name in config.destinations:
            found |= {table.name for table in read_tables(config.destination_dir(name))}
    except (SluiceError, OSError):
        return []
    return [f"{before}{comma}{name}" for name in sorted(found) if name.startswith(last)]


def _complete(parameter: Any, names: Names) -> None:
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    if getattr(parameter, "_custom_shell_complete", None) is None:
        parameter.shell_complete = lambda _context, incomplete: [CompletionItem(each) for each in names(incomplete)]
