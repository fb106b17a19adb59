"""Defines the subcommands of `sluice position`. `console.acts.position` implements them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sluice.console.commands.options import (
    AnyDestinationArgument,
    DestinationArgument,
    JsonOption,
    YesOption,
    config_now,
    errors,
    screen,
)

position_app = typer.Typer(name="position", help="Show or set the position of a destination.", no_args_is_help=True)


@position_app.command("show")
def position_show(destination: AnyDestinationArgument = "", as_json: JsonOption = False) -> None:
    """Show the position up to which the changes of a destination, or of all destinations, are acked."""
    from sluice.console.acts.position import render_positions, saved_positions  # noqa: PLC0415

    positions = saved_positions(config_now(), destination)
    screen.print_json(json.dumps(positions)) if as_json else screen.print(render_positions(positions))


@position_app.command("set")
def position_set(  # noqa: PLR0917  one argument per option
    destination: DestinationArgument,
    position: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:OFFSET]",
            help=(
                "Binlog file, or binlog file and offset. An offset inside a transaction means the "
                "beginning of that transaction."
            ),
        ),
    ] = "",
    gtid: Annotated[
        str,
        typer.Option("--gtid", metavar="SET", help="Executed GTID set: continue after the transactions of this set."),
    ] = "",
    latest: Annotated[
        bool, typer.Option("--latest", help="Continue at the current end of the source's binlog.")
    ] = False,
    earliest: Annotated[
        bool,
        typer.Option("--earliest", help="Continue at the beginning of the oldest binlog file that the source has."),
    ] = False,
    moment: Annotated[
        str,
        typer.Option(
            "--time",
            metavar="TIME",
            help=(
                "ISO time with a zone, or -10m (ten minutes ago): start at the first change that committed at this time or "
                "later."
            ),
        ),
    ] = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set the position at which a stopped destination continues. Changes before this position are not read."""
    from sluice.console.acts.position import move, request  # noqa: PLC0415

    wanted = request(position, gtid, latest=latest, moment=moment, earliest=earliest)

    def confirmed(question: str) -> bool:
        return yes or typer.confirm(question, err=as_json)

    say = errors.print if as_json else screen.print
    found = move(config_now(), destination, wanted, confirm=confirmed, say=say)
    if as_json:
        screen.print_json(json.dumps({"destination": destination, "position": found.to_json()}))
