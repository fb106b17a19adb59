"""The subcommands of `sluice position`; `console.acts.position` does the work."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from console.commands.options import JsonOption, config_now, errors, screen

position_app = typer.Typer(name="position", help="Show or set the position of a destination.", no_args_is_help=True)


@position_app.command("show")
def position_show(destination: Annotated[str, typer.Argument()] = "", as_json: JsonOption = False) -> None:
    """Show the acked position of a destination, or of all."""
    from console.acts.position import render_positions, saved_positions  # noqa: PLC0415

    positions = saved_positions(config_now(), destination)
    screen.print_json(json.dumps(positions)) if as_json else screen.print(render_positions(positions))


@position_app.command("set")
def position_set(  # noqa: PLR0917  one argument an option
    destination: str,
    place: Annotated[
        str, typer.Argument(metavar="FILE[:OFFSET]", help="binlog file; inside a transaction its begin is meant")
    ] = "",
    gtid: Annotated[str, typer.Option("--gtid", metavar="SET", help="executed GTID set")] = "",
    latest: Annotated[bool, typer.Option("--latest", help="the source's end, now")] = False,
    earliest: Annotated[bool, typer.Option("--earliest", help="the begin of the oldest file there is")] = False,
    moment: Annotated[
        str,
        typer.Option("--time", metavar="TIME", help="the first change of then or later: ISO with its zone, or -10m"),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    as_json: JsonOption = False,
) -> None:
    """Set the position from which a stopped destination goes on; changes before it are not read again."""
    from console.acts.position import move, request  # noqa: PLC0415

    wanted = request(place, gtid, latest=latest, moment=moment, earliest=earliest)

    def asked(question: str) -> bool:
        return yes or typer.confirm(question, err=as_json)

    say = errors.print if as_json else screen.print
    position = move(config_now(), destination, wanted, confirm=asked, say=say)
    if as_json:
        screen.print_json(json.dumps({"destination": destination, "position": position.to_json()}))
