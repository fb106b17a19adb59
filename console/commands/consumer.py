"""Defines the subcommands of `sluice consumer`. `cdc_engine.acts.consumer` implements them."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.console.commands.options import DestinationArgument, YesOption, config_now, screen

consumer_app = typer.Typer(
    name="consumer",
    help="Clients and brokers that read the stream in addition to the lake. `status` lists them.",
    no_args_is_help=True,
)


@consumer_app.command("forget")
def consumer_forget(
    destination: DestinationArgument,
    client_id: Annotated[int, typer.Argument(metavar="ID", help="Number of the consumer, as `status` shows it.")],
    yes: YesOption = False,
) -> None:
    """Delete the cursor of a client or broker. If this client or broker connects again, it starts at the oldest change in the window."""
    from sluice.cdc_engine.acts.consumer import consumer_of, forget  # noqa: PLC0415
    from sluice.console.source.query import engine_dir  # noqa: PLC0415

    directory = engine_dir(config_now(), destination)
    position = consumer_of(directory, client_id).cursor
    question = (
        f"Remove consumer {client_id} of {destination}? The consumer never gets the changes after {position} "
        "that are no longer in the window."
    )
    if not yes and not typer.confirm(question):
        screen.print("nothing was changed")
        return
    forget(directory, client_id)
    screen.print(
        f"{destination}: the engine removes consumer {client_id} now if the engine runs, otherwise at its next start",
        markup=False,
    )
