"""Defines `sluice maintain` and its options. `orchestration.run.maintain_run` implements the command."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from sluice.console.commands.options import DestinationArgument, JsonOption, config_now, errors, named, screen

# The limit of `maintenance.retention_hours` in conf/. Not imported, because the import of the settings would delay `--help`.
HOURS_MAX = 876_000.0


def maintain(  # noqa: PLR0917  one argument per option
    destination: DestinationArgument,
    tables: Annotated[
        str,
        typer.Option(
            "--tables",
            metavar="DATABASE.TABLE,…",
            help="Only these tables. Default: all tables of the destination in the lake.",
        ),
    ] = "",
    optimize: Annotated[
        bool,
        typer.Option(
            "--optimize",
            help="Rewrite files of all tables, including tables with few small files and few deleted rows.",
        ),
    ] = False,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Delete files that no table version within the retention needs.")
    ] = False,
    retention_hours: Annotated[
        float | None,
        typer.Option(
            "--retention-hours",
            min=0.0,
            max=HOURS_MAX,
            help="Retention in hours for --vacuum. Default: the value in conf/.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rewrite and delete files of a destination's Delta tables. While a table is rewritten, the destination's merges wait. Without options:
    rewrite the files of tables with many small files or many deleted rows.
    """
    from sluice.console.lake.operation import ports_of_command  # noqa: PLC0415
    from sluice.console.source.query import require_destination  # noqa: PLC0415
    from sluice.orchestration.run.maintain_run import MaintainRequest, run_maintenance  # noqa: PLC0415

    config = config_now()
    require_destination(config, destination)
    request = MaintainRequest(
        destination=destination,
        tables=named(tables),
        optimize=optimize or not vacuum,
        force=optimize,
        vacuum=vacuum,
        retention_hours=retention_hours,
    )
    with ports_of_command() as ports:
        made = run_maintenance(ports, config, request, _say)
    if as_json:
        screen.print_json(json.dumps(made.to_json()))
    else:
        screen.print(_shown(made.to_json()))
    raise typer.Exit(1 if made.failed else 0)


def _shown(made: dict[str, Any]) -> Table:
    shown = Table("table", "done", "files", "bytes", "marked rows", "removed", "why")
    for each in made["tables"]:
        pairs = [f"{each['before'][name]} → {each['after'][name]}" for name in ("files", "bytes", "deleted")]
        shown.add_row(each["name"], each["act"], *pairs, str(each["removed_files"]), each["reason"])
    for name, why in sorted(made["failed"].items()):
        shown.add_row(name, "failed", "", "", "", "", why)
    return shown


def _say(sentence: str) -> None:
    errors.print(sentence, markup=False, highlight=False, soft_wrap=True)
