"""Defines the subcommands of `sluice lake`, which show, take over, replace or register Delta tables, and of `sluice quarantine`, for values
that could not be decoded.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from sluice.console.commands.options import DestinationArgument, JsonOption, YesOption, config_now, errors, screen

lake_app = typer.Typer(
    name="lake", help="Show, take over, replace or register the Delta tables of a destination.", no_args_is_help=True
)


@lake_app.command("show")
def lake_show(destination: DestinationArgument, as_json: JsonOption = False) -> None:
    """Show the Delta tables of a destination: version, owner, epoch, path."""
    from sluice.cdc_engine.destination_files import read_ledger  # noqa: PLC0415
    from sluice.console.lake.tables import DestinationLake, render  # noqa: PLC0415

    config = config_now()
    tables = DestinationLake(config, destination).tables()
    if as_json:
        screen.print_json(json.dumps([table.to_json() for table in tables]))
    else:
        screen.print(render(tables, read_ledger(config.destination_dir(destination)).ledger_id))


@lake_app.command("accept")
def lake_accept(
    destination: DestinationArgument,
    table: Annotated[
        str, typer.Argument(metavar="DATABASE.TABLE", help="A captured table, by its name in the source.")
    ],
    as_it_is: Annotated[
        bool, typer.Option("--as-it-is", help="Do not re-snapshot the table. Rows that it lacks stay missing.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Take over a Delta table that runs refuse (missing, restored, replaced, or of another owner), report which changes it lacks, and
    re-snapshot it.
    """
    from sluice.console.lake.accept import Acceptance, accept  # noqa: PLC0415

    def say(sentence: str) -> None:
        screen.print(sentence, markup=False, highlight=False, soft_wrap=True)

    acceptance = Acceptance(destination=destination, name=table, as_it_is=as_it_is)
    accept(config_now(), acceptance, confirm=(lambda _: True) if yes else typer.confirm, say=say)


@lake_app.command("swap")
def lake_swap(  # noqa: PLR0917  one argument per option
    destination: DestinationArgument,
    table: Annotated[
        str, typer.Argument(metavar="DATABASE.TABLE", help="A captured table, by its name in the source.")
    ],
    rebuilt: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="DATABASE.TABLE",
            help="The rebuilt table, which `sluice backfill --into` made from the table.",
        ),
    ],
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Show what the command would do, or why it refuses to; change nothing.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Replace a table's rows with the rows of a rebuilt table. Exit code 1 if the command refuses this, for example because the rebuilt
    table lacks changes.
    """
    from sluice.console.lake import swap as act  # noqa: PLC0415
    from sluice.orchestration.run.rows.swap import SwapRequest  # noqa: PLC0415

    config, request = config_now(), SwapRequest(destination=destination, table=table, rebuilt=rebuilt)
    made = act.plan(config, request)
    record = made.to_json()
    if not as_json:
        screen.print(act.render(made))
    if not (only_plan or made.refused):
        if not yes and not typer.confirm(
            f"replace the rows of {table} by the {made.rows_after} rows of {rebuilt}?", err=as_json
        ):
            raise typer.Exit(1)
        record["version_after"] = act.run(config, request, errors.print)
    if as_json:
        screen.print_json(json.dumps(record))
    elif "version_after" in record:
        screen.print(f"{table} has the rows of the past state in version {record['version_after']}")
    raise typer.Exit(1 if made.refused else 0)


@lake_app.command("register")
def lake_register(destination: DestinationArgument, as_json: JsonOption = False) -> None:
    """Register a destination's Delta tables that are missing in the catalog of conf/, for example because another program removed them from
    the catalog. Exit code 1 if a table or view could not be registered.
    """
    from sluice.console.lake.register import register  # noqa: PLC0415

    record = register(config_now(), destination)
    if as_json:
        screen.print_json(record.to_text())
    else:
        for sentence in record.troubles:
            errors.print(sentence, markup=False, highlight=False, soft_wrap=True)
        views = sum(entry.over is not None for entry in record.tables.values())
        also = f" with {views} views" if views else ""
        screen.print(f"{len(record.tables) - views} tables of {destination} are registered in the catalog{also}")
    raise typer.Exit(1 if record.troubles else 0)


quarantine_app = typer.Typer(
    name="quarantine",
    help="Values that could not be decoded: list these values, or write them into the lake.",
    no_args_is_help=True,
)
TableOption = Annotated[str, typer.Option("--table", metavar="DATABASE.TABLE", help="Only values of this table.")]


@quarantine_app.command("list")
def quarantine_list(destination: DestinationArgument, table: TableOption = "", as_json: JsonOption = False) -> None:
    """Show the values of a destination that could not be decoded and are NULL in the lake."""
    from sluice.console.lake.quarantine import quarantined, render, to_json  # noqa: PLC0415

    records = quarantined(config_now(), destination, table)
    # Users may have added columns of any type to the quarantine table. Values that JSON does not have are shown as text.
    shown = json.dumps([to_json(each) for each in records], default=str)
    screen.print_json(shown) if as_json else screen.print(render(records))


@quarantine_app.command("replay")
def quarantine_replay(destination: DestinationArgument, table: TableOption = "", as_json: JsonOption = False) -> None:
    """Decode quarantined values again with the current conf/, and write the decoded values to their rows. Exit code 1 if a value cannot be
    decoded.
    """
    from sluice.console.lake.quarantine import render_replayed, replay  # noqa: PLC0415

    results = replay(config_now(), destination, table)
    shown = json.dumps([dataclasses.asdict(each) for each in results])
    screen.print_json(shown) if as_json else screen.print(render_replayed(results))
    raise typer.Exit(1 if any(each.refused for each in results) else 0)
