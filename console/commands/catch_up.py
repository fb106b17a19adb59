"""Defines `sluice catch-up` and its options. `console.acts.catch_up` implements the command."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sluice.console.commands.options import JsonOption, config_now, errors, screen


def catch_up(
    destinations: Annotated[
        list[str] | None, typer.Argument(metavar="[DESTINATION]...", help="Destinations to wait for. Default: all.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.0, metavar="SECONDS", help="Seconds after which the command gives up. 0: no limit."
        ),
    ] = 0.0,
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="TIME|GTID",
            help=(
                "Exit when the lake has every change before this time (ISO with a zone, or -10m), or the transactions of this "
                "GTID set. The lake may then also have later changes."
            ),
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """For cron or CI: wait until all changes up to the current end of the source's binlog are merged, then exit. If Sluice does not run,
    the command starts the engines, Spark and Dagster's daemon, and stops them before it exits. Exit code 1 if a table has stopped, or if
    changes are not merged within --timeout.
    """
    from sluice.cdc_engine.config import conf_dir  # noqa: PLC0415
    from sluice.console.acts.catch_up import catch_up as act  # noqa: PLC0415
    from sluice.console.stack import signals  # noqa: PLC0415

    def say(sentence: str) -> None:
        (errors if as_json else screen).print(sentence, markup=False, highlight=False, soft_wrap=True)

    with signals.heard():
        found = act(config_now(), conf_dir(), destinations or (), seconds_max=timeout, say=say, until=until)
    if as_json:
        screen.print_json(json.dumps({"destinations": [each.to_json() for each in found]}))
    raise typer.Exit(1 if any(each.stopped for each in found) else 0)
