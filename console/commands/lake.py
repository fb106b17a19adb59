"""`sluice lake` and `sluice quarantine`: whose the Delta tables are, and the values that could not be decoded."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from console.commands.options import JsonOption, config_now, screen

lake_app = typer.Typer(name="lake", help="Whose the Delta tables of a destination are.", no_args_is_help=True)


@lake_app.command("show")
def lake_show(destination: str, as_json: JsonOption = False) -> None:
    """Show the Delta tables of a destination: version, owner, epoch, path."""
    from cdc_engine.destination_files import read_ledger  # noqa: PLC0415
    from console.lake.tables import DestinationLake, render  # noqa: PLC0415

    config = config_now()
    tables = DestinationLake(config, destination).tables()
    if as_json:
        screen.print_json(json.dumps([dataclasses.asdict(table) for table in tables]))
    else:
        screen.print(render(tables, read_ledger(config.destination_dir(destination)).ledger_id))


@lake_app.command("accept")
def lake_accept(
    destination: str,
    table: Annotated[str, typer.Argument(metavar="DATABASE.TABLE")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Take a Delta table as it is now that runs refuse: one that is gone, restored, replaced, or another destination's."""
    from console.lake.tables import accept  # noqa: PLC0415

    accept(config_now(), destination, table, confirm=(lambda _: True) if yes else typer.confirm, say=screen.print)


quarantine_app = typer.Typer(
    name="quarantine", help="Values that could not be decoded, and their way back.", no_args_is_help=True
)
TableOption = Annotated[str, typer.Option("--table", metavar="DATABASE.TABLE", help="only of this table")]


@quarantine_app.command("list")
def quarantine_list(destination: str, table: TableOption = "", as_json: JsonOption = False) -> None:
    """Show the values of a destination that could not be decoded: NULL stands in their rows."""
    from console.lake.quarantine import quarantined, render, to_json  # noqa: PLC0415

    records = quarantined(config_now(), destination, table)
    screen.print_json(json.dumps([to_json(each) for each in records])) if as_json else screen.print(render(records))


@quarantine_app.command("replay")
def quarantine_replay(destination: str, table: TableOption = "", as_json: JsonOption = False) -> None:
    """Decode them again, as conf/ says by now, and put back what can be; exit code 1 while some are still refused."""
    from console.lake.quarantine import render_replayed, replay  # noqa: PLC0415

    results = replay(config_now(), destination, table)
    shown = json.dumps([dataclasses.asdict(each) for each in results])
    screen.print_json(shown) if as_json else screen.print(render_replayed(results))
    raise typer.Exit(1 if any(each.refused for each in results) else 0)
