"""Defines the subcommands of `sluice source`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from sluice.console.commands.options import DestinationArgument, JsonOption, config_now, screen

source_app = typer.Typer(
    name="source",
    help="The sources of a destination: the source that is read, and the standby sources.",
    no_args_is_help=True,
)


@source_app.command("list")
def source_list(destination: DestinationArgument, as_json: JsonOption = False) -> None:
    """Show the sources of a destination: which source is read, and which sources could take over at the current position."""
    from sluice.console.source.switch import listed, render  # noqa: PLC0415

    sources = listed(config_now(), destination)
    if as_json:
        screen.print_json(json.dumps([dataclasses.asdict(each) for each in sources]))
    else:
        screen.print(render(sources))


@source_app.command("switch")
def source_switch(
    destination: DestinationArgument,
    to: Annotated[
        int,
        typer.Option("--to", metavar="N", min=0, help="Number of the source in `source list`. 0: the next source."),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Switch a destination to another source. Refused if the stream could not continue from that source."""
    from sluice.console.source.switch import switch  # noqa: PLC0415

    now = switch(config_now(), destination, to)
    if as_json:
        screen.print_json(json.dumps(dataclasses.asdict(now)))
    else:
        screen.print(
            f"{destination} reads {now.address} from now on; a running engine switches with its next heartbeat"
        )
